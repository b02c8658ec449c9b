package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	loadgen "github.com/qlogd/qlogd/internal/load"
	"github.com/qlogd/qlogd/internal/load/qlogdload"
)

func (a *app) benchCmd() *cobra.Command {
	b := &bencher{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a server and tell how fast it was",
		Long: `Makes a queue of its own, produces random messages into it, takes and acks them,
tells how fast that was, and deletes the queue again.

Without --rate, each producer sends its next batch when the last is durable: what
the server can do. With --rate, batches go out at fixed times whether the last one
is done or not, and latencies count from when they were due: what your users see at
that rate. Producers with --batch 1 call the Go client's Enqueue, whose goroutines
share requests; workers with --take 1 are handlers of its Worker, which leases ahead
and settles in shared requests; --workers 0 only produces.

What is measured begins after --warmup. In the end every message must have been
delivered and acked: one that was not is told, with exit code 1, when none came for
45 s (what a server that died had given out comes again when its leases end). The
load is real: the messages are in the history of the server until it is let go of,
and other queues wait for their turn.`,
		Example: `  qlogd bench
  qlogd bench --addr http://n1:7070,http://n2:7070,http://n3:7070 --producers 64 --batch 1 --workers 64 --take 1
  qlogd bench --rate 1000 --batch 1 --duration 30s
  qlogd bench --workers 0 --size 10000 -o json | jq .result.produce_per_second
  qlogd bench --keys 100000 --take 10`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.server(client.WithSpread())
			if err != nil {
				return err
			}
			return told(b.run(cmd.Context(), a, c))
		},
	}
	f := cmd.Flags()
	f.IntVar(&b.Producers, "producers", 8, "how many produce at once")
	f.IntVar(&b.Batch, "batch", 100, "messages of a request of a producer, 1 to 1000; 1: through Enqueue")
	f.IntVar(&b.Workers, "workers", 8, "how many take and ack at once; 0: none, the messages stay until the end")
	f.IntVar(&b.Take, "take", 100, "most messages that a worker takes at once, 1 to 1000; 1: through Worker")
	f.IntVar(&b.Size, "size", 1024, fmt.Sprintf("bytes of a message, random ones; at least %d", loadgen.MinSize))
	f.IntVar(&b.Keys, "keys", 0, "different ordering keys, in a queue that is per_key; 0: no keys, unordered")
	f.Float64Var(&b.Rate, "rate", 0, "messages a second of all producers together; 0: as fast as they are taken")
	f.DurationVar(&b.Duration, "duration", 10*time.Second, "how long it is measured")
	f.DurationVar(&b.Warmup, "warmup", time.Second, "load before that")
	f.Int64Var(&b.Messages, "messages", 0, "stop after so many messages, in place of --duration and --warmup")
	f.StringVar(&b.queue, "queue", "", "name of the queue, which must not exist yet (default bench- and a random number)")
	a.remoteFlags(cmd)
	return cmd
}

type bencher struct {
	loadgen.Config
	queue string
}

// benched is what -o json prints.
type benched struct {
	Queue  string          `json:"queue"`
	Load   loadgen.Config  `json:"load"`
	Result *loadgen.Result `json:"result"`
}

func (b *bencher) run(ctx context.Context, a *app, c *client.Client) (err error) {
	if b.Messages > 0 {
		b.Duration, b.Warmup = 0, 0
	}
	if b.Producers == 0 {
		return usagef("--producers must be at least 1")
	}
	if err := b.Check(); err != nil {
		return usagef("%w", err)
	}
	if b.queue == "" {
		b.queue = fmt.Sprintf("bench-%08x", rand.Uint32())
	}
	if _, err := c.Queue(ctx, b.queue); err == nil {
		return usagef("queue %s exists; name one that does not", b.queue)
	} else if !errors.Is(err, client.ErrQueueNotFound) {
		return err
	}
	policy := wire.PolicyUpdate{Description: wire.Some("qlogd bench")}
	if b.Keys > 0 {
		policy.Ordering = wire.Some("per_key")
	}
	t, err := qlogdload.Make(ctx, c, b.queue, policy)
	if err != nil {
		return err
	}
	defer func() {
		// Also when it was interrupted.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if gone := c.DeleteQueue(clean, b.queue, true); gone != nil {
			err = errors.Join(err, fmt.Errorf("queue %s was not deleted: %w", b.queue, gone))
		}
	}()

	bar := a.progress("bench", b.Duration > 0)
	ticking, stop := context.WithCancel(ctx)
	ticked := make(chan struct{})
	go func() {
		defer close(ticked)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for began := time.Now(); ticking.Err() == nil; {
			bar.set(int64(time.Since(began)), int64(b.Warmup+b.Duration))
			select {
			case <-tick.C:
			case <-ticking.Done():
			}
		}
		bar.done()
	}()
	r, err := loadgen.Run(ctx, t, b.Config)
	stop()
	<-ticked
	if err != nil {
		return err
	}
	return b.tell(a, r)
}

// tell prints what came of it, and fails where a message was lost.
func (b *bencher) tell(a *app, r *loadgen.Result) error {
	if a.output == "json" {
		if err := a.json(benched{b.queue, b.Config, r}); err != nil {
			return err
		}
	} else {
		ms := func(v float64) string { return fmt.Sprintf("%.2f", v) }
		var rows [][]any
		row := func(what string, rate float64, q loadgen.Quantiles) {
			perSecond := "-"
			if rate > 0 {
				perSecond = fmt.Sprintf("%.0f", rate)
			}
			switch {
			case q.Count == 0:
			case what == "ack" && b.Take == 1:
				// The client's Worker settles behind the handlers' backs.
				rows = append(rows, []any{what, perSecond, "-", "-", "-", "-", "-"})
			default:
				rows = append(rows, []any{what, perSecond, ms(q.P50), ms(q.P90), ms(q.P99), ms(q.P999), ms(q.Max)})
			}
		}
		row("produce", r.ProduceRate, r.Produce)
		row("delivery", 0, r.Delivery)
		row("ack", r.AckRate, r.Ack)
		if err := a.table([]string{"what", "messages/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms"}, rows); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stderr, "%s produced, %d acked in all; measured for %.1f s\n", plural(int(r.TotalProduced), "message", "messages"), r.TotalAcked, r.Seconds)
	if r.Duplicates > 0 {
		fmt.Fprintf(a.stderr, "%s delivered more than once: their leases ran out\n", plural(int(r.Duplicates), "message was", "messages were"))
	}
	if r.Late.P99 > 5 {
		fmt.Fprintf(a.stderr, "the generator itself was late: p99 %.1f ms; the latencies count that in\n", r.Late.P99)
	}
	if r.Lost > 0 {
		return &exitError{exitFailed, fmt.Errorf("%s not delivered", plural(int(r.Lost), "message was", "messages were"))}
	}
	return nil
}
