package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/bench/measure"
	"github.com/qlogd/qlogd/bench/qlogd"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/load"
	"github.com/qlogd/qlogd/internal/load/qlogdload"
)

// experiment measures qlogd alone in several states, in turns: what is in it may
// not change what an operation costs. The first state is the one that the others
// are held against.
type experiment struct {
	name, title string
	states      []state
	slices      []slice
}

// state is a node that was brought somewhere, once.
type state struct {
	name    string
	flags   []string                                // of qlogd serve
	prepare func(ctx context.Context, b *box) error // once
	beside  func(ctx context.Context, b *box) error // while it is measured, until ctx ends
	after   func(ctx context.Context, b *box) error // each time it was measured
	as      string                                  // share the node of that state
}

// slice is one load and what is taken of it.
type slice struct {
	put   load.Config
	queue func(ctx context.Context, b *box) (load.Target, error)
	take  map[string]func(*load.Result) float64 // by metric; nil: rate and CPU
}

// box is a running node.
type box struct {
	*qlogd.Servers
	c     *client.Client
	set   *settings
	fresh int
}

const (
	produceP50, produceP99, produceP999, produceMax = "produce_p50_ms", "produce_p99_ms", "produce_p999_ms", "produce_max_ms"
	takeP50, takeP99                                = "take_p50_ms", "take_p99_ms"
	ackP50, ackP99                                  = "ack_p50_ms", "ack_p99_ms"
	cycleP50, cycleP99, cycleP999, cycleMax         = "cycle_p50_ms", "cycle_p99_ms", "cycle_p999_ms", "cycle_max_ms"
	calmCPU                                         = "paced_server_cpu"
)

// paced are the latencies of calls at a rate that leaves the machine idle.
var paced = map[string]func(*load.Result) float64{
	produceP50: func(r *load.Result) float64 { return r.Produce.P50 }, produceP99: func(r *load.Result) float64 { return r.Produce.P99 },
	takeP50: func(r *load.Result) float64 { return r.Take.P50 }, takeP99: func(r *load.Result) float64 { return r.Take.P99 },
	ackP50: func(r *load.Result) float64 { return r.Ack.P50 }, ackP99: func(r *load.Result) float64 { return r.Ack.P99 },
}

// tails are the longest waits.
var tails = map[string]func(*load.Result) float64{
	produceP50: func(r *load.Result) float64 { return r.Produce.P50 }, produceP99: func(r *load.Result) float64 { return r.Produce.P99 },
	produceP999: func(r *load.Result) float64 { return r.Produce.P999 }, produceMax: func(r *load.Result) float64 { return r.Produce.Max },
	cycleP50: func(r *load.Result) float64 { return r.Cycle.P50 }, cycleP99: func(r *load.Result) float64 { return r.Cycle.P99 },
	cycleP999: func(r *load.Result) float64 { return r.Cycle.P999 }, cycleMax: func(r *load.Result) float64 { return r.Cycle.Max },
}

// alone runs experiments, by name or all, and keeps and tells what came of them.
func alone(command string, args []string, all func(*settings) []experiment) error {
	fs := flag.NewFlagSet(command, flag.ContinueOnError)
	bin := fs.String("bin", "../bin/qlogd", "the program to measure")
	tmp := fs.String("dir", os.TempDir(), "where data directories are made, and removed again")
	out := fs.String("out", "results/"+command+".json", "where the raw figures go")
	only := fs.String("only", "", "these experiments only, with commas between")
	s := &settings{}
	fs.IntVar(&s.Rounds, "rounds", 5, "how often each is measured")
	fs.IntVar(&s.Size, "size", 1024, "bytes of a payload")
	fs.DurationVar(&s.Warmup, "warmup", time.Second, "load before it is measured")
	fs.DurationVar(&s.Slice, "slice", 5*time.Second, "how long each is measured in each round")
	fs.Int64Var(&s.Waiting, "waiting", 1_000_000, "messages that wait, where there are many")
	fs.Int64Var(&s.Most, "most", 10_000_000, "messages that wait, where there are most (growth)")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	path, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp(*tmp, "qlogd-"+command+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := &comparison{
		Began: time.Now().UTC().Truncate(time.Second), Machine: measure.ThisMachine(dir), Commit: commit(),
		Command: os.Args, Set: *s, Systems: map[string]about{},
	}
	if err := c.calibrate(dir); err != nil {
		return err
	}
	names := split(*only)
	for _, e := range all(s) {
		if names != nil && !slices.Contains(names, e.name) {
			continue
		}
		err := e.run(ctx, c, s, path, dir)
		if err := errors.Join(err, c.calibrate(dir), c.save(*out)); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	fmt.Fprintf(os.Stderr, "\nraw figures: %s\n\n", *out)
	return c.markdown(os.Stdout)
}

func (e experiment) run(ctx context.Context, c *comparison, s *settings, bin, dir string) error {
	out := &measured{Name: e.name, Title: e.title, Base: e.states[0].name}
	c.Works = append(c.Works, out)
	boxes := map[string]*box{}
	defer func() {
		for _, b := range boxes {
			_ = b.Stop()
			os.RemoveAll(filepath.Dir(b.Nodes[0].Dir))
		}
	}()
	home := func(st state) string {
		if st.as != "" {
			return st.as
		}
		return st.name
	}
	for i, st := range e.states {
		if st.as != "" {
			continue
		}
		began := time.Now()
		fmt.Fprintf(os.Stderr, "%-9s %-26s ", e.name, st.name)
		servers, err := qlogd.Start(ctx, filepath.Join(dir, fmt.Sprint(e.name, i)), qlogd.Options{Bin: bin, Nodes: 1, Flags: st.flags})
		if err != nil {
			return err
		}
		b := &box{Servers: servers, set: s}
		boxes[st.name] = b
		if b.c, err = servers.Client(); err == nil && st.prepare != nil {
			err = st.prepare(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", st.name, err)
		}
		fmt.Fprintf(os.Stderr, "is prepared (%s)\n", time.Since(began).Round(time.Second))
	}
	for round := range s.Rounds {
		for i := range e.states {
			st := e.states[(i+round)%len(e.states)]
			fmt.Fprintf(os.Stderr, "%-9s round %d  %-26s ", e.name, round+1, st.name)
			sm := &sample{System: st.name, Round: round + 1, At: time.Now().UTC().Truncate(time.Second)}
			out.Runs = append(out.Runs, sm)
			var err error
			if sm.Values, err = e.once(ctx, s, st, boxes[home(st)]); err != nil {
				return fmt.Errorf("%s: %w", st.name, err)
			}
			fmt.Fprintln(os.Stderr, sm)
		}
	}
	return nil
}

// once measures every slice of a state.
func (e experiment) once(ctx context.Context, s *settings, st state, b *box) (map[string]float64, error) {
	values := map[string]float64{}
	for _, sl := range e.slices {
		t, err := sl.queue(ctx, b)
		if err != nil {
			return nil, err
		}
		beside, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			if st.beside == nil {
				ended <- nil
				return
			}
			ended <- st.beside(beside, b)
		}()
		var began, done usage
		put := sl.put
		put.Size, put.Warmup, put.Duration = s.Size, s.Warmup, s.Slice
		put.Window = func(begins bool) {
			if begins {
				began = use(b)
			} else {
				done = use(b)
			}
		}
		r, err := load.Run(ctx, t, put)
		end()
		if err := errors.Join(err, <-ended); err != nil {
			return nil, err
		}
		if r.Lost > 0 {
			return nil, fmt.Errorf("%d messages were lost", r.Lost)
		}
		if in, ok := t.(*several); ok {
			r.Take = in.lease.Quantiles()
		}
		each := (done.servers - began.servers).Seconds() / max(float64(r.Acked), 1) * 1000
		if sl.take == nil {
			values[rate], values[serverCPU] = r.AckRate, each
		} else {
			values[calmCPU] = each
			for name, of := range sl.take {
				values[name] = of(r)
			}
		}
		if st.after != nil {
			if err := st.after(ctx, b); err != nil {
				return nil, err
			}
		}
	}
	return values, nil
}

// queue makes a queue and says how to reach it.
func (b *box) queue(ctx context.Context, name, ordering string) (load.Target, error) {
	return qlogdload.Make(ctx, b.c, name, wire.PolicyUpdate{Ordering: wire.Some(ordering)})
}

// fill brings a queue to n waiting messages.
func (b *box) fill(ctx context.Context, queue string, n int64, keys int) error {
	q, err := b.c.Queue(ctx, queue)
	if err != nil {
		return err
	}
	if n -= q.Stats.Depth; n <= 0 {
		return b.work(ctx, queue, -n)
	}
	t := &qlogdload.Target{Client: b.c, Queue: queue}
	_, err = load.Run(ctx, t, load.Config{Producers: 4, Batch: 500, Size: b.set.Size, Keys: keys, Messages: n})
	return err
}

// work takes n messages off a queue.
func (b *box) work(ctx context.Context, queue string, n int64) error {
	for n > 0 {
		got, err := b.c.Lease(ctx, queue, client.LeaseOptions{Max: int(min(n, 1000))})
		if err != nil {
			return err
		}
		if len(got) == 0 {
			return fmt.Errorf("queue %s: there is nothing to take", queue)
		}
		ids := make([]string, len(got))
		for i, m := range got {
			ids[i] = m.LeaseID
		}
		if _, err := b.c.Ack(ctx, queue, ids...); err != nil {
			return err
		}
		n -= int64(len(got))
	}
	return nil
}

// history makes segments of history: messages that came and went.
func (b *box) history(ctx context.Context, bytes int64) error {
	t, err := b.queue(ctx, "gone", "unordered")
	if err != nil {
		return err
	}
	_, err = load.Run(ctx, t, load.Config{Producers: 4, Batch: 200, Workers: 4, Take: 200, Size: 4096, Messages: bytes / 4500})
	return err
}
