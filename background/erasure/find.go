package erasure

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// finder finds the events to erase: a message is all that it was, under all its
// ids, through dead-letter queues, replays and resurrections.
type finder struct {
	e     *Eraser
	whole *log.Log // the log, or one that goes back further, up to where the log was then
	// edits are the messages whose edits tasks have in their specs, by task, as far as these were
	// read.
	edits map[event.ID]map[string]bool
}

// finder returns a finder, and what closes it.
func (e *Eraser) finder(ctx context.Context) (f *finder, done func(), err error) {
	f = &finder{e: e, whole: e.Log, edits: map[event.ID]map[string]bool{}}
	if e.OpenPast == nil {
		return f, func() {}, nil
	}
	past, done, err := e.OpenPast(ctx)
	if past != nil {
		f.whole = past
	}
	return f, done, err
}

// found is what there is of a message.
type found struct {
	items []event.EraseItem // ids that are live, or have contents that are not erased yet
	ids   []event.ID        // all that it has or had
	more  bool              // not all of it is in items, which are bounded
}

// itemRefs bounds the events of one item: a message can be retried for ever.
const itemRefs = 2048

// message finds the events of a message to erase: nothing where it was never seen
// or is erased already. seen are events of the message that were met in the log: the
// past does not have what came since it was opened, and the message's chain of
// back-pointers may lead past an event, where two that did not know of each other
// were decided behind the same one (an erasure and a resurrection).
func (f *finder) message(ctx context.Context, id event.ID, seen []event.Event) (
	out found, err error) {
	history, err := f.whole.History(ctx, id)
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
	if _, live := f.e.State.Message(id); live {
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
	for _, t := range f.e.State.Tasks() {
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
		if _, live := f.e.State.Message(id); live {
			// Deciding knows its newest event; should it leave before that, it is searched again.
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
	c, err := f.e.Log.Content(event.RefOf(task))
	if err != nil {
		c, err = f.whole.Content(event.RefOf(task))
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
	ctx context.Context, in, key string, before event.ID, fn func(event.ID) error,
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
	// The log was opened after before, so that it has all that came until then.
	for e, err := range f.whole.Events(ctx, 0, f.whole.Head()) {
		if err != nil {
			return err
		}
		if e.ID.Compare(before) >= 0 {
			break
		}
		queue := ""
		switch {
		case e.Type == event.Enqueued && e.Key == key:
			of[e.ID], queue = e.ID, e.Queue
		case e.IsMove() && !of[e.Subject].IsZero():
			of[e.ID], queue = of[e.Subject], e.ToQueue
		}
		if queue == in {
			if err := call(of[e.ID]); err != nil {
				return err
			}
		}
	}
	// Those whose beginning retention has deleted.
	filter := event.MessageFilter{Key: &key, Limit: 1000}
	for {
		page, ok := f.e.State.Messages(in, filter)
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
