package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// A program's first lines. Every call takes a context and gives typed errors.
func Example() {
	c, err := client.New(node())
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	done, err := c.Enqueue(ctx, "jobs", client.JSON(map[string]string{"say": "hello"}))
	fmt.Println(done.Status, err)
	messages, err := c.Lease(ctx, "jobs", client.LeaseOptions{Max: 10, Wait: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range messages {
		fmt.Printf("%s\n", m.Payload)
		_, err = c.Settle(ctx, m.Queue, client.Settlement{LeaseID: m.LeaseID, Do: client.DoAck})
		fmt.Println(err)
	}
	// Output:
	// enqueued <nil>
	// {"say":"hello"}
	// <nil>
}

// Many goroutines that enqueue one message each share requests.
func ExampleClient_Enqueue() {
	c, err := client.New(node())
	if err != nil {
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			m := client.JSON(i)
			m.Key = fmt.Sprint("customer-", i%10)
			if _, err := c.Enqueue(context.Background(), "jobs", m); err != nil {
				log.Print(err)
			}
		})
	}
	wg.Wait()
	// Output:
}

// A worker runs until its context ends, as by SIGTERM, and then finishes what it has begun.
func ExampleWorker() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := client.New(node())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	worker := client.NewWorker(c, "jobs", func(ctx context.Context, m *client.Message) error {
		var job struct {
			Say string `json:"say"`
		}
		if err := m.Decode(&job); err != nil {
			return client.DeadLetter(err) // another try would not help
		}
		fmt.Println(job.Say)
		stop() // in place of a signal
		return nil
	}, client.WorkerOptions{Concurrency: 8})
	fmt.Println(worker.Run(ctx))
	// Output:
	// hello
	// <nil>
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
	c, err := client.New(node())
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Enqueue(context.Background(), "missing", client.JSON(1))
	var e *client.Error
	fmt.Println(errors.Is(err, client.ErrQueueNotFound),
		errors.As(err, &e) && e.Problem.Status == 404, errors.Is(err, client.ErrOutcomeUnknown))
	// Output: true true false
}

// node is the address of something that answers like a node, as far as the examples go.
func node() string {
	once := false
	var mu sync.Mutex
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		lease := `01JD5Z3V8Q0000000000000001`
		switch verb := path.Base(r.URL.Path); {
		case path.Base(path.Dir(r.URL.Path)) == "missing":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"status":404,"code":"queue_not_found","outcome":"not_applied"}`)
		case verb == "lease" && once:
			fmt.Fprint(w, `{"messages":[]}`)
		case verb == "lease":
			once = true
			fmt.Fprintf(w, `{"messages":[{"id":"01A","lease_id":%q,"queue":"jobs",
				"payload":{"say":"hello"}}]}`, lease)
		case verb == "messages":
			var in wire.ProduceRequest
			b, _ := io.ReadAll(r.Body)
			if err := wire.UnmarshalMsgpack(b, &in); err != nil {
				panic(err)
			}
			var out wire.ProduceResponse
			for range in.Messages {
				out.Messages = append(out.Messages, wire.Produced{ID: "01A", Status: wire.Enqueued})
			}
			b, _ = wire.Marshal(out)
			_, _ = w.Write(b)
		default:
			fmt.Fprintf(w, `{"results":[{"lease_id":%q,"status":"acked"}]}`, lease)
		}
	})).URL
}
