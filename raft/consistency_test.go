package raft

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
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
			assert.Equal(t, got, c.want, "found")
		})
	}
}

func TestMarksAreKept(t *testing.T) {
	var own marks
	for i := range uint64(100) {
		own = own.add(mark{Index: 10 * i})
	}
	if len(own) != keepMarks || own.newest() != 990 || own[0].Index != 360 {
		t.Errorf("%d are kept, from %d to %d", len(own), own[0].Index, own.newest())
	}
}

// TestAloneNeedsNoMarks: nobody is there to compare with.
func TestAloneNeedsNoMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := on(memdisk.New())
		o.MarkEntries, o.MarkInterval = 1, time.Millisecond
		n := boot(t, o)
		n.put("a")
		time.Sleep(time.Second)
		assert.Equal(t, marksOf(n), 0)
	})
}

// pick returns the leader, once all that live follow it, and a follower.
func (c *nodes) pick() (leader, follower *member) {
	c.t.Helper()
	until(c.t, "a leader that all know", func() bool {
		leader = c.leader()
		for _, m := range c.members() {
			if m.node == nil || m.run.dead.Load() != nil {
				continue
			}
			if m != leader {
				follower = m
			}
			behind := m.fsm.progress().index < leader.fsm.progress().index
			if m.Status().LeaderID != leader.name || behind {
				return false
			}
		}
		return true
	})
	return leader, follower
}

// restart stops a node and starts it on its disk.
func (c *nodes) restart(m *member, set func(o *Options)) {
	c.t.Helper()
	m.stop()
	m.set = set
	c.start(m)
	c.pick()
}

// bent lets a node's state be folded wrong from now on.
func bent(n *member) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.m.bend++
}

// wantEnd waits until exactly this node has ended because it differs.
func (c *nodes) wantEnd(bad *member) {
	c.t.Helper()
	until(c.t, "the node that differs ends", func() bool { return bad.run.dead.Load() != nil })
	require.ErrorIs(c.t, <-bad.died, ErrDiverged)
	c.put("and on", bad.name)
	time.Sleep(15 * time.Second)
	c.put("and on", bad.name)
	for _, n := range c.members() {
		if n == bad {
			continue
		}
		if err := n.run.dead.Load(); err != nil {
			c.t.Fatalf("%s ended, too: %v", n.name, *err)
		}
		until(c.t, "the others are ready", func() bool { ok, _ := n.Ready(); return ok })
	}
}

func leaderThatDiffersEnds(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("a")
	time.Sleep(15 * time.Second)
	for _, m := range c.members() {
		if ok, why := m.Ready(); !ok || m.fsm.progress().marks.newest() == 0 {
			t.Fatalf("%s: %v", m.name, why)
		}
	}
	bad, _ := c.pick()
	bent(bad)
	c.put("b")
	c.wantEnd(bad)
}

// oneThatWasRestartedIsComparedAgain: it knows nothing of what it has
// skipped, so it gets a mark of its own, though nothing else is written.
func oneThatWasRestartedIsComparedAgain(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("a")
	time.Sleep(15 * time.Second)
	_, bad := c.pick()
	c.restart(bad, func(o *Options) {
		m := openFake(t, o.FS, "/events")
		m.bend++
		o.Machine = m
	})
	c.wantEnd(bad)
}

func twoThatDifferAreNotReady(t *testing.T) {
	c := cluster(t, 2, nil)
	c.put("a")
	_, bad := c.pick()
	bent(bad)
	for _, m := range c.members() {
		until(t, "it is not ready", func() bool { ok, _ := m.Ready(); return !ok })
		_, why := m.Ready()
		want := fmt.Sprintf("%s: %v", noMajority, m.agreement.found.Load())
		assert.True(t, len(why) == 1 && why[0] == want, "%s: %q", m.name, why)
		for _, v := range m.Members() {
			assert.True(t, v.Differs, "to %s, %s does not differ", m.name, v.ID)
		}
	}
	time.Sleep(15 * time.Second)
	c.put("b")
	for _, m := range c.members() {
		assert.True(t, m.run.dead.Load() == nil, "%s ended", m.name)
	}
}

// entries returns the entries that the Raft log holds, by index.
func (n *node) entries() map[uint64]*event.Entry {
	n.t.Helper()
	out := map[uint64]*event.Entry{}
	i, _ := n.stores.log.FirstIndex()
	last, _ := n.stores.log.LastIndex()
	for ; i > 0 && i <= last; i++ {
		var l hraft.Log
		require.NoError(n.t, n.stores.log.GetLog(i, &l))
		if l.Type != hraft.LogCommand {
			continue
		}
		e, err := event.DecodeEntry(l.Data)
		require.NoError(n.t, err)
		out[i] = e
	}
	return out
}

// marksOf counts the marks in a node's Raft log.
func marksOf(n *node) (count int) {
	n.t.Helper()
	for _, e := range n.entries() {
		for _, b := range e.Commands {
			var c event.Command
			if c.Decode(b) == nil && c.Mark != nil {
				count++
			}
		}
	}
	return count
}

// marksComeAndGo: by entries and by time, none while nothing else happens,
// and one more for who was restarted.
func marksComeAndGo(t *testing.T) {
	const every = 10
	c := cluster(t, 3, func(o *Options) { o.MarkEntries = every })
	c.puts("", 10*every)
	if n := marksOf(c.leader().node); n < 8 || n > 20 {
		t.Errorf("%d marks after %d entries", n, 10*every)
	}
	time.Sleep(15 * time.Second)
	was, n := c.leader().Status().Last, marksOf(c.leader().node)
	time.Sleep(15 * time.Second)
	if now := c.leader().Status().Last; now != was {
		t.Errorf("an idle cluster's log has grown from %d to %d", was, now)
	}
	_, f := c.pick()
	c.restart(f, nil)
	time.Sleep(15 * time.Second)
	if got := marksOf(c.leader().node); got != n+1 {
		t.Errorf("%d marks more for one that was restarted", got-n)
	}
}

// upgradeWhenAllKnow: programs are exchanged node by node; one that knows
// less, or is away, holds the newer rules back.
func upgradeWhenAllKnow(t *testing.T) {
	c := cluster(t, 3, func(o *Options) { o.Rules = 1 })
	newer := func(o *Options) { o.Rules = 2 }
	inForce := func() uint16 {
		time.Sleep(15 * time.Second)
		c.put("a")
		return c.leader().m.Rules()
	}
	all := c.members()
	for _, m := range all[:2] {
		c.restart(m, newer)
		if got := inForce(); got != 1 {
			t.Fatalf("rules %d, and one node does not know them", got)
		}
	}
	all[2].stop()
	time.Sleep(15 * time.Second)
	for _, m := range all[:2] {
		if got := m.m.Rules(); got != 1 {
			t.Fatalf("rules %d, and one node is away", got)
		}
	}
	all[2].set = newer
	c.start(all[2])
	if got := inForce(); got != 2 {
		t.Fatalf("rules %d, and all know 2", got)
	}
	time.Sleep(15 * time.Second)
	assert.NotEqual(t, marksOf(c.leader().node), 0, "no mark")
}

// transferToOneThatHasDied: it is still taken for reachable, and the leader's
// replication stands waiting for it. The transfer fails, and that is all.
func transferToOneThatHasDied(t *testing.T) {
	c := cluster(t, 3, nil)
	l, dead := c.pick()
	c.put("a")
	dead.stop()
	c.put("b")
	time.Sleep(time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := l.TransferLeadership(ctx, dead.name); err == nil {
		t.Fatal("a node that has died took leadership")
	}
	began := time.Now()
	c.put("c")
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("nothing was written for %v", d)
	}
	time.Sleep(30 * time.Second)
	if err := l.run.dead.Load(); err != nil {
		t.Errorf("the leader ended: %v", *err)
	}
}
