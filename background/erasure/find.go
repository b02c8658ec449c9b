package erasure

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// search finds the events to erase: a message is all that it was, under all its ids, through
// dead-letter queues, replays and resurrections.
type search struct {
	e     *Eraser
	whole *log.Log // the log, or one that goes back further, up to where the log was then
	// edits are those in the specs of replays, by task, as far as these were read.
	edits map[event.ID]map[event.ID]*dead.Edit

	// of has every id of a message that was searched, and by which one.
	of map[event.ID]event.ID
	// seen are the events of these messages since the search began.
	seen map[event.ID][]event.Event

	chunk event.Erase // the next command
	refs  int         // in chunk
	again []event.ID  // messages to search again
}

// search returns a search, and what closes it.
func (e *Eraser) search(ctx context.Context) (s *search, done func(), err error) {
	whole, done, err := e.OpenPast(ctx)
	return &search{
		e: e, whole: whole, edits: map[event.ID]map[event.ID]*dead.Edit{},
		of: map[event.ID]event.ID{}, seen: map[event.ID][]event.Event{},
	}, done, err
}

// each calls fn with one id of each message that a spec names, of those before an id.
func (s *search) each(
	ctx context.Context, spec *Spec, before event.ID, fn func(event.ID) error,
) error {
	if spec.Message.IsZero() {
		return s.key(ctx, spec.Queue, spec.Key, before, fn)
	}
	return fn(spec.Message)
}

// found is what there is of a message.
type found struct {
	ids []event.ID // all that it has or had, rising
	// Those that are live, and those that have contents which are not erased yet.
	live, gone []event.EraseItem
	more       bool // not all of it is in the items, which are bounded
}

// itemRefs bounds the events of one item: a message can be retried for ever.
const itemRefs = 2048

// message finds the events of a message to erase: nothing where it was never seen
// or is erased already. What was seen of it since counts, too: the past does not have
// that, and the message's chain of back-pointers may lead past an event, where two that
// did not know of each other were decided behind the same one (an erasure and a
// resurrection).
func (s *search) message(ctx context.Context, id event.ID) (out found, err error) {
	history, err := s.whole.History(ctx, id)
	if err != nil {
		return out, err
	}
	if seen := s.seen[id]; len(seen) > 0 {
		history = slices.Concat(history, seen)
		slices.SortStableFunc(history, func(a, b event.Event) int { return a.ID.Compare(b.ID) })
		history = slices.CompactFunc(history, func(a, b event.Event) bool { return a.ID == b.ID })
	}
	known := map[event.Ref]bool{} // erased, or to be erased
	for i := range history {
		if history[i].Type == event.Erased {
			for _, ref := range history[i].Refs {
				known[ref] = true
			}
		}
	}
	items := map[event.ID]*event.EraseItem{}
	item := func(id event.ID) *event.EraseItem {
		if items[id] == nil {
			items[id] = &event.EraseItem{ID: id}
		}
		return items[id]
	}
	erase := func(id event.ID, of event.ID) {
		if ref := event.RefOf(of); !known[ref] {
			known[ref] = true
			item(id).Refs = append(item(id).Refs, ref)
		}
	}
	if _, live := s.e.State.Message(id); live {
		item(id) // also where nothing else is left of it
	}
	for i := range history {
		e := &history[i]
		item(e.Subject).Last = event.RefOf(e.ID)
		if e.IsMove() {
			item(e.ID)
		}
		// The reason that an operator gave stays.
		if e.Content.Digest != [32]byte{} && e.Type != event.Erased {
			erase(e.Subject, e.ID)
		}
		// What it was replayed with is also in the task that did it.
		if e.Type == event.Replayed && e.Edited && s.edited(e.Task)[e.Subject] != nil {
			erase(e.Subject, e.Task)
		}
	}
	out.ids = slices.SortedFunc(maps.Keys(items), event.ID.Compare)
	// Tasks may have edits of it which they have not made yet, or never will.
	for _, t := range s.e.State.Tasks() {
		if t.Kind == event.TaskReplay && slices.ContainsFunc(out.ids, func(id event.ID) bool {
			return s.edited(t.ID)[id] != nil
		}) {
			erase(out.ids[0], t.ID)
		}
	}
	for _, id := range out.ids {
		it := items[id]
		if len(it.Refs) > itemRefs {
			it.Refs, out.more = it.Refs[:itemRefs], true
		}
		if _, live := s.e.State.Message(id); live {
			// Deciding knows its newest event; should it leave before that, it is searched again.
			it.Last = event.Ref{}
			out.live = append(out.live, *it)
		} else if len(it.Refs) > 0 {
			out.gone = append(out.gone, *it)
		}
	}
	return out, nil
}

// edited returns the edits in a task's creation, by message.
func (s *search) edited(of event.ID) map[event.ID]*dead.Edit {
	if edits, ok := s.edits[of]; ok || of.IsZero() {
		return edits
	}
	c, err := s.e.Log.Content(event.RefOf(of))
	if err != nil {
		c, err = s.whole.Content(event.RefOf(of))
	}
	s.edits[of] = nil // also where it is erased, or gone
	if err == nil {
		if spec, err := task.DecodeSpec[dead.Spec](c.Spec); err == nil {
			s.edits[of] = spec.Edit
		}
	}
	return s.edits[of]
}

// key calls fn with one id of each message of a key that was in a queue, of those
// that came before an id. It reads the whole log.
func (s *search) key(
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
	for e, err := range s.whole.Events(ctx, 0, s.whole.Head()) {
		if err != nil {
			return err
		}
		if e.ID.Compare(before) >= 0 {
			break
		}
		id, queue := e.Subject, ""
		if e.IsMove() {
			id = e.ID
		}
		switch {
		case e.IsMove() && !of[e.Subject].IsZero():
			of[id], queue = of[e.Subject], e.ToQueue
		case e.HasLabels() && e.Key == key && of[id].IsZero(): // what it was before is gone, if any
			of[id], queue = id, cmp.Or(e.ToQueue, e.Queue)
		}
		if queue == in {
			if err := call(of[id]); err != nil {
				return err
			}
		}
	}
	// Those whose beginning retention has deleted.
	filter := event.MessageFilter{Key: &key, Limit: 1000}
	for {
		page, ok := s.e.State.Messages(in, filter)
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
