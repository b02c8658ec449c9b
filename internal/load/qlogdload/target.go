// Package qlogdload puts load on a queue of qlogd, through the public client.
package qlogdload

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/load"
)

// Target is a queue. Producers and workers share its clients in turn.
type Target struct {
	Clients []*client.Client
	Queue   string

	producers, workers atomic.Uint32
}

var _ load.Target = (*Target)(nil)

// wait is how long a lease waits for messages.
const wait = time.Second

// Clients returns a client for each node, which begins with that one and goes to
// the others where it fails: all nodes take a share of the load.
func Clients(addrs []string, opts ...client.Option) ([]*client.Client, error) {
	var out []*client.Client
	for i := range addrs {
		c, err := client.New(addrs[i], append([]client.Option{client.WithEndpoints(append(append([]string{}, addrs[i+1:]...), addrs[:i]...)...)}, opts...)...)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Make makes a queue with a policy and returns it as a target.
func Make(ctx context.Context, clients []*client.Client, queue string, policy wire.PolicyUpdate) (*Target, error) {
	if _, _, err := clients[0].PutQueue(ctx, queue, policy); err != nil {
		return nil, err
	}
	return &Target{Clients: clients, Queue: queue}, nil
}

// Producer returns one more producer.
func (t *Target) Producer(context.Context) (load.Producer, error) {
	i := t.producers.Add(1) - 1
	return &producer{c: t.Clients[int(i)%len(t.Clients)], queue: t.Queue}, nil
}

// Worker returns one more worker.
func (t *Target) Worker(context.Context) (load.Worker, error) {
	i := t.workers.Add(1) - 1
	return &worker{c: t.Clients[int(i)%len(t.Clients)], queue: t.Queue}, nil
}

type producer struct {
	c     *client.Client
	queue string
	batch []wire.NewMessage
}

func (p *producer) Produce(ctx context.Context, batch []load.Message) error {
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
	c      *client.Client
	queue  string
	out    []load.Delivery
	leases []string
}

func (w *worker) Take(ctx context.Context, most int) ([]load.Delivery, error) {
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

func (w *worker) Close() error { return nil }
