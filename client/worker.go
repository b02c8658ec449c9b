package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// WorkerOptions says how a Worker works. The zero value is what most need.
type WorkerOptions struct {
	// Concurrency is how many handlers run at once; 0 is 16.
	Concurrency int

	// Prefetch is how many messages at most wait in memory for a handler; 0 is
	// 1000, less than 0 none. There are never more than what the handlers, as
	// fast as they were of late, work off in a tenth of a second, so slow ones
	// hoard nothing.
	Prefetch int

	// Lease is how long a lease runs before it is extended, which happens by
	// itself at a third of it as long as the message is in hand: so it is how
	// long messages of a worker that dies are away. 0 is the queue's policy.
	Lease time.Duration

	// Grace is how long handlers may go on once Run's context has ended; 0 is
	// 30 s, less than 0 none.
	Grace time.Duration

	Kinds      []string     // of messages; empty: all
	Name       string       // who works, for people who look
	More       []string     // queues besides the first, tried in this order
	Middleware []Middleware // the first is the outermost

	// Logger is told what nobody else is: stacks of panics, leases that could
	// not be had or settled. nil is slog.Default().
	Logger *slog.Logger
}

// Worker leases messages of a queue, has a Handler work on them, and settles them
// by what it returns. Messages are leased ahead of need and many are settled in
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

// What WorkerOptions leaves out, and how far ahead is leased.
const (
	defaultConcurrency = 16
	defaultPrefetch    = 1000
	defaultGrace       = 30 * time.Second
	defaultLease       = 30 * time.Second // where it can't be told from a message

	ahead = 100 * time.Millisecond

	leaseWait = 30 * time.Second // of one long poll
)

// How long Run waits at its end: for handlers, after their contexts have ended,
// and for the last answers to what they settled.
const (
	heedFor   = time.Second
	settleFor = 10 * time.Second
)

// NewWorker returns a worker of a queue. It does nothing before Run.
func NewWorker(c *Client, queue string, h Handler, o WorkerOptions) *Worker {
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.Prefetch == 0 {
		o.Prefetch = defaultPrefetch
	}
	o.Prefetch = max(o.Prefetch, 0)
	if o.Grace == 0 {
		o.Grace = defaultGrace
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	for _, m := range slices.Backward(o.Middleware) {
		h = m(h)
	}
	return &Worker{c: c, queues: append([]string{queue}, o.More...), handler: h, opts: o}
}

// Run works until ctx ends, which is how to stop it: no more is leased then, what
// waits in memory is given back at once, and running handlers may finish, for as
// long as Grace allows. Then their contexts end, and what is still not done is
// given back. It returns nil if all handlers have returned.
//
// It returns an error early where the server refuses for good to lease to it,
// such as ErrQueueNotFound or ErrForbidden. What passes, such as a cluster
// without a leader, it waits for.
func (w *Worker) Run(ctx context.Context) error {
	r := &run{
		w: w, c: w.c, log: w.opts.Logger, handlers: context.WithoutCancel(ctx),
		work:  make(chan *job, w.opts.Concurrency+w.opts.Prefetch),
		lists: map[time.Duration]*jobList{},
		need:  make(chan struct{}, 1), keep: make(chan struct{}, 1), idle: make(chan struct{}, 1),
	}
	keeperDone := make(chan struct{})
	keeperEnd := make(chan struct{})
	go func() {
		r.keeper(keeperEnd)
		close(keeperDone)
	}()
	err := r.fetch(ctx)

	// Those who take from here on see that it stops, and give back.
	r.stop()
	for len(r.work) > 0 {
		select {
		case j := <-r.work:
			r.giveBack(j)
		default:
		}
	}
	close(r.work)
	if !r.waitFor(w.opts.Grace, r.handled) {
		r.cancelHandlers(ErrStopping)
		if !r.waitFor(heedFor, r.handled) {
			n := r.abandon()
			err = errors.Join(err, fmt.Errorf("%d handlers have not returned; their messages are given back", n))
		}
	}
	if !r.waitFor(settleFor, r.settled) {
		err = errors.Join(err, errors.New("not everything could be settled in time; leases run until they expire"))
	}
	close(keeperEnd)
	<-keeperDone
	return err
}

// fetch leases while there is need, until ctx ends or the server refuses.
func (r *run) fetch(ctx context.Context) error {
	for failures := 0; ; {
		n := r.room(ctx)
		if n == 0 {
			return nil
		}
		got, err := r.ask(ctx, n)
		if ctx.Err() != nil {
			r.took(got)
			return nil
		}
		if err == nil {
			failures = 0
			r.took(got)
			continue
		}
		var e *Error
		if errors.As(err, &e) && e.Problem.Status >= 400 && e.Problem.Status < 500 && !e.Problem.Retryable {
			return fmt.Errorf("lease from %s: %w", r.w.queues[0], err)
		}
		failures++
		r.log.Warn("qlogd worker: nothing could be leased; trying again", "queue", r.w.queues[0], "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-r.c.sleep(r.c.backoff(failures)):
		}
	}
}

func (r *run) ask(ctx context.Context, n int) ([]wire.LeasedMessage, error) {
	o := &r.w.opts
	q := LeaseOptions{Max: min(n, maxItems), Wait: leaseWait, Lease: o.Lease, Worker: o.Name, Kinds: o.Kinds}
	req := q.request()
	path := queuePath(r.w.queues[0], "/lease")
	if len(r.w.queues) > 1 {
		req.Queues, path = r.w.queues, "/v1/lease"
	}
	var out wire.LeaseResponse
	_, err := r.c.send(ctx, &call{
		method: http.MethodPost, path: path, body: &req, query: nil, lease: true, spread: true, patience: leaseWait,
	}, &out, nil)
	return out.Messages, err
}
