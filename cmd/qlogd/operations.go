package main

import (
	"errors"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/projections/store"
)

// operations finds the answers that are kept for an Idempotency-Key: the read
// models know in which entries, the log holds them.
type operations struct {
	models *store.Store
	log    *eventlog.Log
}

// Operations implements api.OperationsStore.
func (o operations) Operations(prefix [8]byte) ([]event.Event, error) {
	found, err := o.models.OperationsWith(prefix[:])
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b store.Operation) int { return int(int64(a.Index) - int64(b.Index)) })
	var out []event.Event
	for _, f := range found {
		b, err := o.log.Block(f.Index)
		if errors.Is(err, eventlog.ErrGone) || errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Events {
			if e := &b.Events[i]; e.Type == event.AnswerKept && e.Alias == f.Key {
				out = append(out, *e)
			}
		}
	}
	return out, nil
}
