// Package load puts load on a queue and measures it: closed loops at
// full speed, open loops at a rate, producers, workers, batches. What it loads
// is behind Target, so that qlogd bench and the comparison in bench/ share all
// of it and every system is loaded in the same way.
package load

import "context"

// Target is a queue that is up and empty. Its methods are for one goroutine;
// what they return is each for one goroutine, too.
type Target interface {
	// Producer and Worker make one more client, with a connection of its own
	// where the system's users would have one.
	Producer(ctx context.Context) (Producer, error)
	Worker(ctx context.Context) (Worker, error)
}

// Producer enqueues.
type Producer interface {
	// Produce enqueues a batch of 1 to 1000 and returns when all of it is
	// acknowledged, with whatever durability the target says it has then.
	Produce(ctx context.Context, batch []Message) error
	Close() error
}

// Message is what is enqueued. Payload and Key are not kept.
type Message struct {
	Key     string // ordering key, "" none; a target without keys ignores it
	Payload []byte
}

// Worker takes and acknowledges.
type Worker interface {
	// Take returns 1 to max messages, as soon as there is any; none when ctx
	// ends or nothing came for about a second.
	Take(ctx context.Context, max int) ([]Delivery, error)
	// Ack settles deliveries of Take and returns when the target has
	// acknowledged that, as durably as it does.
	Ack(ctx context.Context, done []Delivery) error
	Close() error
}

// Delivery is a message taken. Payload is valid until the next Take.
type Delivery struct {
	Payload []byte
	Handle  any // the target's own, for Ack
}

// Counter is a Target that knows how many messages the servers hold for it,
// delivered and not yet settled ones included: how one waits for acknowledgements
// that are not confirmed one by one.
type Counter interface {
	Count(ctx context.Context) (int, error)
}
