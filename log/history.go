package log

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// History returns every event of a message, each once and in log order, for any id that
// the message ever had: it follows the moves back to the first id and forward to all
// later ones. It is empty for an unknown id.
//
// A move (dead letter, replay, resurrection) is one record under the old id whose
// own id is the message's new one, so both directions need no index: RefOf(new
// id) leads to the move, whose subject is the old id; the moves in the old id's
// chain name the new ones. There can be several: a message that was acked and
// resurrected can be resurrected again. Where retention has deleted the
// beginning, the history starts with the rest.
func (l *Log) History(ctx context.Context, id event.ID) ([]event.Event, error) {
	root, err := l.origin(ctx, id)
	if err != nil {
		return nil, err
	}
	var out []event.Event
	// Ids rise with every move, so none occurs twice.
	for open := []event.ID{root}; len(open) > 0; open = open[1:] {
		for e, err := range l.newestFirst(ctx, open[0]) {
			if err != nil {
				return nil, err
			}
			if e.IsMove() {
				open = append(open, e.ID)
			}
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, func(a, b event.Event) int { return a.ID.Compare(b.ID) })
	return out, nil
}

// origin follows moves back to the id under which a message was first enqueued.
func (l *Log) origin(ctx context.Context, id event.ID) (event.ID, error) {
	for {
		if err := ctx.Err(); err != nil {
			return id, err
		}
		e, err := find(l, id)
		if err != nil || !e.IsMove() || e.Subject == id {
			return id, err
		}
		id = e.Subject
	}
}

// newestFirst yields the events of one subject by their back-pointers. It ends without an
// error where retention has cut the chain.
func (l *Log) newestFirst(ctx context.Context, subject event.ID) iter.Seq2[*event.Event, error] {
	return func(yield func(*event.Event, error) bool) {
		ref, ok, err := l.newest(tableSubjects, subject, event.RefOf(subject).Index)
		for ok && err == nil && !ref.IsZero() {
			var e *event.Event
			if err = ctx.Err(); err == nil {
				e, err = l.Event(ref)
			}
			// The first event under a new id points back at the move, which is the
			// old id's.
			// A salvage may have lost the event.
			if errors.Is(err, ErrGone) || errors.Is(err, ErrNotFound) ||
				err == nil && (e.Subject != subject || !yield(e, nil)) {
				return
			}
			if err == nil {
				ref = e.Prev
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// EndOf returns the event that ended a lease, for a settle call that is repeated much
// later. It returns ErrNotFound if the lease has not ended or never existed.
func (l *Log) EndOf(ctx context.Context, lease event.ID) (*event.Event, error) {
	start, err := l.Event(event.RefOf(lease))
	if err != nil {
		return nil, err
	}
	if start.ID != lease || start.Type != event.Leased {
		return nil, ErrNotFound
	}
	for e, err := range l.newestFirst(ctx, start.Subject) {
		if err != nil {
			return nil, err
		}
		if e.ID.Compare(lease) <= 0 {
			break
		}
		if e.Lease == lease && endsLease(e.Type) {
			return e, nil
		}
	}
	return nil, ErrNotFound
}

func endsLease(t event.Type) bool {
	switch t {
	case event.Acked, event.Retried, event.Released, event.Returned, event.LeaseExpired,
		event.DeadLettered, event.Discarded:
		return true
	}
	return false
}

// Find returns the newest event with an alias (a deduplication hash, or that of
// a request) at index from or later; nil if there is none.
func (l *Log) Find(alias event.Hash, from uint64) (*event.Event, error) {
	ref, ok, err := l.newest(tableAliases, alias, from)
	if err != nil || !ok {
		return nil, err
	}
	return l.Event(ref)
}
