package crashtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/watchdog"
)

// TestChaos lets clients work through all three nodes of a cluster while its
// leader is killed, all nodes are killed at once, a follower is wiped, a node is
// paused or cut off, and judges all that they saw.
//
//	CHAOS_LEADER_KILLS, CHAOS_ALL_KILLS, CHAOS_WIPES, CHAOS_PAUSES, CHAOS_CUTS,
//	CHAOS_STOPS (SIGTERM), CHAOS_TRANSFERS: how often
//	CHAOS_DEFAULTS=1: large checkpoints and segments, as users have them
//	CHAOS_SEED repeats a run's choices
func TestChaos(t *testing.T) {
	t.Parallel()
	flags := busyFlags
	if os.Getenv("CHAOS_DEFAULTS") != "" {
		flags = nil
	}
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: flags, Cuts: true})
	ch := &chaos{campaign: newCampaign(t, "CHAOS_SEED", c.Nodes()...), c: c}
	ch.killAll = ch.crash(c.Kill9All, ch.ready)
	// What is still under way ends here, so that what is read from then on is all.
	ch.atEnd = ch.killAll
	ch.run(ch.faults())
	t.Logf("figures: from the leader's death to the first write done: %s", spread(ch.d.History))
}

type chaos struct {
	*campaign
	c       *cluster.Cluster
	killAll func()
}

// faults returns what is to be done, in the order of its seed; each kind comes
// early, so that a short run has some of each.
func (ch *chaos) faults() []fault {
	var all, first []fault
	for _, f := range []struct {
		env string
		fault
	}{
		{"CHAOS_LEADER_KILLS", fault{"leader killed", ch.killLeader}},
		{"CHAOS_ALL_KILLS", fault{"all killed", ch.killAll}},
		{"CHAOS_WIPES", fault{"follower wiped", ch.wipe}},
		{"CHAOS_PAUSES", fault{"paused", ch.pause}},
		{"CHAOS_CUTS", fault{"cut", ch.cut}},
		{"CHAOS_STOPS", fault{"stopped", ch.term}},
		{"CHAOS_TRANSFERS", fault{"transferred", ch.transfer}},
	} {
		for i := range cluster.Number(ch.t, f.env, 1) {
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

// say writes down what was done to whom, and returns when.
func (ch *chaos) say(what string, n *cluster.Node) int64 {
	now := ch.d.History.Now()
	ch.d.History.Add(Op{Client: -1, Kind: Fault, Invoke: now, Return: now, Outcome: OK,
		Node: n.Name(), Error: what})
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
	stopped := []*cluster.Node{n}
	if ch.r.IntN(4) == 0 { // as a hypervisor's snapshot does
		stopped = ch.c.Nodes()
	}
	for _, n := range stopped {
		n.Pause()
		ch.say("paused", n)
	}
	ch.longer()
	if ch.r.IntN(4) == 0 { // than a disk may take before it counts as stalled
		time.Sleep(watchdog.StallAfter)
	}
	for _, n := range stopped {
		n.Resume()
	}
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
	once := ch.c.Node(ch.r.IntN(3)).Client(client.WithRetry(client.Retry{Attempts: 1}))
	to, err := once.TransferLeadership(ctx, "")
	if err != nil {
		ch.t.Logf("leadership was not transferred: %v", err)
	}
	ch.write(ch.say("handed over to "+to, n))
}

// spread returns how long writes were away after each death of a leader.
func spread(h *History) string {
	var took []time.Duration
	for _, op := range h.Ops() {
		if op.Kind == Fault && op.Error == leaderDied {
			if w := h.FirstWrite(op.Return); w > 0 {
				took = append(took, time.Duration(w-op.Return))
			}
		}
	}
	return cluster.Spread(took)
}
