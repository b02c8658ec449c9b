package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/internal/load"
	"github.com/qlogd/qlogd/internal/load/qlogdload"
)

// growth measures the same work beside little and much.
func growth(args []string) error { return alone("growth", args, growths) }

// What history is simulated: as many segments as 100 GB are of 64 MiB, each of
// 1 MiB.
const (
	segment  = 1 << 20
	segments = 100 << 30 / (64 << 20)
)

func growths(s *settings) []experiment {
	const q = "q"
	existing := func(_ context.Context, b *box) (load.Target, error) { return inStep(b, q), nil }
	// What is left in the end is taken away again, so that each round begins with
	// the same.
	holds := func(n int64, keys int, ordering string) func(context.Context, *box) error {
		return func(ctx context.Context, b *box) error {
			if _, err := b.queue(ctx, q, ordering); err != nil {
				return err
			}
			return b.fill(ctx, q, n, keys)
		}
	}
	level := func(n int64) func(context.Context, *box) error {
		return func(ctx context.Context, b *box) error { return b.fill(ctx, q, n, 0) }
	}
	full := slice{queue: existing, put: load.Config{Producers: 4, Batch: 100, Workers: 4, Take: 100, Backlog: 1600, NoDrain: true}}
	calm := slice{queue: existing, take: paced, put: load.Config{Producers: 8, Batch: 10, Workers: 8, Take: 10, Rate: 1000, NoDrain: true}}

	waits := experiment{name: "waiting", title: "beside messages that wait in the same queue; the oldest are taken first", slices: []slice{full, calm}}
	for _, n := range []int64{1000, s.Waiting, s.Most} {
		waits.states = append(waits.states, state{name: humanize.Comma(n) + " waiting", prepare: holds(n, 0, "unordered"), after: level(n)})
	}

	keyed := experiment{name: "keys", title: humanize.Comma(s.Waiting) + " waiting messages of so many keys, per_key; one producer and one worker, a message at a time"}
	for _, n := range []int{1, 100_000, 1_000_000} {
		keyed.states = append(keyed.states, state{name: plural(n, "key"), prepare: holds(s.Waiting, n, "per_key")})
	}
	one := slice{queue: existing, take: paced, put: load.Config{Producers: 1, Batch: 1, Workers: 1, Take: 1, Keys: 1000, Rate: 150, NoDrain: true}}
	keyed.slices = []slice{one}

	many := experiment{name: "queues", title: "spread over so many queues, batches of 10"}
	for _, n := range []int{1, 10_000} {
		queues := make([]string, n)
		for i := range queues {
			queues[i] = fmt.Sprintf("q%d", i)
		}
		many.states = append(many.states, state{name: plural(n, "queue"), prepare: func(ctx context.Context, b *box) error {
			for _, name := range queues {
				if _, err := b.queue(ctx, name, "unordered"); err != nil {
					return err
				}
			}
			return nil
		}})
	}
	spread := func(_ context.Context, b *box) (load.Target, error) {
		list, err := b.c.Queues(context.Background(), "")
		if err != nil {
			return nil, err
		}
		names := make([]string, len(list))
		for i, q := range list {
			names[i] = q.Name
		}
		return inStep(b, names...), nil
	}
	many.slices = []slice{
		{queue: spread, put: load.Config{Producers: 8, Batch: 10, Workers: 8, Take: 10}},
		{queue: spread, take: paced, put: load.Config{Producers: 8, Batch: 10, Workers: 8, Take: 10, Rate: 1000}},
	}

	past := experiment{name: "history", title: fmt.Sprintf("behind %s segments of the log, as 100 GB are in segments of 64 MiB, here of 1 MiB each", humanize.Comma(segments)), slices: []slice{full, calm}}
	for _, n := range []int64{10, segments} {
		past.states = append(past.states, state{
			name: plural(int(n), "segment"), flags: []string{fmt.Sprint("--log-segment-bytes=", segment)}, after: level(1000),
			prepare: func(ctx context.Context, b *box) error {
				if err := b.history(ctx, n*segment); err != nil {
					return err
				}
				return holds(1000, 0, "unordered")(ctx, b)
			},
		})
	}
	return []experiment{waits, keyed, many, past}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return humanize.Comma(int64(n)) + " " + what + "s"
}

// several is queues as one target: batches go to one after the other, and for each
// that came a worker takes once from where it came, whatever else waits there: so
// what waits in the beginning still does in the end.
type several struct {
	of   []load.Target
	next atomic.Uint64
	full chan int // queues into which a batch came
	// lease is how long a lease took, without the wait for its turn.
	lease *load.Histogram
}

func inStep(b *box, queues ...string) *several {
	s := &several{full: make(chan int, 1<<20), lease: load.NewHistogram()}
	for _, q := range queues {
		s.of = append(s.of, &qlogdload.Target{Client: b.c, Queue: q})
	}
	return s
}

func (s *several) Producer(ctx context.Context) (load.Producer, error) {
	p := &severalProducer{s: s, of: make([]load.Producer, len(s.of))}
	return p, nil
}

func (s *several) Worker(ctx context.Context) (load.Worker, error) {
	return &severalWorker{s: s, of: make([]load.Worker, len(s.of))}, nil
}

type severalProducer struct {
	s  *several
	of []load.Producer
}

func (p *severalProducer) Produce(ctx context.Context, batch []load.Message) (err error) {
	i := int(p.s.next.Add(1) % uint64(len(p.of)))
	if p.of[i] == nil {
		if p.of[i], err = p.s.of[i].Producer(ctx); err != nil {
			return err
		}
	}
	if err := p.of[i].Produce(ctx, batch); err != nil {
		return err
	}
	p.s.full <- i
	return nil
}

func (p *severalProducer) Close() error { return nil }

type severalWorker struct {
	s  *several
	of []load.Worker
	at int // where the last ones came from
}

func (w *severalWorker) Take(ctx context.Context, most int) (got []load.Delivery, err error) {
	select {
	case w.at = <-w.s.full:
	case <-ctx.Done():
		return nil, nil
	}
	if w.of[w.at] == nil {
		if w.of[w.at], err = w.s.of[w.at].Worker(ctx); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	got, err = w.of[w.at].Take(ctx, most)
	w.s.lease.Add(time.Since(began), 1)
	return got, err
}

func (w *severalWorker) Ack(ctx context.Context, done []load.Delivery) error {
	return w.of[w.at].Ack(ctx, done)
}

func (w *severalWorker) Close() error { return nil }

// stalls measures the longest waits beside work behind.
func stalls(args []string) error { return alone("stalls", args, stalling) }

func stalling(s *settings) []experiment {
	never := []string{"--checkpoint-entries=1000000000", "--checkpoint-interval=24h"}
	old := func(n int64) func(context.Context, *box) error {
		return func(ctx context.Context, b *box) error {
			if _, err := b.queue(ctx, "old", "unordered"); err != nil {
				return err
			}
			return b.fill(ctx, "old", n, 0)
		}
	}
	many := humanize.Comma(s.Waiting) + " waiting"
	calm := "nothing, " + many
	return []experiment{{
		name: "stalls", title: "1,000/s, one message a call, beside",
		slices: []slice{{
			take: tails, put: load.Config{Producers: 16, Batch: 1, Workers: 16, Take: 10, Rate: 1000},
			queue: func(ctx context.Context, b *box) (load.Target, error) {
				b.fresh++
				return b.queue(ctx, fmt.Sprintf("new%d", b.fresh), "unordered")
			},
		}},
		states: []state{
			{name: calm, flags: never, prepare: old(s.Waiting)},
			{name: "a checkpoint each second, " + many, as: calm, beside: func(ctx context.Context, b *box) error {
				for rest(ctx, time.Second) == nil {
					if _, err := b.c.Snapshot(ctx); err != nil && ctx.Err() == nil {
						return err
					}
				}
				return nil
			}},
			{name: "segment rolls, some 5 a second", flags: append([]string{"--log-segment-bytes=262144"}, never...), prepare: old(1000)},
			{name: "retention, each second", flags: []string{"--log-segment-bytes=1048576", "--history-retention=10s", "--checkpoint-interval=1s"}, prepare: old(1000)},
		},
	}}
}
