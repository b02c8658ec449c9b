package log

import (
	"context"
	"errors"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Filter selects events; its zero value takes all. A message's labels are in the event that
// enqueued or resurrected it, or carried its content (Made), a worker is in its lease's: the other
// events about them are selected too, as long as history has that one.
type Filter struct {
	Queue         string // the event's own, or the one that a message moved to
	Types         []event.Type
	Actor         string
	Worker        string // the event is its lease, or about it
	Key           string
	Kind          string
	CorrelationID string

	// Lost is set once an event was passed over of which history no longer has a label.
	Lost bool

	known map[event.ID]labels // of messages that events were about lately
}

// labels are a message's.
type labels struct {
	key, kind, correlationID string
	lost                     bool
}

// maxKnown bounds the memory of a filter.
const maxKnown = 10_000

// Reader reads events of a log.
type Reader interface {
	Event(ref event.Ref) (*event.Event, error)
	History(ctx context.Context, id event.ID) ([]event.Event, error)
}

// Selects reports whether an event of log is selected. Of one that is, it fills in the labels that
// it was selected by. It is not safe for concurrent use.
func (f *Filter) Selects(ctx context.Context, log Reader, e *event.Event) (bool, error) {
	if f.Queue != "" && e.Queue != f.Queue && e.ToQueue != f.Queue ||
		len(f.Types) > 0 && !slices.Contains(f.Types, e.Type) ||
		f.Actor != "" && e.Actor != f.Actor {
		return false, nil
	}
	if f.Worker != "" {
		if e.Type != event.Leased && !e.Lease.IsZero() {
			worker, known, err := Worker(ctx, log, e)
			if err != nil {
				return false, err
			}
			e.Worker, f.Lost = worker, f.Lost || !known
		}
		if e.Worker != f.Worker {
			return false, nil
		}
	}
	if f.Key == "" && f.Kind == "" && f.CorrelationID == "" {
		return true, nil
	}
	l, err := f.labelsOf(ctx, log, e)
	f.Lost = f.Lost || l.lost
	if err != nil || l.lost || f.Key != "" && l.key != f.Key || f.Kind != "" && l.kind != f.Kind ||
		f.CorrelationID != "" && l.correlationID != f.CorrelationID {
		return false, err
	}
	e.Key, e.Kind, e.CorrelationID = l.key, l.kind, l.correlationID
	return true, nil
}

// labelsOf returns the labels of the message that an event is about.
func (f *Filter) labelsOf(ctx context.Context, log Reader, e *event.Event) (labels, error) {
	if e.HasLabels() || e.Subject.IsZero() {
		return labels{e.Key, e.Kind, e.CorrelationID, false}, nil
	}
	if l, ok := f.known[e.Subject]; ok {
		return l, nil
	}
	made, err := Made(ctx, log, e.Subject)
	if err != nil {
		return labels{}, err
	}
	if f.known == nil || len(f.known) == maxKnown {
		f.known = map[event.ID]labels{}
	}
	l := labels{made.Key, made.Kind, made.CorrelationID, made.ID.IsZero()}
	f.known[e.Subject] = l
	return l, nil
}

// Made returns the event that has a message's labels: the one that enqueued or resurrected it or,
// once retention has deleted that, the first that carried its content. It is an empty one where
// history has none of these.
func Made(ctx context.Context, log Reader, id event.ID) (*event.Event, error) {
	// A move's subject is the message before it. Ids rise with every move.
	e, err := find(log, id)
	for ; err == nil && e.IsMove() && e.Type != event.Resurrected; e, err = find(log, e.Subject) {
	}
	if err != nil || e.HasLabels() {
		return e, err
	}
	history, err := log.History(ctx, id)
	if i := slices.IndexFunc(history, func(e event.Event) bool { return e.HasLabels() }); i >= 0 {
		return &history[i], err
	}
	return &event.Event{}, err
}

// Worker returns the worker of the lease that an event is about; known is false where history has
// neither that lease's beginning nor who had it when the content was carried.
func Worker(ctx context.Context, log Reader, e *event.Event) (
	worker string, known bool, err error) {
	lease, err := find(log, e.Lease)
	switch {
	case err != nil:
		return "", false, err
	case !lease.ID.IsZero():
		return lease.Worker, true, nil
	}
	history, err := log.History(ctx, e.Subject)
	for i := range history {
		switch c := &history[i]; {
		case c.ID.Compare(e.Lease) < 0:
		case c.Type == event.Leased: // again: what is carried later is not about this lease
			return "", false, err
		case c.Type == event.ContentCarried && c.HasLabels() &&
			(c.Worker != "" || c.ID.Compare(e.ID) < 0):
			return c.Worker, true, err
		}
	}
	return "", false, err
}

// find returns the event with an id, an empty one where history lacks it.
func find(log Reader, id event.ID) (*event.Event, error) {
	e, err := log.Event(event.RefOf(id))
	if errors.Is(err, ErrGone) || errors.Is(err, ErrNotFound) || err == nil && e.ID != id {
		return &event.Event{}, nil
	}
	return e, err
}
