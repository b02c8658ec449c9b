package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// WorkerOptions configures a Worker. The zero value suits most.
type WorkerOptions struct {
	// Concurrency is how many handlers run at once; 0 is 16.
	Concurrency int

	// Prefetch is how many messages at most wait in memory for a handler; 0 is 1000,
	// less than 0 none. There are never more than the handlers, at their recent pace,
	// finish in a tenth of a second, so slow handlers do not hoard messages.
	Prefetch int

	// Lease is how long a lease runs. It is extended at a third of that while the
	// message is handled or waits for a handler, so it is the time after which messages
	// of a dead worker are delivered again. 0 is the queue's policy.
	Lease time.Duration

	// Grace is how long handlers may go on once Run's context has ended; 0 is
	// 30 s, less than 0 none.
	Grace time.Duration

	// Handlers are called for messages of these kinds, and NewWorker's handler for all others. If
	// that is nil, no others are leased: they wait for a worker that knows their kind.
	Handlers map[string]Handler

	Kinds      []string     // of messages; empty: all
	Name       string       // the worker's name, for display
	More       []string     // queues besides the first, tried in this order
	Middleware []Middleware // the first is the outermost

	// Settled, for metrics, is called for each message once it is settled, or could not be (err):
	// then it is delivered again. took is the handler's time, 0 of a message that no handler got.
	// It must be quick.
	Settled func(m *Message, s Settlement, took time.Duration, err error)

	// Logger gets stacks of panics, and failures to lease or to settle, which are
	// reported nowhere else. nil is slog.Default().
	Logger *slog.Logger
}

// Worker leases messages of a queue, calls a Handler for each, and settles it
// according to the result. Messages are leased ahead of need and many are settled in
// one request, so that it is about as fast as the handler allows.
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	worker := client.NewWorker(c, "jobs", func(ctx context.Context, m *client.Message) error {
//		return work(ctx, m.Bytes())
//	}, client.WorkerOptions{Concurrency: 8})
//	err := worker.Run(ctx)
type Worker struct {
	c       *Client
	queues  []string
	handler Handler
	opts    WorkerOptions
}

// Defaults of WorkerOptions, and how far ahead is leased.
const (
	defaultConcurrency = 16
	defaultPrefetch    = 1000
	defaultGrace       = 30 * time.Second
	defaultLease       = 30 * time.Second // of a message that does not say it

	ahead = 100 * time.Millisecond

	leaseWait = 30 * time.Second // of one long poll
)

// How long Run waits at its end: for an answer to a lease call, for handlers, after their contexts
// have ended, and for the last answers to what they settled.
const (
	answerFor = 250 * time.Millisecond
	heedFor   = time.Second
	settleFor = 10 * time.Second
)

// NewWorker returns a worker of a queue. It does nothing before Run. h is nil if o.Handlers are all.
func NewWorker(c *Client, queue string, h Handler, o WorkerOptions) *Worker {
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	o.Prefetch = max(cmp.Or(o.Prefetch, defaultPrefetch), 0)
	o.Grace = cmp.Or(o.Grace, defaultGrace)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if len(o.Handlers) > 0 {
		if h == nil {
			o.Kinds = slices.Sorted(maps.Keys(o.Handlers))
		}
		h = byKind(o.Handlers, h)
	}
	for _, m := range slices.Backward(o.Middleware) {
		h = m(h)
	}
	return &Worker{c: c, queues: append([]string{queue}, o.More...), handler: h, opts: o}
}

// Run works until ctx is cancelled. Then it leases no more, releases messages waiting in memory,
// and lets running handlers finish for as long as Grace allows. After that it ends their contexts
// and releases unfinished messages. It returns nil if all handlers have returned.
//
// It returns an error early if a lease is refused for good, such as with
// ErrQueueNotFound or ErrForbidden. It retries while there is no leader and the like.
func (w *Worker) Run(ctx context.Context) error {
	r := &run{
		w: w, work: make(chan *job, w.opts.Concurrency+w.opts.Prefetch),
		jobs: map[*job]struct{}{}, need: make(chan struct{}, 1),
	}
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	defer r.cancel(nil)
	for range w.opts.Concurrency {
		r.handlers.Go(r.handle)
	}
	err := r.fetch(ctx)
	r.stop()
	close(r.work)
	for j := range r.work {
		r.release(j)
	}
	if !within(w.opts.Grace, &r.handlers) {
		r.cancel(ErrStopping)
		if !within(heedFor, &r.handlers) {
			err = errors.Join(err, fmt.Errorf(
				"%d handlers have not returned; their messages are released", r.abandon()))
		}
	}
	if !within(settleFor, &r.settles) {
		err = errors.Join(err, errors.New(
			"not everything could be settled in time; leases run until they expire"))
	}
	return err
}

// stop keeps handlers from beginning another message.
func (r *run) stop() {
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
}

// within waits for a group for at most d, and reports whether it has ended.
func within(d time.Duration, group *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// run is one Run of a Worker.
type run struct {
	w        *Worker
	ctx      context.Context // parent of the handlers' contexts
	cancel   context.CancelCauseFunc
	work     chan *job      // leased and waiting for a handler; never full
	need     chan struct{}  // there may be room for more
	handlers sync.WaitGroup // goroutines that handle
	settles  sync.WaitGroup // settlements without an answer

	mu       sync.Mutex
	stopping bool              // handle releases messages
	jobs     map[*job]struct{} // waiting or handled, and not over
	leased   int               // messages that wait or are in a handler
	pace     time.Duration     // a handler's recent time per message
	lease    time.Duration     // of the newest message
}

// job is a leased message.
type job struct {
	Message
	runs time.Duration // how long a lease is

	// The rest is guarded by run.mu.
	next   *job                    // behind it in its batch: handled if it is acked, else released
	behind bool                    // behind another job
	until  time.Time               // the end of the lease, as far as is known here
	extend *time.Timer             // asks for more at a third of it; nil behind another job
	over   bool                    // settled, or its lease is lost
	cancel context.CancelCauseFunc // of the handler; nil before
}

// fetch leases while there is room, until ctx ends or the server refuses.
func (r *run) fetch(ctx context.Context) error {
	o := &r.w.opts
	defer context.AfterFunc(ctx, r.stop)() // while the answer to a lease call may be on its way
	for failures := 0; ctx.Err() == nil; {
		r.mu.Lock()
		n := r.room()
		r.mu.Unlock()
		if n <= 0 {
			select {
			case <-ctx.Done():
			case <-r.need:
			}
			continue
		}
		q := leaseCall(r.w.queues, LeaseOptions{Max: min(n, maxItems), Wait: leaseWait,
			Lease: o.Lease, Worker: o.Name, Kinds: o.Kinds})
		q.spread, q.linger = true, answerFor
		out, err := do[wire.LeaseResponse](ctx, r.w.c, q, nil)
		r.took(out.Messages)
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if e, ok := errors.AsType[*Error](err); ok && !e.Problem.Retryable &&
			e.Problem.Status >= 400 && e.Problem.Status < 500 {
			return fmt.Errorf("lease from %s: %w", r.w.queues[0], err)
		}
		failures++
		o.Logger.Warn("lease failed, retrying", "queue", r.w.queues[0], "error", err)
		r.w.c.pause(ctx, failures, 0)
	}
	return nil
}

// room returns how many messages may be leased: for idle handlers, and to fill the
// buffer again once half of it is gone. r.mu is held.
func (r *run) room() int {
	c, prefetch := r.w.opts.Concurrency, 0
	if r.pace > 0 {
		soon := int64(min(ahead, r.lease/3)) * int64(c) / int64(r.pace)
		prefetch = int(min(soon, int64(r.w.opts.Prefetch)))
	}
	if waiting := len(r.work); waiting > prefetch/2 || waiting > 0 && prefetch == 0 {
		return 0
	}
	return c + prefetch - r.leased
}

// wake wakes the fetcher if there is room. r.mu is held.
func (r *run) wake() {
	if r.room() > 0 {
		select {
		case r.need <- struct{}{}:
		default:
		}
	}
}

// took passes leased messages to the handlers: of each batch the first, which leads to the others.
func (r *run) took(messages []LeasedMessage) {
	var ahead *job
	for _, m := range messages {
		j := &job{Message: Message{m}, runs: leaseOf(&m, r.w.opts.Lease)}
		j.until = time.Now().Add(j.runs)
		r.mu.Lock()
		first := ahead == nil || m.Behind != ahead.LeaseID
		if first {
			j.extend = time.AfterFunc(j.runs/3, func() { r.extend(j) })
		} else {
			ahead.next, j.behind = j, true
		}
		r.jobs[j] = struct{}{}
		r.lease = j.runs
		r.leased++
		r.mu.Unlock()
		if ahead = j; first {
			r.work <- j
		}
	}
}

// handle handles one message after the other.
func (r *run) handle() {
	for j := range r.work {
		for j != nil {
			j = r.one(j)
		}
	}
}

// one handles a message and returns the one behind it in its batch, nil for none.
func (r *run) one(j *job) *job {
	r.mu.Lock()
	if r.stopping || j.over {
		r.mu.Unlock()
		r.release(j)
		return nil
	}
	if j.extend == nil { // its lease was extended with those ahead of it
		due := time.Until(j.until) - 2*j.runs/3
		j.extend = time.AfterFunc(max(due, 0), func() { r.extend(j) })
	}
	ctx, cancel := context.WithCancelCause(r.ctx)
	j.cancel = cancel
	r.wake()
	r.mu.Unlock()
	r.do(ctx, j)
	r.mu.Lock()
	defer r.mu.Unlock()
	return j.next
}

// do calls the handler and settles the message according to the result.
func (r *run) do(ctx context.Context, j *job) {
	began := time.Now()
	returned := false
	var err error
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v}
			r.w.opts.Logger.Error("handler panicked, message returned for another try",
				"queue", j.Queue, "message", j.ID, "panic", v, "stack", string(debug.Stack()))
		} else if !returned { // runtime.Goexit
			err = &panicError{"the handler has ended its goroutine"}
			r.handlers.Go(r.handle)
		}
		stopping := context.Cause(ctx) == ErrStopping
		j.cancel(nil)
		r.settle(j, settlement(j.LeaseID, err, stopping),
			max(time.Since(began), time.Microsecond))
	}()
	if p := r.w.c.carries; p != nil {
		err = r.w.handler(p.Extract(ctx, j.Headers), &j.Message)
	} else {
		err = r.w.handler(ctx, &j.Message)
	}
	returned = true
}

// release releases a message that is not handled, or not to its end.
func (r *run) release(j *job) {
	r.settle(j, Settlement{LeaseID: j.LeaseID, Do: DoRelease}, 0)
}

// settle settles a job, unless it is over, without waiting for the answer. took is the
// handler's time, 0 without one.
func (r *run) settle(j *job, s Settlement, took time.Duration) {
	r.mu.Lock()
	if took > 0 {
		if r.pace == 0 {
			r.pace = took
		}
		r.pace += (took - r.pace) / 8
	}
	r.leased--
	over, rest := j.over, j.next
	if !over {
		r.end(j)
		r.settles.Add(1)
	}
	if s.Do == DoAck && !over {
		rest = nil
	} else {
		j.next = nil
	}
	r.wake()
	r.mu.Unlock()
	if rest != nil {
		defer r.release(rest) // and so all of the batch
	}
	if over {
		r.settled(j, s, took, ErrLeaseLost)
		return
	}
	r.send(j, s, func(err error) {
		if j.behind && s.Do == DoRelease && errors.Is(err, ErrLeaseLost) {
			err = nil // the one ahead of it has sent it back
		}
		r.settled(j, s, took, err)
		if err != nil {
			r.w.opts.Logger.Warn("message not settled, it will be delivered again",
				"queue", j.Queue, "message", j.ID, "settle", string(s.Do), "error", err)
		}
		r.settles.Done()
	})
}

// settled reports how a message was settled.
func (r *run) settled(j *job, s Settlement, took time.Duration, err error) {
	if r.w.opts.Settled != nil {
		r.w.opts.Settled(&j.Message, s, took, err)
	}
}

// end ends the extensions of a job's lease. r.mu is held.
func (r *run) end(j *job) {
	if j.over = true; j.extend != nil {
		j.extend.Stop()
	}
	delete(r.jobs, j)
}

// send sends a settlement of a job in a shared request.
func (r *run) send(j *job, s Settlement, then func(error)) {
	r.w.c.settleLane(j.Queue, s.Do).add(&ticket[Settlement, SettleResult]{
		item: s, size: s.size(),
		then: func(out SettleResult, err error) {
			if err == nil {
				err = lost(&out)
			}
			then(err)
		},
	})
}

// abandon releases the messages of handlers that have not returned, and returns their number.
func (r *run) abandon() int {
	r.mu.Lock()
	left, n := slices.Collect(maps.Keys(r.jobs)), r.leased
	r.mu.Unlock()
	for _, j := range left {
		r.release(j)
	}
	return n
}

// extend extends a job's lease, and with it those behind it, or gives it up when it has run out.
func (r *run) extend(j *job) {
	now := time.Now()
	r.mu.Lock()
	left := j.until.Sub(now)
	if !j.over && left <= 0 {
		r.lose(j)
	}
	over := j.over
	if !over {
		j.extend.Reset(min(j.runs/3, left))
	}
	r.mu.Unlock()
	if over {
		return
	}
	r.send(j, Settlement{LeaseID: j.LeaseID, Do: DoExtend, Lease: j.runs}, func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case err == nil:
			for k := j; k != nil; k = k.next {
				k.until = now.Add(k.runs)
			}
		case !j.over && (errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrQueueNotFound)):
			r.lose(j)
		} // without an answer the lease runs out
	})
}

// lose notes that a job's lease is gone, and those behind it. r.mu is held.
func (r *run) lose(j *job) {
	for k := j; k != nil; k = k.next {
		r.end(k)
	}
	if j.cancel != nil {
		j.cancel(ErrLeaseLost)
	}
}

// leaseOf returns how long a message's lease runs. Its id contains its beginning by
// the server's clock, as is its end, so the clock here does not matter.
func leaseOf(m *LeasedMessage, asked time.Duration) time.Duration {
	if began, ok := ulidTime(m.LeaseID); ok {
		d := time.Duration(int64(m.LeaseExpiresAt)-began) * time.Millisecond
		if d > 0 && d <= 24*time.Hour {
			return d
		}
	}
	return cmp.Or(max(asked, 0), defaultLease)
}

// ulidTime returns the time in a ULID, Unix ms: its first ten characters, in Crockford's base 32.
func ulidTime(id string) (ms int64, ok bool) {
	if len(id) != 26 {
		return 0, false
	}
	for i := range 10 {
		n := strings.IndexByte("0123456789ABCDEFGHJKMNPQRSTVWXYZ", id[i])
		if n < 0 {
			return 0, false
		}
		ms = ms<<5 | int64(n)
	}
	return ms, true
}
