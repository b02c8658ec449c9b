package raft

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/raft/peer"
)

// told writes marks as "10a 20b": at index 10 value a, at 20 b.
func told(s string) (ms marks) {
	for _, w := range strings.Fields(s) {
		var m mark
		fmt.Sscanf(w, "%d%s", &m.Index, &m.Digest)
		ms = append(ms, m)
	}
	return ms
}

func serverIDs(s string) (ids []hraft.ServerID) {
	for _, id := range strings.Fields(s) {
		ids = append(ids, hraft.ServerID(id))
	}
	return ids
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name   string
		self   string // default n1
		own    string
		voters string // default n1 n2 n3
		told   string // "n2 10a 20b, n3 10a"
		want   string // what was found: "stop", "undecided" or "outliers", the index, and who
	}{
		{name: "nothing known"},
		{name: "only its own", own: "10a"},
		{name: "all the same", own: "10a 20b", told: "n2 10a 20b, n3 10a 20b"},
		{name: "no index in common", own: "10a", told: "n2 11b, n3 12c"},
		{name: "it differs from both", own: "10x", told: "n2 10a, n3 10a", want: "stop 10 n2 n3"},
		{name: "another differs", own: "10a", told: "n2 10x, n3 10a", want: "outliers 10 n2"},
		{name: "all differ", own: "10a", told: "n2 10b, n3 10c", want: "undecided 10 n2 n3"},
		{name: "one differs, the third is away", own: "10a", told: "n2 10x",
			want: "undecided 10 n2"},
		{name: "the third has come back", own: "10a", told: "n2 10x, n3 10a",
			want: "outliers 10 n2"},
		{name: "decided at a newer index", own: "10a 20a", told: "n2 10x, n3 20a"},
		{name: "still undecided at an older one", own: "10a 20a", told: "n2 10x 20x",
			want: "undecided 20 n2"},
		{name: "undecided at an older one only", own: "10a 20a", told: "n2 10x",
			want: "undecided 10 n2"},
		{name: "it differed once and agrees again", own: "10x 20a", told: "n2 10a 20a, n3 10a 20a",
			want: "stop 10 n2 n3"},
		{name: "undecided, and a majority against it before", own: "10x 20a",
			told: "n2 10a 20b, n3 10a", want: "stop 10 n2 n3"},
		{name: "another differed once", own: "10a 20a", told: "n2 10x 20a, n3 10a 20a"},
		{name: "two of two", own: "10a", voters: "n1 n2", told: "n2 10b", want: "undecided 10 n2"},
		{name: "two of four", own: "10a", voters: "n1 n2 n3 n4", told: "n2 10a, n3 10b, n4 10b",
			want: "undecided 10 n3 n4"},
		{name: "three of five against it", own: "10x", voters: "n1 n2 n3 n4 n5",
			told: "n2 10a, n3 10a, n4 10a", want: "stop 10 n2 n3 n4"},
		{name: "two of five against it", own: "10x", voters: "n1 n2 n3 n4 n5",
			told: "n2 10a, n3 10a", want: "undecided 10 n2 n3"},
		{name: "it has no vote and differs", self: "n9", own: "10x", told: "n1 10a, n2 10a",
			want: "stop 10 n1 n2"},
		{name: "it has no vote and agrees", self: "n9", own: "10a", told: "n1 10a, n2 10a, n3 10x",
			want: "outliers 10 n3"},
		{name: "it has no vote and one voter differs", self: "n9", own: "10x", told: "n1 10a",
			want: "undecided 10 n1"},
		{name: "who has no vote does not count", own: "10x", told: "n2 10a, n8 10a, n9 10a",
			want: "undecided 10 n2"},
		{name: "the one voter is right", self: "n9", own: "10x", voters: "n1", told: "n1 10a",
			want: "stop 10 n1"},
		{name: "the one voter needs nobody", own: "10a", voters: "n1", told: "n9 10x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			def(&c.self, "n1")
			def(&c.voters, "n1 n2 n3")
			heard := map[hraft.ServerID]marks{}
			for said := range strings.SplitSeq(c.told, ", ") {
				id, ms, _ := strings.Cut(said, " ")
				heard[hraft.ServerID(id)] = told(ms)
			}
			f := compare(hraft.ServerID(c.self), told(c.own), serverIDs(c.voters), heard)
			got := ""
			switch {
			case f.mustStop:
				got = "stop"
			case f.undecided:
				got = "undecided"
			case f.index > 0:
				got = "outliers"
			}
			if got != "" {
				got = fmt.Sprint(got, " ", f.index)
				for _, id := range f.who {
					got += " " + string(id)
				}
			}
			if got != c.want {
				t.Errorf("found %q, not %q", got, c.want)
			}
		})
	}
}

func TestMarksAreKept(t *testing.T) {
	a := newAgreement()
	for i := range uint64(100) {
		a.note(10*i, [32]byte{byte(i)}, [16]byte{1})
	}
	if len(a.own) != keepMarks || a.own.newest() != 990 || a.own[0].Index != 360 {
		t.Errorf("%d are kept, from %d to %d", len(a.own), a.own[0].Index, a.own.newest())
	}
	if said := a.report(); len(said) != reportMarks || said[0].Index != 840 {
		t.Errorf("%d are told, from %d on", len(said), said[0].Index)
	}
}

// TestAloneNeedsNoMarks: nobody is there to compare with.
func TestAloneNeedsNoMarks(t *testing.T) {
	o := on(vfs.NewMem())
	o.MarkEntries, o.MarkInterval = 1, time.Millisecond
	n := boot(t, o)
	for i := range 50 {
		n.put(fmt.Sprint(i))
	}
	for i, e := range n.entries() {
		for _, b := range e.Commands {
			if c, err := event.DecodeCommand(b); err != nil || c.Mark != nil {
				t.Fatalf("entry %d: %+v, %v", i, c, err)
			}
		}
	}
}

// together is a cluster in simulated time, on disks and a network in memory.
type together struct {
	t     *testing.T
	net   *memnet.Network
	nodes []*node
}

// inBubble starts a cluster of n1, n2, … in a bubble, waits until it is ready,
// and runs the test in it.
func inBubble(t *testing.T, n int, set func(i int, o *Options), test func(c *together)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &together{t: t, net: memnet.New(memnet.Options{
			Latency: func(string, string) time.Duration { return time.Millisecond },
		})}
		var initial []datadir.Member
		for i := range n {
			id := fmt.Sprintf("n%d", i+1)
			m := datadir.Member{ID: id, Incarnation: "of-" + id, RaftAddr: id + ":7071"}
			initial = append(initial, m)
		}
		for i, m := range initial {
			o := on(vfs.NewMem())
			o.NodeID, o.Incarnation, o.Initial = m.ID, m.Incarnation, initial
			// Each heartbeat is work, in simulated time too.
			o.HeartbeatTimeout, o.CommitTimeout = 2*time.Second, 500*time.Millisecond
			if set != nil {
				set(i, &o)
			}
			c.nodes = append(c.nodes, c.start(o))
		}
		c.leader()
		test(c)
	})
}

func (c *together) start(o Options) *node {
	c.t.Helper()
	host := o.NodeID
	l, err := c.net.Listen(host + ":7071")
	if err != nil {
		c.t.Fatal(err)
	}
	net, err := peer.New(peer.Options{
		Listener: l, Dial: c.net.Dialer(host),
		Self: peer.Identity{
			Cluster: o.ClusterID, Node: o.NodeID, Incarnation: o.Incarnation, Raft: host + ":7071",
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = net.Close() })
	o.Net = net
	n, err := tryBoot(c.t, o)
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// restart stops a node and starts it on its disk.
func (c *together) restart(i int, set func(o *Options)) {
	c.t.Helper()
	n := c.nodes[i]
	n.down()
	if err := n.o.Net.Close(); err != nil {
		c.t.Fatal(err)
	}
	o := n.o
	o.Machine = nil
	if set != nil {
		set(&o)
	}
	c.nodes[i] = c.start(o)
	c.leader()
}

// until lets time pass until something is so.
func (c *together) until(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(10 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within ten minutes: %s", what)
		}
	}
}

// leader waits for one, and for all that live to follow it.
func (c *together) leader() *node {
	c.t.Helper()
	var l *node
	c.until("a leader that all know", func() bool {
		l = nil
		for _, n := range c.nodes {
			if n.run.dead.Load() == nil && n.leadsReady() {
				l = n
			}
		}
		if l == nil {
			return false
		}
		for _, n := range c.nodes {
			s, behind := n.Status(), n.fsm.progress().index < l.fsm.progress().index
			if s.Fatal == nil && (s.LeaderID != l.Status().LeaderID || behind) {
				return false
			}
		}
		return true
	})
	return l
}

func (c *together) follower() *node {
	c.t.Helper()
	l := c.leader()
	for _, n := range c.nodes {
		if n != l && n.run.dead.Load() == nil {
			return n
		}
	}
	c.t.Fatal("no follower")
	return nil
}

// bent lets a node's state be folded wrong from now on.
func bent(n *node) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.m.bend++
}

// wantEnd waits until exactly this node has ended because it differs.
func (c *together) wantEnd(bad *node) {
	c.t.Helper()
	c.until("the node that differs ends", func() bool { return bad.run.dead.Load() != nil })
	if err := <-bad.died; !errors.Is(err, ErrDiverged) {
		c.t.Fatal(err)
	}
	c.leader().put("and on")
	time.Sleep(30 * time.Second)
	c.leader().put("and on")
	for _, n := range c.nodes {
		if n == bad {
			continue
		}
		if err := n.run.dead.Load(); err != nil {
			c.t.Fatalf("%s ended, too: %v", n.o.NodeID, *err)
		}
		c.until("the others are ready", func() bool { ok, _ := n.Ready(); return ok })
	}
}

func TestOneThatDiffersEnds(t *testing.T) {
	for _, who := range []string{"a follower", "the leader"} {
		t.Run(who, func(t *testing.T) {
			inBubble(t, 3, nil, func(c *together) {
				c.leader().put("a")
				time.Sleep(30 * time.Second)
				for _, n := range c.nodes {
					if ok, why := n.Ready(); !ok || n.agreement.own.newest() == 0 {
						t.Fatalf("%s: %v", n.o.NodeID, why)
					}
				}
				bad := c.follower()
				if who == "the leader" {
					bad = c.leader()
				}
				bent(bad)
				c.leader().put("b")
				c.wantEnd(bad)
			})
		})
	}
}

// TestOneThatWasRestartedIsComparedAgain: it knows nothing of what it has
// skipped, so it gets a mark of its own, though nothing else is written.
func TestOneThatWasRestartedIsComparedAgain(t *testing.T) {
	inBubble(t, 3, nil, func(c *together) {
		c.leader().put("a")
		time.Sleep(30 * time.Second)
		i := 0
		for bad := c.follower(); c.nodes[i] != bad; {
			i++
		}
		c.restart(i, func(o *Options) {
			m := openFake(t, o.FS, "/events")
			m.bend++
			o.Machine = m
		})
		c.wantEnd(c.nodes[i])
	})
}

func TestTwoThatDifferAreNotReady(t *testing.T) {
	inBubble(t, 2, nil, func(c *together) {
		c.leader().put("a")
		bent(c.follower())
		for _, n := range c.nodes {
			c.until("it is not ready", func() bool { ok, _ := n.Ready(); return !ok })
			_, why := n.Ready()
			if len(why) != 1 || why[0] != n.agreement.undecided() {
				t.Errorf("%s: %q", n.o.NodeID, why)
			}
		}
		time.Sleep(30 * time.Second)
		c.leader().put("b")
		for _, n := range c.nodes {
			if n.run.dead.Load() != nil {
				t.Errorf("%s ended", n.o.NodeID)
			}
		}
	})
}

// marksOf counts the marks in a node's Raft log.
func marksOf(n *node) (count int) {
	n.t.Helper()
	for _, e := range n.entries() {
		for _, b := range e.Commands {
			if c, err := event.DecodeCommand(b); err == nil && c.Mark != nil {
				count++
			}
		}
	}
	return count
}

// TestMarksComeAndGo: by entries and by time, none while nothing else happens,
// and one more for who was restarted.
func TestMarksComeAndGo(t *testing.T) {
	const every = 10
	inBubble(t, 3, func(_ int, o *Options) { o.MarkEntries = every }, func(c *together) {
		l := c.leader()
		for i := range 10 * every {
			l.put(fmt.Sprint(i))
		}
		if n := marksOf(c.leader()); n < 8 || n > 20 {
			t.Errorf("%d marks after %d entries", n, 10*every)
		}
		time.Sleep(30 * time.Second)
		was, n := c.leader().Status().LastIndex, marksOf(c.leader())
		time.Sleep(30 * time.Second)
		if now := c.leader().Status().LastIndex; now != was {
			t.Errorf("an idle cluster's log has grown from %d to %d", was, now)
		}
		i := 0
		for f := c.follower(); c.nodes[i] != f; {
			i++
		}
		c.restart(i, nil)
		time.Sleep(30 * time.Second)
		if got := marksOf(c.leader()); got != n+1 {
			t.Errorf("%d marks more for one that was restarted", got-n)
		}
	})
}

// TestUpgradeWhenAllKnow: programs are exchanged node by node; one that knows
// less, or is away, holds the newer rules back.
func TestUpgradeWhenAllKnow(t *testing.T) {
	inBubble(t, 3, func(_ int, o *Options) { o.Rules = 1 }, func(c *together) {
		newer := func(o *Options) { o.Rules = 2 }
		inForce := func() uint16 {
			time.Sleep(30 * time.Second)
			c.leader().put("a")
			return c.leader().m.Rules()
		}
		for i := range 2 {
			c.restart(i, newer)
			if got := inForce(); got != 1 {
				t.Fatalf("rules %d, and one node does not know them", got)
			}
		}
		c.nodes[2].down()
		_ = c.nodes[2].o.Net.Close()
		time.Sleep(30 * time.Second)
		for _, n := range c.nodes[:2] {
			if got := n.m.Rules(); got != 1 {
				t.Fatalf("rules %d, and one node is away", got)
			}
		}
		o := c.nodes[2].o
		o.Machine = nil
		newer(&o)
		c.nodes[2] = c.start(o)
		if got := inForce(); got != 2 {
			t.Fatalf("rules %d, and all know 2", got)
		}
		time.Sleep(30 * time.Second)
		if marksOf(c.leader()) == 0 {
			t.Error("no mark")
		}
	})
}

// TestTransferToOneThatHasDied: it is still taken for reachable, and the leader's
// replication stands waiting for it. The transfer fails, and that is all.
func TestTransferToOneThatHasDied(t *testing.T) {
	inBubble(t, 3, nil, func(c *together) {
		l, dead := c.leader(), c.follower()
		l.put("a")
		dead.down()
		_ = dead.o.Net.Close()
		l.put("b")
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := l.TransferLeadership(ctx, dead.o.NodeID); err == nil {
			t.Fatal("a node that has died took leadership")
		}
		began := time.Now()
		for {
			if _, err := l.Propose(context.Background(), put("c")); err == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("nothing was written for %v", d)
		}
		time.Sleep(30 * time.Second)
		if err := l.run.dead.Load(); err != nil {
			t.Errorf("the leader ended: %v", *err)
		}
	})
}

// Two of three directories go back together, where nobody can vouch against
// them: they are the majority then. The third, which has applied what they have
// forgotten, must not go on as if nothing were.
func oneWhoAppliedWhatIsReplacedEnds(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	var back []*member
	for _, name := range []string{"n1", "n2"} {
		back = append(back, c.get(name))
	}
	third := c.get("n3")
	olds := map[string]func(){}
	for _, m := range back {
		old := m.disk.Clone()
		olds[m.name] = func() { m.disk = old }
	}
	for i := range 20 {
		c.put(fmt.Sprint("after", i))
	}
	c.level()
	// The third first: with an entry of a later leader it would be the one that
	// replaces what the two have applied.
	third.stop()
	for _, m := range back {
		m.stop()
	}
	for _, m := range back {
		olds[m.name]()
		c.start(m)
	}
	for i := range 3 {
		c.put(fmt.Sprint("instead", i), third.name)
	}
	c.start(third)
	if err := <-third.died; !errors.Is(err, ErrDiverged) {
		t.Fatal(err)
	}
}
