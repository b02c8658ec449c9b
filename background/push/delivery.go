package push

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// answerOf is the header of an enqueued answer that names the message.
const answerOf = "answer-of"

// delivery is one message on its way to its target.
type delivery struct {
	q     *queue
	t     *target
	m     event.LeasedMessage
	probe bool // it is to find out whether the target is back

	until atomic.Int64 // when the lease runs out, by this machine's monotonic clock, ns since begun
	begun time.Time
}

var errLeaseLost = errors.New("the lease was lost")

// run delivers the message and settles its lease. leases ends when no more are
// to be begun here: what is not sent by then is given back.
func (d *delivery) run(leases context.Context) {
	e := d.q.e
	defer d.q.landed(d)
	// The lease is held as long as this works on it; ctx ends with it, or when
	// the node can't wait any longer.
	ctx, cancel := context.WithCancelCause(e.hard)
	defer cancel(nil)
	d.begun = time.Now()
	d.until.Store(int64(time.Duration(d.m.LeaseExpiresAt-e.d.Now()) * time.Millisecond))
	go d.hold(ctx, cancel)

	v := d.send(ctx, leases)
	d.q.told(d, &v)
	if errors.Is(context.Cause(ctx), errLeaseLost) {
		// Somebody else has the message, or nobody any more: what came of it
		// here does not count.
		d.q.delivered("lease_lost")
		e.d.Logger.Debug("a lease was lost while its message was delivered", "queue", d.q.name, "message", d.m.ID)
		return
	}
	if e.hard.Err() != nil {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(context.Background(), giveBack)
		defer done()
	}
	d.settle(ctx, &v)
}

// send makes the request and says what came of it.
func (d *delivery) send(ctx, leases context.Context) verdict {
	e := d.q.e
	if leases.Err() != nil {
		return verdict{op: event.OpRelease}
	}
	content, err := e.d.Content(d.m.Content)
	if err == nil && content == nil {
		return verdict{op: event.OpDeadLetter, text: "what it had to say was erased"}
	}
	if err != nil {
		e.d.Logger.Error("a leased message's content cannot be read", "queue", d.q.name, "message", d.m.ID, "error", err)
		return verdict{op: event.OpRetry, delayMS: -1, text: "the payload cannot be read on this node"}
	}
	keys, why := e.keys(d.t)
	if why != "" { // gone since the lease
		return verdict{op: event.OpRelease}
	}
	r, err := d.t.request(&d.m, content, keys, time.Now(), int(e.d.MaxPayload))
	if err != nil {
		v := verdict{op: event.OpRetry, delayMS: -1, text: clean(err.Error(), 512)}
		if d.q.hasDeadLetters() {
			v.op = event.OpDeadLetter // trying again gives the same
		}
		return v
	}
	if d.t.AnswerTo != "" {
		r.MaxAnswer = e.d.MaxPayload
	}
	sent := time.Now()
	a, err := e.d.Client.Do(ctx, r)
	d.q.measure(func(m *metrics) { m.took(d.q.name, time.Since(sent)) })
	if err != nil && ctx.Err() != nil {
		// Given up here: it says nothing of the target.
		return verdict{op: event.OpRelease}
	}
	v := judge(a, err, time.Now())
	if v.op == event.OpAck && d.t.AnswerTo != "" && a.Cut {
		v = verdict{op: event.OpRetry, delayMS: -1, works: true, text: "the answer is larger than a payload may be"}
	}
	if v.unreached && d.probe {
		// It was let through to find out, and the target has not had it: that
		// costs no attempt.
		v.op = event.OpRelease
	}
	return v
}

// hold extends the lease until ctx ends, and ends ctx when it can't be held.
func (d *delivery) hold(ctx context.Context, lost context.CancelCauseFunc) {
	e := d.q.e
	lease := time.Duration(d.t.leaseMS) * time.Millisecond
	left := func() time.Duration { return time.Duration(d.until.Load()) - time.Since(d.begun) }
	timer := time.NewTimer(min(lease/3, max(left(), 0)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if left() <= 0 {
			lost(errLeaseLost)
			return
		}
		asked := time.Since(d.begun)
		bounded, cancel := context.WithTimeout(ctx, left())
		s, err := e.d.Settle(bounded, event.SettleItem{Op: event.OpExtend, Lease: d.m.Lease, LeaseMS: d.t.leaseMS}, "", nil)
		cancel()
		again := lease / 3
		switch {
		case err != nil:
			again = min(lease/20, max(left(), 0))
		case s.Status != event.StatusExtended:
			lost(errLeaseLost)
			return
		default:
			d.until.Store(int64(asked + lease)) // at least: it was decided after it was asked for
		}
		timer.Reset(again)
	}
}

// hasDeadLetters reports whether the queue has a dead-letter queue.
func (q *queue) hasDeadLetters() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.policy.DeadLetterQueue != ""
}

// settle settles the lease by the verdict. It tries as long as the lease is held:
// what was delivered and can't be acked is delivered again.
func (d *delivery) settle(ctx context.Context, v *verdict) {
	e := d.q.e
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, againAfter) {
		s, err := d.settleOnce(ctx, v)
		if err == nil {
			outcome := s.Status
			if s.Status == event.StatusRejected {
				outcome = "lease_lost"
			}
			d.q.delivered(outcome)
			return
		}
		var p *event.Problem
		if errors.As(err, &p) && p.Code == event.CodeLeaseLost {
			d.q.delivered("lease_lost")
			return
		}
		answers := v.answer != nil && d.t.AnswerTo != ""
		if answers && errors.As(err, &p) && !passing(p) {
			// The queue of answers does not take this one.
			*v = verdict{op: event.OpRetry, delayMS: -1, text: "the answer was not taken by queue " + d.t.AnswerTo + ": " + clip(p.Detail, 256)}
			continue
		}
		if answers && p != nil && (p.Code == event.CodeQueueFull || p.Code == event.CodeQueueNotFound) && d.q.answersElsewhere(d.t) {
			// There may never be room, or such a queue, again, and nobody waits for
			// it: the message is given back, and delivered as the policy is now.
			*v = verdict{op: event.OpRelease}
			continue
		}
		e.d.Logger.Debug("a delivery could not be settled yet", "queue", d.q.name, "message", d.m.ID, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			timer.Stop()
		}
		d.q.delivered("unsettled")
		e.d.Logger.Warn("a delivery was not settled before its lease ran out; it is delivered again", "queue", d.q.name, "message", d.m.ID, "error", err)
		return
	}
}

func (d *delivery) settleOnce(ctx context.Context, v *verdict) (event.Settled, error) {
	item := event.SettleItem{Op: v.op, Lease: d.m.Lease, DelayMS: v.delayMS}
	switch {
	case v.op == event.OpAck:
		item.Content = event.EncodeContent(&event.Content{Result: v.result})
	case v.text != "" && v.op != event.OpRelease:
		item.Content = event.EncodeContent(&event.Content{Error: v.text})
	}
	if v.op == event.OpAck && d.t.AnswerTo != "" && v.answer != nil {
		m := &wire.NewMessage{Key: d.m.Key, Payload: v.answer, Headers: map[string]string{answerOf: d.m.ID.String()}}
		return d.q.e.d.Settle(ctx, item, d.t.AnswerTo, m)
	}
	return d.q.e.d.Settle(ctx, item, "", nil)
}

// passing reports whether a refusal is over in a while.
func passing(p *event.Problem) bool {
	switch p.Code {
	case event.CodeQueueFull, event.CodeStaleRevision, event.CodeQueueNotFound, "no_leader", "overloaded", "shutting_down", "insufficient_storage":
		return true
	}
	return p.Unknown
}
