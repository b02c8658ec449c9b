package raft

import (
	"errors"
	"testing"

	"github.com/qlogd/qlogd/event"
)

// A node that lacks the log lets those go who wait for it: an answer of the
// leader's that is whole is told; of the others it is not known here what they
// come to.
func TestStrand(t *testing.T) {
	lacking := false
	p := &proposer{metrics: noMetrics{}, fsm: &fsm{}}
	p.landed.fsm, p.landed.lacking = p.fsm, func() bool { return lacking }
	wait := func(res event.Result) chan answer {
		d := &pending{done: make(chan answer, 1)}
		p.away.landing++
		p.landed.at(9, (&ripe{p: p, group: []*pending{d}, results: []event.Result{res}}).fall)
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
	p.landed.reached(8)
	if len(produced) != 0 {
		t.Fatal("answered before its entry is here")
	}
	lacking = true
	p.landed.strand()
	if a := <-produced; a.problem != nil || a.result.Index != 9 {
		t.Errorf("produced: %+v", a)
	}
	for i, c := range others {
		if a := <-c; a.problem == nil || !a.problem.Unknown {
			t.Errorf("%d: %+v", i, a)
		}
	}
	if a := <-wait(enqueued); a.problem != nil {
		t.Errorf("one that comes later: %+v", a)
	}
	r := &Replica{p: p}
	var e *event.Problem
	if err := r.Landed(t.Context(), 9); !errors.As(err, &e) || e.Code != CodeNoLeader {
		t.Errorf("who waits for the entry itself is told %v", err)
	}
	if p.away.landing != 0 || p.landed.n.Load() != 0 {
		t.Errorf("%d are still counted, %d wait", p.away.landing, p.landed.n.Load())
	}
}
