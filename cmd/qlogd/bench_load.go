package main

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// benchLoad describes the load of qlogd bench.
type benchLoad struct {
	Producers int     `json:"producers"`
	Batch     int     `json:"batch"`
	Workers   int     `json:"workers"`
	Take      int     `json:"take"`
	Size      int     `json:"size"`
	Keys      int     `json:"keys"`
	Rate      float64 `json:"rate"`     // messages per second; 0: as fast as possible
	Messages  int64   `json:"messages"` // stop after this many; 0: after Duration
	Backlog   int     `json:"backlog"`  // most messages produced and not acked; 0: no bound

	Warmup   time.Duration `json:"warmup_ns"`
	Duration time.Duration `json:"duration_ns"`
}

// benchResult is what a load measured. Rates and latencies are of the measured
// time, the totals include warm-up and draining.
type benchResult struct {
	Seconds       float64   `json:"seconds"`
	Produced      int64     `json:"produced"`
	Acked         int64     `json:"acked"`
	ProduceRate   float64   `json:"produce_per_second"`
	AckRate       float64   `json:"ack_per_second"`
	Produce       quantiles `json:"produce_ms"`
	Delivery      quantiles `json:"delivery_ms"` // from when a message was sent or due
	Take          quantiles `json:"take_ms"`
	Ack           quantiles `json:"ack_ms"`
	Cycle         quantiles `json:"cycle_ms"` // from sent or due until acked
	Late          quantiles `json:"late_ms"`  // of the load generator, with a rate
	TotalProduced int64     `json:"total_produced"`
	TotalAcked    int64     `json:"total_acked"`
	Duplicates    int64     `json:"duplicates"`
	Lost          int64     `json:"lost"` // -1: without workers
}

// minBenchSize holds a payload's origin: the time it was sent or due, in
// nanoseconds since the run began, the random id of the run, and the message's
// number. The rest is random.
const minBenchSize = 24

// benchStuck is how long a message may be missing before it counts as lost:
// longer than a lease of 30 s, after which it is delivered again.
const benchStuck = 45 * time.Second

func (l benchLoad) check() error {
	switch {
	case l.Producers < 1:
		return errors.New("--producers must be at least 1")
	case l.Workers < 0:
		return errors.New("--workers must not be negative")
	case l.Batch < 1 || l.Batch > 1000, l.Workers > 0 && (l.Take < 1 || l.Take > 1000):
		return errors.New("--batch and --take must be from 1 to 1000")
	case l.Size < minBenchSize:
		return fmt.Errorf("--size must be at least %d bytes", minBenchSize)
	case l.Duration <= 0 && l.Messages <= 0:
		return errors.New("--duration or --messages must be positive")
	case l.Rate < 0 || l.Keys < 0:
		return errors.New("--rate and --keys must not be negative")
	}
	return nil
}

type benchRun struct {
	benchLoad
	c     *client.Client
	queue string
	id    uint64
	began time.Time
	pool  []byte // random bytes, the payloads' source

	seq       atomic.Uint64
	measuring atomic.Bool
	room      chan struct{} // bounds messages produced and not acked; nil: no bound
	settled   chan struct{} // capacity 1: something was acked

	mu                              sync.Mutex
	seen                            []uint64 // bitmap of delivered messages
	produced, acked, duplicates     int64
	produce, delivery, take, ack    histogram
	cycle, late                     histogram
	measuredProduced, measuredAcked int64
	measureBegan, measureEnded      time.Time
	firstProduced, firstAcked       int64
}

// run applies the load to a queue and waits until all messages are acked.
func (l benchLoad) run(ctx context.Context, c *client.Client, queue string) (*benchResult, error) {
	r := &benchRun{
		benchLoad: l, c: c, queue: queue, id: rand.Uint64(), pool: make([]byte, 4<<20+l.Size),
		settled: make(chan struct{}, 1),
	}
	_, _ = crand.Read(r.pool) // never fails
	if l.Backlog > 0 {
		r.room = make(chan struct{}, l.Backlog)
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	sends, stopSends := context.WithCancel(ctx)
	defer stopSends()
	takes, stopTakes := context.WithCancel(ctx)
	defer stopTakes()

	r.began = time.Now()
	due := make(chan time.Duration, 1<<16)
	var producing, working sync.WaitGroup
	if r.Rate > 0 {
		go r.pace(sends, due)
	}
	for i := range r.Producers {
		producing.Go(func() {
			if err := r.producer(ctx, sends, i, due); err != nil {
				fail(fmt.Errorf("produce: %w", err))
			}
		})
	}
	r.startWorkers(ctx, takes, &working, fail)

	if r.Duration > 0 {
		pause(ctx, r.Warmup)
		r.begin()
		pause(ctx, r.Duration)
		r.end()
		stopSends()
	} else {
		r.begin()
	}
	producing.Wait()
	lost := int64(-1)
	if r.Workers > 0 {
		lost = r.drain(ctx)
	}
	if r.Duration == 0 {
		r.end()
	}
	stopTakes()
	working.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if lost == 0 {
		var err error
		if lost, err = r.unsettled(ctx); err != nil {
			return nil, err
		}
	}
	return r.result(lost), nil
}

func (r *benchRun) startWorkers(ctx, takes context.Context, working *sync.WaitGroup, fail func(error)) {
	failed := func(err error) {
		if err != nil && takes.Err() == nil {
			fail(fmt.Errorf("worker: %w", err))
		}
	}
	if r.Take == 1 && r.Workers > 0 {
		handle := func(_ context.Context, m *client.Message) error {
			now := time.Since(r.began)
			r.delivered(now, now, [][]byte{m.Bytes()})
			return nil
		}
		w := client.NewWorker(r.c, r.queue, handle, client.WorkerOptions{
			Concurrency: r.Workers, Grace: -1, Logger: slog.New(slog.DiscardHandler),
		})
		working.Go(func() { failed(w.Run(takes)) })
		return
	}
	for range r.Workers {
		working.Go(func() { failed(r.worker(ctx, takes)) })
	}
}

func (r *benchRun) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.measureBegan, r.firstProduced, r.firstAcked = time.Now(), r.produced, r.acked
	r.measuring.Store(true)
}

func (r *benchRun) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.measuring.Store(false)
	r.measureEnded = time.Now()
	r.measuredProduced, r.measuredAcked = r.produced-r.firstProduced, r.acked-r.firstAcked
}

func (r *benchRun) result(lost int64) *benchResult {
	r.mu.Lock()
	defer r.mu.Unlock()
	seconds := r.measureEnded.Sub(r.measureBegan).Seconds()
	return &benchResult{
		Seconds: seconds, Produced: r.measuredProduced, Acked: r.measuredAcked,
		ProduceRate: float64(r.measuredProduced) / seconds,
		AckRate:     float64(r.measuredAcked) / seconds,
		Produce:     r.produce.quantiles(), Delivery: r.delivery.quantiles(),
		Take: r.take.quantiles(), Ack: r.ack.quantiles(),
		Cycle: r.cycle.quantiles(), Late: r.late.quantiles(),
		TotalProduced: r.produced, TotalAcked: r.acked, Duplicates: r.duplicates, Lost: lost,
	}
}

// pace sends the time at which each batch is due.
func (r *benchRun) pace(ctx context.Context, due chan<- time.Duration) {
	every := time.Duration(float64(r.Batch) / r.Rate * float64(time.Second))
	for at := time.Since(r.began); ctx.Err() == nil; at += every {
		pause(ctx, at-time.Since(r.began))
		r.add(&r.late, time.Since(r.began)-at)
		select {
		case due <- at:
		case <-ctx.Done():
		}
	}
}

// producer sends batches until sends is cancelled or all messages are sent.
func (r *benchRun) producer(ctx, sends context.Context, i int, due <-chan time.Duration) error {
	at := i * 7919 // each producer reads the pool from another offset
	for sends.Err() == nil {
		var sent time.Duration
		if r.Rate > 0 {
			select {
			case sent = <-due:
			case <-sends.Done():
				return nil
			}
		}
		n := r.Batch
		seq := r.seq.Add(uint64(n)) - uint64(n)
		if r.Messages > 0 {
			if seq >= uint64(r.Messages) {
				return nil
			}
			n = int(min(uint64(n), uint64(r.Messages)-seq))
		}
		if !r.enter(sends, n) {
			return nil
		}
		if r.Rate == 0 {
			sent = time.Since(r.began)
		}
		batch := make([]wire.NewMessage, n)
		for j := range batch {
			p := make([]byte, r.Size)
			at = (at + r.Size) % (len(r.pool) - r.Size)
			copy(p, r.pool[at:])
			binary.LittleEndian.PutUint64(p, uint64(sent))
			binary.LittleEndian.PutUint64(p[8:], r.id)
			binary.LittleEndian.PutUint64(p[16:], seq+uint64(j))
			batch[j] = client.Bytes(p, "")
			if r.Keys > 0 {
				batch[j].Key = "k" + strconv.FormatUint((seq+uint64(j))%uint64(r.Keys), 10)
			}
		}
		var err error
		if r.Batch == 1 {
			_, err = r.c.Enqueue(ctx, r.queue, batch[0])
		} else {
			_, err = r.c.Produce(ctx, r.queue, batch...)
		}
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.produced += int64(n)
		r.mu.Unlock()
		r.add(&r.produce, time.Since(r.began)-sent)
	}
	return nil
}

// enter waits until n more messages may be outstanding. It returns false when
// ctx is cancelled.
func (r *benchRun) enter(ctx context.Context, n int) bool {
	for range n {
		if r.room == nil {
			return true
		}
		select {
		case r.room <- struct{}{}:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// worker leases and acks until takes is cancelled.
func (r *benchRun) worker(ctx, takes context.Context) error {
	for takes.Err() == nil {
		asked := time.Now()
		opts := client.LeaseOptions{Max: r.Take, Wait: time.Second}
		got, err := r.c.Lease(takes, r.queue, opts)
		if err != nil {
			return err
		}
		if len(got) == 0 {
			continue
		}
		r.add(&r.take, time.Since(asked))
		now := time.Since(r.began)
		leases, payloads := make([]string, len(got)), make([][]byte, len(got))
		for i, m := range got {
			leases[i], payloads[i] = m.LeaseID, m.PayloadBytes
			if payloads[i] == nil {
				payloads[i] = m.Payload
			}
		}
		asked = time.Now()
		results, err := r.c.Ack(ctx, r.queue, leases...)
		if err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		for _, res := range results {
			if res.Status != "acked" {
				return fmt.Errorf("ack: lease %s: %s (%s)", res.LeaseID, res.Status, res.Code)
			}
		}
		r.add(&r.ack, time.Since(asked))
		r.delivered(now, time.Since(r.began), payloads)
	}
	return nil
}

// delivered counts messages that arrived and were acked at the given times.
func (r *benchRun) delivered(arrived, acked time.Duration, payloads [][]byte) {
	measuring := r.measuring.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked += int64(len(payloads))
	oldest := acked
	for _, p := range payloads {
		if len(p) < minBenchSize || binary.LittleEndian.Uint64(p[8:]) != r.id {
			continue
		}
		seq := binary.LittleEndian.Uint64(p[16:])
		for seq/64 >= uint64(len(r.seen)) {
			r.seen = append(r.seen, make([]uint64, 1024)...)
		}
		if r.seen[seq/64]&(1<<(seq%64)) != 0 {
			r.duplicates++
			continue
		}
		r.seen[seq/64] |= 1 << (seq % 64)
		if r.room != nil {
			<-r.room // each message entered once
		}
		sent := time.Duration(binary.LittleEndian.Uint64(p))
		oldest = min(oldest, sent)
		if measuring {
			r.delivery.add(arrived - sent)
		}
	}
	if measuring {
		r.cycle.add(acked - oldest)
		if r.Take == 1 {
			r.ack.add(acked - arrived)
		}
	}
	select {
	case r.settled <- struct{}{}:
	default:
	}
}

// drain waits until every message is acked and returns the number of those
// that were missing when nothing more arrived.
func (r *benchRun) drain(ctx context.Context) int64 {
	missing := func() int64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.produced - (r.acked - r.duplicates)
	}
	stuck := time.NewTimer(benchStuck)
	defer stuck.Stop()
	for missing() > 0 {
		select {
		case <-r.settled:
			stuck.Reset(benchStuck)
		case <-stuck.C:
			return missing()
		case <-ctx.Done():
			return -1
		}
	}
	return 0
}

// unsettled waits until the queue is empty, because a Worker acks after its
// handler returned, and returns the number of messages that remain.
func (r *benchRun) unsettled(ctx context.Context) (int64, error) {
	for last, since := int64(-1), time.Now(); ; {
		q, err := r.c.Queue(ctx, r.queue)
		if err != nil {
			return 0, fmt.Errorf("count remaining messages: %w", err)
		}
		n := int64(q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight)
		if n == 0 || n == last && time.Since(since) > benchStuck {
			return n, nil
		}
		if n != last {
			last, since = n, time.Now()
		}
		pause(ctx, 20*time.Millisecond)
	}
}

func (r *benchRun) add(h *histogram, d time.Duration) {
	if r.measuring.Load() {
		r.mu.Lock()
		defer r.mu.Unlock()
		h.add(d)
	}
}

// pause returns after d, or when ctx is cancelled.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// histogram counts durations of up to five minutes, to a hundredth.
type histogram struct {
	counts [3000]int64 // 128 buckets for each power of two of microseconds
	n      int64
	sum    time.Duration
	max    time.Duration
}

func (h *histogram) add(d time.Duration) {
	d = min(max(d, 0), 5*time.Minute)
	us := uint64(d.Microseconds())
	shift := max(bits.Len64(us)-8, 0)
	h.counts[shift*128+int(us>>shift)]++
	h.n++
	h.sum += d
	h.max = max(h.max, d)
}

// quantiles are latencies in milliseconds.
type quantiles struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

func (h *histogram) quantiles() quantiles {
	if h.n == 0 {
		return quantiles{}
	}
	at := func(q float64) float64 {
		rank := max(int64(q*float64(h.n)+0.5), 1)
		for i, c := range h.counts {
			if rank -= c; rank <= 0 {
				shift := max(i/128-1, 0)
				return float64((i-shift*128)<<shift) / 1000
			}
		}
		return h.max.Seconds() * 1000
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return quantiles{
		Count: h.n, Mean: ms(h.sum) / float64(h.n),
		P50: at(.50), P90: at(.90), P99: at(.99), P999: at(.999), Max: ms(h.max),
	}
}
