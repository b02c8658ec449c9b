package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// queue makes a queue.
func (n *node) queue(ctx context.Context, name, ordering string) error {
	p := wire.PolicyUpdate{Ordering: wire.Some(ordering)}
	_, _, err := n.c.PutQueue(ctx, name, p)
	return err
}

// payload is JSON of about size bytes.
func payload(size int) []byte {
	b := fmt.Appendf(nil, `{"body":"`)
	for len(b) < size-2 {
		b = append(b, "abcdefghijklmnopqrstuvwxyz0123456789"[len(b)%36])
	}
	return append(b, `"}`...)
}

// batch is n messages with keys from first on; none where keys is 0.
func batch(n, first, keys int, body []byte) []wire.NewMessage {
	out := make([]wire.NewMessage, n)
	for i := range out {
		out[i].Payload = body
		if keys > 0 {
			out[i].Key = fmt.Sprintf("k%d", (first+i)%keys)
		}
	}
	return out
}

// fill puts messages into a queue, as fast as it goes.
func (n *node) fill(ctx context.Context, queue string, messages, keys, size int) error {
	body := payload(size)
	const each = 1000
	var next atomic.Int64
	return parallel(4, func(int) error {
		for {
			from := int(next.Add(each)) - each
			if from >= messages {
				return nil
			}
			if _, err := n.c.Produce(ctx, queue, batch(min(each, messages-from), from, keys, body)...); err != nil {
				return err
			}
		}
	})
}

func parallel(n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// during lets clients repeat something for a time, and returns how often they
// did and how long each took.
func during(d time.Duration, clients int, fn func(i int) error) (n int, lat *took, seconds float64, err error) {
	lat = &took{}
	began := time.Now()
	err = parallel(clients, func(i int) error {
		var mine []time.Duration
		for time.Since(began) < d {
			t := time.Now()
			if err := fn(i); err != nil {
				return err
			}
			mine = append(mine, time.Since(t))
		}
		lat.add(mine)
		return nil
	})
	return len(lat.all), lat, time.Since(began).Seconds(), err
}

func (n *node) lease(ctx context.Context, queue string, most int) ([]wire.LeasedMessage, error) {
	return n.c.Lease(ctx, queue, client.LeaseOptions{Max: most, Lease: time.Hour})
}

// cycle leases and acks messages.
func (n *node) cycle(ctx context.Context, queue string, most int) (int, error) {
	got, err := n.lease(ctx, queue, most)
	if err != nil || len(got) == 0 {
		return 0, err
	}
	return len(got), n.ack(ctx, queue, got)
}

func (n *node) ack(ctx context.Context, queue string, got []wire.LeasedMessage) error {
	ids := make([]string, len(got))
	for i := range got {
		ids[i] = got[i].LeaseID
	}
	_, err := n.c.Ack(ctx, queue, ids...)
	return err
}
