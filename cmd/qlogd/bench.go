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
)

func (a *app) benchCmd() *cobra.Command {
	var load benchLoad
	var queue string
	cmd := a.local("bench", "Measure the speed of a server under load", `  qlogd bench
  qlogd bench --addr http://n1:7070,http://n2:7070,http://n3:7070 --producers 64 --batch 1 --workers 64 --take 1
  qlogd bench --rate 1000 --batch 1 --duration 30s
  qlogd bench --workers 0 --size 10000 -o json | jq .result.produce_per_second
  qlogd bench --keys 100000 --take 10`, exactly(0),
		func(ctx context.Context, _ []string) error {
			c, err := a.server(client.WithSpread())
			if err != nil {
				return err
			}
			return refusal(a.bench(ctx, c, queue, load))
		})
	cmd.Long = `Creates a queue, produces random messages into it, leases and acks them, reports
rates and latencies, and deletes the queue.

Without --rate, each producer sends its next batch once the previous one is durable:
the result is the server's capacity. With --rate, batches are sent at fixed times
whether the previous one is done or not, and latencies count from the time a batch
was due: the result is what users see at that rate. With --batch 1 producers call the
Go client's Enqueue, which shares requests among goroutines; with --take 1 workers are
handlers of its Worker, which leases ahead and settles in shared requests. With
--workers 0 messages are only produced.

Measuring begins after --warmup. At the end every message must have been delivered
and acked: a message that has not arrived after 45 s is reported as lost, with exit
code 1. (Messages leased by a server that died are delivered again when their leases
expire.) The load is real: its messages stay in the server's history until retention
deletes them, and other queues share the server with it.`
	a.addrFlags(cmd)
	a.authFlags(cmd)
	f := cmd.Flags()
	f.IntVar(&load.Producers, "producers", 8, "concurrent producers")
	f.IntVar(&load.Batch, "batch", 100, "messages per produce request (1-1000); 1 uses Enqueue")
	f.IntVar(&load.Workers, "workers", 8, "concurrent workers; 0 leaves the messages in the queue")
	f.IntVar(&load.Take, "take", 100, "most messages per lease request (1-1000); 1 uses Worker")
	f.IntVar(&load.Size, "size", 1024, fmt.Sprintf("payload size in bytes, at least %d", minBenchSize))
	f.IntVar(&load.Keys, "keys", 0, "number of ordering keys, in a per_key queue (0 = no keys, unordered)")
	f.Float64Var(&load.Rate, "rate", 0, "messages per second, all producers together (0 = as fast as possible)")
	f.DurationVar(&load.Duration, "duration", 10*time.Second, "how long to measure")
	f.DurationVar(&load.Warmup, "warmup", time.Second, "load before measuring begins")
	f.Int64Var(&load.Messages, "messages", 0, "stop after this many messages, instead of --duration and --warmup")
	f.StringVar(&queue, "queue", "", "name of the queue, which must not exist (default bench- and a random number)")
	return cmd
}

// benched is the output of bench with -o json.
type benched struct {
	Queue  string       `json:"queue"`
	Load   benchLoad    `json:"load"`
	Result *benchResult `json:"result"`
}

// bench runs a load on a queue that it creates and deletes.
func (a *app) bench(ctx context.Context, c *client.Client, queue string, load benchLoad) (err error) {
	if load.Messages > 0 {
		load.Duration, load.Warmup = 0, 0
	}
	if err := load.check(); err != nil {
		return usagef("%w", err)
	}
	if load.Rate == 0 && load.Workers > 0 {
		// Measure the whole cycle, not the growth of a backlog.
		load.Backlog = max(10_000, 4*(load.Producers*load.Batch+load.Workers*load.Take))
	}
	if queue == "" {
		queue = fmt.Sprintf("bench-%08x", rand.Uint32())
	}
	if _, err := c.Queue(ctx, queue); err == nil {
		return usagef("queue %s exists; choose a name that does not", queue)
	} else if !errors.Is(err, client.ErrQueueNotFound) {
		return err
	}
	policy := wire.PolicyUpdate{Description: wire.Some("qlogd bench")}
	if load.Keys > 0 {
		policy.Ordering = wire.Some("per_key")
	}
	if _, _, err := c.PutQueue(ctx, queue, policy); err != nil {
		return err
	}
	defer func() {
		// Even after an interrupt.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if failed := c.DeleteQueue(clean, queue, true); failed != nil {
			err = errors.Join(err, fmt.Errorf("queue %s was not deleted: %w", queue, failed))
		}
	}()
	stop := a.benchProgress(ctx, load.Warmup+load.Duration)
	r, err := load.run(ctx, c, queue)
	stop()
	if err != nil {
		return err
	}
	return a.printBench(benched{queue, load, r})
}

// benchProgress shows the time that has passed until the returned function is
// called. A load without a duration has no bar.
func (a *app) benchProgress(ctx context.Context, d time.Duration) (stop func()) {
	bar := a.progress("bench", d > 0)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer bar.done()
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for began := time.Now(); ctx.Err() == nil; {
			bar.set(int64(time.Since(began)), int64(d))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// printBench prints a result. It fails if messages were lost.
func (a *app) printBench(b benched) error {
	r := b.Result
	if a.output == "json" {
		if err := a.json(b); err != nil {
			return err
		}
	} else {
		var rows [][]any
		row := func(what string, rate float64, q quantiles) {
			if q.Count == 0 {
				return
			}
			cells := []any{what, "-"}
			if rate > 0 {
				cells[1] = fmt.Sprintf("%.0f", rate)
			}
			for _, v := range []float64{q.P50, q.P90, q.P99, q.P999, q.Max} {
				if what == "ack" && b.Load.Take == 1 { // the Worker acks after the handler
					cells = append(cells, "-")
				} else {
					cells = append(cells, fmt.Sprintf("%.2f", v))
				}
			}
			rows = append(rows, cells)
		}
		row("produce", r.ProduceRate, r.Produce)
		row("delivery", 0, r.Delivery)
		row("ack", r.AckRate, r.Ack)
		header := []string{"what", "messages/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms"}
		if err := a.table(header, rows); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.stderr, "%s produced, %d acked in total; measured for %.1f s\n",
		messages(r.TotalProduced), r.TotalAcked, r.Seconds)
	if r.Duplicates > 0 {
		fmt.Fprintf(a.stderr, "%s delivered more than once: leases expired\n",
			plural(int(r.Duplicates), "message was", "messages were"))
	}
	if r.Late.P99 > 5 {
		fmt.Fprintf(a.stderr, "the load generator itself was late (p99 %.1f ms); latencies include it\n",
			r.Late.P99)
	}
	if r.Lost > 0 {
		lost := plural(int(r.Lost), "message was", "messages were")
		return &exitError{exitFailed, fmt.Errorf("%s not delivered", lost)}
	}
	return nil
}
