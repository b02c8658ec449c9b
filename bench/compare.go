package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/measure"
	"github.com/qlogd/qlogd/bench/system"
)

// comparison is all that a run of compare found, as it is kept.
type comparison struct {
	Began   time.Time              `json:"began"`
	Ended   time.Time              `json:"ended"`
	Machine measure.Machine        `json:"machine"`
	Commit  string                 `json:"commit"`
	Command []string               `json:"command"`
	Set     settings               `json:"settings"`
	Calib   []*measure.Calibration `json:"calibration"` // before, and after each work
	Systems map[string]about       `json:"systems"`
	Works   []*measured            `json:"works"`
}

type settings struct {
	Rounds  int           `json:"rounds"`
	Size    int           `json:"payload_bytes"`
	Warmup  time.Duration `json:"warmup_ns"`
	Slice   time.Duration `json:"slice_ns"`
	Waiting int64         `json:"waiting_messages"` // of memory
}

type about struct {
	Durable string `json:"durable"`
	Version string `json:"version,omitempty"`
	Missing string `json:"missing,omitempty"` // why it was left out
}

// measured is one work of all its systems.
type measured struct {
	Name   string      `json:"name"`
	Title  string      `json:"title"`
	Config load.Config `json:"config"`
	Runs   []*sample   `json:"runs"` // in the order in which they were done
}

// sample is one system once.
type sample struct {
	System string             `json:"system"`
	Round  int                `json:"round"`
	At     time.Time          `json:"at"`
	Error  string             `json:"error,omitempty"`
	Values map[string]float64 `json:"values,omitempty"` // by metric
	Load   *load.Result       `json:"load,omitempty"`
}

// compare measures works on systems in turns: in each round each of them once, on
// fresh servers, and the order goes on by one from round to round.
func compare(args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	bin := fs.String("bin", "../bin/qlogd", "the program to measure")
	tmp := fs.String("dir", os.TempDir(), "where data directories are made, and removed again")
	out := fs.String("out", "results/compare.json", "where the raw figures go")
	only := fs.String("works", "", "these works only, with commas between: produce3,http3")
	systems := fs.String("systems", "", "these systems only: qlogd-3,nats-r3-always")
	slice := fs.Duration("slice", 5*time.Second, "how long each is measured in each round")
	s := settings{}
	fs.IntVar(&s.Rounds, "rounds", 5, "how often each is measured")
	fs.IntVar(&s.Size, "size", 1024, "bytes of a payload")
	fs.DurationVar(&s.Warmup, "warmup", 2*time.Second, "load before it is measured")
	fs.Int64Var(&s.Waiting, "waiting", 1_000_000, "messages that wait, for memory")
	list := fs.Bool("list", false, "list works and systems, and measure nothing")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	s.Slice = *slice
	path, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	plan, err := planned(split(*only), split(*systems))
	if err != nil {
		return err
	}
	if *list {
		for _, p := range plan {
			fmt.Printf("%-9s %-66s %s\n", p.name, p.title, strings.Join(p.systems, " "))
		}
		return nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp(*tmp, "qlogd-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	c := &comparison{
		Began: time.Now().UTC().Truncate(time.Second), Machine: measure.ThisMachine(dir),
		Commit: commit(), Command: os.Args, Set: s, Systems: map[string]about{},
	}
	m := &measurer{bin: path, dir: dir, set: s, c: c}
	if err := c.calibrate(dir); err != nil {
		return err
	}
	for _, p := range plan {
		if err := m.work(ctx, p); err != nil {
			return errors.Join(err, c.save(*out))
		}
		// After each work, so that what was measured is not lost with what comes.
		if err := errors.Join(c.calibrate(dir), c.save(*out)); err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "\nraw figures: %s\n\n", *out)
	return c.markdown(os.Stdout)
}

// split is a list with commas between, nil for an empty one.
func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// step is a work and who does it.
type step struct {
	work
	systems []string
}

// planned says what to measure, in the order of targets: all of it, or some works
// or some systems. A system that is named takes part in every work that is, for
// pairs that no target names.
func planned(works, systems []string) (out []step, err error) {
	add := func(name string) (*step, error) {
		for i := range out {
			if out[i].name == name {
				return &out[i], nil
			}
		}
		w, err := workNamed(name)
		out = append(out, step{work: w})
		return &out[len(out)-1], err
	}
	for _, t := range targets {
		if works != nil && !slices.Contains(works, t.Work) {
			continue
		}
		s, err := add(t.Work)
		if err != nil {
			return nil, err
		}
		for _, name := range append([]string{t.Ours}, strings.Split(t.Against, "+")...) {
			if !slices.Contains(s.systems, name) &&
				(systems == nil || slices.Contains(systems, name)) {
				s.systems = append(s.systems, name)
			}
		}
	}
	for _, name := range works {
		s, err := add(name)
		if err != nil {
			return nil, err
		}
		for _, sys := range systems {
			if !slices.Contains(s.systems, sys) {
				s.systems = append(s.systems, sys)
			}
		}
	}
	return slices.DeleteFunc(out, func(s step) bool { return len(s.systems) == 0 }), nil
}

func (c *comparison) calibrate(dir string) error {
	now, err := measure.Calibrate(dir)
	if err != nil {
		return err
	}
	c.Calib = append(c.Calib, now)
	fmt.Fprintln(os.Stderr, now)
	return nil
}

// save writes what there is so far.
func (c *comparison) save(file string) error {
	c.Ended = time.Now().UTC().Truncate(time.Second)
	b, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

// commit is what is checked out, with a + where it was changed since.
func commit() string {
	b, err := exec.Command("git", "describe", "--always", "--dirty=+", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

type measurer struct {
	bin, dir string
	set      settings
	c        *comparison
}

// work measures one work on all its systems.
func (m *measurer) work(ctx context.Context, p step) error {
	out := &measured{Name: p.name, Title: p.title, Config: p.put}
	m.c.Works = append(m.c.Works, out)
	absent := map[string]bool{}
	for round := range m.set.Rounds {
		for i := range p.systems {
			name := p.systems[(i+round)%len(p.systems)]
			if absent[name] {
				continue
			}
			sys, err := systemNamed(name, m.bin)
			if err != nil {
				return err
			}
			if lacks := sys.Missing(); lacks != "" {
				fmt.Fprintf(os.Stderr, "%-9s is left out for %s: %s\n", p.name, name, lacks)
				absent[name] = true
				m.c.Systems[name] = about{Durable: sys.Durable(), Missing: lacks}
				continue
			}
			if _, known := m.c.Systems[name]; !known {
				m.c.Systems[name] = about{Durable: sys.Durable(), Version: version(sys)}
			}
			at := time.Now()
			fmt.Fprintf(os.Stderr, "%-9s round %d  %-16s ", p.name, round+1, name)
			s := m.once(ctx, p.work, sys)
			s.System, s.Round, s.At = name, round+1, at.UTC().Truncate(time.Second)
			out.Runs = append(out.Runs, s)
			if err := ctx.Err(); err != nil {
				fmt.Fprintln(os.Stderr)
				return err
			}
			fmt.Fprintln(os.Stderr, s)
			absent[name] = s.Error != "" && s.Values == nil && round == 0
		}
	}
	return nil
}

// String is the line that is printed after each run.
func (s *sample) String() string {
	if s.Error != "" {
		return "failed: " + s.Error
	}
	var out []string
	for _, k := range order {
		if v, ok := s.Values[k]; ok {
			out = append(out, fmt.Sprintf("%s %s", k, short(v)))
		}
	}
	return strings.Join(out, "  ")
}

// once measures a work on fresh servers.
func (m *measurer) once(ctx context.Context, w work, sys system.System) (s *sample) {
	s = &sample{}
	fail := func(err error) *sample {
		s.Error = err.Error()
		return s
	}
	dir, err := os.MkdirTemp(m.dir, "data-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	if err := sys.Start(ctx, dir); err != nil {
		return fail(errors.Join(fmt.Errorf("start: %w", err), sys.Stop()))
	}
	defer func() {
		if err := sys.Stop(); err != nil && s.Error == "" {
			s.Error = fmt.Sprintf("stop: %v", err)
		}
	}()
	t, err := sys.Fresh(ctx)
	if err != nil {
		return fail(fmt.Errorf("make a queue: %w", err))
	}
	if w.how == waiting {
		if s.Values, err = m.memory(ctx, w, sys, t); err != nil {
			return fail(err)
		}
		return s
	}
	var began, ended usage
	r, err := w.do(ctx, t, m.set.Size, m.set.Warmup, m.set.Slice, func(begins bool) {
		if begins {
			began = use(sys)
		} else {
			ended = use(sys)
		}
	})
	if err := errors.Join(err, began.err, ended.err); err != nil {
		return fail(err)
	}
	s.Load = r
	s.Values = values(w, r, began, ended)
	switch {
	case r.Lost > 0:
		s.Error = fmt.Sprintf("%d of %d messages were lost", r.Lost, r.TotalProduced)
	case w.put.Workers > 0 && r.Lost < 0:
		s.Error = "the queue was not emptied in the end"
	}
	return s
}

// values are what is compared.
func values(w work, r *load.Result, began, ended usage) map[string]float64 {
	n, per, q := r.Produced, r.ProduceRate, r.Produce
	if w.put.Workers > 0 || w.how == poll {
		n, per, q = r.Acked, r.AckRate, r.Delivery
	}
	each := func(a, b time.Duration) float64 {
		return (b - a).Seconds() / max(float64(n), 1) * 1000
	}
	return map[string]float64{
		rate: per, p50: q.P50, p99: q.P99, p999: q.P999,
		serverCPU: each(began.servers, ended.servers), ownCPU: each(began.own, ended.own),
		rss: float64(ended.rss),
	}
}

// collector is a System that can collect its garbage on request.
type collector interface {
	Collect(ctx context.Context) error
}

// memory fills a queue and returns how the servers' resident memory grows: from a
// quarter of the messages on, when caches are full, and from the empty queue on.
func (m *measurer) memory(ctx context.Context, w work, sys system.System, t load.Target) (
	map[string]float64, error) {
	rss := func() (float64, error) {
		// What works behind comes to rest.
		if err := rest(ctx, 3*time.Second); err != nil {
			return 0, err
		}
		if c, ok := sys.(collector); ok {
			if err := c.Collect(ctx); err != nil {
				return 0, err
			}
		}
		all, _, err := measure.RSS(sys.PIDs()...)
		return float64(all), err
	}
	fill := func(n int64) error {
		c := w.put
		c.Size, c.Messages = m.set.Size, n
		_, err := load.Run(ctx, t, c)
		return err
	}
	empty, err := rss()
	if err != nil {
		return nil, err
	}
	first := m.set.Waiting / 4
	if err := fill(first); err != nil {
		return nil, err
	}
	some, err := rss()
	if err != nil {
		return nil, err
	}
	if err := fill(m.set.Waiting - first); err != nil {
		return nil, err
	}
	all, err := rss()
	return map[string]float64{
		eachBytes:   (all - some) / float64(m.set.Waiting-first),
		eachAtFirst: (all - empty) / float64(m.set.Waiting), "rss_bytes": all,
	}, err
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usage is what processes have used so far.
type usage struct {
	servers, own time.Duration
	rss, anon    int64
	err          error
}

func use(s interface{ PIDs() []int }) (u usage) {
	var errs [3]error
	u.servers, errs[0] = measure.CPU(s.PIDs()...)
	u.own, errs[1] = measure.CPU(os.Getpid())
	u.rss, u.anon, errs[2] = measure.RSS(s.PIDs()...)
	u.err = errors.Join(errs[:]...)
	return u
}
