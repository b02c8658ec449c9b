package qlogd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/client"
)

// Target is a queue. Producers and workers share the client, which should be one
// that shares its calls among all nodes (client.WithSpread).
type Target struct {
	Client *client.Client
	Queue  string

	mu      sync.Mutex
	workers int
	pool    *pool // of those who take one message at a time
}

var _ load.Target = (*Target)(nil)

// wait is how long a lease waits for messages.
const wait = time.Second

// Make makes a queue with a policy and returns it as a target.
func Make(ctx context.Context, c *client.Client, queue string,
	policy wire.PolicyUpdate) (*Target, error) {
	if _, _, err := c.PutQueue(ctx, queue, policy); err != nil {
		return nil, err
	}
	return &Target{Client: c, Queue: queue}, nil
}

// Producer returns one more producer.
func (t *Target) Producer(context.Context) (load.Producer, error) {
	return &producer{c: t.Client, queue: t.Queue}, nil
}

// Worker returns one more worker.
func (t *Target) Worker(context.Context) (load.Worker, error) {
	t.mu.Lock()
	t.workers++
	t.mu.Unlock()
	return &worker{t: t, c: t.Client, queue: t.Queue}, nil
}

type producer struct {
	c     *client.Client
	queue string
	batch []wire.NewMessage
}

// Produce enqueues a single message through Enqueue, as programs do that have one
// at a time.
func (p *producer) Produce(ctx context.Context, batch []load.Message) error {
	if len(batch) == 1 {
		m := client.Bytes(batch[0].Payload, "")
		m.Key = batch[0].Key
		_, err := p.c.Enqueue(ctx, p.queue, m)
		return err
	}
	p.batch = p.batch[:0]
	for _, m := range batch {
		n := client.Bytes(m.Payload, "")
		n.Key = m.Key
		p.batch = append(p.batch, n)
	}
	_, err := p.c.Produce(ctx, p.queue, p.batch...)
	return err
}

func (p *producer) Close() error { return nil }

type worker struct {
	t      *Target
	c      *client.Client
	queue  string
	out    []load.Delivery
	leases []string
}

// Take of a single message is by the client's Worker, as programs do that work on
// one at a time: it leases ahead, and settles in shared requests when the handler
// has returned. Count is 0 when that is done.
func (w *worker) Take(ctx context.Context, most int) ([]load.Delivery, error) {
	if most == 1 {
		h, err := w.t.shared().take(ctx)
		if h == nil {
			return nil, err
		}
		w.out = append(w.out[:0], load.Delivery{Payload: h.payload, Handle: h})
		return w.out, nil
	}
	got, err := w.c.Lease(ctx, w.queue, client.LeaseOptions{Max: most, Wait: wait})
	if err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return nil, err
	}
	w.out = w.out[:0]
	for _, m := range got {
		d := load.Delivery{Payload: m.Payload, Handle: m.LeaseID}
		if m.PayloadBytes != nil {
			d.Payload = m.PayloadBytes
		}
		w.out = append(w.out, d)
	}
	return w.out, nil
}

func (w *worker) Ack(ctx context.Context, done []load.Delivery) error {
	if h, ok := done[0].Handle.(*handed); ok {
		close(h.done)
		return nil
	}
	w.leases = w.leases[:0]
	for _, d := range done {
		w.leases = append(w.leases, d.Handle.(string))
	}
	results, err := w.c.Ack(ctx, w.queue, w.leases...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Status != "acked" {
			return fmt.Errorf("lease %s: %s (%s)", r.LeaseID, r.Status, r.Code)
		}
	}
	return nil
}

func (w *worker) Close() error {
	w.t.left()
	return nil
}
