package push

import (
	"cmp"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// waitFor is how long one lease call waits for work before it is repeated.
const waitFor = event.MaxWaitMS * time.Millisecond

// recheckSecrets is the pause between checks for a missing secret.
const recheckSecrets = time.Second

// queue delivers one queue while this node leads. It exists until push is removed and no delivery
// is in flight any more.
//
// Invariant: at most target.MaxInFlight deliveries are in flight, or leased.
type queue struct {
	e       *Engine
	name    string
	changed chan struct{} // something that may let a delivery begin

	mu       sync.Mutex
	leads    bool    // it may lease
	revision uint64  // of the policy
	push     bool    // the policy has push
	target   *target // nil: no push, or a newer version's
	answers  bool    // the queue that answers go to exists
	pace     *rate.Limiter
	breaker  breaker
	inFlight int
	leasing  context.Context // of leases that are decided now
	cancel   func()          // ends leasing
	lacking  string          // the missing secrets that were logged
}

// interrupt ends the lease that waits; q.mu is held.
func (q *queue) interrupt() {
	q.cancel()
	q.leasing, q.cancel = context.WithCancel(q.e.soft)
}

// signal makes run check again whether a delivery can begin.
func (q *queue) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// set applies the queue's policy, found in all, and delivers if this node leads. Deliveries in
// flight continue unchanged.
func (q *queue) set(all map[string]event.QueueView, leads bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	v := all[q.name] // zero: it was deleted
	if q.leads != leads || q.revision != v.Revision {
		q.leads, q.revision, q.push, q.target = leads, v.Revision, len(v.Policy.Push) > 0, nil
		if q.push {
			if t, err := newTarget(&v.Policy); err == nil {
				q.target, q.pace = t, newPace(t.RatePerSecond)
			} else {
				q.e.Logger.Error("queue's push policy is unreadable, not delivering",
					"queue", q.name, "error", err)
			}
		}
		q.resetBreaker() // perhaps that is what was wrong; and its state is the leader's to find out
		q.interrupt()
	}
	q.answers = true
	if q.target != nil && q.target.AnswerTo != "" {
		_, q.answers = all[q.target.AnswerTo]
	}
	q.signal()
}

// resetBreaker closes the breaker; q.mu is held.
func (q *queue) resetBreaker() {
	q.breaker = breaker{}
	q.e.metrics.open.WithLabelValues(q.name).Set(0)
}

// ended reports whether the queue has no push and nothing in flight. Then it is removed.
func (q *queue) ended() bool {
	q.e.mu.Lock()
	defer q.e.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.push || q.inFlight > 0 {
		return false
	}
	q.cancel()
	delete(q.e.queues, q.name)
	q.e.metrics.forget(q.name)
	return true
}

// run leases, and begins deliveries, until the queue has ended or the engine drains.
func (q *queue) run() {
	for q.e.soft.Err() == nil && !q.ended() {
		g, wait := q.grant()
		if g.n == 0 {
			q.pause(wait)
			continue
		}
		leased, err := q.e.Lease(g.ctx, &event.Lease{
			Queues: []string{q.name}, Max: g.n, LeaseMS: g.t.leaseMS, Worker: q.e.Worker,
			Single: true, // each goes in a request of its own, in no order among them
		}, waitFor)
		if err != nil && g.ctx.Err() == nil {
			q.e.Logger.Debug("push lease failed, retrying", "queue", q.name, "error", err)
			q.pause(retryAfter)
		}
		if len(leased) > 0 {
			q.begin(g, leased)
		}
	}
}

// begin begins to deliver what was leased by a grant.
func (q *queue) begin(g grant, leased []event.LeasedMessage) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pace.AllowN(time.Now(), len(leased))
	q.breaker.probing = q.breaker.probing || g.probe
	q.flying(len(leased))
	for i := range leased {
		d := &delivery{q: q, t: g.t, m: leased[i], probe: g.probe}
		q.e.work.Go(d.run)
	}
}

// flying adds n to the deliveries in flight; q.mu is held.
func (q *queue) flying(n int) {
	q.inFlight += n
	q.e.metrics.inFlight.WithLabelValues(q.name).Set(float64(q.inFlight))
}

// pause waits until something has changed or wait is over (0: for a change alone).
func (q *queue) pause(wait time.Duration) {
	select {
	case <-q.changed:
	case <-time.After(cmp.Or(wait, time.Hour)):
	case <-q.e.soft.Done():
	}
}

// grant allows a lease.
type grant struct {
	ctx   context.Context // ends with the target: what is leased then is given back
	t     *target
	n     int
	probe bool // n is 1, to find out whether the target is back
}

// grant returns what may be leased now. If that is nothing, wait is when to ask again (0: after a
// change).
func (q *queue) grant() (g grant, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.target == nil || !q.answers || !q.leads || q.inFlight >= int(q.target.MaxInFlight) {
		return g, 0
	}
	_, missing := q.e.keys(q.target)
	if missing != "" && q.lacking != missing {
		q.e.Logger.Warn("push cannot sign, not delivering", "queue", q.name, "missing", missing)
	}
	if q.lacking = missing; missing != "" {
		return g, recheckSecrets
	}
	g = grant{ctx: q.leasing, t: q.target, probe: q.breaker.open}
	now := time.Now()
	g.n, wait = q.breaker.allows(int(q.target.MaxInFlight)-q.inFlight, now)
	if g.n > 0 {
		g.n, wait = allowed(q.pace, g.n, now)
	}
	return g, wait
}

// observe records what a delivery's outcome says about the target.
func (q *queue) observe(d *delivery, v *verdict) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.target != d.t { // about a target that it no longer has, or from before this node led
		return
	}
	b := &q.breaker
	switch {
	case v.works:
		if b.open {
			q.e.Logger.Info("push target is back", "queue", q.name)
		}
		q.resetBreaker()
	case v.down:
		if b.failed(time.Now(), v, d.probe) {
			q.e.metrics.open.WithLabelValues(q.name).Set(1)
			q.e.Logger.Warn("push target is down, queue is not leased", "queue", q.name,
				"failures", b.failures, "error", v.safe, "next_probe", b.next)
			q.interrupt() // it was asked for when all seemed well
		}
	case d.probe:
		b.probing = false // it revealed nothing: another one may go
	}
	q.signal()
}

// reason returns why the queue is not delivered, nil if it is.
func (q *queue) reason() *wire.PushReason {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch b := &q.breaker; {
	case q.target == nil:
		return &wire.PushReason{Code: "push_policy_unknown",
			Detail: "this node's program does not understand the queue's push: run a newer one"}
	case !q.answers:
		return &wire.PushReason{Code: "push_answer_queue_missing",
			Detail: "queue " + q.target.AnswerTo + ", which answers go to, does not exist"}
	case b.open:
		r := &wire.PushReason{
			Code: "push_target_down", LastError: b.last, Failures: int64(b.failures),
			Detail: "the target is down, nothing is leased until it answers",
		}
		if b.probing {
			r.Detail += "; a message is on its way to find out"
		} else {
			r.NextProbe = wire.Time(b.next.UnixMilli())
		}
		return r
	}
	if _, missing := q.e.keys(q.target); missing != "" {
		return &wire.PushReason{Code: "push_secret_missing", Detail: missing}
	}
	return nil
}
