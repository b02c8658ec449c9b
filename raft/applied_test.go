package raft

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// A node that lacks the log releases its waiters: complete answers of the leader are
// delivered; the outcome of the others is unknown here.
func TestLackingReleasesWaiters(t *testing.T) {
	enqueued := event.Result{Index: 9, Produced: make([]event.Produced, 1)}
	f := newFollower(t, Limits{})
	var result event.Result
	var lacking atomic.Bool
	f.unavailable = func() *event.Problem {
		if lacking.Load() {
			return catchingUp()
		}
		return nil
	}
	f.follow(func(context.Context, []byte) ([]byte, error) {
		return event.EncodeAnswers([]event.Answer{{Result: result}}), nil
	})
	forward := func(r event.Result) <-chan reply {
		result = r
		done := f.async(t.Context(), put("a"))
		f.poll(t.Context(), func() bool {
			return f.queues.n == 0 && f.answered() == len(f.flight)
		})
		return done
	}
	produced := forward(enqueued)
	var others []<-chan reply
	for _, r := range []event.Result{
		{Created: true}, {Leased: make([]event.LeasedMessage,
			1)}, {Produced: []event.Produced{{Duplicate: true}}},
		{Settled: []event.Settled{{Status: event.StatusAcked},
			{Status: event.StatusRejected}}}, {Problem: &event.Problem{}},
		{Kept: event.Ref{Index: 1}, Produced: make([]event.Produced, 1)},
	} {
		r.Index = 9
		others = append(others, forward(r))
	}
	f.apply(8)
	require.Equal(t, len(produced), 0, "answered before its entry is applied here")
	lacking.Store(true)
	f.fsm.wake()
	if a := <-produced; a.err != nil || a.Index != 9 {
		t.Errorf("produced: %+v", a)
	}
	for _, c := range others {
		outcomeUnknown(t, (<-c).err)
	}
	var p *event.Problem
	if err := f.waitApplied(t.Context(), 9); !errors.As(err, &p) || p.Code != event.CodeNoLeader {
		t.Errorf("wait: %v", err)
	}
	f.poll(t.Context(), func() bool { return f.commands() == 0 })
}
