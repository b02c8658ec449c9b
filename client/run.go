package client

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// run is one Run of a Worker: what it has in hand.
type run struct {
	w        *Worker
	c        *Client
	log      *slog.Logger
	handlers context.Context // parent of the handlers' contexts; it never ends
	work     chan *job       // leased and waiting for a handler; never full

	need chan struct{} // there may be room for more
	keep chan struct{} // the keeper has to look earlier than it meant to
	idle chan struct{} // counts have fallen, while it stops

	mu       sync.Mutex
	stopping bool
	waiting  int                        // jobs in work
	handling int                        // jobs in a handler
	settling int                        // jobs whose settlement is not answered
	workers  int                        // goroutines that handle, or wait for work
	pace     time.Duration              // of a handler: what it takes for a message, of late
	lease    time.Duration              // of the newest message
	lists    map[time.Duration]*jobList // jobs that are waiting or handled, by their leases' length
	keepAt   time.Time                  // when the keeper looks next; zero: not by itself
}

// job is a message in hand.
type job struct {
	Message
	runs   time.Duration // how long a lease is
	run    *run
	ticket settleTicket // of its settlement

	// The rest is guarded by run.mu.

	until      time.Time               // when the lease has run out, as far as is known here
	look       time.Time               // when the keeper must do something about it
	lost       bool                    // it is somebody else's, or nobody's
	cancel     context.CancelCauseFunc // of the handler; nil before
	list       *jobList                // nil: the keeper does not care for it
	prev, next *job
}

// room waits until more can be taken, and returns how much; 0 once ctx ends.
func (r *run) room(ctx context.Context) int {
	for {
		if ctx.Err() != nil {
			return 0
		}
		r.mu.Lock()
		n := r.roomNow()
		r.mu.Unlock()
		if n > 0 {
			return n
		}
		select {
		case <-ctx.Done():
		case <-r.need:
		}
	}
}

// roomNow is how many messages may be leased: for handlers that have nothing to
// do, and to fill the buffer again once half of it is gone.
func (r *run) roomNow() int {
	c, prefetch := r.w.opts.Concurrency, r.prefetch()
	if r.waiting > prefetch/2 || r.waiting > 0 && prefetch == 0 || r.settling > 10*maxItems {
		return 0
	}
	return c + prefetch - r.waiting - r.handling
}

// prefetch is how many messages the handlers work off in a moment.
func (r *run) prefetch() int {
	if r.pace == 0 {
		return 0 // not known yet
	}
	return int(min(int64(min(ahead, r.lease/3))*int64(r.w.opts.Concurrency)/int64(r.pace), int64(r.w.opts.Prefetch)))
}

// wake lets the fetcher look whether there is room now. It is called under mu.
func (r *run) wake() {
	if r.stopping {
		signal(r.idle)
	} else if r.roomNow() > 0 {
		signal(r.need)
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// took takes messages in hand.
func (r *run) took(got []wire.LeasedMessage) {
	if len(got) == 0 {
		return
	}
	jobs := make([]job, len(got))
	now := time.Now()
	r.mu.Lock()
	r.waiting += len(got)
	for i := range got {
		j := &jobs[i]
		j.LeasedMessage = got[i]
		j.runs = leaseOf(&j.LeasedMessage, r.w.opts.Lease)
		j.until, j.look = now.Add(j.runs), now.Add(j.runs/3)
		r.watch(j)
		r.lease = j.runs
	}
	// Those that are not in a handler take one each of what waits, be it handed to
	// them already.
	start := max(min(r.waiting-(r.workers-r.handling), r.w.opts.Concurrency-r.workers), 0)
	r.workers += start
	r.mu.Unlock()
	for range start {
		go r.handle()
	}
	for i := range jobs {
		r.work <- &jobs[i]
	}
}

// handle works on one message after the other.
func (r *run) handle() {
	for {
		j, ok := <-r.work
		r.mu.Lock()
		if !ok {
			r.workers--
			r.mu.Unlock()
			return
		}
		if r.stopping || j.lost {
			r.mu.Unlock()
			r.giveBack(j)
			continue
		}
		r.waiting--
		r.handling++
		ctx, cancel := context.WithCancelCause(r.handlers)
		j.cancel = cancel
		r.wake()
		r.mu.Unlock()
		r.do(ctx, j)
	}
}

// do calls the handler and settles the message by what it says.
func (r *run) do(ctx context.Context, j *job) {
	began := time.Now()
	returned := false
	var err error
	defer func() {
		if !returned {
			if v := recover(); v != nil {
				err = &panicError{v}
				r.log.Error("qlogd worker: the handler panicked; the message is given back for another try",
					"queue", j.Queue, "message", j.ID, "panic", v, "stack", string(debug.Stack()))
			} else { // runtime.Goexit
				err = &panicError{"the handler has ended its goroutine"}
				defer func() { go r.handle() }()
			}
		}
		r.done(ctx, j, err, time.Since(began))
	}()
	err = r.w.handler(ctx, &j.Message)
	returned = true
}

// done settles a message whose handler has returned.
func (r *run) done(ctx context.Context, j *job, err error, took time.Duration) {
	stopping := context.Cause(ctx) == ErrStopping
	r.mu.Lock()
	r.handling--
	if took = max(took, time.Microsecond); r.pace == 0 {
		r.pace = took
	} else {
		r.pace += (took - r.pace) / 8
	}
	r.unwatch(j)
	cancel, lost := j.cancel, j.lost
	if !lost {
		r.settling++
	}
	r.wake()
	r.mu.Unlock()
	cancel(nil)
	if !lost {
		r.settle(j, settlement(j.LeaseID, err, stopping))
	}
}

// giveBack releases a message that was waiting for a handler.
func (r *run) giveBack(j *job) {
	r.mu.Lock()
	r.waiting--
	lost := j.lost
	r.unwatch(j)
	if !lost {
		r.settling++
	}
	r.wake()
	r.mu.Unlock()
	if !lost {
		r.settle(j, Settlement{LeaseID: j.LeaseID, Do: DoRelease})
	}
}

// settle hands in a settlement, without waiting for the answer.
func (r *run) settle(j *job, s Settlement) {
	j.run = r
	j.ticket = settleTicket{item: s, size: s.size(), then: (*settledJob)(j)}
	if err := r.c.settleLane(j.Queue, s.Do).add(&j.ticket); err != nil {
		(*settledJob)(j).answered(wire.SettleResult{}, err)
	}
}

// settledJob is a job that waits for the answer to its settlement.
type settledJob job

func (j *settledJob) answered(out wire.SettleResult, err error) {
	r := j.run
	if err == nil {
		err = lost(&out)
	}
	if err != nil {
		r.log.Warn("qlogd worker: a message could not be settled; it is delivered again",
			"queue", j.Queue, "message", j.ID, "settle", string(j.ticket.item.Do), "error", err)
	}
	r.mu.Lock()
	r.settling--
	r.wake()
	r.mu.Unlock()
}

// stop lets no more messages be handled.
func (r *run) stop() {
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
}

// cancelHandlers ends the contexts of all handlers. These have no parent to do it:
// to enter each message there and to take it out again costs more than to handle
// it.
func (r *run) cancelHandlers(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lists {
		for j := l.first; j != nil; j = j.next {
			if j.cancel != nil {
				j.cancel(cause)
			}
		}
	}
}

// abandon gives back what handlers do not let go of, and returns how many.
func (r *run) abandon() (n int) {
	var left []*job
	r.mu.Lock()
	for _, l := range r.lists {
		for j := l.first; j != nil; j = j.next {
			left = append(left, j)
		}
	}
	for _, j := range left {
		r.unwatch(j)
		j.lost = true
		r.settling++
	}
	n = r.handling
	r.mu.Unlock()
	for _, j := range left {
		r.settle(j, Settlement{LeaseID: j.LeaseID, Do: DoRelease})
	}
	return n
}

func (r *run) handled() bool { return r.handling == 0 && r.waiting == 0 }
func (r *run) settled() bool { return r.settling == 0 }

// waitFor waits until something is so, for at most d, and tells whether it is.
func (r *run) waitFor(d time.Duration, is func() bool) bool {
	end := time.NewTimer(max(d, 0))
	defer end.Stop()
	for {
		r.mu.Lock()
		ok := is()
		r.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-r.idle:
		case <-end.C:
			return false
		}
	}
}
