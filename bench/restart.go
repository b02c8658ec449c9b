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
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/qlogd/qlogd/bench/measure"
	"github.com/qlogd/qlogd/bench/qlogd"
)

const (
	servesIn  = "serves_in_s"  // from its start until it serves
	endsIn    = "ends_in_s"    // from SIGTERM
	verifies  = "verify_s"     // the whole log
	perSecond = "verify_mb_s"  // …
	verifyCPU = "verify_cpu_s" // user and system
)

// restart measures how long it takes until a node with many messages serves
// again, and until its log is verified.
func restart(args []string) error {
	fs := flag.NewFlagSet("restart", flag.ContinueOnError)
	bin := fs.String("bin", "../bin/qlogd", "the program to measure")
	tmp := fs.String("dir", os.TempDir(), "where data directories are made, and removed again")
	out := fs.String("out", "results/restart.json", "where the raw figures go")
	s := &settings{}
	fs.IntVar(&s.Rounds, "rounds", 5, "how often each is measured")
	fs.IntVar(&s.Size, "size", 1024, "bytes of a payload; 100 where the whole log is folded")
	fs.Int64Var(&s.Waiting, "waiting", 1_000_000, "messages that wait")
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
	dir, err := os.MkdirTemp(*tmp, "qlogd-restart-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := &comparison{
		Began: time.Now().UTC().Truncate(time.Second), Machine: measure.ThisMachine(dir), Commit: commit(),
		Command: os.Args, Set: *s,
	}
	if err := c.calibrate(dir); err != nil {
		return err
	}
	for i, from := range []struct {
		name  string
		size  int
		flags []string
	}{
		{"a checkpoint and the log behind it", s.Size, []string{"--checkpoint-entries=300"}},
		// Small payloads: Raft's entries stay below the 256 MiB at which a
		// checkpoint is taken in any case.
		{"the log alone, 100 bytes a message", 100, []string{"--checkpoint-entries=1000000000", "--checkpoint-interval=24h"}},
	} {
		m := &measured{Name: fmt.Sprint("restart", i+1), Title: fmt.Sprintf("%s waiting messages, from %s", humanize.Comma(s.Waiting), from.name), Base: "kill -9"}
		c.Works = append(c.Works, m)
		if err := restarts(ctx, m, s, from.size, filepath.Join(dir, fmt.Sprint(i)), qlogd.Options{Bin: path, Nodes: 1, Flags: from.flags}); err != nil {
			return fmt.Errorf("%s: %w", m.Title, err)
		}
	}
	if err := errors.Join(c.calibrate(dir), c.save(*out)); err != nil {
		return err
	}
	return c.markdown(os.Stdout)
}

func restarts(ctx context.Context, m *measured, s *settings, size int, dir string, o qlogd.Options) error {
	defer os.RemoveAll(dir)
	servers, err := qlogd.Start(ctx, dir, o)
	if err != nil {
		return err
	}
	defer servers.Stop()
	with := *s
	with.Size = size
	b := &box{Servers: servers, set: &with}
	if b.c, err = servers.Client(); err != nil {
		return err
	}
	if _, err := b.queue(ctx, "q", "unordered"); err != nil {
		return err
	}
	if err := b.fill(ctx, "q", s.Waiting, 0); err != nil {
		return err
	}
	n := servers.Nodes[0]
	for round := range s.Rounds {
		for _, how := range []string{"kill -9", "SIGTERM"} {
			sm := &sample{System: how, Round: round + 1, At: time.Now().UTC().Truncate(time.Second), Values: map[string]float64{}}
			m.Runs = append(m.Runs, sm)
			if how == "SIGTERM" {
				began := time.Now()
				if err := n.Term(); err != nil {
					return err
				}
				sm.Values[endsIn] = time.Since(began).Seconds()
			} else {
				n.Kill()
			}
			began := time.Now()
			if err := n.Start(); err != nil {
				return err
			}
			if err := n.Ready(ctx); err != nil {
				return err
			}
			sm.Values[servesIn] = time.Since(began).Seconds()
			q, err := b.c.Queue(ctx, "q")
			if err != nil {
				return err
			}
			if q.Stats.Depth != s.Waiting {
				return fmt.Errorf("%d messages of %d are there", q.Stats.Depth, s.Waiting)
			}
			fmt.Fprintf(os.Stderr, "%s round %d, %s: serves in %.2f s\n", m.Name, round+1, how, sm.Values[servesIn])
		}
	}
	if err := n.Term(); err != nil {
		return err
	}
	for round := range s.Rounds {
		began := time.Now()
		cmd := exec.CommandContext(ctx, o.Bin, "replay", "--verify", "--data-dir", n.Dir, "--output", "json")
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("replay --verify: %w\n%s", err, out)
		}
		took := time.Since(began).Seconds()
		var r struct {
			Verify struct {
				OK    bool
				Bytes int64
			} `json:"verify"`
		}
		if err := json.Unmarshal(out, &r); err != nil || !r.Verify.OK {
			return fmt.Errorf("replay --verify: %w: %s", err, out)
		}
		m.Runs = append(m.Runs, &sample{System: "replay --verify", Round: round + 1, At: time.Now().UTC().Truncate(time.Second), Values: map[string]float64{
			verifies: took, perSecond: float64(r.Verify.Bytes) / 1e6 / took,
			verifyCPU: (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(),
		}})
		fmt.Fprintf(os.Stderr, "%s round %d, verified in %.2f s\n", m.Name, round+1, took)
	}
	return nil
}
