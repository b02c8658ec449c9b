package api

import (
	"cmp"
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
	// report (event.TaskNode): a node's id, and behind a slash more about which of
	// its data directories it is.
	Members() []string
	// Spec returns what a task is told to do (event.Content.Spec): to erase a
	// message or, for a zero id, a key.
	Spec(id event.ID, queue, key, reason string) []byte
}

// Erasable is what there is to erase.
type Erasable struct {
	Messages, Live, Contents int64
	IDs                      []event.ID // of some of the messages, one each
}

// erasedOn tells where an erasure is carried out: on which of the members, or,
// once it has ended, on which nodes it was.
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
		told := wire.TaskNode{Node: node, Complete: at[name] > 0, At: wire.Time(at[name])}
		// A directory that was wiped meanwhile is the same node to whoever asks.
		if i := slices.IndexFunc(out, func(n wire.TaskNode) bool { return n.Node == node }); i >= 0 {
			out[i] = told
		} else {
			out = append(out, told)
		}
	}
	slices.SortFunc(out, func(a, b wire.TaskNode) int { return strings.Compare(a.Node, b.Node) })
	return out
}

// Limits of what an operator says.
const (
	maxReason = 1024
	// eraseNames is how many messages a dry run names.
	eraseNames = 100
)

// eraseMessage answers POST /v1/messages/{id}/erase.
func (s *Server) eraseMessage(q *request) error {
	id, err := q.messageID()
	if err != nil {
		return err
	}
	if err := q.allow(); err != nil {
		return err
	}
	var in wire.EraseRequest
	if err := q.decode(&in, false, false); err != nil {
		return err
	}
	if err := eraseReason(in.Reason, in.DryRun); err != nil {
		return err
	}
	if err := s.barrier(q.Context()); err != nil {
		return err
	}
	is, err := s.deps.Eraser.Message(q.Context(), id)
	if err != nil {
		return err
	}
	if is.Messages == 0 {
		// Since the first answer history may have let go of it.
		if again, err := q.mayRepeat(); err != nil || !again || in.DryRun {
			return cmp.Or(err, error(messageNotFound(id)))
		}
	}
	if in.DryRun {
		return q.erasable(is)
	}
	return q.erase("", is.Messages, s.deps.Eraser.Spec(id, "", "", in.Reason))
}

// eraseKey answers POST /v1/queues/{queue}/erase.
func (s *Server) eraseKey(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow(); err != nil {
		return err
	}
	var in wire.EraseKeyRequest
	if err := q.decode(&in, false, false); err != nil {
		return err
	}
	if in.Key == "" {
		return bad("key", "key is needed: 1 to %d bytes", event.MaxKeyBytes)
	}
	if err := within("key", in.Key, event.MaxKeyBytes); err != nil {
		return err
	}
	if err := eraseReason(in.Reason, in.DryRun); err != nil {
		return err
	}
	if err := s.barrier(q.Context()); err != nil {
		return err
	}
	// Of a queue that was deleted there may be messages in the log.
	_, there := s.deps.State.Queue(name)
	again := false
	if !there && !in.DryRun {
		if again, err = q.mayRepeat(); err != nil {
			return err
		}
	}
	if in.DryRun || !there && !again {
		is, err := s.deps.Eraser.Key(q.Context(), name, in.Key)
		if err != nil {
			return err
		}
		if !there && is.Messages == 0 {
			return queueNotFound(name)
		}
		if in.DryRun {
			return q.erasable(is)
		}
	}
	return q.erase(name, 0, s.deps.Eraser.Spec(event.ID{}, name, in.Key, in.Reason))
}

// eraseReason refuses an erasure without a reason: it is all that is left to tell
// why something is not there.
func eraseReason(reason string, dry bool) error {
	if reason == "" && !dry {
		return bad("reason", "reason is needed: 1 to %d bytes, which are kept", maxReason)
	}
	return within("reason", reason, maxReason)
}

func (q *request) erasable(is Erasable) error {
	out := wire.Erasable{DryRun: true, Messages: is.Messages, Live: is.Live, Contents: is.Contents, MessageIDs: []string{}}
	for _, id := range is.IDs[:min(len(is.IDs), eraseNames)] {
		out.MessageIDs = append(out.MessageIDs, id.String())
	}
	return q.answer(http.StatusOK, &out)
}

// erase begins the task.
func (q *request) erase(queue string, total int64, spec []byte) error {
	res, err := q.propose(&event.Command{CreateTask: &event.CreateTask{
		Kind: event.TaskErase, Queue: queue, Total: total, Content: event.EncodeContent(&event.Content{Spec: spec}),
	}})
	if err != nil {
		return err
	}
	return q.accepted(res.ID)
}
