package raft

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/witness"
)

// story is the scenario that crashes are walked through: entries over several
// segments of the Raft log, checkpoints with truncation, a restart in between.
// It returns what was acknowledged, in order, and what may have happened too.
func story(t testing.TB, o Options) (acked []string, maybe map[string]bool) {
	maybe = map[string]bool{}
	o = small(o)
	name := 0
	for range 2 {
		n, err := tryBoot(t, o)
		if err != nil {
			return acked, maybe
		}
		if !n.leads() {
			n.down()
			return acked, maybe
		}
		for range 3 {
			for range 6 {
				s := fmt.Sprintf("%d-%0100d", name, name)
				name++
				if _, err := n.Propose(context.Background(), put(s)); err == nil {
					acked = append(acked, s)
				} else if asProblem(t, err).Unknown {
					maybe[s] = true
				}
			}
			_ = n.Snapshot() // fails where the disk has
		}
		n.down()
	}
	return acked, maybe
}

// small makes truncations and new segments come early.
func small(o Options) Options {
	o.TrailingLogs, o.KeepCheckpoints, o.SegmentBytes = 1, 2, 2048
	return o
}

func rng(seed int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) }

// TestCrashAnywhere lets the power fail in each write, sync, rename and removal
// of the story, on Raft log, votes, checkpoints and event log alike, and checks
// that a restart finds everything that was acknowledged, in order, and nothing
// that was refused.
func TestCrashAnywhere(t *testing.T) {
	whole := memdisk.New()
	story(t, on(whole))
	ops, crashes := whole.Ops(), 0
	defer func() { t.Logf("figures: %d crashes in %d operations of Raft's stores", crashes, ops) }()
	for at := 1; at <= ops; at += stride(1) {
		for _, loss := range losses(at) {
			crashes++
			if walk(t, at, loss); t.Failed() {
				return
			}
		}
	}
}

// everyCrash asks for the whole campaign (make crashwalk): each operation with each
// kind of loss.
func everyCrash() bool { return os.Getenv("QLOGD_CRASH") == "full" }

// stride is how far apart the operations are that fail: as far as in the sample of the campaign
// (make crashwalk QLOGD_CRASH=), or three times as far (make test).
func stride(sample int) int {
	switch {
	case everyCrash():
		return 1
	case testing.Short():
		return 3 * sample
	}
	return sample
}

// losses are the kinds of loss that come with a crash.
func losses(at int) []memdisk.Loss {
	if everyCrash() {
		return []memdisk.Loss{memdisk.LoseAll, memdisk.LoseNone, memdisk.LosePrefix, memdisk.LoseRandom}
	}
	return []memdisk.Loss{memdisk.Loss(at % 4)}
}

func walk(t *testing.T, at int, loss memdisk.Loss) {
	disk := memdisk.New()
	disk.CrashAt(at)
	acked, maybe := story(t, on(disk))
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("crash at operation %d, loss %d: %s", at, loss, fmt.Sprintf(format, args...))
	}
	after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss))))
	o := small(on(after))
	for range 2 { // the second start is after a clean end
		n, err := tryBoot(t, o)
		if err != nil {
			fail("restart: %v", err)
			return
		}
		n.ready()
		if wrong := n.lacks(acked, maybe); wrong != "" {
			fail("%s", wrong)
		}
		last := int64(0)
		for _, ms := range n.m.times() {
			if ms < last {
				fail("time went back from %d to %d", last, ms)
			}
			last = ms
		}
		acked = append(acked, fmt.Sprintf("after-%d", len(acked)))
		n.put(acked[len(acked)-1])
		if err := n.Snapshot(); err != nil {
			fail("snapshot: %v", err)
		}
		for _, c := range n.Status().Checkpoints {
			if _, err := checkpoint.Verify(after, o.CheckpointDir, c.Name()); err != nil {
				fail("%v", err)
			}
		}
		n.down()
	}
}

// lacks returns what is wrong where a node has not applied all that was acknowledged, in order, and
// nothing else but what may have been.
func (n *node) lacks(acked []string, maybe map[string]bool) string {
	next := 0
	for _, name := range n.m.names() {
		if next < len(acked) && acked[next] == name {
			next++
		} else if !maybe[name] {
			return fmt.Sprintf("%q was applied, which was never proposed, or not here", name)
		}
	}
	if next != len(acked) {
		return fmt.Sprintf("%d of %d acknowledged entries are left", next, len(acked))
	}
	return ""
}

// TestFailAnywhere lets each write and sync fail once with an error, as a full
// disk does: the replica ends, or goes on as if nothing was, and after a restart
// everything acknowledged is there.
func TestFailAnywhere(t *testing.T) {
	whole := memdisk.New()
	story(t, on(whole))
	for at := 1; at <= whole.Ops(); at += stride(5) {
		disk := memdisk.New()
		disk.FailAt(at, fmt.Errorf("operation %d fails", at))
		acked, maybe := story(t, on(disk))
		// Without the failure, where this run was shorter than that.
		n, err := tryBoot(t, small(on(disk.Clone())))
		require.NoError(t, err, "failure at operation %d: restart", at)
		n.ready()
		require.Equal(t, n.lacks(acked, maybe), "", "failure at operation %d", at)
		n.down()
	}
}

// The error that ends a replica says what failed, where, and what to do.
func TestFailedWriteSaysWhatToDo(t *testing.T) {
	for at, reached := 1, true; reached; at++ {
		disk := memdisk.New()
		o := on(disk)
		o.Machine = openFake(t, disk, "/events")
		var err error
		o.Witness, err = witness.Open(disk, "/"+witness.FileName, &o.Node)
		require.NoError(t, err)
		last := disk.Ops() + 1 + at // after tryBoot has looked at the events
		disk.FailAt(last, syscall.EIO)
		n, err := tryBoot(t, o)
		if err == nil {
			if n.leads() {
				_, err = n.Propose(t.Context(), put("a"))
			}
			if n.run.dead.Load() != nil {
				err = <-n.died
			}
			n.down()
		}
		if reached = disk.Ops() >= last; reached && err != nil {
			for _, part := range []string{" /", "input/output error"} {
				assert.Contains(t, err.Error(), part, "operation %d:", at)
			}
		}
	}
}
