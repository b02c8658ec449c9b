package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/client/clienttest"
)

// addr is the address of a node that examples and tests share.
var addr string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "qlogd-client-")
	if err != nil {
		log.Fatal(err)
	}
	node, err := clienttest.Start(filepath.Join(dir, "data"))
	if err != nil {
		log.Fatal(err)
	}
	addr = node.Addr()
	code := m.Run()
	if err := errors.Join(node.Close(), os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
	os.Exit(code)
}

// connect returns a client of the examples' node, with a queue that is empty, also where tests are
// repeated.
func connect(queue string) *client.Client {
	c, err := client.New(addr)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	err = c.DeleteQueue(ctx, queue, true)
	if err == nil || errors.Is(err, client.ErrQueueNotFound) {
		err = c.EnsureQueue(ctx, queue, client.Queue{})
	}
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// A program's first lines. Every call takes a context and gives typed errors.
func Example() {
	c, err := client.New(addr) // such as http://127.0.0.1:7070
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	err = c.EnsureQueue(ctx, "first", client.Queue{MaxAttempts: 3, DeadLetterQueue: "auto"})
	fmt.Println(err)
	done, err := c.Enqueue(ctx, "first", client.JSON(map[string]string{"say": "hello"}))
	fmt.Println(done.Status, err)
	messages, err := c.Lease(ctx, "first", client.LeaseOptions{Max: 10, Wait: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range messages {
		fmt.Printf("%s, attempt %d of %d\n", m.Payload, m.Attempt, m.MaxAttempts)
		_, err = c.Settle(ctx, m.Queue, client.Settlement{LeaseID: m.LeaseID, Do: client.DoAck})
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// enqueued <nil>
	// {"say":"hello"}, attempt 1 of 3
	// <nil>
}

// Many goroutines that enqueue one message each share requests.
func ExampleClient_Enqueue() {
	c := connect("orders")
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			m := client.JSON(i)
			m.Key = fmt.Sprint("customer-", i%10)
			if _, err := c.Enqueue(context.Background(), "orders", m); err != nil {
				log.Print(err)
			}
		})
	}
	wg.Wait()
	q, err := c.Queue(context.Background(), "orders")
	fmt.Println(q.Stats.Depth, "messages", err)
	// Output: 100 messages <nil>
}

// A message with an IdempotencyKey is enqueued once, however often that is tried.
func ExampleClient_Enqueue_once() {
	c := connect("payments")
	m := client.JSON(map[string]int{"amount": 100})
	m.IdempotencyKey = "order-17"
	for range 2 {
		done, err := c.Enqueue(context.Background(), "payments", m)
		fmt.Println(done.Status, err)
	}
	// Output:
	// enqueued <nil>
	// duplicate <nil>
}

// A queue's policy, as a program declares it when it starts.
func ExampleClient_EnsureQueue() {
	c := connect("mail")
	err := c.EnsureQueue(context.Background(), "mail", client.Queue{
		Ordering:        "per_key",
		Lease:           time.Minute,
		BackoffSchedule: []time.Duration{time.Second, time.Minute, time.Hour},
		MaxAttempts:     -1, // no limit
		MaxAge:          24 * time.Hour,
	})
	fmt.Println(err)
	q, err := c.Queue(context.Background(), "mail")
	fmt.Println(q.Ordering, q.Delivery.LeaseMS, q.Delivery.BackoffScheduleMS, q.Delivery.MaxAttempts,
		q.Retention.MaxAgeSeconds, err)
	// Output:
	// <nil>
	// per_key 60000 [1000 60000 3600000] 0 86400 <nil>
}

// A worker runs until its context ends, as by SIGTERM, and then finishes what it has begun.
func ExampleWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := connect("greetings")
	defer c.Close()
	_, _ = c.Enqueue(ctx, "greetings", client.JSON(map[string]string{"say": "hello"}))

	type greeting struct {
		Say string `json:"say"`
	}
	greet := func(ctx context.Context, g greeting, m *client.Message) error {
		fmt.Println(g.Say)
		stop() // in place of a signal
		return nil
	}
	worker := client.NewWorker(c, "greetings", client.Typed(greet),
		client.WorkerOptions{Concurrency: 8})
	fmt.Println(worker.Run(ctx))
	// Output:
	// hello
	// <nil>
}

// A queue may have messages of several kinds, each with a payload of its own. What a worker has no
// handler for stays in the queue.
func ExampleWorkerOptions_handlers() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := connect("events")
	defer c.Close()
	for _, kind := range []string{"signup", "invoice", "refund"} {
		m := client.JSON(map[string]string{"customer": "ann"})
		m.Kind = kind
		_, _ = c.Enqueue(ctx, "events", m)
	}

	type signup struct {
		Customer string `json:"customer"`
	}
	type invoice struct {
		Customer string `json:"customer"`
	}
	worker := client.NewWorker(c, "events", nil, client.WorkerOptions{
		Concurrency: 1,
		Handlers: map[string]client.Handler{
			"signup": client.Typed(func(ctx context.Context, s signup, m *client.Message) error {
				fmt.Println("welcome,", s.Customer)
				return nil
			}),
			"invoice": client.Typed(func(ctx context.Context, i invoice, m *client.Message) error {
				fmt.Println("an invoice for", i.Customer)
				stop()
				return nil
			}),
		},
	})
	fmt.Println(worker.Run(ctx))
	q, err := c.Queue(context.Background(), "events")
	fmt.Println(q.Stats.Depth, "left", err)
	// Output:
	// welcome, ann
	// an invoice for ann
	// <nil>
	// 1 left <nil>
}

// A hook adds to every message what all need.
func ExampleWithEnqueueHook() {
	type tenant struct{} // the key of a context's value
	connect("reports").Close()
	c, err := client.New(addr, client.WithEnqueueHook(
		func(ctx context.Context, queue string, m *client.NewMessage) error {
			name, ok := ctx.Value(tenant{}).(string)
			if !ok {
				return errors.New("a message needs a tenant")
			}
			m.Headers["tenant"] = name
			return nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Enqueue(context.Background(), "reports", client.JSON(1))
	fmt.Println(err)
	ctx := context.WithValue(context.Background(), tenant{}, "acme")
	_, err = c.Produce(ctx, "reports", client.JSON(1), client.JSON(2))
	fmt.Println(err)
	for m, err := range c.AllMessages(ctx, "reports", client.MessageQuery{}) {
		fmt.Println(m.Headers["tenant"], err)
	}
	// Output:
	// enqueue hook: a message needs a tenant
	// <nil>
	// acme <nil>
	// acme <nil>
}

// What failed for good is in the dead-letter queue, and goes back when its cause is gone.
func ExampleClient_Replay() {
	ctx := context.Background()
	c := connect("charges")
	_ = c.EnsureQueue(ctx, "charges", client.Queue{MaxAttempts: 1, DeadLetterQueue: "auto"})
	_, _ = c.Enqueue(ctx, "charges", client.JSON(map[string]int{"amount": 5}))
	failing, stop := context.WithCancel(ctx)
	_ = client.NewWorker(c, "charges", func(context.Context, *client.Message) error {
		defer stop()
		return errors.New("the bank is away")
	}, client.WorkerOptions{}).Run(failing)

	for m, err := range c.AllDead(ctx, "charges", client.DeadQuery{}) {
		fmt.Println(m.Dead.Error, err)
	}
	moved, _, err := c.Replay(ctx, "charges", client.ReplayRequest{Filter: &client.DeadFilter{
		Reason: "max_attempts"}})
	fmt.Println(*moved.Replayed, "replayed", err)
	// Output:
	// the bank is away <nil>
	// 1 replayed <nil>
}

// What a handler returns says what becomes of the message.
func ExampleHandler() {
	var (
		errBusy    = errors.New("busy")
		errInvalid = errors.New("invalid")
	)
	work := func(context.Context, []byte) error { return nil }
	_ = client.Handler(func(ctx context.Context, m *client.Message) error {
		switch err := work(ctx, m.Bytes()); {
		case errors.Is(err, errBusy):
			return client.RetryAfter(time.Minute, err)
		case errors.Is(err, errInvalid):
			return client.DeadLetter(err)
		default:
			return err // nil acks; else another try, when the queue's policy says
		}
	})
}

// Errors differ by their code.
func ExampleError() {
	c := connect("jobs")
	_, err := c.Enqueue(context.Background(), "missing", client.JSON(1))
	var e *client.Error
	fmt.Println(errors.Is(err, client.ErrQueueNotFound),
		errors.As(err, &e) && e.Problem.Status == 404, errors.Is(err, client.ErrOutcomeUnknown))
	// Output: true true false
}
