package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Eraser knows what there is to erase.
type Eraser interface {
	// Message counts what there is of a message, by any id that it has or had.
	Message(ctx context.Context, id event.ID) (Erasable, error)
	// Key counts what there is of all messages of a key that were in a queue. It
	// may read the whole log.
	Key(ctx context.Context, queue, key string) (Erasable, error)
	// Members returns the members of the cluster by the names under which they
	// report (event.TaskNode): a node's id, a slash, and which of its data
	// directories it is.
	Members() []string
	// Spec returns a task's instructions (event.Content.Spec): to erase a
	// message or, for a zero id, a key.
	Spec(id event.ID, queue, key, reason string) []byte
}

// Erasable is what there is to erase.
type Erasable struct {
	Messages, Live, Contents int64
	IDs                      []event.ID // of some of the messages, one each
}

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

// Limits of an erasure's request and answer.
const (
	maxReason = 1024
	// eraseNames is how many messages a dry run names.
	eraseNames = 100
)

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
	return q.erase("", body.DryRun, s.deps.Eraser.Spec(id, "", "", body.Reason), func() (Erasable, error) {
		is, err := s.deps.Eraser.Message(q.Context(), id)
		if err == nil && is.Messages == 0 {
			err = messageNotFound(id)
		}
		return is, err
	})
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
	return q.erase(name, body.DryRun, s.deps.Eraser.Spec(event.ID{}, name, body.Key, body.Reason), func() (is Erasable, err error) {
		_, exists := s.deps.State.Queue(name)
		if !exists || body.DryRun { // the log may have messages of a queue that was deleted
			is, err = s.deps.Eraser.Key(q.Context(), name, body.Key)
		}
		if err == nil && !exists && is.Messages == 0 {
			err = queueNotFound(name)
		}
		if !body.DryRun {
			is.Messages = 0 // unknown
		}
		return is, err
	})
}

// eraseReason refuses an erasure without a reason: nothing else is left to explain the gap.
func eraseReason(reason string, dry bool) error {
	if reason == "" && !dry {
		return bad("reason", "reason is needed: 1 to %d bytes, which are kept", maxReason)
	}
	return within("reason", reason, maxReason)
}

// erase begins the task, or answers a dry run with what look finds.
func (q *request) erase(queue string, dry bool, spec []byte, look func() (Erasable, error)) error {
	if dry {
		is, err := look()
		if err != nil {
			return err
		}
		out := wire.Erasable{DryRun: true, Messages: is.Messages, Live: is.Live, Contents: is.Contents, MessageIDs: []string{}}
		for _, id := range is.IDs[:min(len(is.IDs), eraseNames)] {
			out.MessageIDs = append(out.MessageIDs, id.String())
		}
		return q.answer(http.StatusOK, &out)
	}
	res, err := q.proposeFresh("", "", func() (*event.Command, error) {
		is, err := look()
		return &event.Command{CreateTask: &event.CreateTask{
			Kind: event.TaskErase, Queue: queue, Total: is.Messages, Content: event.EncodeContent(&event.Content{Spec: spec}),
		}}, err
	})
	if err != nil {
		return err
	}
	return q.accepted(res.ID)
}
