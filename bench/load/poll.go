package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Poll measures how long a waiting worker waits: repeatedly one worker waits on
// the empty queue, one message is produced, and the time from before its Produce
// until the worker has it is taken. Of Config it reads Size, Warmup, Duration and
// Window.
func Poll(ctx context.Context, t Target, c Config) (*Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := t.Producer(ctx)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	defer p.Close()
	w, err := t.Worker(ctx)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	defer w.Close()

	type took struct {
		after time.Duration // since began
		err   error
	}
	began := time.Now()
	id := rand.Uint64()
	m := newMaker(id, max(c.Size, MinSize), 1, 0, 0)
	arrived := make(chan took, 1)
	out := &Result{Lost: 0}
	produce, delivery := NewHistogram(), NewHistogram()
	var from time.Time
	for seq := uint64(0); ; seq++ {
		if from.IsZero() && time.Since(began) >= c.Warmup {
			from = time.Now()
			if c.Window != nil {
				c.Window(true)
			}
		}
		if !from.IsZero() && time.Since(from) >= c.Duration {
			break
		}
		go func() {
			for ctx.Err() == nil {
				got, err := w.Take(ctx, 1)
				after := time.Since(began)
				if err == nil && len(got) == 0 {
					continue
				}
				if err == nil {
					if _, n, ok := origin(id, got[0].Payload); !ok || n != seq {
						err = errors.New("another message came than was sent")
					}
				}
				if err == nil {
					err = w.Ack(ctx, got)
				}
				arrived <- took{after, err}
				return
			}
			arrived <- took{err: ctx.Err()}
		}()
		// Until it surely waits, and not in step with anything.
		sleep(10*time.Millisecond + rand.N(10*time.Millisecond))
		sent := time.Since(began)
		if err := p.Produce(ctx, m.next(1, seq, int64(sent))); err != nil {
			return nil, fmt.Errorf("produce: %w", err)
		}
		acked := time.Since(began)
		select {
		case got := <-arrived:
			if got.err != nil {
				return nil, fmt.Errorf("take: %w", got.err)
			}
			out.TotalProduced++
			out.TotalAcked++
			if !from.IsZero() {
				out.Produced++
				out.Acked++
				produce.Add(acked-sent, 1)
				delivery.Add(got.after-sent, 1)
			}
		case <-time.After(stuck):
			return nil, errors.New("the message did not reach the worker that waits")
		}
	}
	out.Seconds = time.Since(from).Seconds()
	if c.Window != nil {
		c.Window(false)
	}
	out.Produce, out.Delivery = produce.Quantiles(), delivery.Quantiles()
	out.ProduceRate, out.AckRate = float64(out.Produced)/out.Seconds, float64(out.Acked)/out.Seconds
	return out, nil
}
