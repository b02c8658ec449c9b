package api

import (
	"maps"
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
	out := map[string]wire.TaskNode{}
	for _, name := range names {
		// A directory that was wiped meanwhile is the same node to a user.
		node, _, _ := strings.Cut(name, "/")
		out[node] = wire.TaskNode{Node: node, Complete: at[name] > 0, At: wire.Time(at[name])}
	}
	return slices.SortedFunc(maps.Values(out), func(a, b wire.TaskNode) int {
		return strings.Compare(a.Node, b.Node)
	})
}

// maxReason bounds the reason of an erasure.
const maxReason = 1024

// eraseMessage answers POST /v1/messages/{id}/erase.
func (s *Server) eraseMessage(q *request) error {
	var body wire.EraseRequest
	id := q.read().pathID("id")
	q.body(&body)
	return q.erase(&erasure.Spec{Message: id.String(), Reason: body.Reason}, body.DryRun)
}

// eraseKey answers POST /v1/queues/{queue}/erase.
func (s *Server) eraseKey(q *request) error {
	var body wire.EraseKeyRequest
	name := q.read().queue()
	q.body(&body)
	if body.Key == "" {
		q.refuse("key", "key is needed: 1 to %d bytes", event.MaxKeyBytes)
	}
	q.do(func() error { return within("key", body.Key, event.MaxKeyBytes) })
	return q.erase(&erasure.Spec{Queue: name, Key: body.Key, Reason: body.Reason}, body.DryRun)
}

// erase creates a task, or counts what it would erase.
func (q *request) erase(spec *erasure.Spec, dry bool) error {
	if spec.Reason == "" && !dry { // nothing else is left to explain the gap
		q.refuse("reason", "reason is needed: 1 to %d bytes, which are kept", maxReason)
	}
	q.do(func() error { return within("reason", spec.Reason, maxReason) })
	q.barrier()
	var out wire.Erasable
	res := q.commitFresh("", "", func() (_ *event.Command, err error) {
		_, exists := q.s.deps.State.Queue(spec.Queue)
		if !exists || dry { // to count a key is expensive
			if out, err = q.s.deps.Eraser.DryRun(q.Context(), spec); err != nil {
				return nil, err
			}
			if !exists && out.Messages == 0 {
				return nil, nothingToErase(spec)
			}
		}
		if dry {
			return nil, nil
		}
		c := &event.CreateTask{
			Kind: event.TaskErase, Queue: spec.Queue,
			Content: event.EncodeContent(&event.Content{Spec: spec.Encode()}),
		}
		if spec.Message != "" {
			c.Total = out.Messages
		}
		return &event.Command{CreateTask: c}, nil
	})
	if q.err == nil && !dry {
		return q.accepted(res.ID)
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
