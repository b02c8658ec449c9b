package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// TestChaos lets clients work through all three nodes of a cluster while its
// leader is killed, all nodes are killed at once, a follower is wiped, a node is
// paused or cut off, and judges all that they saw.
//
//	CHAOS_LEADER_KILLS, CHAOS_ALL_KILLS, CHAOS_WIPES, CHAOS_PAUSES, CHAOS_CUTS,
//	CHAOS_STOPS (SIGTERM), CHAOS_TRANSFERS: how often
//	CHAOS_SECONDS: after that long no more faults; 0: all of them
//	CHAOS_DEFAULTS=1: large checkpoints and segments, as users have them
//	CHAOS_SEED repeats a run's choices
func TestChaos(t *testing.T) {
	ch := &chaos{t: t, seed: uint64(number(t, "CHAOS_SEED", int(time.Now().UnixNano()&0xffffff)))}
	ch.r = rand.New(rand.NewPCG(ch.seed, 78))
	faults := ch.faults()
	seconds := number(t, "CHAOS_SECONDS", 120)
	t.Logf("up to %d faults, CHAOS_SECONDS=%d CHAOS_SEED=%d", len(faults), seconds, ch.seed)

	flags := busyFlags
	if os.Getenv("CHAOS_DEFAULTS") != "" {
		flags = nil
	}
	ch.c = cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: flags, Cuts: true})
	ctx := context.Background()
	ch.d = NewDriver(ch.seed, ch.c.Nodes()...)
	h := ch.d.History
	t.Cleanup(func() { save(t, h, ch.seed) })
	if err := ch.d.Setup(ctx); err != nil {
		t.Fatal(err)
	}
	ch.d.Go(8, 8)
	began := time.Now()
	done := map[string]int{}
	for i, f := range faults {
		if seconds > 0 && time.Since(began) > time.Duration(seconds)*time.Second {
			break
		}
		ch.work(50 + ch.r.IntN(500))
		ch.wait(20)
		start := time.Now()
		f.do()
		done[f.name]++
		if testing.Verbose() {
			t.Logf("%s fault %d, %s: %s", time.Now().Format("15:04:05.000"), i+1, f.name, time.Since(start).Round(time.Millisecond))
		}
		if (i+1)%25 == 0 {
			judge(t, h, false)
		}
	}
	ch.d.Stop()
	// What is still under way ends here, so that what is read from now on is all.
	ch.killAll()
	start := time.Now()
	drain, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := ch.d.Drain(drain, 9); err != nil {
		t.Fatal(err)
	}
	t.Logf("drained in %s; faults %v", time.Since(start).Round(time.Millisecond), done)
	if err := ch.c.WaitEqual(time.Minute); err != nil {
		t.Error(err)
	}
	judge(t, h, true)
	tell(t, h)
	t.Logf("from the leader's death to the first write done: %s", spread(h.Ops()))
}

type chaos struct {
	t    *testing.T
	c    *cluster.Cluster
	d    *Driver
	r    *rand.Rand
	seed uint64
}

type fault struct {
	name string
	do   func()
}

// faults returns what is to be done, in the order of its seed; each kind comes
// early, so that a short run has some of each.
func (ch *chaos) faults() []fault {
	var all, first []fault
	for _, f := range []struct {
		env  string
		most int
		fault
	}{
		{"CHAOS_LEADER_KILLS", 20, fault{"leader killed", ch.killLeader}},
		{"CHAOS_ALL_KILLS", 4, fault{"all killed", ch.killAll}},
		{"CHAOS_WIPES", 3, fault{"follower wiped", ch.wipe}},
		{"CHAOS_PAUSES", 5, fault{"paused", ch.pause}},
		{"CHAOS_CUTS", 5, fault{"cut", ch.cut}},
		{"CHAOS_STOPS", 3, fault{"stopped", ch.term}},
		{"CHAOS_TRANSFERS", 3, fault{"transferred", ch.transfer}},
	} {
		for i := range number(ch.t, f.env, f.most) {
			if i == 0 {
				first = append(first, f.fault)
			} else {
				all = append(all, f.fault)
			}
		}
	}
	ch.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return append(first, all...)
}

// progressDeadline is how long the clients may get nothing done while a majority
// of the nodes lives and hears each other. It is far beyond what is promised.
const progressDeadline = 60 * time.Second

// work returns once so many more requests were answered.
func (ch *chaos) work(n int) {
	ch.t.Helper()
	deadline := time.After(progressDeadline)
	from, grown := ch.d.History.Grown()
	for now := from; now < from+n; now, grown = ch.d.History.Grown() {
		select {
		case <-grown:
		case <-deadline:
			ch.t.Fatalf("in %s %d requests were answered; the leader is %v", progressDeadline, now-from, ch.c.Leader())
		}
	}
}

// write returns once a write was done that was begun after a time.
func (ch *chaos) write(since int64) {
	ch.t.Helper()
	deadline := time.After(progressDeadline)
	for {
		_, grown := ch.d.History.Grown()
		if _, ok := firstWrite(ch.d.History.Ops(), since); ok {
			return
		}
		select {
		case <-grown:
		case <-deadline:
			ch.t.Fatalf("in %s no write was done; the leader is %v", progressDeadline, ch.c.Leader())
		}
	}
}

// firstWrite returns when the first write ended that was begun at or after a
// time.
func firstWrite(ops []Op, since int64) (int64, bool) {
	// Operations are added as they end, so those that count are at the end.
	first, ok := int64(0), false
	for i := len(ops) - 1; i >= 0 && ops[i].Return >= since; i-- {
		op := &ops[i]
		if op.Outcome == OK && op.Invoke >= since && (op.Kind == Produce || isSettle(op.Kind)) && (!ok || op.Return < first) {
			first, ok = op.Return, true
		}
	}
	return first, ok
}

// wait is for a moment that no event marks.
func (ch *chaos) wait(most int) { time.Sleep(time.Duration(ch.r.IntN(most*1000)) * time.Microsecond) }

// say writes down what was done to whom, and returns when.
func (ch *chaos) say(what string, n *cluster.Node) int64 {
	now := ch.d.History.Now()
	ch.d.History.Add(Op{Client: -1, Kind: Fault, Invoke: now, Return: now, Outcome: OK, Node: n.Name(), Error: what})
	return now
}

// ready starts the nodes that do not run and returns once all are ready, and
// have a vote.
func (ch *chaos) ready() {
	ch.t.Helper()
	ch.c.LaunchAll()
	ch.c.WaitReady()
	ch.c.WaitVoters()
}

const leaderDied = "the leader is killed"

func (ch *chaos) killLeader() {
	leader := ch.c.WaitLeader()
	leader.Kill9()
	at := ch.say(leaderDied, leader)
	if ch.r.IntN(4) > 0 {
		ch.write(at)
	}
	ch.wait(1000)
	leader.Launch()
	// Now and then it dies again while it comes up.
	for ch.r.IntN(4) == 0 {
		ch.wait(200)
		leader.Kill9()
		leader.Launch()
	}
	ch.write(at)
	ch.ready()
}

func (ch *chaos) killAll() {
	down := ch.d.History.Now()
	ch.c.Kill9All()
	ch.d.Halt()
	defer ch.d.Resume()
	ch.d.History.Add(Op{Client: -1, Kind: Crash, Invoke: down, Return: ch.d.History.Now()})
	ch.ready()
	ctx, cancel := context.WithTimeout(context.Background(), progressDeadline)
	defer cancel()
	if err := errors.Join(ch.d.Cross(ctx), ch.d.Peek(ctx)); err != nil {
		ch.t.Fatal(err)
	}
}

// wipe takes a follower's data away. It comes back with nothing, and must not
// vote for what it has forgotten: now and then the leader dies just then.
func (ch *chaos) wipe() {
	leader := ch.c.WaitLeader()
	others := ch.c.Others(leader)
	n := others[ch.r.IntN(len(others))]
	if ch.r.IntN(2) == 0 {
		n.Kill9()
	} else {
		n.Term()
	}
	n.Wipe()
	ch.say("wiped", n)
	ch.wait(500)
	n.Launch()
	if ch.r.IntN(2) == 0 {
		ch.wait(1000)
		if leader.Running() {
			leader.Kill9()
			ch.say("killed beside a node that was wiped", leader)
			ch.wait(1000)
		}
	}
	ch.ready()
}

// longer is longer than an election takes.
func (ch *chaos) longer() {
	time.Sleep(1500*time.Millisecond + time.Duration(ch.r.IntN(2500))*time.Millisecond)
}

func (ch *chaos) pause() {
	n := ch.c.WaitLeader()
	if ch.r.IntN(2) == 0 {
		n = ch.c.Follower()
	}
	n.Pause()
	ch.say("paused", n)
	ch.longer()
	n.Resume()
	ch.write(ch.say("goes on", n))
	ch.ready()
}

func (ch *chaos) cut() {
	net := ch.c.Network()
	n := ch.c.WaitLeader()
	if ch.r.IntN(3) == 0 {
		n = ch.c.Follower()
	}
	others := ch.c.Others(n)
	other := others[ch.r.IntN(len(others))]
	what := ""
	switch ch.r.IntN(5) {
	case 0:
		net.Deafen(n)
		what = "deafened"
	case 1:
		net.Mute(n)
		what = "muted"
	case 2:
		net.Cut(n, other)
		what = "cut to " + other.Name()
	case 3:
		net.Cut(other, n)
		what = "cut from " + other.Name()
	default:
		net.Isolate(n)
		what = "isolated"
	}
	ch.say(what, n)
	ch.longer()
	net.Mend()
	ch.write(ch.say("mended", n))
	ch.ready()
}

func (ch *chaos) term() {
	n := ch.c.WaitLeader()
	if ch.r.IntN(2) == 0 {
		n = ch.c.Follower()
	}
	n.Term()
	ch.write(ch.say("stopped", n))
	ch.ready()
}

func (ch *chaos) transfer() {
	n := ch.c.WaitLeader()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	to, err := ch.c.Nodes()[ch.r.IntN(3)].Client(client.WithRetry(client.Retry{Attempts: 1})).TransferLeadership(ctx, "")
	if err != nil {
		ch.t.Logf("leadership was not transferred: %v", err)
	}
	ch.write(ch.say("handed over to "+to, n))
}

// spread says how long writes were away after each death of a leader.
func spread(ops []Op) string {
	var took []time.Duration
	byReturn := slices.Clone(ops)
	slices.SortFunc(byReturn, func(a, b Op) int { return int(a.Return - b.Return) })
	for i, op := range byReturn {
		if op.Kind != Fault || op.Error != leaderDied {
			continue
		}
		for _, w := range byReturn[i:] {
			if w.Outcome == OK && w.Invoke >= op.Return && (w.Kind == Produce || isSettle(w.Kind)) {
				took = append(took, time.Duration(w.Return-op.Return))
				break
			}
		}
	}
	return tellSpread(took)
}

// tellSpread tells a distribution in a line.
func tellSpread(took []time.Duration) string {
	if len(took) == 0 {
		return "none"
	}
	slices.Sort(took)
	under := 0
	for _, d := range took {
		if d < 3*time.Second {
			under++
		}
	}
	at := func(q float64) time.Duration {
		return took[min(len(took)-1, int(q*float64(len(took))))].Round(time.Millisecond)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d, of them %d under 3 s; p50 %s, p95 %s, max %s", len(took), under, at(.5), at(.95), at(1))
	return out.String()
}
