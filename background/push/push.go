// Package push delivers the messages of queues whose policy has push: it leases them, sends each to
// the queue's target over HTTP, and settles by the answer.
//
// The leader delivers, for all queues. A delivery is a lease like a worker's, so order within a
// key, attempts, backoff and what becomes of a message when this process dies are the queue's own:
// what was in flight is delivered again by the next leader when its lease has expired. So each
// message is delivered at least once, each time with the same Idempotency-Key.
//
// What keeps a queue from being delivered (its target is down, a secret is missing) also keeps it
// from being leased: that costs no attempts.
package push

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// Deps are what an Engine runs on.
type Deps struct {
	// Leads reports whether this node leads. Wake must be called when it changes.
	Leads func() bool
	// Barrier returns when this node has applied all that was committed before.
	Barrier func(context.Context) error
	Queues  func() []event.QueueView // sorted by name
	// Lease waits for work like a worker's long poll. It releases what it leases after ctx has
	// ended.
	Lease func(ctx context.Context, lease *event.Lease, wait time.Duration) (
		[]event.LeasedMessage, error)
	// Settle settles one lease and, if answer is not nil, enqueues it into the queue to in the same
	// entry. A refusal is an *event.Problem; a lost lease is answered as rejected, or refused if
	// there is an answer.
	Settle func(ctx context.Context, item event.SettleItem, to string, answer *wire.NewMessage) (
		event.Settled, error)
	Content func(event.Ref) (*event.Content, error) // of an event, as log.Log reads it
	Now     func() int64                            // the log's time, Unix ms
	// Secrets returns this node's secrets in environment variables and files, and what is missing.
	Secrets func(env, files []string) (secrets, missing []string)

	Client     *webhook.Client
	MaxPayload int64  // of a message: bounds bodies, and answers that are enqueued
	Worker     string // the name under which it leases
	// Off is why this node delivers nothing; "" if it delivers.
	Off      string
	Registry prometheus.Registerer
	Logger   *slog.Logger
}

// Engine delivers while this node leads.
type Engine struct {
	Deps
	*loop.Loop // its Wake must be called when leadership or a queue changes
	metrics    metrics

	soft  context.Context // ended by Drain: no more leases
	drain context.CancelFunc
	hard  context.Context // ended by Stop: requests in flight are aborted
	abort context.CancelFunc
	work  sync.WaitGroup // of the loop, of its queues' loops, and of their deliveries

	mu     sync.Mutex
	queues map[string]*queue // all that have push, or deliveries in flight
}

// retryAfter is the pause after an error of this node.
const retryAfter = time.Second

// New returns an Engine; Start starts it.
func New(d Deps) *Engine {
	e := &Engine{
		Deps: d, Loop: loop.New(time.Hour, retryAfter), metrics: newMetrics(d.Registry),
		queues: map[string]*queue{},
	}
	e.hard, e.abort = context.WithCancel(context.Background())
	e.soft, e.drain = context.WithCancel(e.hard)
	return e
}

// Check is the package's Check with this node's rules.
func (e *Engine) Check(p *wire.Push) error { return Check(p, e.Client.AllowPrivate()) }

// Start starts deliveries: until Stop, the engine delivers whenever this node leads.
func (e *Engine) Start() {
	e.work.Go(func() {
		e.Run(e.soft, e.once, e.Logger.Debug, "push waits for the log to be applied")
	})
}

func (e *Engine) once(ctx context.Context) error {
	leads := e.Off == "" && e.Leads()
	if leads {
		// A new leader may not have applied yet what the one before had committed.
		if err := e.Barrier(ctx); err != nil {
			return err
		}
	}
	e.update(leads)
	return nil
}

// Drain ends leasing; requests in flight continue. It does not block.
func (e *Engine) Drain() { e.drain() }

// giveBack bounds the time to release leases after requests were aborted.
const giveBack = 2 * time.Second

// Stop drains and waits for the deliveries in flight until ctx ends. Then it aborts them and
// releases their messages.
func (e *Engine) Stop(ctx context.Context) {
	e.Drain()
	done := make(chan struct{})
	go func() {
		e.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	e.abort()
	select {
	case <-done:
	case <-time.After(giveBack):
	}
}

// update adds and updates the queues that exist, and delivers those with push if this node leads.
func (e *Engine) update(leads bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[string]event.QueueView{}
	for _, v := range e.Queues() {
		all[v.Name] = v
		if len(v.Policy.Push) > 0 && e.queues[v.Name] == nil {
			q := &queue{e: e, name: v.Name, changed: make(chan struct{}, 1), cancel: func() {}}
			e.queues[v.Name] = q
			e.work.Go(q.run)
		}
	}
	for _, q := range e.queues {
		q.set(all, leads)
	}
}

// Reason returns why push does not deliver a queue's messages, nil if it does. Only the leader
// knows the target's state.
func (e *Engine) Reason(name string) *wire.PushReason {
	e.mu.Lock()
	q := e.queues[name]
	e.mu.Unlock()
	switch {
	case q == nil:
		return nil
	case e.Off != "":
		return &wire.PushReason{Code: "push_off", Detail: e.Off}
	}
	return q.reason()
}

// Unready returns which queues' secrets this node lacks: it could not deliver for them if it led.
func (e *Engine) Unready() (out []string) {
	if e.Off != "" {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.queues {
		q.mu.Lock()
		_, why := e.keys(q.target)
		q.mu.Unlock()
		if why != "" {
			out = append(out, fmt.Sprintf("secret_missing: push of queue %s: %s", q.name, why))
		}
	}
	slices.Sort(out)
	return out
}

// keys returns the secrets to sign with, or what is missing.
func (e *Engine) keys(t *target) (keys [][]byte, missing string) {
	if t == nil || len(t.SecretEnv)+len(t.SecretFile) == 0 {
		return nil, ""
	}
	secrets, lacking := e.Secrets(t.SecretEnv, t.SecretFile)
	if len(secrets) == 0 {
		return nil, strings.Join(lacking, "; ")
	}
	keys, err := keysOf(secrets)
	if err != nil {
		return nil, "the secret can't be used: " + err.Error()
	}
	return keys, ""
}

// metrics are this node's deliveries, by queue.
type metrics struct {
	deliveries *prometheus.CounterVec // also by outcome
	latency    *prometheus.HistogramVec
	inFlight   *prometheus.GaugeVec
	open       *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	f := promauto.With(reg)
	queue := []string{"queue"}
	return metrics{
		deliveries: f.NewCounterVec(prometheus.CounterOpts{
			Name: "qlogd_push_deliveries_total",
			Help: "Deliveries by this node, by what became of the message.",
		}, []string{"queue", "outcome"}),
		latency: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "qlogd_push_latency_seconds",
			Help:    "Time from a request to the end of its answer.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, queue),
		inFlight: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "qlogd_push_in_flight", Help: "Messages on their way to their target.",
		}, queue),
		open: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "qlogd_push_breaker_open",
			Help: "1 while a queue is not leased because its target is down.",
		}, queue),
	}
}

// forget drops a queue's series.
func (m *metrics) forget(queue string) {
	m.deliveries.DeletePartialMatch(prometheus.Labels{"queue": queue})
	m.latency.DeleteLabelValues(queue)
	m.inFlight.DeleteLabelValues(queue)
	m.open.DeleteLabelValues(queue)
}
