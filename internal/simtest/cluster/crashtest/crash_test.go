package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// number reads a whole number from the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Small limits, so that checkpoints, segments and truncations come often.
var busyFlags = []string{
	"--checkpoint-entries", "200", "--checkpoint-interval", "1s", "--log-segment-bytes", "1048576",
}

// TestCrash kills the server at random moments under load, CRASH_KILLS times,
// and judges all that its clients saw. CRASH_SEED repeats a run's choices.
func TestCrash(t *testing.T) {
	kills := number(t, "CRASH_KILLS", 3)
	seed := uint64(number(t, "CRASH_SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("%d kills, CRASH_SEED=%d", kills, seed)
	n := cluster.Start(t, cluster.Options{Flags: busyFlags})
	campaign(t, n, seed, kills, n.Kill9, func(r *rand.Rand) {
		if err := n.Verify(); err != nil {
			t.Fatal(err)
		}
		// Now and then it dies again while it comes up.
		for r.IntN(4) == 0 {
			n.Launch()
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			n.Kill9()
		}
		n.Restart()
	})
}

// campaign puts 16 clients to work, crashes the server as often as told, brings
// it up again, and judges what they saw.
func campaign(t *testing.T, n *cluster.Node, seed uint64, crashes int, crash func(), restart func(*rand.Rand)) {
	t.Helper()
	ctx := context.Background()
	d := NewDriver(seed, n)
	t.Cleanup(func() { save(t, d.History, seed) })
	if err := d.Setup(ctx); err != nil {
		t.Fatal(err)
	}
	began := d.History.Now()
	d.Go(8, 8)
	r := rand.New(rand.NewPCG(seed, 77))
	for i := range crashes {
		// After some more answers, and a moment that no event marks.
		answers := 50 + r.IntN(500)
		if r.IntN(5) == 0 {
			answers += 3000 // time enough for leases to run out and checkpoints to be taken
		}
		grow(d.History, answers)
		time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond)
		down := d.History.Now()
		crash()
		d.Halt()
		d.History.Add(Op{Client: -1, Kind: Crash, Invoke: down, Return: d.History.Now()})
		restart(r)
		up := d.History.Now()
		err := errors.Join(d.Cross(ctx), d.Peek(ctx))
		d.Resume()
		if testing.Verbose() {
			t.Logf("crash %d: ran %s, away %s", i+1, time.Duration(down-began).Round(time.Millisecond), time.Duration(up-down).Round(time.Millisecond))
		}
		began = d.History.Now()
		if err != nil {
			t.Fatal(err)
		}
		if (i+1)%20 == 0 {
			judge(t, d.History, false)
		}
	}
	d.Stop()
	began = d.History.Now()
	drain, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := d.Drain(drain, 8); err != nil {
		t.Fatal(err)
	}
	t.Logf("drained in %s", time.Duration(d.History.Now()-began).Round(time.Millisecond))
	n.Term()
	if err := n.Verify(); err != nil {
		t.Fatal(err)
	}
	judge(t, d.History, true)
	tell(t, d.History)
}

// grow returns when the history has n more entries.
func grow(h *History, n int) {
	from, grown := h.Grown()
	for now := from; now < from+n; now, grown = h.Grown() {
		<-grown
	}
}

func judge(t *testing.T, h *History, atEnd bool) {
	t.Helper()
	ops := h.Ops()
	if !atEnd {
		// What has died since the last look at the dead letters is not known.
		for len(ops) > 0 && ops[len(ops)-1].Kind != Peek {
			ops = ops[:len(ops)-1]
		}
	}
	found := 0
	for _, v := range Check(ops, rulesOf()) {
		if v.Rule == Stuck && !atEnd {
			continue
		}
		if found++; found <= 20 {
			t.Error(v)
		}
	}
	if found > 0 {
		t.Fatalf("%d violations", found)
	}
	if !atEnd {
		return
	}
	for _, queue := range []string{ordered, held} {
		rules := rulesOf()[queue]
		linear, undecided := CheckLinear(h.Ops(), queue, rules, 20*time.Second)
		for _, v := range linear {
			t.Error(v)
		}
		t.Logf("%s: %d lanes are linearizable, %d could not be decided in time", queue, len(lanesOf(h.Ops(), queue, rules))-undecided-len(linear), undecided)
	}
}

// tell says what the run was made of, so that an empty one is seen.
func tell(t *testing.T, h *History) {
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
	for _, k := range sortedKeys(count) {
		t.Logf("%6d %s", count[k], k)
	}
	for _, must := range []string{"enqueued", "delivered", "ack ok", "retry ok"} {
		if count[must] == 0 {
			t.Errorf("the campaign had no %s", must)
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
