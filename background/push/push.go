// Package push delivers the messages of queues whose policy has push: it leases
// them, sends each to the queue's target over HTTP, and settles by the answer.
//
// Whoever leads delivers, for all queues. A delivery is a lease like a worker's,
// so order within a key, attempts, backoff and what becomes of a message when
// this process dies are the queue's own: what was in hand is delivered again, by
// whoever leads then, when its lease has run out. So each message is delivered
// at least once, each time with the same Idempotency-Key.
//
// What keeps a queue from being delivered (its target is down, a secret is
// missing) keeps it from being leased, too: no attempt is burnt on it.
package push

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// Deps is what an Engine stands on.
type Deps struct {
	// Leads tells whether this node leads. Wake is to be called when it changes.
	Leads func() bool
	// Barrier returns when this node has applied all that was committed before.
	Barrier func(context.Context) error
	Queues  func() []event.QueueView // sorted by name
	// Lease waits for work like a worker's long poll. What it leases when ctx has
	// ended it gives back.
	Lease func(ctx context.Context, lease *event.Lease, wait time.Duration) ([]event.LeasedMessage, error)
	// Settle settles one lease and, where answer is not nil, enqueues it into the
	// queue to in the same entry. A refusal is an *event.Problem; a lease that was
	// lost is answered as rejected, or refused where there is an answer.
	Settle func(ctx context.Context, item event.SettleItem, to string, answer *wire.NewMessage) (event.Settled, error)
	// Content reads what users wrote in an event, nil where they had it erased.
	Content func(event.Ref) (*event.Content, error)
	Now     func() int64 // the log's time, Unix ms
	// Secrets finds secrets on this node, and says which of them it lacks.
	Secrets func(env, files []string) (secrets, missing []string)

	Client     *webhook.Client
	MaxPayload int64  // of a message: bounds bodies, and answers that are enqueued
	Worker     string // who leases
	// Off is why nothing is delivered from this node; "": it is.
	Off      string
	Registry prometheus.Registerer
	Logger   *slog.Logger
}

// Engine delivers while this node leads.
type Engine struct {
	d       Deps
	wake    chan struct{}
	metrics *metrics

	soft   context.Context // ended by Drain: no more leases
	drain  context.CancelFunc
	hard   context.Context // ended by Stop: requests in hand are given up
	abort  context.CancelFunc
	work   sync.WaitGroup // of run
	loops  sync.WaitGroup // of queues; begun by run
	flying sync.WaitGroup // of deliveries; begun by loops

	mu     sync.Mutex
	queues map[string]*queue // all that have push
}

// New returns an Engine; Start starts it.
func New(d Deps) *Engine {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{d: d, wake: make(chan struct{}, 1), queues: map[string]*queue{}, metrics: newMetrics(d.Registry)}
	e.hard, e.abort = context.WithCancel(context.Background())
	e.soft, e.drain = context.WithCancel(e.hard)
	return e
}

// Check is the package's Check with what this node's client allows.
func (e *Engine) Check(p *wire.Push) error { return Check(p, e.d.Client.AllowPrivate()) }

// Wake lets the engine look anew: at who leads, and at which queues there are. It
// never blocks.
func (e *Engine) Wake() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// againAfter is when it is tried anew after an error of this node's.
const againAfter = time.Second

// Start delivers from here on whenever this node leads, until Stop.
func (e *Engine) Start() {
	e.Wake()
	e.work.Go(e.run)
}

func (e *Engine) run() {
	for {
		select {
		case <-e.soft.Done():
			e.rest()
			return
		case <-e.wake:
		}
		leads := e.d.Off == "" && e.d.Leads()
		if !leads {
			e.rest()
		} else if err := e.d.Barrier(e.soft); err != nil {
			// Who has just begun to lead may not have applied yet what the one
			// before had committed.
			if e.soft.Err() == nil {
				time.AfterFunc(againAfter, e.Wake)
			}
			continue
		}
		e.look(leads)
	}
}

// Drain ends leasing: what is leased and not sent yet is given back, what is sent
// goes on. It does not block.
func (e *Engine) Drain() { e.drain() }

// giveBack is how long it may take to give leases back after requests were given
// up.
const giveBack = 2 * time.Second

// Stop drains and waits for the deliveries in hand until ctx ends: then they are
// given up, and their messages given back.
func (e *Engine) Stop(ctx context.Context) {
	e.Drain()
	done := make(chan struct{})
	go func() {
		e.work.Wait()
		e.loops.Wait()
		e.flying.Wait()
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

// look compares the queues that there are with those that it knows, and has them
// delivered if this node leads.
func (e *Engine) look(leads bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	there := map[string]bool{}
	all := e.d.Queues()
	exists := func(name string) bool {
		_, ok := slices.BinarySearchFunc(all, name, func(v event.QueueView, n string) int { return strings.Compare(v.Name, n) })
		return ok
	}
	for i := range all {
		v := &all[i]
		if len(v.Policy.Push) == 0 {
			continue
		}
		there[v.Name] = true
		q := e.queues[v.Name]
		if q != nil && q.number != v.Number { // another queue of that name
			q.retire()
			q = nil
		}
		if q == nil {
			q = &queue{e: e, name: v.Name, number: v.Number, inFlight: map[event.ID]*delivery{}, bell: make(chan struct{}, 1)}
			e.queues[v.Name] = q
		}
		q.set(&v.Policy, exists)
		if leads {
			q.start()
		}
	}
	for name, q := range e.queues {
		if !there[name] {
			q.retire()
			delete(e.queues, name)
			e.metrics.forget(name)
		}
	}
}

// rest ends leasing for all queues.
func (e *Engine) rest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.queues {
		q.stop()
	}
}

// Why a queue with push is not delivered.
const (
	ReasonOff           = "push_off"
	ReasonTargetDown    = "push_target_down"
	ReasonSecretMissing = "push_secret_missing"
	ReasonAnswerQueue   = "push_answer_queue_missing"
	ReasonPolicy        = "push_policy_unknown"
)

// Reason says why a queue's messages are not delivered, as far as that is push's
// business; nil where it is not. What the target's state is only the leader knows.
func (e *Engine) Reason(name string) *wire.PushReason {
	e.mu.Lock()
	q := e.queues[name]
	e.mu.Unlock()
	switch {
	case q == nil:
		return nil
	case e.d.Off != "":
		return &wire.PushReason{Code: ReasonOff, Detail: e.d.Off}
	}
	return q.reason()
}

// Unready says which queues' secrets this node lacks: it could not deliver for
// them if it led.
func (e *Engine) Unready() (out []string) {
	if e.d.Off != "" {
		return nil
	}
	e.mu.Lock()
	queues := make([]*queue, 0, len(e.queues))
	for _, q := range e.queues {
		queues = append(queues, q)
	}
	e.mu.Unlock()
	for _, q := range queues {
		q.mu.Lock()
		t := q.target
		q.mu.Unlock()
		if _, why := e.keys(t); why != "" {
			out = append(out, fmt.Sprintf("secret_missing: push of queue %s: %s", q.name, why))
		}
	}
	slices.Sort(out)
	return out
}

// keys finds the secrets to sign with. why says what is missing.
func (e *Engine) keys(t *target) (keys [][]byte, why string) {
	if t == nil || len(t.SecretEnv)+len(t.SecretFile) == 0 {
		return nil, ""
	}
	secrets, missing := e.d.Secrets(t.SecretEnv, t.SecretFile)
	if len(secrets) == 0 {
		return nil, strings.Join(missing, "; ")
	}
	keys, err := keysOf(secrets)
	if err != nil {
		return nil, "the secret can't be used: " + err.Error()
	}
	return keys, ""
}

// samePush reports whether two policies are delivered by in the same way.
func samePush(a, b *event.Policy) bool { return bytes.Equal(a.Push, b.Push) && a.LeaseMS == b.LeaseMS }
