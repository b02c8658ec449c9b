package raft

import (
	"errors"
	"testing"

	"github.com/qlogd/qlogd/event"
)

// A node that lacks the log releases its waiters: complete answers of the leader are
// delivered; the outcome of the others is unknown here.
func TestReleaseAll(t *testing.T) {
	lacking := false
	f := &fsm{}
	b := newBatcher(&Options{Metrics: noMetrics{}}, f, nil, nil, nil)
	b.waiters.lacking = func() bool { return lacking }
	wait := func(res event.Result) chan answer {
		d := &pending{done: make(chan answer, 1)}
		b.forward.answeredN++
		done := &answeredBatch{group: []*pending{d}, results: []event.Result{res}}
		b.waiters.add(9, func(applied bool) { b.answerForwarded(done, applied) })
		return d.done
	}
	enqueued := event.Result{Index: 9, Produced: make([]event.Produced, 1)}
	produced := wait(enqueued)
	var others []chan answer
	for _, r := range []event.Result{
		{Created: true}, {Leased: make([]event.LeasedMessage, 1)}, {Produced: []event.Produced{{Duplicate: true}}},
		{Settled: []event.Settled{{Status: event.StatusAcked}, {Status: event.StatusRejected}}}, {Problem: &event.Problem{}},
		{Kept: event.Ref{Index: 1}, Produced: make([]event.Produced, 1)},
	} {
		others = append(others, wait(r))
	}
	b.waiters.applied(8)
	if len(produced) != 0 {
		t.Fatal("answered before its entry is applied here")
	}
	lacking = true
	b.waiters.releaseAll()
	if a := <-produced; a.problem != nil || a.result.Index != 9 {
		t.Errorf("produced: %+v", a)
	}
	for i, c := range others {
		if a := <-c; a.problem == nil || !a.problem.Unknown {
			t.Errorf("%d: %+v", i, a)
		}
	}
	if a := <-wait(enqueued); a.problem != nil {
		t.Errorf("added later: %+v", a)
	}
	r := &Replica{b: b}
	var e *event.Problem
	if err := r.waitApplied(t.Context(), 9); !errors.As(err, &e) || e.Code != CodeNoLeader {
		t.Errorf("waitApplied: %v", err)
	}
	if b.forward.answeredN != 0 || len(b.waiters.list) != 0 {
		t.Errorf("%d commands are still counted, %d wait", b.forward.answeredN, len(b.waiters.list))
	}
}
