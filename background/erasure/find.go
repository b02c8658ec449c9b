package erasure

import (
	"context"
	"encoding/json"
	"iter"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Reader is the part of an event log that an Eraser reads.
type Reader interface {
	follower
	Head() uint64
	// History returns all events of a message's whole life, by any of its ids.
	History(ctx context.Context, id event.ID) ([]event.Event, error)
	Content(ref event.Ref) (*event.Content, error)
}

// State is the live state.
type State interface {
	Message(id event.ID) (event.MessageView, bool)
	Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool)
	Task(id event.ID) (event.TaskView, bool)
	Tasks() []event.TaskView
}

// finder finds what there is to erase: a message is all that it was, under all its
// ids, through dead-letter queues, replays and resurrections.
type finder struct {
	log Reader
	// past, if set, is a log that goes back further, up to where log was when it was
	// opened.
	past  Reader
	state State
	// edits are the messages whose edits tasks have in their specs, by task, as far as
	// these were read.
	edits map[event.ID]map[string]bool
}

// whole returns the log that goes back furthest.
func (f *finder) whole() Reader {
	if f.past != nil {
		return f.past
	}
	return f.log
}

// found is what there is of a message.
type found struct {
	items []event.EraseItem // ids that are live, or have contents that are not erased yet
	ids   []event.ID        // all that it has or had
	more  bool              // not all of it is in items, which are bounded
}

// itemRefs bounds the events of one item: a message can be retried for ever.
const itemRefs = 2048

// message finds what there is to erase of a message: nothing where it was never seen
// or is erased already. seen are events of the message that were met in the log: the
// past does not have what came since it was opened, and the message's chain of
// back-pointers may lead past an event, where two that did not know of each other
// were decided behind the same one (an erasure and a resurrection).
func (f *finder) message(
	ctx context.Context, id event.ID, seen []event.Event,
) (out found, err error) {
	history, err := f.whole().History(ctx, id)
	if err != nil {
		return out, err
	}
	if len(seen) > 0 {
		history = slices.Concat(history, seen)
		slices.SortStableFunc(history, func(a, b event.Event) int { return a.ID.Compare(b.ID) })
		history = slices.CompactFunc(history, func(a, b event.Event) bool { return a.ID == b.ID })
	}
	erased := map[event.Ref]bool{}
	items := map[event.ID]*event.EraseItem{}
	item := func(id event.ID) *event.EraseItem {
		if items[id] == nil {
			items[id] = &event.EraseItem{ID: id}
			out.ids = append(out.ids, id)
		}
		return items[id]
	}
	erase := func(it *event.EraseItem, ref event.Ref) {
		if !erased[ref] {
			erased[ref] = true
			it.Refs = append(it.Refs, ref)
		}
	}
	for i := range history {
		e := &history[i]
		if e.Type == event.Erased {
			for _, ref := range e.Refs {
				erased[ref] = true
			}
		}
		if e.IsMove() {
			item(e.ID)
		}
	}
	if _, live := f.state.Message(id); live {
		item(id) // also where nothing else is left of it
	}
	for i := range history {
		e := &history[i]
		it := item(e.Subject)
		it.Last = event.RefOf(e.ID)
		// The reason that an operator gave stays.
		if e.Content.Digest != [32]byte{} && e.Type != event.Erased {
			erase(it, event.RefOf(e.ID))
		}
		// What it was replayed with is also in the task that did it.
		if e.Type == event.Replayed && e.Edited && f.edited(e.Task)[e.Subject.String()] {
			erase(it, event.RefOf(e.Task))
		}
	}
	// Tasks may have edits of it which they have not made yet, or never will.
	for _, t := range f.state.Tasks() {
		if t.Kind == event.TaskReplay && slices.ContainsFunc(out.ids, func(id event.ID) bool {
			return f.edited(t.ID)[id.String()]
		}) {
			erase(item(out.ids[0]), event.RefOf(t.ID))
		}
	}
	slices.SortFunc(out.ids, event.ID.Compare)
	for _, id := range out.ids {
		it := items[id]
		if len(it.Refs) > itemRefs {
			it.Refs, out.more = it.Refs[:itemRefs], true
		}
		if _, live := f.state.Message(id); live {
			// Deciding knows its newest event; should it leave before that, it is looked at
			// again.
			it.Last = event.Ref{}
		} else if len(it.Refs) == 0 {
			continue
		}
		out.items = append(out.items, *it)
	}
	return out, nil
}

// edited returns the messages of which a task's creation has an edit.
func (f *finder) edited(task event.ID) map[string]bool {
	if task.IsZero() {
		return nil
	}
	by, ok := f.edits[task]
	if ok {
		return by
	}
	by = map[string]bool{}
	f.edits[task] = by
	c, err := f.log.Content(event.RefOf(task))
	if err != nil {
		c, err = f.whole().Content(event.RefOf(task))
	}
	var spec struct {
		Edit map[string]json.RawMessage `json:"edit"`
	}
	if err == nil && json.Unmarshal(c.Spec, &spec) == nil { // else it is erased, or gone
		for id := range spec.Edit {
			by[id] = true
		}
	}
	return by
}

// key calls fn with one id of each message of a key that was in a queue, of those
// that came before an id. It reads the whole log.
func (f *finder) key(
	ctx context.Context, queue, key string, before event.ID, fn func(event.ID) error,
) error {
	// A message of the key may have come to the queue from another one.
	of := map[event.ID]event.ID{} // any id of a message of the key: its first one
	called := map[event.ID]bool{}
	call := func(first event.ID) error {
		if called[first] {
			return nil
		}
		called[first] = true
		return fn(first)
	}
	logs := []Reader{f.whole()}
	if f.past != nil {
		logs = append(logs, f.log)
	}
	from := uint64(0)
	for _, log := range logs {
		head := log.Head()
		for e, err := range events(ctx, log, from, head) {
			if err == nil && e.ID.Compare(before) >= 0 {
				break
			}
			queued := ""
			switch {
			case err != nil:
			case e.Type == event.Enqueued && e.Key == key:
				of[e.ID], queued = e.ID, e.Queue
			case e.IsMove() && !of[e.Subject].IsZero():
				of[e.ID], queued = of[e.Subject], e.ToQueue
			}
			if err == nil && queued == queue {
				err = call(of[e.ID])
			}
			if err != nil {
				return err
			}
		}
		from = head + 1
	}
	// Those whose beginning retention has deleted.
	filter := event.MessageFilter{Key: &key, Limit: 1000}
	for {
		page, ok := f.state.Messages(queue, filter)
		if !ok || len(page) == 0 {
			return ctx.Err()
		}
		for i := range page {
			id := page[i].ID
			filter.After = id
			if id.Compare(before) >= 0 {
				continue
			}
			if first, ok := of[id]; ok {
				id = first
			}
			if err := call(id); err != nil {
				return err
			}
		}
	}
}

type follower interface {
	// Follow yields the blocks from an index on to the end; a block is valid until
	// the next one.
	Follow(from uint64) iter.Seq2[*event.Block, error]
}

// events yields the events of the blocks from and to inclusive.
func events(
	ctx context.Context, log follower, from, to uint64,
) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		for b, err := range log.Follow(from) {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if b.Index > to {
				return
			}
			for i := range b.Events {
				if !yield(&b.Events[i], nil) {
					return
				}
			}
		}
	}
}

// refsOf returns the events whose contents a task has erased.
func refsOf(
	ctx context.Context, log follower, task event.ID, upTo uint64,
) (refs []event.Ref, err error) {
	for e, err := range events(ctx, log, event.RefOf(task).Index, upTo) {
		if err != nil {
			return nil, err
		}
		if e.Type == event.Erased && e.Task == task {
			refs = append(refs, e.Refs...)
		}
	}
	return refs, nil
}
