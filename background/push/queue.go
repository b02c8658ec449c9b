package push

import (
	"context"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// waitFor is how long one lease waits for work before it is asked for again.
const waitFor = event.MaxWaitMS * time.Millisecond

// lookForSecrets is how often it is looked for a secret that is missing.
const lookForSecrets = time.Second

// queue is one queue's delivery.
//
// Invariant: at most target.MaxInFlight deliveries are in flight, or leased.
type queue struct {
	e      *Engine
	name   string
	number uint32
	bell   chan struct{} // something has changed that may let a delivery begin

	mu        sync.Mutex
	policy    event.Policy
	target    *target // nil: the policy is a newer program's
	answers   bool    // the queue that answers go to is there
	pace      pace
	breaker   breaker
	inFlight  map[event.ID]*delivery // by lease
	stopLoop  context.CancelFunc     // nil: it does not run
	ended     chan struct{}          // closed when the loop that was started last has ended
	interrupt context.CancelFunc     // ends the lease that waits; nil: none does
	lacking   string                 // what was told to be missing
	retired   bool                   // push was taken away, or the queue is gone
}

// ring has the loop look anew.
func (q *queue) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// set takes a policy over. What is in flight goes on as it began.
func (q *queue) set(p *event.Policy, exists func(string) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.target == nil || !samePush(&q.policy, p) {
		t, err := newTarget(p)
		if err != nil {
			q.e.d.Logger.Error("a queue's push can't be understood; it is not delivered", "queue", q.name, "error", err)
		}
		q.target = t
		q.breaker = breaker{} // perhaps that is what was wrong with it
		q.e.metrics.breaker(q.name, false)
		if t != nil {
			q.pace = newPace(t.RatePerSecond, time.Now())
		}
		if q.interrupt != nil {
			q.interrupt()
		}
	}
	q.policy = p.Clone()
	q.answers = q.target == nil || q.target.AnswerTo == "" || exists(q.target.AnswerTo)
	q.ring()
}

// start begins to lease, if that is not under way.
func (q *queue) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopLoop != nil {
		return
	}
	ctx, cancel := context.WithCancel(q.e.soft)
	before, ended := q.ended, make(chan struct{})
	q.stopLoop, q.ended = cancel, ended
	q.breaker = breaker{}
	q.e.loops.Go(func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		q.run(ctx)
	})
}

// stop ends leasing. What is in flight goes on.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopLoop != nil {
		q.stopLoop()
		q.stopLoop = nil
		// How the target is, is from now on another node's to know.
		q.breaker = breaker{}
		q.e.metrics.breaker(q.name, false)
	}
}

// retire is stop for a queue that has no push any more.
func (q *queue) retire() {
	q.stop()
	q.mu.Lock()
	q.retired = true
	q.mu.Unlock()
}

// measure has f note something of the queue, unless its series are gone for good.
func (q *queue) measure(f func(m *metrics)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.retired {
		f(q.e.metrics)
	}
}

// delivered counts what became of a message.
func (q *queue) delivered(outcome string) {
	q.measure(func(m *metrics) { m.delivered(q.name, outcome) })
}

// answersElsewhere reports whether the answers of what was begun for t are not
// to go to its queue any more.
func (q *queue) answersElsewhere(t *target) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.retired || q.target != nil && q.target.AnswerTo != t.AnswerTo
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// run leases, and begins deliveries, until ctx ends.
func (q *queue) run(ctx context.Context) {
	for ctx.Err() == nil {
		t, n, probe, wait := q.room()
		if n == 0 {
			q.pause(ctx, wait)
			continue
		}
		leased, err := q.lease(ctx, t, n)
		if err != nil && ctx.Err() == nil {
			q.e.d.Logger.Debug("push could not lease", "queue", q.name, "error", err)
			q.pause(ctx, againAfter)
		}
		if len(leased) == 0 {
			continue
		}
		q.mu.Lock()
		q.pace.begun(len(leased))
		begin := ctx
		if q.target != t || q.breaker.open && !probe {
			// It is to go elsewhere, or the target went down, since it was leased: it
			// is given back, and costs no attempt.
			begin = over
			probe = false
		}
		if probe {
			q.breaker.probing = true
		}
		for i := range leased {
			d := &delivery{q: q, t: t, m: leased[i], probe: probe}
			q.inFlight[d.m.Lease] = d
			q.e.flying.Go(func() { d.run(begin) })
		}
		q.e.metrics.inFlight(q.name, len(q.inFlight))
		q.mu.Unlock()
	}
}

// pause waits until the bell rings or wait is over (0: until the bell alone).
func (q *queue) pause(ctx context.Context, wait time.Duration) {
	var after <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-q.bell:
	case <-after:
	case <-ctx.Done():
	}
}

// room returns how many messages may be leased now, and whether the one is to
// find out how the target is. If none may, wait says when to look again (0: when
// the bell rings).
func (q *queue) room() (t *target, n int, probe bool, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t = q.target
	if t == nil || !q.answers {
		return nil, 0, false, 0
	}
	if n = int(t.MaxInFlight) - len(q.inFlight); n <= 0 {
		return nil, 0, false, 0
	}
	if _, why := q.e.keys(t); why != "" {
		if q.lacking != why {
			q.e.d.Logger.Warn("push can't sign and stands still", "queue", q.name, "why", why)
		}
		q.lacking = why
		return nil, 0, false, lookForSecrets
	}
	q.lacking = ""
	now := time.Now()
	if n, wait = q.breaker.allows(n, now); n == 0 {
		return nil, 0, false, wait
	}
	if n, wait = q.pace.allows(n, now); n == 0 {
		return nil, 0, false, wait
	}
	return t, n, q.breaker.open, 0
}

// lease waits for work.
func (q *queue) lease(ctx context.Context, t *target, n int) ([]event.LeasedMessage, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q.mu.Lock()
	if q.target != t { // changed since room
		q.mu.Unlock()
		return nil, nil
	}
	q.interrupt = cancel
	q.mu.Unlock()
	leased, err := q.e.d.Lease(ctx, &event.Lease{Queues: []string{q.name}, Max: n, LeaseMS: t.leaseMS, Worker: q.e.d.Worker}, waitFor)
	q.mu.Lock()
	q.interrupt = nil
	q.mu.Unlock()
	if ctx.Err() != nil { // interrupted: no error
		err = nil
	}
	return leased, err
}

// told notes what a delivery says of the target.
func (q *queue) told(d *delivery, v *verdict) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.target != d.t || q.stopLoop == nil { // of a target that it does not have any more
		return
	}
	b := &q.breaker
	switch {
	case v.works:
		if b.worked() {
			q.e.metrics.breaker(q.name, false)
			q.e.d.Logger.Info("push target is back", "queue", q.name)
			q.ring()
		}
	case v.down:
		if b.failed(time.Now(), v, d.probe) {
			q.e.metrics.breaker(q.name, true)
			q.e.d.Logger.Warn("push target is down; its queue is not leased", "queue", q.name, "failures", b.failures, "error", v.told, "next_probe", b.next)
			if q.interrupt != nil { // it was asked for when all seemed well
				q.interrupt()
			}
		}
		q.ring()
	case d.probe:
		b.abandoned()
		q.ring()
	}
}

// landed takes a delivery off those in flight.
func (q *queue) landed(d *delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.inFlight, d.m.Lease)
	if !q.retired {
		q.e.metrics.inFlight(q.name, len(q.inFlight))
	}
	q.ring()
}

// reason says why the queue is not delivered.
func (q *queue) reason() *wire.PushReason {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch b := &q.breaker; {
	case q.target == nil:
		return &wire.PushReason{Code: ReasonPolicy, Detail: "this node's program does not understand the queue's push: run a newer one"}
	case !q.answers:
		return &wire.PushReason{Code: ReasonAnswerQueue, Detail: "queue " + q.target.AnswerTo + ", which answers go to, does not exist"}
	case b.open:
		r := &wire.PushReason{Code: ReasonTargetDown, Detail: "the target is down, nothing is leased until it answers", LastError: b.last, Failures: int64(b.failures)}
		if b.probing {
			r.Detail += "; a message is on its way to find out"
		} else {
			r.NextProbe = wire.Time(b.next.UnixMilli())
		}
		return r
	}
	if _, why := q.e.keys(q.target); why != "" {
		return &wire.PushReason{Code: ReasonSecretMissing, Detail: why}
	}
	return nil
}
