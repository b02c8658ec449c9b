package qlogd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/client"
)

// handed is a message that a client.Worker's handler processes.
type handed struct {
	payload []byte
	done    chan struct{}
}

// pool is a client.Worker whose handlers hand their messages to those who take one
// at a time, and return, which acks, when these say so.
type pool struct {
	messages chan *handed
	stop     context.CancelFunc
	ended    chan struct{}
	err      error // how; when ended is closed
}

func startPool(c *client.Client, queue string, workers int) *pool {
	ctx, stop := context.WithCancel(context.Background())
	p := &pool{messages: make(chan *handed), stop: stop, ended: make(chan struct{})}
	w := client.NewWorker(c, queue, p.handle, client.WorkerOptions{
		Concurrency: workers, Grace: -1, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	go func() {
		p.err = w.Run(ctx)
		close(p.ended)
	}()
	return p
}

func (p *pool) handle(ctx context.Context, m *client.Message) error {
	h := &handed{payload: m.Bytes(), done: make(chan struct{})}
	select {
	case p.messages <- h:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-h.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errEnded = errors.New("the client's worker ended")

// take returns a message, nil when ctx ends or none came for a while.
func (p *pool) take(ctx context.Context) (*handed, error) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case h := <-p.messages:
		return h, nil
	case <-p.ended:
		return nil, errors.Join(errEnded, p.err)
	case <-ctx.Done():
	case <-t.C:
	}
	return nil, nil
}

// Count returns how many messages the queue holds, delivered and not yet settled
// ones too.
func (t *Target) Count(ctx context.Context) (int, error) {
	q, err := t.Client.Queue(ctx, t.Queue)
	if err != nil {
		return 0, err
	}
	return int(q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight), nil
}

// shared returns the pool of all that take one message at a time, and starts it at
// the first call.
func (t *Target) shared() *pool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pool == nil {
		t.pool = startPool(t.Client, t.Queue, t.workers)
	}
	return t.pool
}

// left ends the pool with the last worker.
func (t *Target) left() {
	t.mu.Lock()
	t.workers--
	p := t.pool
	if t.workers > 0 || p == nil {
		t.mu.Unlock()
		return
	}
	t.pool = nil
	t.mu.Unlock()
	p.stop()
	<-p.ended
}

var _ load.Counter = (*Target)(nil)
