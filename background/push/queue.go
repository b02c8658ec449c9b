package push

import (
	"bytes"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// waitFor is how long one lease waits for work before it is asked for again.
const waitFor = event.MaxWaitMS * time.Millisecond

// recheckSecrets is the pause between checks for a missing secret.
const recheckSecrets = time.Second

// queue delivers one queue, while it leads.
//
// Invariant: at most target.MaxInFlight deliveries are in flight, or leased.
type queue struct {
	e       *Engine
	name    string
	number  uint32
	changed chan struct{} // something that may let a delivery begin
	ctx     context.Context
	end     context.CancelFunc // ends run

	mu       sync.Mutex
	policy   event.Policy
	target   *target       // nil: the policy is a newer version's
	answers  bool          // the queue that answers go to exists
	pace     *rate.Limiter // nil: no limit
	breaker  breaker
	inFlight map[event.ID]*delivery // by lease
	leads    bool                   // it may lease
	leasing  context.Context        // of leases that are decided now
	cancel   context.CancelFunc     // of leasing
	lacking  string                 // the missing secrets that were logged
	retired  bool                   // push was removed, or the queue is gone
}

func newQueue(e *Engine, name string, number uint32) *queue {
	q := &queue{
		e: e, name: name, number: number, inFlight: map[event.ID]*delivery{},
		changed: make(chan struct{}, 1),
	}
	q.ctx, q.end = context.WithCancel(e.soft)
	q.leasing, q.cancel = context.WithCancel(q.ctx)
	return q
}

// interrupt ends the lease that waits, and has what it has leased given back; q.mu is held.
func (q *queue) interrupt() {
	q.cancel()
	q.leasing, q.cancel = context.WithCancel(q.ctx)
}

// set replaces the policy. What is in flight goes on as it began. queues are those that exist.
func (q *queue) set(p *event.Policy, queues map[string]uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.target == nil || !bytes.Equal(q.policy.Push, p.Push) || q.policy.LeaseMS != p.LeaseMS {
		t, err := newTarget(p)
		if err != nil {
			q.e.d.Logger.Error("queue's push policy is unreadable, not delivering",
				"queue", q.name, "error", err)
		}
		q.target = t
		q.resetBreaker() // perhaps that is what was wrong with it
		if t != nil {
			q.pace = newPace(t.RatePerSecond)
		}
		q.interrupt()
	}
	q.policy = p.Clone()
	q.answers = true
	if q.target != nil && q.target.AnswerTo != "" {
		_, q.answers = queues[q.target.AnswerTo]
	}
	signal(q.changed)
}

// resetBreaker closes the breaker; q.mu is held.
func (q *queue) resetBreaker() {
	q.breaker = breaker{}
	q.e.metrics.open.WithLabelValues(q.name).Set(0)
}

// lead starts or ends leasing. What is in flight goes on.
func (q *queue) lead(leads bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.leads == leads {
		return
	}
	q.leads = leads
	q.resetBreaker() // the state of the target is the leader's to find out
	q.interrupt()
	signal(q.changed)
}

// retire ends leasing for good.
func (q *queue) retire() {
	q.lead(false)
	q.mu.Lock()
	q.retired = true
	q.mu.Unlock()
	q.end()
}

// measure calls f, unless the queue's series are gone for good.
func (q *queue) measure(f func(m *metrics)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.retired {
		f(&q.e.metrics)
	}
}

// count counts what became of a message.
func (q *queue) count(outcome string) {
	q.measure(func(m *metrics) { m.deliveries.WithLabelValues(q.name, outcome).Inc() })
}

// answersElsewhere reports whether the answers of what was begun for t no longer go to its queue.
func (q *queue) answersElsewhere(t *target) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.retired || q.target != nil && q.target.AnswerTo != t.AnswerTo
}

// run leases, and begins deliveries, until the queue is retired or the engine drains.
func (q *queue) run() {
	for q.ctx.Err() == nil {
		ctx, t, n, probe, wait := q.room()
		if n == 0 {
			q.pause(wait)
			continue
		}
		leased, err := q.e.d.Lease(ctx, &event.Lease{
			Queues: []string{q.name}, Max: n, LeaseMS: t.leaseMS, Worker: q.e.d.Worker,
		}, waitFor)
		if err != nil && ctx.Err() == nil {
			q.e.d.Logger.Debug("push lease failed, retrying", "queue", q.name, "error", err)
			q.pause(retryAfter)
		}
		if len(leased) == 0 {
			continue
		}
		q.mu.Lock()
		if q.pace != nil {
			q.pace.AllowN(time.Now(), len(leased))
		}
		// What was interrupted since the lease is given back, which costs no attempt.
		late := ctx.Err() != nil
		q.breaker.probing = q.breaker.probing || probe && !late
		for i := range leased {
			d := &delivery{q: q, t: t, m: leased[i], probe: probe && !late, late: late}
			q.inFlight[d.m.Lease] = d
			q.e.work.Go(d.run)
		}
		q.e.metrics.inFlight.WithLabelValues(q.name).Set(float64(len(q.inFlight)))
		q.mu.Unlock()
	}
}

// pause waits until something has changed or wait is over (0: for a change alone).
func (q *queue) pause(wait time.Duration) {
	var after <-chan time.Time
	if wait > 0 {
		after = time.After(wait)
	}
	select {
	case <-q.changed:
	case <-after:
	case <-q.ctx.Done():
	}
}

// room returns how many messages may be leased now, until ctx ends, and whether that one is a probe
// of the target. If none may, wait is when to ask again (0: after a change).
func (q *queue) room() (ctx context.Context, t *target, n int, probe bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ctx, t = q.leasing, q.target
	if t == nil || !q.answers || !q.leads {
		return ctx, nil, 0, false, 0
	}
	if n = int(t.MaxInFlight) - len(q.inFlight); n <= 0 {
		return ctx, nil, 0, false, 0
	}
	_, missing := q.e.keys(t)
	if missing != "" && q.lacking != missing {
		q.e.d.Logger.Warn("push cannot sign, not delivering", "queue", q.name, "missing", missing)
	}
	if q.lacking = missing; missing != "" {
		return ctx, nil, 0, false, recheckSecrets
	}
	now := time.Now()
	if n, wait = q.breaker.allows(n, now); n > 0 {
		n, wait = allowed(q.pace, n, now)
	}
	return ctx, t, n, q.breaker.open, wait
}

// observe records what a delivery's outcome says about the target.
func (q *queue) observe(d *delivery, v *verdict) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.target != d.t || !q.leads { // about a target that it no longer has
		return
	}
	b := &q.breaker
	switch {
	case v.works:
		if b.open {
			q.e.d.Logger.Info("push target is back", "queue", q.name)
		}
		q.resetBreaker()
	case v.down:
		if b.failed(time.Now(), v, d.probe) {
			q.e.metrics.open.WithLabelValues(q.name).Set(1)
			q.e.d.Logger.Warn("push target is down, queue is not leased", "queue", q.name,
				"failures", b.failures, "error", v.safe, "next_probe", b.next)
			q.interrupt() // it was asked for when all seemed well
		}
	case d.probe:
		b.probing = false // it revealed nothing: another one may go
	}
	signal(q.changed)
}

// finished removes a delivery from those in flight.
func (q *queue) finished(d *delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.inFlight, d.m.Lease)
	if !q.retired {
		q.e.metrics.inFlight.WithLabelValues(q.name).Set(float64(len(q.inFlight)))
	}
	signal(q.changed)
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
