package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Config says what load. At full speed (Rate 0) each producer sends its next
// batch when the last is acknowledged: a closed loop. At a rate, batches are
// due at fixed times whether the last one is done or not: an open loop, whose
// latencies count from when a message was due.
type Config struct {
	Producers int `json:"producers"` // 0: nobody produces
	Batch     int `json:"batch"`     // messages of a Produce
	Workers   int `json:"workers"`   // 0: nobody takes
	Take      int `json:"take"`      // most messages of a Take; all that came are acked at once
	Size      int `json:"size"`      // bytes of a payload, at least MinSize
	Keys      int `json:"keys"`      // different keys; 0: messages have none

	Rate     float64       `json:"rate"`     // messages/s of all producers together; 0: full speed
	Messages int64         `json:"messages"` // producers stop after that many; 0: by the time
	Warmup   time.Duration `json:"warmup_ns"`
	Duration time.Duration `json:"duration_ns"` // of what is measured; 0: all of Messages

	// Backlog is how many messages may be produced and not acked where there
	// are workers, at full speed: what is measured is the whole way, and not how
	// fast a backlog grows. 0 is 10,000 or four times what all hold at once.
	Backlog int64 `json:"backlog"`
	// NoDrain ends workers with the time: messages in the queue stay there, and
	// lost ones are not counted.
	NoDrain bool `json:"no_drain"`

	// Window, if there is one, is called when what is measured begins, and when
	// it ends.
	Window func(begins bool) `json:"-"`
}

// stuck is how long workers wait for a message that does not come until it
// counts as lost. It is longer than the 30 s that a lease takes where nothing
// else is said, here as in others: a message whose delivery was lost on its way,
// with a server that died, comes again only then.
const stuck = 45 * time.Second

type run struct {
	Config
	id    uint64
	began time.Time

	seq       atomic.Uint64
	produced  atomic.Int64 // acknowledged
	acked     atomic.Int64
	own       atomic.Int64 // acked ones of this Run, each once
	dups      atomic.Int64
	measuring atomic.Bool
	seen      seen
	room      *semaphore.Weighted // for messages that are on their way; nil: for as many as come
	inside    atomic.Int64        // what room has let in

	produce, delivery, take, ack, cycle, late *Histogram
}

// Run puts load on a target until it is done, and then waits for workers to
// take all that was produced, unless NoDrain. It ends early with the first error
// of any client.
func Run(ctx context.Context, t Target, c Config) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Backlog == 0 {
		c.Backlog = max(10_000, 4*int64(c.Producers*c.Batch+c.Workers*c.Take))
	}
	r := &run{
		Config: c, id: rand.Uint64(), began: time.Now(),
		produce: NewHistogram(), delivery: NewHistogram(), take: NewHistogram(),
		ack: NewHistogram(), cycle: NewHistogram(), late: NewHistogram(),
	}
	if c.Rate == 0 && c.Workers > 0 {
		r.room = semaphore.NewWeighted(c.Backlog)
	}
	return r.run(ctx, t)
}

// Check says what is wrong with a Config.
func (c *Config) Check() error {
	switch {
	case c.Producers < 0 || c.Workers < 0 || c.Producers+c.Workers == 0:
		return errors.New("load: no producers and no workers")
	case c.Producers > 0 && (c.Batch < 1 || c.Batch > 1000),
		c.Workers > 0 && (c.Take < 1 || c.Take > 1000):
		return errors.New("load: a batch has from 1 to 1000 messages")
	case c.Producers > 0 && c.Size < MinSize:
		return fmt.Errorf("load: a payload has at least %d bytes", MinSize)
	case c.Duration == 0 && (c.Messages == 0 || c.Producers == 0):
		return errors.New("load: neither a time nor a number of messages to stop at")
	case c.Rate < 0:
		return errors.New("load: negative rate")
	}
	return nil
}

func (r *run) run(ctx context.Context, t Target) (*Result, error) {
	// all ends everything at once: on the first error and at the very end.
	all, endAll := context.WithCancelCause(ctx)
	defer endAll(nil)

	producers, workers, closeAll, err := r.connect(all, t)
	defer closeAll()
	if err != nil {
		return nil, err
	}
	pool() // not on the clock either
	r.began = time.Now()
	var before, after mark
	if r.Duration == 0 {
		before = r.begin() // all of it
	}
	sends, endSends := context.WithCancel(all)
	defer endSends()
	due := make(chan time.Duration, 1<<16)
	var pacing, producing, working sync.WaitGroup
	if r.Rate > 0 && r.Producers > 0 {
		pacing.Go(func() { r.pace(sends, due) })
	}
	for i, p := range producers {
		producing.Go(func() {
			if err := r.producer(all, sends, p, i, due); err != nil && all.Err() == nil {
				endAll(fmt.Errorf("produce: %w", err))
			}
		})
	}
	takes, endTakes := context.WithCancel(all)
	defer endTakes()
	for _, w := range workers {
		working.Go(func() {
			if err := r.worker(all, takes, w); err != nil && all.Err() == nil {
				endAll(err)
			}
		})
	}

	done := make(chan struct{})
	go func() { producing.Wait(); close(done) }()
	if r.Duration > 0 {
		wait(all, r.Warmup, done)
		before = r.begin()
		if r.Producers == 0 {
			wait(all, r.Duration, nil)
		} else {
			wait(all, r.Duration, done)
		}
		after = r.end()
		endSends()
		<-done
	} else {
		<-done
		endSends()
	}
	pacing.Wait()
	lost := int64(-1)
	if r.Workers > 0 && !r.NoDrain && r.Producers > 0 {
		lost = r.drain(all)
		if c, ok := t.(Counter); ok && lost == 0 {
			var err error
			if lost, err = settled(all, c); err != nil {
				endAll(fmt.Errorf("count what is left: %w", err))
			}
		}
	}
	if r.Duration == 0 {
		after = r.end()
	}
	endTakes()
	if lost != 0 {
		// A worker may sit in a call that does not look at its context.
		time.AfterFunc(stuck, func() { endAll(errors.New("a worker did not end")) })
	}
	working.Wait()
	if err := context.Cause(all); err != nil {
		return nil, err
	}
	out := &Result{
		Seconds:  after.at.Sub(before.at).Seconds(),
		Produced: after.produced - before.produced, Acked: after.acked - before.acked,
		Produce: r.produce.Quantiles(), Delivery: r.delivery.Quantiles(),
		Take: r.take.Quantiles(), Ack: r.ack.Quantiles(),
		Cycle: r.cycle.Quantiles(), Late: r.late.Quantiles(),
		TotalProduced: r.produced.Load(), TotalAcked: r.acked.Load(),
		Duplicates: r.dups.Load(), Lost: lost,
	}
	out.ProduceRate, out.AckRate = float64(out.Produced)/out.Seconds, float64(out.Acked)/out.Seconds
	return out, nil
}

// connect makes the clients, before the clock runs.
func (r *run) connect(ctx context.Context, t Target) (
	producers []Producer, workers []Worker, closeAll func(), err error) {
	closeAll = func() {
		for _, p := range producers {
			_ = p.Close()
		}
		for _, w := range workers {
			_ = w.Close()
		}
	}
	for i := range r.Producers {
		p, err := t.Producer(ctx)
		if err != nil {
			return producers, workers, closeAll, fmt.Errorf("producer %d: %w", i, err)
		}
		producers = append(producers, p)
	}
	for i := range r.Workers {
		w, err := t.Worker(ctx)
		if err != nil {
			return producers, workers, closeAll, fmt.Errorf("worker %d: %w", i, err)
		}
		workers = append(workers, w)
	}
	return producers, workers, closeAll, nil
}

// mark is where the counts stood at a time.
type mark struct {
	at              time.Time
	produced, acked int64
}

func (r *run) begin() mark {
	if r.Window != nil {
		r.Window(true)
	}
	r.measuring.Store(true)
	return r.mark()
}

func (r *run) end() mark {
	m := r.mark()
	r.measuring.Store(false)
	if r.Window != nil {
		r.Window(false)
	}
	return m
}

func (r *run) mark() mark { return mark{time.Now(), r.produced.Load(), r.acked.Load()} }

// drain waits until all that was produced is acked, and returns how many were
// not when nothing came any more.
func (r *run) drain(ctx context.Context) int64 {
	last, since := int64(-1), time.Now()
	for ctx.Err() == nil {
		own := r.own.Load()
		lost := r.produced.Load() - own
		if lost <= 0 || own == last && time.Since(since) > stuck {
			return lost
		}
		if own != last {
			last, since = own, time.Now()
		}
		wait(ctx, time.Millisecond, nil)
	}
	return -1
}

// settled waits until a target holds nothing any more, and returns how much it
// still does when that does not change.
func settled(ctx context.Context, t Counter) (int64, error) {
	for last, since := -1, time.Now(); ; {
		n, err := t.Count(ctx)
		if err != nil || n == 0 || n == last && time.Since(since) > stuck {
			return int64(n), err
		}
		if n != last {
			last, since = n, time.Now()
		}
		wait(ctx, 10*time.Millisecond, nil)
	}
}

// pace sends producers the time at which each batch is due, since the Run began.
func (r *run) pace(ctx context.Context, due chan<- time.Duration) {
	every := time.Duration(float64(r.Batch) / r.Rate * float64(time.Second))
	for at := time.Since(r.began); ; at += every {
		for {
			d := at - time.Since(r.began)
			if d <= 0 {
				break
			}
			sleep(d)
		}
		if r.measuring.Load() {
			r.late.Add(time.Since(r.began)-at, 1)
		}
		select {
		case due <- at:
		case <-ctx.Done():
			return
		}
	}
}

// producer sends until sends ends, each batch to its end.
func (r *run) producer(ctx, sends context.Context, p Producer, i int,
	due <-chan time.Duration) error {
	m := newMaker(r.id, r.Size, r.Batch, r.Keys, i)
	for sends.Err() == nil {
		var at time.Duration
		if r.Rate > 0 {
			select {
			case at = <-due:
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
		if !r.enter(sends, int64(n)) {
			return nil
		}
		began := time.Since(r.began)
		if r.Rate == 0 {
			at = began
		}
		if err := p.Produce(ctx, m.next(n, seq, int64(at))); err != nil {
			return err
		}
		r.produced.Add(int64(n))
		if r.measuring.Load() {
			r.produce.Add(time.Since(r.began)-at, 1)
		}
	}
	return nil
}

// enter waits until n more may be in flight, and reports whether they may.
func (r *run) enter(ctx context.Context, n int64) bool {
	if r.room == nil {
		return true
	}
	if r.room.Acquire(ctx, n) != nil {
		return false
	}
	r.inside.Add(n)
	return true
}

// leave makes room for as many as were acked. In a queue that held messages
// before, or where some come twice, these may be more than had entered.
func (r *run) leave(n int64) {
	if r.room == nil {
		return
	}
	for {
		inside := r.inside.Load()
		out := min(n, inside)
		if r.inside.CompareAndSwap(inside, inside-out) {
			r.room.Release(out)
			return
		}
	}
}

// worker takes until takes ends, and acks with ctx.
func (r *run) worker(ctx, takes context.Context, w Worker) error {
	for takes.Err() == nil {
		asked := time.Now()
		got, err := w.Take(takes, r.Take)
		if err != nil {
			if takes.Err() != nil {
				return nil
			}
			return fmt.Errorf("take: %w", err)
		}
		if len(got) == 0 {
			continue
		}
		now := time.Since(r.began)
		measuring := r.measuring.Load()
		if measuring {
			r.take.Add(time.Since(asked), 1)
		}
		var own, dups int64
		oldest := now
		for _, d := range got {
			stamp, seq, ok := origin(r.id, d.Payload)
			if !ok {
				continue
			}
			if !r.seen.add(seq) {
				dups++
				continue
			}
			own++
			oldest = min(oldest, time.Duration(stamp))
			if measuring {
				r.delivery.Add(now-time.Duration(stamp), 1)
			}
		}
		began := time.Now()
		if err := w.Ack(ctx, got); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		if measuring {
			r.ack.Add(time.Since(began), 1)
			if own > 0 {
				r.cycle.Add(time.Since(r.began)-oldest, 1)
			}
		}
		r.acked.Add(int64(len(got)))
		r.own.Add(own)
		r.dups.Add(dups)
		r.leave(int64(len(got)))
	}
	return nil
}

// wait returns after d, when done is closed, or when ctx ends.
func wait(ctx context.Context, d time.Duration, done <-chan struct{}) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	case <-ctx.Done():
	}
}
