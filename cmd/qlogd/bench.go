package main

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

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
	Ack           latency `json:"ack_ms"`      // none with --take 1: the Worker acks
	Late          latency `json:"late_ms"`     // of the load generator, with a rate
	TotalProduced int64   `json:"total_produced"`
	TotalAcked    int64   `json:"total_acked"`
	Duplicates    int64   `json:"duplicates"` // deliveries after the first
	Lost          int64   `json:"lost"`       // -1: without workers
}

// minBenchSize holds the time at which a message was sent or due, in nanoseconds since the run
// began. The rest of a payload is random.
const minBenchSize = 8

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
	if l.Messages > 0 {
		l.Duration, l.Warmup = 0, 0
	}
	if l.Rate == 0 && l.Workers > 0 {
		// Measure the whole cycle, not the growth of a backlog.
		l.Backlog = max(10_000, 4*(l.Producers*l.Batch+l.Workers*l.Take))
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

// bench runs a load on a queue that it creates and, even after ctrl-C, deletes.
func (c request) bench(load *benchLoad) (err error) {
	if err := load.check(); err != nil {
		return err
	}
	if load.Queue == "" {
		load.Queue = fmt.Sprintf("bench-%08x", rand.Uint32())
	}
	if _, err := c.Queue(c.ctx, load.Queue); err == nil {
		return usagef("queue %s exists; choose a name that does not", load.Queue)
	} else if !errors.Is(err, client.ErrQueueNotFound) {
		return err
	}
	policy := client.Queue{Description: "qlogd bench"}
	if load.Keys > 0 {
		policy.Ordering = "per_key"
	}
	if err := c.EnsureQueue(c.ctx, load.Queue, policy); err != nil {
		return err
	}
	defer func() {
		if failed := c.DeleteQueue(c.ctx, load.Queue, true); failed != nil {
			err = errors.Join(err, fmt.Errorf("queue %s was not deleted: %w", load.Queue, failed))
		}
	}()
	r := &benchRun{
		benchLoad: load, c: c.Client, random: make([]byte, 1<<20+load.Size),
		bar: c.progress("bench", load.Duration > 0), out: benchResult{Lost: -1},
	}
	_, _ = crand.Read(r.random) // never fails
	if load.Backlog > 0 {
		r.room = make(chan struct{}, load.Backlog)
	}
	ctx, stop := signal.NotifyContext(c.ctx, os.Interrupt)
	defer stop()
	err = r.run(ctx)
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
	random []byte // source of payloads
	bar    *progress
	began  time.Time
	room   chan struct{} // bounds messages produced and not acked; nil: no limit
	seq    atomic.Int64  // number of the next message

	produced, acked, again atomic.Int64 // messages; deliveries after the first

	mu        sync.Mutex
	measuring bool // latencies are taken
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
	work, workers := r.leases, r.Workers
	if r.Take == 1 {
		work, workers = r.worker, min(workers, 1) // one client.Worker has all of them
	}
	for range workers {
		working.Go(func() {
			if err := work(ctx, takes); err != nil && takes.Err() == nil {
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
	if r.Workers > 0 {
		r.drain(ctx)
	}
	if r.Duration == 0 {
		r.measure(false)
	}
	stopTakes()
	working.Wait()
	out := &r.out
	out.TotalProduced, out.TotalAcked = r.produced.Load(), r.acked.Load()
	out.Duplicates = r.again.Load()
	return context.Cause(ctx)
}

// drain waits until all messages are acked, or none was for too long.
func (r *benchRun) drain(ctx context.Context) {
	for last, since := int64(-1), time.Now(); ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
		if r.out.Lost = r.produced.Load() - r.acked.Load(); r.out.Lost != last {
			last, since = r.out.Lost, time.Now()
		}
		if last == 0 || time.Since(since) > benchStuck {
			return
		}
	}
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
	out.Produced, out.Acked = r.produced.Load()-out.Produced, r.acked.Load()-out.Acked
	if on {
		return
	}
	out.ProduceRate = float64(out.Produced) / out.Seconds
	out.AckRate = float64(out.Acked) / out.Seconds
	for _, l := range []*latency{&out.Produce, &out.Delivery, &out.Ack, &out.Late} {
		l.sum()
	}
}

// add adds a duration while measuring.
func (r *benchRun) add(l *latency, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.measuring {
		l.all = append(l.all, d)
	}
}

// producer sends batches until sends is cancelled or all messages are sent. With a rate each
// message has a time at which it is due, from its number.
func (r *benchRun) producer(ctx, sends context.Context) error {
	for {
		n := int64(r.Batch)
		seq := r.seq.Add(n) - n
		if r.Messages > 0 {
			n = min(n, r.Messages-seq)
		}
		var sent time.Duration
		if r.Rate > 0 {
			sent = time.Duration(float64(seq) / r.Rate * float64(time.Second))
			if early := sent - time.Since(r.began); early > 0 && n > 0 {
				pause(sends, early)
				r.add(&r.out.Late, time.Since(r.began)-sent)
			}
		}
		for i := int64(0); i < n && r.room != nil && sends.Err() == nil; i++ {
			select {
			case r.room <- struct{}{}:
			case <-sends.Done():
			}
		}
		if n <= 0 || sends.Err() != nil {
			return nil
		}
		if r.Rate == 0 {
			sent = time.Since(r.began)
		}
		batch := make([]client.NewMessage, n)
		for i := range batch {
			batch[i] = r.message(sent, seq+int64(i))
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
		r.add(&r.out.Produce, time.Since(r.began)-sent)
		r.produced.Add(n)
	}
}

func (r *benchRun) message(sent time.Duration, seq int64) client.NewMessage {
	p := slices.Clone(r.random[rand.IntN(len(r.random)-r.Size):][:r.Size])
	binary.LittleEndian.PutUint64(p, uint64(sent))
	m := client.Bytes(p, "")
	if r.Keys > 0 {
		m.Key = "k" + strconv.FormatInt(seq%int64(r.Keys), 10)
	}
	return m
}

// worker runs a client.Worker, whose handlers have nothing to do.
func (r *benchRun) worker(_, takes context.Context) error {
	return client.NewWorker(r.c, r.Queue, func(_ context.Context, m *client.Message) error {
		r.delivered(&m.LeasedMessage)
		return nil
	}, client.WorkerOptions{
		Concurrency: r.Workers, Grace: -1, Logger: slog.New(slog.DiscardHandler),
		Settled: func(_ *client.Message, s client.Settlement, _ time.Duration, err error) {
			if s.Do == client.DoAck && err == nil {
				r.done(1)
			}
		},
	}).Run(takes)
}

// leases leases and acks until takes is cancelled.
func (r *benchRun) leases(ctx, takes context.Context) error {
	for takes.Err() == nil {
		got, err := r.c.Lease(takes, r.Queue, client.LeaseOptions{Max: r.Take, Wait: time.Second})
		if err != nil {
			return err
		}
		if len(got) == 0 {
			continue
		}
		for i := range got {
			r.delivered(&got[i])
		}
		arrived := time.Now()
		if err := ackAll(ctx, r.c, r.Queue, got); err != nil {
			return err
		}
		r.add(&r.out.Ack, time.Since(arrived))
		r.done(len(got))
	}
	return nil
}

// delivered notes that a message has arrived.
func (r *benchRun) delivered(m *client.LeasedMessage) {
	if m.Attempt > 1 {
		r.again.Add(1)
	} else if len(m.PayloadBytes) >= minBenchSize { // else another program's
		sent := time.Duration(binary.LittleEndian.Uint64(m.PayloadBytes))
		r.add(&r.out.Delivery, time.Since(r.began)-sent)
	}
}

// done counts messages that are acked.
func (r *benchRun) done(n int) {
	r.acked.Add(int64(n))
	for i := 0; i < n && r.room != nil; i++ {
		<-r.room
	}
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
	var rows [][]any
	for _, row := range []struct {
		what, rate string
		q          latency
	}{
		{"produce", fmt.Sprintf("%.0f", r.ProduceRate), r.Produce},
		{"delivery", "-", r.Delivery},
		{"ack", fmt.Sprintf("%.0f", r.AckRate), r.Ack},
	} {
		cells := []any{row.what, row.rate}
		for _, ms := range []float64{row.q.P50, row.q.P90, row.q.P99, row.q.P999, row.q.Max} {
			text := "-" // a Worker's acks are not measured
			if row.q.Count > 0 {
				text = fmt.Sprintf("%.2f", ms)
			}
			cells = append(cells, text)
		}
		if row.q.Count > 0 || row.what == "ack" && r.Acked > 0 {
			rows = append(rows, cells)
		}
	}
	said, err := json.Marshal(load) // whose durations are numbers
	err = a.table(struct {
		Queue  string         `json:"queue"`
		Load   jsontext.Value `json:"load"`
		Result *benchResult   `json:"result"`
	}{load.Queue, said, r}, err, "what,messages/s,p50 ms,p90 ms,p99 ms,p99.9 ms,max ms", rows)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "%s produced, %d acked in total; measured for %.1f s\n",
		messages(r.TotalProduced), r.TotalAcked, r.Seconds)
	if r.Duplicates > 0 {
		fmt.Fprintf(a.stderr, "%s delivered more than once: leases expired\n",
			plural(r.Duplicates, "message was", "messages were"))
	}
	if r.Late.P99 > 5 {
		fmt.Fprintf(a.stderr, "the load generator was late (p99 %.1f ms); latencies include it\n",
			r.Late.P99)
	}
	if r.Lost > 0 {
		return fmt.Errorf("%s not delivered", plural(r.Lost, "message was", "messages were"))
	}
	return nil
}
