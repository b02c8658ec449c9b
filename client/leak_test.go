package client

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// Nothing is left running of a worker that has run and a client that is closed.
func TestNothingIsLeftAfterClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	q := newQuick(t, []byte("1"))
	c, err := New(q.url())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := c.Enqueue(t.Context(), "q", JSON(1)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	n := make(chan struct{}, 1)
	w := NewWorker(c, "q", func(context.Context, *Message) error {
		select {
		case n <- struct{}{}:
			cancel()
		default:
		}
		return fmt.Errorf("no")
	}, WorkerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	c.Close()
	q.ln.Close()
	goleak.VerifyNone(t, before)
}
