package crashtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/verify"
)

// TestMain takes the program with the race detector, where make test has built one.
func TestMain(m *testing.M) {
	if bin := os.Getenv("QLOGD_RACE_BIN"); bin != "" {
		_ = os.Setenv("QLOGD_BIN", bin)
	}
	cluster.Verify = verify.Dir
	cluster.Main(m)
}

// Small limits, so that checkpoints, segments and truncations come often.
var busyFlags = []string{
	"--checkpoint-entries", "200", "--checkpoint-interval", "1s", "--log-segment-bytes", "1048576",
}

// TestCrash kills the server at random moments under load, CRASH_KILLS times,
// and judges all that its clients saw. CRASH_SEED repeats a run's choices.
func TestCrash(t *testing.T) {
	t.Parallel()
	n := cluster.Start(t, cluster.Options{Flags: busyFlags})
	c := newCampaign(t, "CRASH_SEED", n)
	kill := c.crash(n.Kill9, func() {
		require.NoError(t, n.Verify())
		// Now and then it dies again while it comes up.
		for c.r.IntN(4) == 0 {
			n.Launch()
			c.wait(200)
			n.Kill9()
		}
		n.Restart()
	})
	c.run(slices.Repeat([]fault{{"killed", kill}}, cluster.Number(t, "CRASH_KILLS", 2)))
}

// load is what clients do.
type load struct {
	clients int
	pause   time.Duration // between two requests of one, at most
	answers int           // about that many between two faults
}

// loads are by CRASH_LOAD.
var loads = map[string]load{
	"":     {4, 100 * time.Millisecond, 40}, // in make test
	"full": {16, 10 * time.Millisecond, 500},
}

// campaign is clients at work while something is done to the program.
type campaign struct {
	t *testing.T
	d *Driver
	load
	r       *rand.Rand
	seedVar string
	seed    uint64
	// atEnd, if set, is done when the clients have stopped.
	atEnd func()
}

type fault struct {
	name string
	do   func()
}

func newCampaign(t *testing.T, seedVar string, nodes ...*cluster.Node) *campaign {
	t.Helper()
	seed := uint64(cluster.Number(t, seedVar, int(time.Now().UnixNano()&0xffffff)))
	t.Logf("%s=%d", seedVar, seed)
	l, ok := loads[os.Getenv("CRASH_LOAD")]
	require.True(t, ok, "CRASH_LOAD must be full or empty")
	c := &campaign{t: t, d: ForNodes(seed, l.pause, nodes...), load: l,
		r: rand.New(rand.NewPCG(seed, 77)), seedVar: seedVar, seed: seed}
	ctx, cancel := context.WithTimeout(t.Context(), progressDeadline)
	defer cancel()
	require.NoError(t, c.d.Setup(ctx))
	return c
}

// run does all faults, one after the other, and then works off what is left and
// judges what the clients saw.
func (c *campaign) run(faults []fault) {
	h := c.d.History
	c.t.Cleanup(func() { save(c.t, h, c.seed) })
	c.d.Go(c.clients)
	for i, f := range faults {
		answers := c.answers/10 + c.r.IntN(c.answers)
		if c.r.IntN(8) == 0 {
			answers += 4 * c.answers // time enough for leases to run out and checkpoints to be taken
		}
		c.work(answers)
		c.wait(20)
		start := time.Now()
		f.do()
		if testing.Verbose() {
			c.t.Logf("fault %d, %s: %s", i+1, f.name, time.Since(start).Round(time.Millisecond))
		}
		if (i+1)%20 == 0 {
			judge(c.t, h, false)
		}
	}
	c.d.Stop()
	if c.atEnd != nil {
		c.atEnd()
	}
	start := time.Now()
	drain, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	require.NoError(c.t, c.d.Drain(drain, 8))
	c.t.Logf("drained in %s", time.Since(start).Round(time.Millisecond))
	judge(c.t, h, true)
	summarize(c.t, h)
	count := map[string]int{}
	for _, f := range faults {
		count[f.name]++
	}
	var done []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		done = append(done, fmt.Sprintf("%s %d times", name, count[name]))
	}
	c.t.Logf("figures: %s, %s=%d, %d operations checked", strings.Join(done, ", "), c.seedVar,
		c.seed, h.Len())
}

// crash returns a fault in which all nodes are dead at one moment.
func (c *campaign) crash(kill, restart func()) func() {
	return func() {
		down := c.d.History.Now()
		kill()
		c.d.Halt()
		defer c.d.Resume()
		c.d.History.Add(Op{Client: -1, Kind: Crash, Invoke: down, Return: c.d.History.Now()})
		restart()
		ctx, cancel := context.WithTimeout(context.Background(), progressDeadline)
		defer cancel()
		require.NoError(c.t, errors.Join(c.d.Cross(ctx), c.d.Peek(ctx)))
	}
}

// progressDeadline is how long the clients may get nothing done while a majority
// of the nodes lives and hears each other. It is far beyond what is promised.
const progressDeadline = 3 * time.Minute

// work returns once that many more requests were answered.
func (c *campaign) work(n int) {
	c.t.Helper()
	h := c.d.History
	if from := h.Len(); !h.Wait(progressDeadline, func() bool { return h.Len() >= from+n }) {
		c.t.Fatalf("in %s %d requests were answered", progressDeadline, h.Len()-from)
	}
}

// write returns once a write was done that was begun after a time.
func (c *campaign) write(since int64) {
	c.t.Helper()
	if h := c.d.History; !h.Wait(progressDeadline, func() bool { return h.FirstWrite(since) > 0 }) {
		c.t.Fatalf("in %s no write was done", progressDeadline)
	}
}

// wait is for a moment that no event marks.
func (c *campaign) wait(most int) {
	time.Sleep(time.Duration(c.r.IntN(most*1000)) * time.Microsecond)
}

func judge(t *testing.T, h *History, atEnd bool) {
	t.Helper()
	wrong, undecided := Judge(h.Ops(), atEnd, 20*time.Second)
	for _, v := range wrong[:min(20, len(wrong))] {
		t.Error(v)
	}
	require.Equal(t, len(wrong), 0, "%d violations", len(wrong))
	if atEnd {
		t.Logf("%d lanes could not be decided in time", undecided)
	}
}

// summarize prints what the run consisted of, and fails an empty one.
func summarize(t *testing.T, h *History) {
	t.Helper()
	count := map[string]int{}
	for _, op := range h.Ops() {
		count[string(op.Kind)+" "+string(op.Outcome)]++
		if op.Kind == Lease {
			count["delivered"] += len(op.Found)
		}
		if op.Kind == Produce && op.Outcome == OK {
			count["enqueued"] += len(op.Messages)
		}
		if op.Status == "rejected" {
			count["rejected"]++
		}
	}
	for _, k := range slices.Sorted(maps.Keys(count)) {
		t.Logf("%6d %s", count[k], k)
	}
	for _, must := range []string{"enqueued", "delivered", "ack ok", "retry ok"} {
		if must != "retry ok" || h.Len() > 1000 { // which are rare
			assert.NotEqual(t, count[must], 0, "the campaign had no %s", must)
		}
	}
}

func save(t *testing.T, h *History, seed uint64) {
	if !t.Failed() {
		return
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("qlogd-history-%d.jsonl", seed))
	if err := h.Save(path); err != nil {
		t.Log(err)
		return
	}
	t.Logf("the history is kept in %s", path)
}
