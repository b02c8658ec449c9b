package sim

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestSeeds runs the cluster of SIM_SEEDS seeds, from SIM_SEED on.
//
//	SIM_LOG=debug  what the nodes log, on stderr
//	SIM_TRACE=1    what happened, also where nothing is wrong
//	SIM_STEPS=n    what the nemesis does in each, at least
func TestSeeds(t *testing.T) {
	few := 50
	if testing.Short() { // the race detector makes a run several times as long
		few = 4
	}
	first, seeds, steps := number(t, "SIM_SEED", 1), number(t, "SIM_SEEDS", few), number(t, "SIM_STEPS", 10)
	var mu sync.Mutex
	counts := map[string]int{}
	ops, failed := 0, 0
	var simulated time.Duration
	var mended []time.Duration
	t.Run("all", func(t *testing.T) {
		for seed := first; seed < first+seeds; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				rep := run(t, Options{Seed: uint64(seed), Steps: steps, Log: logTo()})
				wrong := rep.Judge()
				if os.Getenv("SIM_TRACE") != "" {
					t.Logf("%s%s", rep.Plan, strings.Join(rep.Trace, "\n"))
				}
				mu.Lock()
				defer mu.Unlock()
				for k, n := range rep.Counts {
					counts[k] += n
				}
				ops += len(rep.Ops)
				simulated += rep.Took
				mended = append(mended, rep.Mended)
				if len(wrong) > 0 {
					failed++
					keep(t, rep)
					t.Errorf("%s\n%s%s\nrepeat it: SIM_SEED=%d SIM_SEEDS=1 go test -run TestSeeds ./internal/simtest/sim",
						strings.Join(wrong, "\n"), rep.Plan, strings.Join(rep.Trace, "\n"), seed)
				}
			})
		}
	})
	var list []string
	for k, n := range counts {
		list = append(list, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(list)
	slices.Sort(mended)
	t.Logf("all well again after %v in half of them, %v in 95 of 100, %v at most",
		mended[len(mended)/2], mended[len(mended)*95/100], mended[len(mended)-1])
	t.Logf("figures: %d clusters, SIM_SEED=%d, %d failed, %d operations checked in %v: %s", seeds,
		first, failed, ops, simulated.Round(time.Second), strings.Join(list, ", "))
}

// run does one run in a bubble, under a watch of real time: a mistake that lets
// no time pass would hang it.
func run(t *testing.T, o Options) (rep *Report) {
	t.Helper()
	watch := time.AfterFunc(10*time.Minute, func() {
		b := make([]byte, 16<<20)
		fmt.Fprintf(os.Stderr, "seed %d hangs\n%s\n", o.Seed, b[:runtime.Stack(b, true)])
		os.Exit(2)
	})
	defer watch.Stop()
	defer func() {
		if p := recover(); p != nil {
			if rep == nil || !leftByLibrary() {
				panic(p)
			}
			rep.Counts["goroutines left by hashicorp/raft"]++
		}
	}()
	synctest.Test(t, func(*testing.T) { rep = Run(o) })
	return rep
}

// leftByLibrary reports whether hashicorp/raft has left a goroutine behind for ever, which
// ends a bubble with a panic: the one of a leadership transfer to a follower that it stops
// replicating to in that very moment (see raft's Replica.unstick), or the one that awaits
// an entry that it committed, but did not apply, when it shut down.
func leftByLibrary() bool {
	b := make([]byte, 16<<20)
	for g := range strings.SplitSeq(string(b[:runtime.Stack(b, true)]), "\n\n") {
		transfer := strings.Contains(g, "[chan send (durable)") &&
			strings.Contains(g, "hashicorp/raft.(*Raft).leadershipTransfer(")
		forgotten := strings.Contains(g, "hashicorp/raft.(*deferError).Error(") &&
			strings.Contains(g, "raft.(*batch).await(")
		if transfer || forgotten {
			return true
		}
	}
	return false
}

// keep writes a history down, to look into it.
func keep(t *testing.T, rep *Report) {
	t.Helper()
	f, err := os.CreateTemp("", fmt.Sprintf("qlogd-sim-%d-*.jsonl", rep.Plan.Seed))
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	enc := json.NewEncoder(f)
	for _, op := range rep.Ops {
		require.NoError(t, enc.Encode(op))
	}
	t.Logf("its history: %s", f.Name())
}

func number(t *testing.T, name string, def int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err, "%s", name)
	return n
}

func logTo() slog.Handler {
	level := os.Getenv("SIM_LOG")
	if level == "" {
		return nil
	}
	var l slog.Level
	_ = l.UnmarshalText([]byte(level))
	return slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})
}
