package erasure

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/background/task"
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
	s, done, err := e.search(ctx)
	if err != nil {
		return out, err
	}
	defer done()
	return out, s.each(ctx, spec, event.MaxID, func(id event.ID) error {
		found, err := s.message(ctx, id)
		if err != nil || len(found.ids) == 0 {
			return err
		}
		out.Messages++
		out.Live += int64(len(found.live))
		if len(out.MessageIDs) < maxIDs {
			out.MessageIDs = append(out.MessageIDs, found.ids[0].String())
		}
		for _, it := range slices.Concat(found.live, found.gone) {
			out.Contents += int64(len(it.Refs))
		}
		return nil
	})
}

// RunTask is a task.Run: it returns nil when all contents are erased on all members.
func (e *Eraser) RunTask(ctx context.Context, t event.TaskView, raw []byte) (
	skipped int64, result []byte, err error) {
	spec, err := task.DecodeSpec[Spec](raw)
	if err != nil {
		return 0, nil, err
	}
	if spec.Message.IsZero() && (spec.Queue == "" || spec.Key == "") {
		return 0, nil, event.Problemf(event.CodeInvalidArgument, "",
			"decode the task's spec: neither a message nor a key of a queue")
	}
	if !t.Sealed {
		if err := e.erase(ctx, t.ID, spec); err != nil {
			return 0, nil, err
		}
	}
	if err := e.awaitReports(ctx, t.ID); err != nil {
		return 0, nil, err
	}
	// Last, when nobody adds anything to the archive any more that is not erased.
	return 0, nil, e.eraseArchived(ctx, t.ID, e.Log.Head())
}

// erase proposes the erasure of everything that a task names, and seals the task.
func (e *Eraser) erase(ctx context.Context, task event.ID, spec *Spec) error {
	e.finding.Lock()
	defer e.finding.Unlock()
	s, done, err := e.search(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.chunk.Task, s.chunk.Why = task, event.EncodeContent(&event.Content{Why: spec.Reason})
	if err := s.all(ctx, spec); err != nil {
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
	for ctx.Err() == nil {
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
		loop.Sleep(ctx, checkEvery)
	}
	return ctx.Err()
}

// all erases everything: again and again, until nothing has happened to any of the messages since
// it was looked at. A message may be acked, die or be replayed between that and its erasure; once
// that is decided it is gone, and only what was on its way can still come.
func (s *search) all(ctx context.Context, spec *Spec) error {
	from := s.whole.Head() + 1
	add := func(id event.ID) error { return s.add(ctx, id) }
	err := s.each(ctx, spec, s.chunk.Task, add)
	for {
		if err == nil {
			err = s.flush(ctx)
		}
		head := s.e.Log.Head()
		if err == nil {
			err = s.meet(ctx, from, head)
		}
		if err != nil || len(s.again) == 0 {
			return err
		}
		from = head + 1
		open := s.again
		s.again = nil
		slices.SortFunc(open, event.ID.Compare)
		for _, id := range slices.Compact(open) {
			if err = add(id); err != nil {
				break
			}
		}
	}
}

// meet reads what has happened to the messages in a range of the log: they are searched again.
func (s *search) meet(ctx context.Context, from, upTo uint64) error {
	for e, err := range s.e.Log.Events(ctx, from, upTo) {
		if err != nil {
			return err
		}
		id, ours := s.of[e.Subject]
		if !ours {
			continue
		}
		if e.IsMove() {
			s.of[e.ID] = id
		}
		met := *e
		met.Content.Bytes = nil // the log's, until the next block
		s.seen[id] = append(s.seen[id], met)
		own := e.Task == s.chunk.Task && (e.Type == event.Erased || e.Type == event.Discarded)
		if !own {
			s.again = append(s.again, id)
		}
	}
	return nil
}

// add adds what there is to erase of a message.
func (s *search) add(ctx context.Context, id event.ID) error {
	found, err := s.message(ctx, id)
	if err != nil {
		return err
	}
	for _, other := range append(found.ids, id) {
		s.of[other] = id
	}
	if found.more {
		s.again = append(s.again, id)
	}
	// What is live first: it must not be leased when the event that has its payload, as
	// that of an id that it had before, is erased.
	for _, it := range append(found.live, found.gone...) {
		// An id comes once in a command: deciding skips a second one.
		same := func(o event.EraseItem) bool { return o.ID == it.ID }
		if slices.ContainsFunc(s.chunk.Items, same) || len(s.chunk.Items) >= chunkItems ||
			s.refs+len(it.Refs) > chunkRefs {
			if err := s.flush(ctx); err != nil {
				return err
			}
		}
		s.chunk.Items = append(s.chunk.Items, it)
		s.refs += len(it.Refs)
	}
	return nil
}

// flush proposes what was added.
func (s *search) flush(ctx context.Context) error {
	if len(s.chunk.Items) == 0 {
		return nil
	}
	erase := s.chunk
	s.chunk.Items, s.refs = nil, 0
	r, err := s.e.propose(ctx, &event.Command{Erase: &erase})
	if err != nil || r.Count == int64(len(erase.Items)) {
		return err
	}
	// Some were skipped: they have left their queue since they were found, or are
	// about to, purged with many others.
	for _, it := range erase.Items {
		s.again = append(s.again, s.of[it.ID])
	}
	loop.Sleep(ctx, checkEvery)
	return ctx.Err()
}
