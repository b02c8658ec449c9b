package erasure

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Finder finds what is to be erased: a message is all that it was, under all its
// ids, through dead-letter queues, replays and resurrections.
type Finder struct {
	Log Reader
	// Past, if set, is a log that goes back further than Log, up to some index: the
	// archive's.
	Past  Reader
	State State
}

// Reader is the part of an event log that a Finder needs.
type Reader interface {
	// Follow yields the blocks from an index on to the end; a block is valid until
	// the next one.
	Follow(from uint64) iter.Seq2[*event.Block, error]
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

// Found is what there is of a message.
type Found struct {
	Items []event.EraseItem // ids that are live, or have contents that are not erased yet
	// IDs are all that it has or had.
	IDs []event.ID
	// More: not all of it is in Items, which are bounded.
	More bool
}

// itemRefs bounds the events of one item: a message can be retried for ever.
const itemRefs = 2048

// Message finds what is to be erased of one message. Nothing is, where it was
// never seen or is erased already.
func (f *Finder) Message(ctx context.Context, id event.ID) (Found, error) {
	return f.message(ctx, id, edits{}, nil)
}

// edits are the messages of which tasks have an edit in what they are to do, by
// task, as far as they were read.
type edits map[event.ID]map[string]bool

// message is Message. seen are events of the message that were met in the log:
// its chain of back-pointers may lead past one, where two that did not know of
// each other were decided on behind the same one (an erasure and a resurrection).
func (f *Finder) message(ctx context.Context, id event.ID, known edits, seen []event.Event) (Found, error) {
	var out Found
	history, err := f.history(ctx, id)
	if err != nil {
		return out, err
	}
	if len(seen) > 0 {
		history = slices.Concat(history, seen)
		slices.SortStableFunc(history, func(a, b event.Event) int { return a.ID.Compare(b.ID) })
		history = slices.CompactFunc(history, func(a, b event.Event) bool { return a.ID == b.ID })
	}
	told := map[event.Ref]bool{}
	ids := map[event.ID]*event.EraseItem{}
	item := func(id event.ID) *event.EraseItem {
		if ids[id] == nil {
			ids[id] = &event.EraseItem{ID: id}
			out.IDs = append(out.IDs, id)
		}
		return ids[id]
	}
	for i := range history {
		e := &history[i]
		if e.Type == event.Erased {
			for _, ref := range e.Refs {
				told[ref] = true
			}
		}
		if e.IsMove() {
			item(e.ID)
		}
	}
	if _, live := f.State.Message(id); live {
		item(id) // also where nothing else is left of it
	}
	for i := range history {
		e := &history[i]
		it := item(e.Subject)
		it.Last = event.RefOf(e.ID)
		it.Refs = append(it.Refs, f.contents(e, told, known)...)
	}
	if refs := f.toEdit(out.IDs, told, known); len(refs) > 0 {
		it := item(out.IDs[0])
		it.Refs = append(it.Refs, refs...)
	}
	slices.SortFunc(out.IDs, event.ID.Compare)
	for _, id := range out.IDs {
		it := ids[id]
		if len(it.Refs) > itemRefs {
			it.Refs, out.More = it.Refs[:itemRefs], true
		}
		if _, live := f.State.Message(id); live {
			// Deciding knows its newest event; should it leave before that, it is to
			// be looked at again.
			it.Last = event.Ref{}
		} else if len(it.Refs) == 0 {
			continue
		}
		out.Items = append(out.Items, *it)
	}
	return out, nil
}

// history returns all events of a message, oldest first.
func (f *Finder) history(ctx context.Context, id event.ID) ([]event.Event, error) {
	if f.Past == nil {
		return f.Log.History(ctx, id)
	}
	// What the past does not have yet may hang on any id that it has.
	out, err := f.Past.History(ctx, id)
	if err != nil {
		return nil, err
	}
	open, seen := []event.ID{id}, map[event.ID]bool{id: true}
	add := func(id event.ID) {
		if !seen[id] {
			seen[id] = true
			open = append(open, id)
		}
	}
	have := map[event.ID]bool{}
	note := func(events []event.Event) {
		for i := range events {
			e := &events[i]
			have[e.ID] = true
			add(e.Subject)
			if e.IsMove() {
				add(e.ID)
			}
		}
	}
	note(out)
	for ; len(open) > 0; open = open[1:] {
		events, err := f.Log.History(ctx, open[0])
		if err != nil {
			return nil, err
		}
		for i := range events {
			if !have[events[i].ID] {
				out = append(out, events[i])
			}
		}
		note(events)
	}
	slices.SortFunc(out, func(a, b event.Event) int { return a.ID.Compare(b.ID) })
	return out, nil
}

// each calls fn with all events, the past's first.
func (f *Finder) each(ctx context.Context, fn func(*event.Event) error) error {
	from := uint64(0)
	if f.Past != nil {
		to := f.Past.Head()
		if err := each(ctx, f.Past, 0, to, fn); err != nil {
			return err
		}
		from = to + 1
	}
	return each(ctx, f.Log, from, f.Log.Head(), fn)
}

// contents returns the places of what users wrote in an event, where that is not
// told to be erased yet.
func (f *Finder) contents(e *event.Event, told map[event.Ref]bool, known edits) (refs []event.Ref) {
	add := func(ref event.Ref) {
		if !told[ref] {
			told[ref] = true
			refs = append(refs, ref)
		}
	}
	// The reason that an operator gave stays.
	if e.Content.Digest != [32]byte{} && e.Type != event.Erased {
		add(event.RefOf(e.ID))
	}
	// What it was replayed with is also in the task that did it.
	if e.Type == event.Replayed && e.Edited && !e.Task.IsZero() && f.editedBy(e.Task, known)[e.Subject.String()] {
		add(event.RefOf(e.Task))
	}
	return refs
}

// toEdit returns the tasks that have edits of a message which they have not made
// yet, or never will.
func (f *Finder) toEdit(ids []event.ID, told map[event.Ref]bool, known edits) (refs []event.Ref) {
	for _, t := range f.State.Tasks() {
		ref := event.RefOf(t.ID)
		if t.Kind != event.TaskReplay || told[ref] {
			continue
		}
		by := f.editedBy(t.ID, known)
		if slices.ContainsFunc(ids, func(id event.ID) bool { return by[id.String()] }) {
			told[ref] = true
			refs = append(refs, ref)
		}
	}
	return refs
}

// editedBy returns the messages of which a task's creation has an edit.
func (f *Finder) editedBy(task event.ID, known edits) map[string]bool {
	if by, ok := known[task]; ok {
		return by
	}
	known[task] = nil
	c, err := f.Log.Content(event.RefOf(task))
	if err != nil && f.Past != nil {
		c, err = f.Past.Content(event.RefOf(task))
	}
	if err != nil {
		return nil // erased, or gone
	}
	var spec struct {
		Edit map[string]json.RawMessage `json:"edit"`
	}
	if json.Unmarshal(c.Spec, &spec) != nil || len(spec.Edit) == 0 {
		return nil
	}
	known[task] = map[string]bool{}
	for id := range spec.Edit {
		known[task][id] = true
	}
	return known[task]
}

// Key calls fn with one id of each message of a key that was in a queue, of those
// that came before an id. It reads the whole log.
func (f *Finder) Key(ctx context.Context, queue, key string, before event.ID, fn func(event.ID) error) error {
	// A message of the key may have come to the queue from another one.
	of := map[event.ID]event.ID{} // any id of a message of the key: its first one
	told := map[event.ID]bool{}
	tell := func(first event.ID) error {
		if told[first] {
			return nil
		}
		told[first] = true
		return fn(first)
	}
	err := f.each(ctx, func(e *event.Event) error {
		if e.ID.Compare(before) >= 0 {
			return errEnough
		}
		switch {
		case e.Type == event.Enqueued && e.Key == key:
			of[e.ID] = e.ID
			if e.Queue == queue {
				return tell(e.ID)
			}
		case e.IsMove():
			first, ok := of[e.Subject]
			if !ok {
				return nil
			}
			of[e.ID] = first
			if e.ToQueue == queue {
				return tell(first)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	// Those whose beginning retention has deleted.
	return f.live(ctx, queue, key, func(m *event.MessageView) error {
		if m.ID.Compare(before) >= 0 {
			return nil
		}
		if first, ok := of[m.ID]; ok {
			return tell(first)
		}
		return tell(m.ID)
	})
}

var errEnough = errors.New("enough")

// live calls fn with the messages of a key that are in a queue.
func (f *Finder) live(ctx context.Context, queue, key string, fn func(*event.MessageView) error) error {
	filter := event.MessageFilter{Key: &key, Limit: 1000}
	for {
		page, ok := f.State.Messages(queue, filter)
		if !ok || len(page) == 0 {
			return ctx.Err()
		}
		for i := range page {
			if err := fn(&page[i]); err != nil {
				return err
			}
		}
		filter.After = page[len(page)-1].ID
	}
}
