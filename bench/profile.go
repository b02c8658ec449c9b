package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/qlogd/qlogd/bench/load"
	"github.com/qlogd/qlogd/bench/qlogd"
)

// profile runs one work on qlogd alone and says what it costs, for those who make
// it cheaper.
func profile(args []string) error {
	fs := flag.NewFlagSet("profile", flag.ContinueOnError)
	bin := fs.String("bin", "../bin/qlogd", "the program to measure")
	tmp := fs.String("dir", os.TempDir(), "where data directories are made, and removed again")
	seconds := fs.Int("seconds", 10, "how long it is measured")
	warmup := fs.Int("warmup", 2, "seconds before that")
	size := fs.Int("size", 1024, "bytes of a payload")
	rounds := fs.Int("rounds", 1, "how often, each on fresh servers")
	save := fs.String("pprof", "", "folder for CPU profiles of each server and of the generator, "+
		"and heap profiles of the servers")
	flags := fs.String("flags", "", "flags for qlogd serve, with spaces between")
	over := load.Config{}
	fs.IntVar(&over.Producers, "producers", 0, "in place of the work's")
	fs.IntVar(&over.Batch, "batch", 0, "in place of the work's")
	fs.IntVar(&over.Workers, "workers", 0, "in place of the work's")
	fs.IntVar(&over.Take, "take", 0, "in place of the work's")
	fs.IntVar(&over.Keys, "keys", 0, "in place of the work's; with keys the queue is per_key")
	fs.Float64Var(&over.Rate, "rate", 0, "in place of the work's")
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "usage: go run . profile [flags] WORK…   (works: produce1 "+
			"produce3 cycle3 enqueue3 singles3 http3 latency3 poll3 …)")
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if fs.NArg() == 0 {
		fs.Usage()
		return errors.New("name a work")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	path, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	if *save != "" {
		if err := os.MkdirAll(*save, 0o755); err != nil {
			return err
		}
	}
	for range *rounds {
		for _, name := range fs.Args() {
			w, err := workNamed(name)
			if err != nil {
				return err
			}
			replace(&w.put.Producers, over.Producers)
			replace(&w.put.Batch, over.Batch)
			replace(&w.put.Workers, over.Workers)
			replace(&w.put.Take, over.Take)
			replace(&w.put.Keys, over.Keys)
			replace(&w.put.Rate, over.Rate)
			o := qlogd.Options{Bin: path, Nodes: w.nodes, Flags: strings.Fields(*flags)}
			before := time.Duration(*warmup) * time.Second
			d := time.Duration(*seconds) * time.Second
			if err := profileOne(ctx, w, o, *tmp, *save, *size, before, d); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func replace[T int | float64](v *T, by T) {
	if by != 0 {
		*v = by
	}
}

func profileOne(ctx context.Context, w work, o qlogd.Options, tmp, save string, size int,
	warmup, d time.Duration) (err error) {
	dir, err := os.MkdirTemp(tmp, "qlogd-profile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	sys := &qlogd.System{Options: o, Plain: w.plain, PerKey: w.put.Keys > 0}
	defer sys.Stop()
	if err := sys.Start(ctx, dir); err != nil {
		return err
	}
	t, err := sys.Fresh(ctx)
	if err != nil {
		return err
	}
	s := sys.Servers()

	var began, ended usage
	var saved chan error
	var mine *os.File
	window := func(begins bool) {
		if !begins {
			ended = use(s)
			if save != "" {
				pprof.StopCPUProfile()
				err = errors.Join(err, mine.Close())
			}
			return
		}
		if save != "" {
			saved = make(chan error, 1)
			go func() { saved <- profiles(ctx, s, save, w.name, d) }()
			if mine, err = os.Create(filepath.Join(save, w.name+".load.cpu.prof")); err == nil {
				err = pprof.StartCPUProfile(mine)
			}
		}
		began = use(s)
	}
	r, runErr := w.do(ctx, t, size, warmup, d, window)
	if saved != nil {
		err = errors.Join(err, <-saved)
	}
	if err := errors.Join(err, runErr, began.err, ended.err); err != nil {
		return err
	}
	n := r.Produced
	rate := r.ProduceRate
	if w.put.Workers > 0 {
		n, rate = r.Acked, r.AckRate
	}
	per := func(a, b time.Duration) float64 { return (b - a).Seconds() / max(float64(n), 1) * 1000 }
	servers, own := per(began.servers, ended.servers), per(began.own, ended.own)
	fmt.Printf("%-9s %8.0f msgs/s   CPU s/1,000: servers %.4f, generator %.4f, all %.4f   "+
		"RSS %d MB (anon %d)",
		w.name, rate, servers, own, servers+own, ended.rss>>20, ended.anon>>20)
	if r.Lost > 0 || r.Duplicates > 0 {
		fmt.Printf("   LOST %d, DUPLICATES %d", r.Lost, r.Duplicates)
	}
	fmt.Println()
	for _, q := range []struct {
		name string
		of   load.Quantiles
	}{
		{"produce", r.Produce}, {"delivery", r.Delivery}, {"ack", r.Ack},
		{"generator late", r.Late},
	} {
		if q.of.Count > 0 {
			fmt.Printf("          %-14s p50 %7.2f  p90 %7.2f  p99 %7.2f  p99.9 %7.2f  "+
				"max %7.2f ms   (%d)\n",
				q.name, q.of.P50, q.of.P90, q.of.P99, q.of.P999, q.of.Max, q.of.Count)
		}
	}
	return nil
}

// profiles saves the servers' profiles of the time d.
func profiles(ctx context.Context, s *qlogd.Servers, folder, name string, d time.Duration) error {
	errs := make(chan error)
	for i, n := range s.Nodes {
		go func() {
			file := filepath.Join(folder, fmt.Sprintf("%s.n%d", name, i+1))
			err := n.Profile(ctx, file+".cpu.prof", max(1, int(d.Seconds())-1))
			errs <- errors.Join(err, n.Heap(ctx, file+".heap.prof"))
		}()
	}
	var err error
	for range s.Nodes {
		err = errors.Join(err, <-errs)
	}
	return err
}
