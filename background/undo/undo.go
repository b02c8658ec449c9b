// Package undo brings back messages that left a queue by mistake: acked by a bad deploy, purged,
// deleted, expired. It finds them in the log, and resurrects each message at most once. The API
// uses it to count and to bring back a few messages, a task to bring back many.
package undo

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// Filter selects messages that left a queue. Instants are resolved to indexes of the log, so that
// they mean the same whenever a task continues.
type Filter struct {
	Discarded bool         `json:"discarded,omitzero"` // else acked
	From      uint64       `json:"from_index,omitzero"`
	To        uint64       `json:"to_index,omitzero"` // inclusive; 0: no bound
	Worker    *string      `json:"worker,omitzero"`   // that acked it
	Reason    event.Reason `json:"reason,omitzero"`   // it was discarded for
	Key       *string      `json:"key,omitzero"`
	Kind      *string      `json:"kind,omitzero"`
}

// Spec describes an undo, as stored in a task (Content.Spec).
type Spec struct {
	Filter Filter      `json:"filter"`
	To     string      `json:"to"` // the queue that it goes to
	Order  event.Order `json:"order,omitzero"`
	Rate   int64       `json:"rate_per_second,omitzero"` // 0: no limit
}

// Log is the part of the event log that is read. *log.Log describes the methods.
type Log interface {
	Blocks(ctx context.Context, from, to uint64, whole ...event.Type) iter.Seq2[
		*event.Block, error]
	log.Reader
	Head() uint64
	Begins() (index uint64, clock int64)
}

// State is the part of the live state that is read. *fsm.Machine describes the methods.
type State interface {
	Queue(name string) (event.QueueView, bool)
	Duplicate(hash event.Hash) (event.ID, bool)
}

// Finder finds what left a queue.
type Finder struct {
	Log   Log
	State State
	// Item returns a message's part of an undo into target, and where its content is: Skip says why
	// it cannot be brought back. last is the event with which it left. Without a target it has what
	// does not depend on one, and Skip only if history does not have that.
	Item func(ctx context.Context, id event.ID, last event.Ref, target *event.QueueView) (
		item event.ResurrectItem, content event.Ref, err error)
}

// chunkBytes is the most bytes of contents, which are written again, that one entry has.
const chunkBytes = 1 << 20

// Search is the result of reading the log: the messages that left a queue, and what happened to
// them since.
type Search struct {
	f      *Finder
	queue  string
	spec   *Spec
	before event.ID // what left after it does not count; zero: no bound
	next   uint64   // the log is read below it
	// searched: messages that leave from now on do not count
	searched bool
	found    []task.Message
	back     map[event.ID]event.ID // what was resurrected, by which task
	erased   map[event.Ref]bool
	lost     bool // history does not have a label of something that left
}

// Search finds the messages that left a queue and match a spec, in the order in which they are to
// be brought back.
func (f *Finder) Search(ctx context.Context, queue string, spec *Spec, before event.ID) (
	*Search, error) {
	s := &Search{
		f: f, queue: queue, spec: spec, before: before, next: spec.Filter.From,
		back: map[event.ID]event.ID{}, erased: map[event.Ref]bool{},
	}
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	if q, ok := f.State.Queue(spec.To); ok &&
		spec.Order.In(q.Policy.Ordering) == event.OrderOriginal {
		slices.SortStableFunc(s.found, func(a, b task.Message) int { return a.First.Compare(b.First) })
	}
	return s, nil
}

// Matched is how many messages left the queue.
func (s *Search) Matched() int64 { return int64(len(s.found)) }

// read reads the log from where it was read to its head.
func (s *Search) read(ctx context.Context) error {
	gone := event.Acked
	if s.spec.Filter.Discarded {
		gone = event.Discarded
	}
	before, _ := s.f.Log.Begins()
	from, head := max(s.next, before+1), s.f.Log.Head()
	for b, err := range s.f.Log.Blocks(ctx, from, head, gone, event.Resurrected, event.Erased) {
		if err != nil {
			return err
		}
		for i := range b.Events {
			switch e := &b.Events[i]; e.Type {
			case event.Resurrected:
				s.back[e.Subject] = e.Task
			case event.Erased:
				for _, ref := range e.Refs {
					s.erased[ref] = true
				}
			case gone:
				if s.searched {
					break
				}
				if err := s.take(ctx, e); err != nil {
					return err
				}
			}
		}
	}
	s.next, s.searched = head+1, true
	return nil
}

// take adds a message that left, if the filter selects it.
func (s *Search) take(ctx context.Context, e *event.Event) error {
	f := &s.spec.Filter
	if e.Queue != s.queue || f.To > 0 && event.RefOf(e.ID).Index > f.To ||
		!s.before.IsZero() && e.ID.Compare(s.before) > 0 ||
		f.Reason != event.ReasonNone && e.Reason != f.Reason {
		return nil
	}
	if f.Worker != nil {
		worker, known, err := log.Worker(ctx, s.f.Log, e)
		if err != nil {
			return err
		}
		if s.lost = s.lost || !known; !known || worker != *f.Worker {
			return nil
		}
	}
	m, _, err := s.f.Item(ctx, e.Subject, event.RefOf(e.ID), nil)
	if err != nil {
		return err
	}
	if m.Skip != "" && (f.Key != nil || f.Kind != nil) {
		s.lost = true
		return nil
	}
	if (f.Key == nil || *f.Key == m.Key) && (f.Kind == nil || *f.Kind == m.Kind) {
		s.found = append(s.found, task.Message{
			ID: e.Subject, First: cmp.Or(m.First, e.Subject), Last: event.RefOf(e.ID),
		})
	}
	return nil
}

// item returns a message's item of a Resurrect command.
func (s *Search) item(ctx context.Context, l task.Message, target *event.QueueView) (
	item event.ResurrectItem, err error) {
	skip := func(code string) (event.ResurrectItem, error) {
		return event.ResurrectItem{ID: l.ID, Skip: code}, nil
	}
	if _, back := s.back[l.ID]; back {
		return skip(event.SkipResurrected)
	}
	item, content, err := s.f.Item(ctx, l.ID, l.Last, target)
	switch {
	case err != nil:
		return item, err
	case s.erased[content]:
		return skip(event.SkipErased)
	case item.Skip != "":
		return skip(item.Skip)
	}
	item.Last = l.Last
	return item, nil
}

// Count returns what an undo would do now.
func (s *Search) Count(ctx context.Context, target *event.QueueView) (*wire.Undone, error) {
	out := s.f.Undone(s.spec, s.lost)
	taken := map[event.Hash]bool{}
	for _, l := range s.found {
		item, err := s.item(ctx, l, target)
		if err != nil {
			return nil, err
		}
		if holder, ok := s.f.State.Duplicate(item.Alias); item.Skip == "" &&
			(ok && holder != item.Holder || taken[item.Alias]) {
			item.Skip = event.SkipKeyTaken
		}
		if item.Skip == "" && !item.Alias.IsZero() {
			taken[item.Alias] = true
		}
		Add(out, item.Skip)
	}
	return out, nil
}

// Command returns the command that brings back all messages; nil if they are too many or too large
// for one, or the target has no room.
func (s *Search) Command(ctx context.Context, target *event.QueueView) (*event.Resurrect, error) {
	if len(s.found) > task.ChunkItems {
		return nil, nil
	}
	took, c, err := s.fill(ctx, s.found, target, task.ChunkItems)
	if took < len(s.found) {
		return nil, err
	}
	return c, err
}

// fill returns the command that brings back the next messages; see task.Fill.
func (s *Search) fill(ctx context.Context, next []task.Message, target *event.QueueView, most int) (
	took int, c *event.Resurrect, err error) {
	c = &event.Resurrect{
		To: target.Name, Order: s.spec.Order, Revision: target.Revision, Looked: s.next - 1,
	}
	room, bytes := task.Room(target)
	size := 0
	for n := 0; took < len(next) && n < most && took < task.ChunkItems && size < chunkBytes; took++ {
		item, err := s.item(ctx, next[took], target)
		if err != nil {
			return 0, nil, err
		}
		if item.Skip == "" {
			if bytes -= int64(item.Size); bytes < 0 || int64(n) == room {
				break
			}
			n++
		}
		size += len(item.Content.Bytes)
		c.Items = append(c.Items, item)
	}
	return took, c, nil
}

// Lost reports whether something left of which history no longer has a label that selects it.
func (s *Search) Lost() bool { return s.lost }

// Undone returns an answer with all counts zero; lost is the search's.
func (f *Finder) Undone(spec *Spec, lost bool) *wire.Undone {
	out := &wire.Undone{Skipped: map[string]int64{}}
	if before, clock := f.Log.Begins(); before > 0 && (lost || spec.Filter.From <= before) {
		out.HistoryBeginsAt = new(wire.Time(clock))
	}
	return out
}

// Add counts one message; code is why it was skipped, "" if it was brought back.
func Add(out *wire.Undone, code string) {
	if out.Matched++; code == "" {
		out.BroughtBack++
	} else {
		out.Skipped[code]++
	}
}

// Runner executes a Spec, in as many entries as it takes. It may start again at any time, on any
// node, because the log shows what was brought back.
type Runner struct {
	Finder Finder
	Mover  task.Mover
}

// Run is a task.Run.
func (r *Runner) Run(ctx context.Context, t event.TaskView, raw []byte) (
	skipped int64, result []byte, err error) {
	spec, err := task.DecodeSpec[Spec](raw)
	if err != nil {
		return 0, nil, err
	}
	s, err := r.Finder.Search(ctx, t.Queue, spec, t.ID)
	if err != nil {
		return 0, nil, err
	}
	out := r.Finder.Undone(spec, s.lost)
	todo := slices.DeleteFunc(s.found, func(l task.Message) bool {
		by, back := s.back[l.ID]
		if back && by == t.ID { // by an earlier run
			Add(out, "")
		}
		return back && by == t.ID
	})
	fill := func(next []task.Message, target *event.QueueView, most int) (
		took int, _ *event.Command, skipped []event.Moved, err error) {
		if err := s.read(ctx); err != nil {
			return 0, nil, nil, err
		}
		took, c, err := s.fill(ctx, next, target, most)
		if err != nil {
			return 0, nil, nil, err
		}
		c.Task = t.ID
		for _, it := range c.Items {
			if it.Skip == "" {
				return took, &event.Command{Actor: t.Actor, Resurrect: c}, nil, nil
			}
			skipped = append(skipped, event.Moved{ID: it.ID, Code: it.Skip})
		}
		return took, nil, skipped, nil
	}
	err = r.Mover.Move(ctx, spec.To, spec.Rate, todo, fill, func(moved []event.Moved) {
		for i := range moved {
			Add(out, moved[i].Code)
		}
	})
	if err != nil {
		return 0, nil, err
	}
	if result, err = json.Marshal(out, json.Deterministic(true)); err != nil {
		return 0, nil, fmt.Errorf("encode the task's result: %w", err)
	}
	return out.Matched - out.BroughtBack, result, nil
}
