package main

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

var benchCommand = local("bench", func(c request, load *benchLoad) error {
	return c.ask(func(c request) error { return c.bench(load) }, client.WithSpread())
}, (*app).addrFlag, (*app).authFlags)

// benchLoad describes the load of qlogd bench.
type benchLoad struct {
	Queue string `json:"-"` // that is created; "": a random name

	Producers int     `json:"producers" default:"8"`
	Batch     int     `json:"batch" default:"100"`
	Workers   int     `json:"workers" default:"8"`
	Take      int     `json:"take" default:"100"`
	Size      int     `json:"size" default:"1024"`
	Keys      int     `json:"keys"`
	Rate      float64 `json:"rate"`     // messages per second; 0: as fast as possible
	Messages  int64   `json:"messages"` // stop after this many; 0: after Duration
	// Backlog is how many messages may be produced and not acked; 0: no limit.
	Backlog int `json:"backlog" flag:"-"`

	Warmup   time.Duration `json:"warmup_ns" default:"1s"`
	Duration time.Duration `json:"duration_ns" default:"10s"`
}

// benchResult is what a load measured. Rates and latencies are of the measured
// time, the totals include warm-up and draining.
type benchResult struct {
	Seconds       float64 `json:"seconds"`
	Produced      int64   `json:"produced"`
	Acked         int64   `json:"acked"`
	ProduceRate   float64 `json:"produce_per_second"`
	AckRate       float64 `json:"ack_per_second"`
	Produce       latency `json:"produce_ms"`
	Delivery      latency `json:"delivery_ms"` // from when a message was sent or due
	Take          latency `json:"take_ms"`
	Ack           latency `json:"ack_ms"`
	Cycle         latency `json:"cycle_ms"` // from sent or due until acked
	Late          latency `json:"late_ms"`  // of the load generator, with a rate
	TotalProduced int64   `json:"total_produced"`
	TotalAcked    int64   `json:"total_acked"`
	Duplicates    int64   `json:"duplicates"`
	Lost          int64   `json:"lost"` // -1: without workers
}

// minBenchSize holds a payload's origin: the time it was sent or due, in nanoseconds since the run
// began, the random id of the run, and the message's number. The rest is random.
const minBenchSize = 24

// benchStuck is how long a message may be missing before it counts as lost:
// longer than a lease of 30 s, after which it is delivered again.
const benchStuck = 45 * time.Second

func (l *benchLoad) check() error {
	switch {
	case l.Producers < 1:
		return usagef("--producers must be at least 1")
	case l.Workers < 0:
		return usagef("--workers must not be negative")
	case l.Batch < 1 || l.Batch > 1000, l.Workers > 0 && (l.Take < 1 || l.Take > 1000):
		return usagef("--batch and --take must be from 1 to 1000")
	case l.Size < minBenchSize:
		return usagef("--size must be at least %d bytes", minBenchSize)
	case l.Duration <= 0 && l.Messages <= 0:
		return usagef("--duration or --messages must be positive")
	case l.Rate < 0 || l.Keys < 0:
		return usagef("--rate and --keys must not be negative")
	}
	return nil
}

// latency is measured durations, and their quantiles in milliseconds.
type latency struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`

	all []time.Duration
}

// sum computes the quantiles.
func (l *latency) sum() {
	n := len(l.all)
	if n == 0 {
		return
	}
	slices.Sort(l.all)
	var sum time.Duration
	for _, d := range l.all {
		sum += d
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	at := func(q float64) float64 { return ms(l.all[min(int(q*float64(n)), n-1)]) }
	l.Count, l.Mean, l.Max = n, ms(sum/time.Duration(n)), at(1)
	l.P50, l.P90, l.P99, l.P999 = at(.50), at(.90), at(.99), at(.999)
}

// bench runs a load on a queue that it creates and deletes.
func (c request) bench(load *benchLoad) (err error) {
	if load.Messages > 0 {
		load.Duration, load.Warmup = 0, 0
	}
	if err := load.check(); err != nil {
		return err
	}
	if load.Rate == 0 && load.Workers > 0 {
		// Measure the whole cycle, not the growth of a backlog.
		load.Backlog = max(10_000, 4*(load.Producers*load.Batch+load.Workers*load.Take))
	}
	if load.Queue == "" {
		load.Queue = fmt.Sprintf("bench-%08x", rand.Uint32())
	}
	if _, err := c.Queue(c.ctx, load.Queue); err == nil {
		return usagef("queue %s exists; choose a name that does not", load.Queue)
	} else if !errors.Is(err, client.ErrQueueNotFound) {
		return err
	}
	policy := wire.PolicyUpdate{Description: wire.Some("qlogd bench")}
	if load.Keys > 0 {
		policy.Ordering = wire.Some("per_key")
	}
	if _, _, err := c.PutQueue(c.ctx, load.Queue, policy); err != nil {
		return err
	}
	defer func() {
		// Even after an interrupt.
		clean, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), time.Minute)
		defer cancel()
		if failed := c.DeleteQueue(clean, load.Queue, true); failed != nil {
			err = errors.Join(err, fmt.Errorf("queue %s was not deleted: %w", load.Queue, failed))
		}
	}()
	r := &benchRun{
		benchLoad: load, c: c.Client, id: rand.Uint64(), random: make([]byte, 1<<20+load.Size),
		bar: c.progress("bench", load.Duration > 0), out: benchResult{Lost: -1},
	}
	_, _ = crand.Read(r.random) // never fails
	if load.Backlog > 0 {
		r.room = make(chan struct{}, load.Backlog)
	}
	err = r.run(c.ctx)
	r.bar.done()
	if err != nil {
		return err
	}
	return c.printBench(load, &r.out)
}

// benchRun is one run of a load.
type benchRun struct {
	*benchLoad
	c      *client.Client
	id     uint64
	random []byte // source of payloads
	bar    *progress
	began  time.Time
	room   chan struct{} // bounds messages produced and not acked; nil: no limit
	seq    atomic.Uint64 // number of the next message

	mu        sync.Mutex
	seen      []bool // delivered messages
	measuring bool   // latencies are taken
	out       benchResult
}

// run applies the load and waits until all messages are acked.
func (r *benchRun) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	sends, stopSends := context.WithCancel(ctx)
	defer stopSends()
	takes, stopTakes := context.WithCancel(ctx)
	defer stopTakes()
	r.began = time.Now()
	var producing, working sync.WaitGroup
	for range r.Producers {
		producing.Go(func() {
			if err := r.producer(ctx, sends); err != nil {
				fail(fmt.Errorf("produce: %w", err))
			}
		})
	}
	workers := r.Workers
	if r.Take == 1 {
		workers = min(workers, 1) // one client.Worker has all of them
	}
	for range workers {
		working.Go(func() {
			if err := r.worker(ctx, takes); err != nil && takes.Err() == nil {
				fail(fmt.Errorf("worker: %w", err))
			}
		})
	}
	r.wait(sends, r.Warmup)
	r.measure(true)
	if r.Duration > 0 {
		r.wait(sends, r.Warmup+r.Duration)
		r.measure(false)
		stopSends()
	}
	producing.Wait()
	var err error
	if r.Workers > 0 {
		r.out.Lost, err = r.drain(ctx)
	}
	if r.Duration == 0 {
		r.measure(false)
	}
	stopTakes()
	working.Wait()
	return cmp.Or(context.Cause(ctx), err)
}

// drain waits until no message is missing. It returns how many are if that no longer changes.
func (r *benchRun) drain(ctx context.Context) (int64, error) {
	for last, since := int64(-1), time.Now(); ; pause(ctx, 10*time.Millisecond) {
		n, err := r.missing(ctx)
		if n == 0 || err != nil || n == last && time.Since(since) > benchStuck {
			return n, err
		}
		if n != last {
			last, since = n, time.Now()
		}
	}
}

// missing returns how many messages were not delivered or, once all were, are not acked: a
// client.Worker acks after its handler returned.
func (r *benchRun) missing(ctx context.Context) (int64, error) {
	r.mu.Lock()
	n := r.out.TotalProduced - (r.out.TotalAcked - r.out.Duplicates)
	r.mu.Unlock()
	if n > 0 {
		return n, ctx.Err()
	}
	q, err := r.c.Queue(ctx, r.Queue)
	if err != nil {
		return 0, fmt.Errorf("count remaining messages: %w", err)
	}
	return q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight, nil
}

// wait waits until some time after the beginning, and shows the progress.
func (r *benchRun) wait(ctx context.Context, until time.Duration) {
	for left := until; left > 0 && ctx.Err() == nil; left = until - time.Since(r.began) {
		r.bar.set(int64(time.Since(r.began)), int64(r.Warmup+r.Duration))
		pause(ctx, min(left, 200*time.Millisecond))
	}
}

// measure begins or ends measuring.
func (r *benchRun) measure(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.measuring = on
	out := &r.out
	out.Seconds = time.Since(r.began).Seconds() - out.Seconds
	out.Produced, out.Acked = out.TotalProduced-out.Produced, out.TotalAcked-out.Acked
	if on {
		return
	}
	out.ProduceRate = float64(out.Produced) / out.Seconds
	out.AckRate = float64(out.Acked) / out.Seconds
	for _, l := range []*latency{
		&out.Produce, &out.Delivery, &out.Take, &out.Ack, &out.Cycle, &out.Late,
	} {
		l.sum()
	}
}

// add adds a duration while measuring. r.mu is held.
func (r *benchRun) add(l *latency, d time.Duration) {
	if r.measuring {
		l.all = append(l.all, d)
	}
}

// producer sends batches until sends is cancelled or all messages are sent. With a rate each
// message has a time at which it is due, from its number.
func (r *benchRun) producer(ctx, sends context.Context) error {
	for {
		n := uint64(r.Batch)
		seq := r.seq.Add(n) - n
		if r.Messages > 0 {
			n = min(n, uint64(max(r.Messages-int64(seq), 0)))
		}
		var sent time.Duration
		if r.Rate > 0 {
			sent = time.Duration(float64(seq) / r.Rate * float64(time.Second))
			if early := sent - time.Since(r.began); early > 0 && n > 0 {
				pause(sends, early)
				r.mu.Lock()
				r.add(&r.out.Late, time.Since(r.began)-sent)
				r.mu.Unlock()
			}
		}
		for i := uint64(0); i < n && r.room != nil && sends.Err() == nil; i++ {
			select {
			case r.room <- struct{}{}:
			case <-sends.Done():
			}
		}
		if n == 0 || sends.Err() != nil {
			return nil
		}
		if r.Rate == 0 {
			sent = time.Since(r.began)
		}
		batch := make([]wire.NewMessage, n)
		for j := range batch {
			batch[j] = r.message(sent, seq+uint64(j))
		}
		var err error
		if r.Batch == 1 {
			_, err = r.c.Enqueue(ctx, r.Queue, batch[0])
		} else {
			_, err = r.c.Produce(ctx, r.Queue, batch...)
		}
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.out.TotalProduced += int64(n)
		r.add(&r.out.Produce, time.Since(r.began)-sent)
		r.mu.Unlock()
	}
}

func (r *benchRun) message(sent time.Duration, seq uint64) wire.NewMessage {
	p := slices.Clone(r.random[rand.IntN(len(r.random)-r.Size):][:r.Size])
	binary.LittleEndian.PutUint64(p, uint64(sent))
	binary.LittleEndian.PutUint64(p[8:], r.id)
	binary.LittleEndian.PutUint64(p[16:], seq)
	m := client.Bytes(p, "")
	if r.Keys > 0 {
		m.Key = "k" + strconv.FormatUint(seq%uint64(r.Keys), 10)
	}
	return m
}

// worker leases and acks until takes is cancelled.
func (r *benchRun) worker(ctx, takes context.Context) error {
	if r.Take == 1 {
		handle := func(_ context.Context, m *client.Message) error {
			r.delivered(time.Since(r.began), 0, []wire.LeasedMessage{m.LeasedMessage})
			return nil
		}
		return client.NewWorker(r.c, r.Queue, handle, client.WorkerOptions{
			Concurrency: r.Workers, Grace: -1, Logger: slog.New(slog.DiscardHandler),
		}).Run(takes)
	}
	for takes.Err() == nil {
		asked := time.Now()
		opts := client.LeaseOptions{Max: r.Take, Wait: time.Second}
		got, err := r.c.Lease(takes, r.Queue, opts)
		if err != nil {
			return err
		}
		if len(got) == 0 {
			continue
		}
		arrived := time.Now()
		leases := make([]string, len(got))
		for i := range got {
			leases[i] = got[i].LeaseID
		}
		results, err := r.c.Ack(ctx, r.Queue, leases...)
		if err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		for _, res := range results {
			if res.Status != "acked" {
				return fmt.Errorf("ack: lease %s: %s (%s)", res.LeaseID, res.Status, res.Code)
			}
		}
		acking := time.Since(arrived)
		r.delivered(arrived.Sub(r.began), acking, got)
		r.mu.Lock()
		r.add(&r.out.Take, arrived.Sub(asked))
		r.mu.Unlock()
	}
	return nil
}

// delivered counts messages that arrived at a time and were acked some time after it.
func (r *benchRun) delivered(arrived, acking time.Duration, got []wire.LeasedMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.TotalAcked += int64(len(got))
	oldest := arrived
	for _, m := range got {
		p := m.PayloadBytes
		if len(p) < minBenchSize || binary.LittleEndian.Uint64(p[8:]) != r.id {
			continue
		}
		seq := int(binary.LittleEndian.Uint64(p[16:]))
		r.seen = append(r.seen, make([]bool, max(0, seq+1-len(r.seen)))...)
		if r.seen[seq] {
			r.out.Duplicates++
			continue
		}
		r.seen[seq] = true
		if r.room != nil {
			<-r.room // each message entered once
		}
		sent := time.Duration(binary.LittleEndian.Uint64(p))
		oldest = min(oldest, sent)
		r.add(&r.out.Delivery, arrived-sent)
	}
	r.add(&r.out.Ack, acking)
	r.add(&r.out.Cycle, arrived+acking-oldest)
}

// pause returns after d, or when ctx is cancelled.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// printBench prints a result. It fails if messages were lost.
func (a *app) printBench(load *benchLoad, r *benchResult) error {
	var err error
	if a.output == "json" {
		err = a.json(struct {
			Queue  string       `json:"queue"`
			Load   *benchLoad   `json:"load"`
			Result *benchResult `json:"result"`
		}{load.Queue, load, r})
	} else {
		var rows [][]any
		row := func(what, rate string, q latency) {
			cells := []any{what, rate}
			for _, v := range []float64{q.P50, q.P90, q.P99, q.P999, q.Max} {
				text := "-"
				if what != "ack" || load.Take > 1 { // the Worker acks after the handler
					text = fmt.Sprintf("%.2f", v)
				}
				cells = append(cells, text)
			}
			if q.Count > 0 {
				rows = append(rows, cells)
			}
		}
		row("produce", fmt.Sprintf("%.0f", r.ProduceRate), r.Produce)
		row("delivery", "-", r.Delivery)
		row("ack", fmt.Sprintf("%.0f", r.AckRate), r.Ack)
		err = a.table("what,messages/s,p50 ms,p90 ms,p99 ms,p99.9 ms,max ms", rows)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "%s produced, %d acked in total; measured for %.1f s\n",
		messages(r.TotalProduced), r.TotalAcked, r.Seconds)
	if r.Duplicates > 0 {
		fmt.Fprintf(a.stderr, "%s delivered more than once: leases expired\n",
			plural(int(r.Duplicates), "message was", "messages were"))
	}
	if r.Late.P99 > 5 {
		fmt.Fprintf(a.stderr, "the load generator was late (p99 %.1f ms); latencies include it\n",
			r.Late.P99)
	}
	if r.Lost > 0 {
		lost := plural(r.Lost, "message was", "messages were")
		return fmt.Errorf("%s not delivered", lost)
	}
	return nil
}
