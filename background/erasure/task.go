package erasure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

const (
	chunkItems = 200
	chunkRefs  = 4096
)

// checkEvery is the pause between checks whether all nodes have reported, and whether
// what was skipped can be erased now.
var checkEvery = 200 * time.Millisecond

// maxIDs bounds the messages that a dry run names.
const maxIDs = 100

// DryRun returns what a spec would erase now. It may read the whole log.
func (e *Eraser) DryRun(ctx context.Context, spec *Spec) (out wire.Erasable, err error) {
	out.DryRun = true
	f, done, err := e.finder(ctx)
	if err != nil {
		return out, err
	}
	defer done()
	count := func(id event.ID) error {
		found, err := f.message(ctx, id, nil)
		if err != nil || len(found.ids) == 0 {
			return err
		}
		out.Messages++
		if len(out.MessageIDs) < maxIDs {
			out.MessageIDs = append(out.MessageIDs, found.ids[0].String())
		}
		for _, it := range found.items {
			out.Contents += int64(len(it.Refs))
			if it.Last.IsZero() {
				out.Live++
			}
		}
		return nil
	}
	if spec.Message != "" {
		id, err := event.ParseID(spec.Message)
		if err == nil {
			err = count(id)
		}
		return out, err
	}
	return out, f.key(ctx, spec.Queue, spec.Key, event.MaxID, count)
}

// RunTask is a task.Run: it returns nil when all contents are erased on all members.
func (e *Eraser) RunTask(ctx context.Context, t event.TaskView, raw []byte) (
	skipped int64, err error) {
	var spec Spec
	var id event.ID
	if err = json.Unmarshal(raw, &spec); err == nil && spec.Message != "" {
		id, err = event.ParseID(spec.Message)
	} else if err == nil && (spec.Queue == "" || spec.Key == "") {
		err = errors.New("neither a message nor a key of a queue")
	}
	if err != nil {
		err = fmt.Errorf("decode the task's spec: %w", err)
		return 0, event.Problemf(event.CodeInvalidArgument, "", "%s", err)
	}
	if !t.Sealed {
		if err := e.erase(ctx, t.ID, &spec, id); err != nil {
			return 0, err
		}
	}
	if err := e.awaitReports(ctx, t.ID); err != nil || e.Archive == nil {
		return 0, err
	}
	// Last, when nobody brings anything to the archive any more that is not erased.
	refs, err := e.refsOf(ctx, t.ID, e.Log.Head())
	if err != nil {
		return 0, err
	}
	return 0, e.Archive(ctx, refs)
}

// erase proposes the erasure of everything that a task names, and seals the task.
func (e *Eraser) erase(ctx context.Context, task event.ID, spec *Spec, id event.ID) error {
	e.finding.Lock()
	defer e.finding.Unlock()
	f, done, err := e.finder(ctx)
	if err != nil {
		return err
	}
	defer done()
	w := &work{
		finder: f, of: map[event.ID]event.ID{}, seen: map[event.ID][]event.Event{},
		chunk: event.Erase{Task: task, Why: event.EncodeContent(&event.Content{Why: spec.Reason})},
	}
	if err := w.all(ctx, spec, id); err != nil {
		return err
	}
	seal := &event.UpdateTask{ID: task, Op: event.TaskOpSeal}
	_, err = e.propose(ctx, &event.Command{UpdateTask: seal})
	return err
}

// propose decides a command. A refusal is an error that is tried again, not one that
// ends the task: the node that leads now has sealed it, or it was cancelled.
func (e *Eraser) propose(ctx context.Context, c *event.Command) (event.Result, error) {
	r, err := e.Propose(ctx, c)
	if err == nil && r.Problem != nil {
		err = errors.New(r.Problem.Detail)
	}
	return r, err
}

// awaitReports returns when every member has carried the task out: those that are members then.
func (e *Eraser) awaitReports(ctx context.Context, task event.ID) error {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		t, ok := e.State.Task(task)
		if !ok {
			return nil // dropped: it has ended
		}
		members := e.Members()
		if len(members) > 0 && !slices.ContainsFunc(members, func(m string) bool {
			return !reported(&t, m)
		}) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// work is one run through a task's messages.
type work struct {
	*finder
	chunk event.Erase // the next command
	refs  int         // in chunk
	again []event.ID  // messages to search again
	// of has every id of a message that was searched, and by which one.
	of map[event.ID]event.ID
	// seen are the events of these messages since the run began.
	seen map[event.ID][]event.Event
}

// all erases everything: again and again, until nothing has happened to any of the messages since
// it was looked at. A message may be acked, die or be replayed between that and its erasure; once
// that is decided it is gone, and only what was on its way can still come.
func (w *work) all(ctx context.Context, spec *Spec, id event.ID) error {
	from := w.whole.Head() + 1
	add := func(id event.ID) error { return w.add(ctx, id) }
	var err error
	if spec.Message != "" {
		err = add(id)
	} else {
		err = w.key(ctx, spec.Queue, spec.Key, w.chunk.Task, add)
	}
	for {
		if err == nil {
			err = w.flush(ctx)
		}
		if err != nil {
			return err
		}
		open := w.again
		w.again = nil
		head := w.e.Log.Head()
		for e, err := range w.e.Log.Events(ctx, from, head) {
			if err != nil {
				return err
			}
			by, ours := w.of[e.Subject]
			if !ours {
				continue
			}
			if e.IsMove() {
				w.of[e.ID] = by
			}
			met := *e
			met.Content.Bytes = nil // the log's, until the next block
			w.seen[by] = append(w.seen[by], met)
			own := e.Task == w.chunk.Task && (e.Type == event.Erased || e.Type == event.Discarded)
			if !own {
				open = append(open, by)
			}
		}
		if len(open) == 0 {
			return nil
		}
		from = head + 1
		slices.SortFunc(open, event.ID.Compare)
		for _, id := range slices.Compact(open) {
			if err = add(id); err != nil {
				break
			}
		}
	}
}

// add adds what there is to erase of a message.
func (w *work) add(ctx context.Context, id event.ID) error {
	found, err := w.message(ctx, id, w.seen[id])
	if err != nil {
		return err
	}
	for _, other := range append(found.ids, id) {
		w.of[other] = id
	}
	if found.more {
		w.again = append(w.again, id)
	}
	// What is live first: it must not be leased when the event that has its payload, as
	// that of an id that it had before, is erased.
	live := func(it event.EraseItem) bool { return it.Last.IsZero() }
	gone := slices.DeleteFunc(slices.Clone(found.items), live)
	items := slices.DeleteFunc(found.items, func(it event.EraseItem) bool { return !live(it) })
	for _, it := range append(items, gone...) {
		// An id comes once in a command: deciding skips a second one.
		same := func(o event.EraseItem) bool { return o.ID == it.ID }
		if slices.ContainsFunc(w.chunk.Items, same) || len(w.chunk.Items) >= chunkItems ||
			w.refs+len(it.Refs) > chunkRefs {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
		w.chunk.Items = append(w.chunk.Items, it)
		w.refs += len(it.Refs)
	}
	return nil
}

// flush proposes what was added.
func (w *work) flush(ctx context.Context) error {
	if len(w.chunk.Items) == 0 {
		return nil
	}
	erase := w.chunk
	w.chunk.Items, w.refs = nil, 0
	r, err := w.e.propose(ctx, &event.Command{Erase: &erase})
	if err != nil || r.Count == int64(len(erase.Items)) {
		return err
	}
	// Some were skipped: they have left their queue since they were found, or are
	// about to, purged with many others.
	for _, it := range erase.Items {
		w.again = append(w.again, w.of[it.ID])
	}
	select {
	case <-time.After(checkEvery):
	case <-ctx.Done():
	}
	return ctx.Err()
}
