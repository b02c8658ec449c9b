// Package client is the Go client of qlogd.
//
//	c, err := client.New("http://127.0.0.1:7070")
//	err = c.EnsureQueue(ctx, "jobs", client.Queue{MaxAttempts: 3, DeadLetterQueue: "auto"})
//	_, err = c.Enqueue(ctx, "jobs", client.JSON(map[string]any{"hello": "world"}))
//
//	err = client.NewWorker(c, "jobs", func(ctx context.Context, m *client.Message) error {
//		return work(ctx, m.Bytes())
//	}, client.WorkerOptions{}).Run(ctx)
//
// One [Client] serves a whole program. Every write but a lease carries an Idempotency-Key, so the
// client can safely repeat a write with an unknown outcome, as often as its [Retry] allows.
//
// # Enqueuing
//
// [Client.Enqueue] is meant for many goroutines at once: their messages share requests, and each
// caller gets its own answer. [Client.Produce] enqueues a list, all or none. Give a message an
// IdempotencyKey if the program may enqueue it twice, as after a crash. [WithEnqueueHook] adds to
// each message what all need.
//
// # Working
//
// A [Worker] leases ahead, extends leases and settles in shared requests. What its [Handler]
// returns settles the message: nil acks it, an error returns it for another try, and [RetryAfter],
// [Snooze] and [DeadLetter] say more. [Typed] decodes payloads, WorkerOptions.Handlers has a
// handler for each kind of message, and a [Middleware] wraps them. Delivery is at least once:
// a handler may see a message again after it has done the work.
//
// [Client.Lease] and [Client.Settle] are the calls under it, [Client.Transaction] settles and
// enqueues in one atomic step.
//
// # Errors
//
// An [Error] is what the server answered. Each code has a sentinel for errors.Is, such as
// [ErrQueueNotFound]. [ErrOutcomeUnknown] marks a write that may have been committed; after any
// other error it was not.
//
// # Metrics and traces
//
// WorkerOptions.Settled reports what became of each message and how long its handler took. A
// RoundTripper in [WithHTTPClient] measures requests. [WithPropagator] carries traces; the module
// qlogdotel beside this package has OpenTelemetry's.
//
// # Testing
//
// Package clienttest runs a real node inside a test, without any other program.
//
// # Names
//
// Requests and answers are those of the API, which docs/reference/http-api.md describes; their types are
// defined in package wire and have aliases here, so that programs import this package alone.
// docs/reference/go-client.md has the guarantees, the order of messages, and the rules of repetition.
package client
