package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/event"
)

// erasedOn returns the members that carry out an erasure, or, once it has ended, the nodes
// that did.
func (s *Server) erasedOn(t *event.TaskView) []wire.TaskNode {
	at := map[string]int64{}
	var names []string
	for _, n := range t.Nodes {
		at[n.Node] = n.At
		names = append(names, n.Node)
	}
	if t.Status == event.TaskRunning {
		names = s.deps.Eraser.Members()
	}
	out := []wire.TaskNode{}
	for _, name := range names {
		node, _, _ := strings.Cut(name, "/")
		n := wire.TaskNode{Node: node, Complete: at[name] > 0, At: wire.Time(at[name])}
		// A directory that was wiped meanwhile is the same node to a user.
		if i := slices.IndexFunc(out, func(n wire.TaskNode) bool { return n.Node == node }); i >= 0 {
			out[i] = n
		} else {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b wire.TaskNode) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// maxReason bounds the reason of an erasure.
const maxReason = 1024

// eraseMessage answers POST /v1/messages/{id}/erase.
func (s *Server) eraseMessage(q *request) error {
	var body wire.EraseRequest
	in := q.read()
	id := in.pathID("id")
	in.body(&body)
	in.do(func() error { return eraseReason(body.Reason, body.DryRun) })
	in.barrier()
	if in.err != nil {
		return in.err
	}
	return q.erase(&erasure.Spec{Message: id.String(), Reason: body.Reason}, body.DryRun)
}

// eraseKey answers POST /v1/queues/{queue}/erase.
func (s *Server) eraseKey(q *request) error {
	var body wire.EraseKeyRequest
	in := q.read()
	name := in.queue()
	in.body(&body)
	if body.Key == "" {
		in.refuse("key", "key is needed: 1 to %d bytes", event.MaxKeyBytes)
	}
	in.do(func() error { return within("key", body.Key, event.MaxKeyBytes) })
	in.do(func() error { return eraseReason(body.Reason, body.DryRun) })
	in.barrier()
	if in.err != nil {
		return in.err
	}
	return q.erase(&erasure.Spec{Queue: name, Key: body.Key, Reason: body.Reason}, body.DryRun)
}

// eraseReason refuses an erasure without a reason: nothing else is left to explain the gap.
func eraseReason(reason string, dry bool) error {
	if reason == "" && !dry {
		return bad("reason", "reason is needed: 1 to %d bytes, which are kept", maxReason)
	}
	return within("reason", reason, maxReason)
}

// erase begins a task, or counts what it would erase.
func (q *request) erase(spec *erasure.Spec, dry bool) error {
	var is erasure.Count
	res, err := q.proposeFresh("", "", func() (_ *event.Command, err error) {
		_, exists := q.s.deps.State.Queue(spec.Queue)
		if !exists || dry { // to count a key is expensive
			if is, err = q.s.deps.Eraser.Count(q.Context(), spec); err != nil {
				return nil, err
			}
			if !exists && is.Messages == 0 {
				return nil, nothingToErase(spec)
			}
		}
		if dry {
			return nil, nil
		}
		c := &event.CreateTask{Kind: event.TaskErase, Queue: spec.Queue, Content: event.EncodeContent(&event.Content{Spec: spec.Encode()})}
		if spec.Message != "" {
			c.Total = is.Messages
		}
		return &event.Command{CreateTask: c}, nil
	})
	if err != nil {
		return err
	}
	if !dry {
		return q.accepted(res.ID)
	}
	out := wire.Erasable{DryRun: true, Messages: is.Messages, Live: is.Live, Contents: is.Contents, MessageIDs: []string{}}
	for _, id := range is.IDs {
		out.MessageIDs = append(out.MessageIDs, id.String())
	}
	return q.answer(http.StatusOK, &out)
}

func nothingToErase(spec *erasure.Spec) *event.Problem {
	if spec.Message != "" {
		id, _ := event.ParseID(spec.Message)
		return messageNotFound(id)
	}
	return queueNotFound(spec.Queue)
}
