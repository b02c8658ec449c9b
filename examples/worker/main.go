// Command worker processes a queue until it is stopped, and then finishes
// what it has begun:
//
//	qlogd queue create jobs
//	qlogd enqueue jobs '{"say": "hello"}'
//	go run ./examples/worker --addr http://127.0.0.1:7070 --queue jobs
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/client"
)

// greeting is what the messages of the queue are.
type greeting struct {
	Say  string `json:"say"`
	Take int    `json:"take_ms"` // how long the work takes
}

func main() {
	addr := flag.String("addr", "http://127.0.0.1:7070", "a node, or several, separated by commas")
	queue := flag.String("queue", "jobs", "the queue to process")
	concurrency := flag.Int("concurrency", 4, "how many at once")
	flag.Parse()

	// The first signal ends ctx, which stops the worker gracefully; after that
	// the usual effect is back: a second one ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)

	if err := run(ctx, *addr, *queue, *concurrency); err != nil {
		slog.Error(err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, queue string, concurrency int) error {
	c, err := client.New(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	worker := client.NewWorker(c, queue, client.Typed(greet), client.WorkerOptions{
		Concurrency: concurrency,
		Grace:       20 * time.Second,
		Middleware:  []client.Middleware{logged},
	})
	return worker.Run(ctx)
}

// greet does the work.
func greet(ctx context.Context, g greeting, m *client.Message) error {
	if g.Say == "" {
		return client.DeadLetter(errors.New("there is nothing to say"))
	}
	select {
	case <-time.After(time.Duration(g.Take) * time.Millisecond):
	case <-ctx.Done(): // the lease is lost, or the grace is over
		return context.Cause(ctx)
	}
	_, err := fmt.Println(g.Say)
	return err
}

// logged logs what becomes of each message.
func logged(next client.Handler) client.Handler {
	return func(ctx context.Context, m *client.Message) error {
		slog.Info("begin", "message", m.ID, "attempt", m.Attempt)
		began := time.Now()
		err := next(ctx, m)
		slog.Info("end", "message", m.ID, "took", time.Since(began), "error", err)
		return err
	}
}
