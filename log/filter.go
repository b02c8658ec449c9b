package log

import (
	"errors"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Filter selects events; its zero value takes all. A message's labels are in the event that
// enqueued or resurrected it, a worker is in its lease's: the other events about them are selected
// too, as long as history has that one.
type Filter struct {
	Queue         string // the event's own, or the one that a message moved to
	Types         []event.Type
	Actor         string
	Worker        string // the event is its lease, or about it
	Key           string
	Kind          string
	CorrelationID string

	known map[event.ID]labels // of messages that events were about lately
}

// labels are a message's.
type labels struct{ key, kind, correlationID string }

// maxKnown bounds the memory of a filter.
const maxKnown = 10_000

// Reader reads events of a log.
type Reader interface {
	Event(ref event.Ref) (*event.Event, error)
}

// Selects reports whether an event of log is selected. Of one that is, it fills in the labels that
// it was selected by. It is not safe for concurrent use.
func (f *Filter) Selects(log Reader, e *event.Event) (bool, error) {
	if f.Queue != "" && e.Queue != f.Queue && e.ToQueue != f.Queue ||
		len(f.Types) > 0 && !slices.Contains(f.Types, e.Type) ||
		f.Actor != "" && e.Actor != f.Actor {
		return false, nil
	}
	if f.Worker != "" {
		if e.Type != event.Leased && !e.Lease.IsZero() {
			lease, err := find(log, e.Lease)
			if err != nil {
				return false, err
			}
			e.Worker = lease.Worker
		}
		if e.Worker != f.Worker {
			return false, nil
		}
	}
	if f.Key == "" && f.Kind == "" && f.CorrelationID == "" {
		return true, nil
	}
	l, err := f.labelsOf(log, e)
	if err != nil || f.Key != "" && l.key != f.Key || f.Kind != "" && l.kind != f.Kind ||
		f.CorrelationID != "" && l.correlationID != f.CorrelationID {
		return false, err
	}
	e.Key, e.Kind, e.CorrelationID = l.key, l.kind, l.correlationID
	return true, nil
}

// labelsOf returns the labels of the message that an event is about.
func (f *Filter) labelsOf(log Reader, e *event.Event) (labels, error) {
	if e.Type == event.Enqueued || e.Type == event.Resurrected || e.Subject.IsZero() {
		return labels{e.Key, e.Kind, e.CorrelationID}, nil
	}
	if l, ok := f.known[e.Subject]; ok {
		return l, nil
	}
	// A move's subject is the message before it. Ids rise with every move.
	b, err := find(log, e.Subject)
	for ; err == nil && b.IsMove() && b.Type != event.Resurrected; b, err = find(log, b.Subject) {
	}
	if err != nil {
		return labels{}, err
	}
	if f.known == nil || len(f.known) == maxKnown {
		f.known = map[event.ID]labels{}
	}
	l := labels{b.Key, b.Kind, b.CorrelationID}
	f.known[e.Subject] = l
	return l, nil
}

// find returns the event with an id, an empty one where history lacks it.
func find(log Reader, id event.ID) (*event.Event, error) {
	e, err := log.Event(event.RefOf(id))
	if errors.Is(err, ErrGone) || errors.Is(err, ErrNotFound) || err == nil && e.ID != id {
		return &event.Event{}, nil
	}
	return e, err
}
