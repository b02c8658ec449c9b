package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestPromise(t *testing.T) {
	p := promise{AckTerm: 5, AckIndex: 100, VoteTerm: 6}
	for _, c := range []struct {
		term, last uint64
		broken     bool
	}{
		{6, 100, false},
		{6, 50, false}, // a later leader may have cut its log
		{7, 1, false},
		{5, 100, true}, // the vote is forgotten
		{4, 500, true},
	} {
		if got := p.broken(c.term, c.last); (got != "") != c.broken {
			t.Errorf("term %d, last %d: %q", c.term, c.last, got)
		}
	}
	p.VoteTerm = 0
	for last, broken := range map[uint64]bool{99: true, 100: false, 101: false} {
		if got := p.broken(5, last); (got != "") != broken {
			t.Errorf("last %d in the same term: %q", last, got)
		}
	}
}

// A directory that is put back from an old copy does not vote, does not
// acknowledge, and comes back as another incarnation, which is promoted.
func oldCopyIsFoundOut(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	l := c.leader()
	back := c.others(l)[0]
	back.stop()
	old := back.disk.Clone()
	c.start(back)
	for i := range 20 {
		c.put(fmt.Sprint("after", i))
	}
	c.level()
	l = c.leader()
	until(t, "what was acknowledged is written down", func() bool {
		e := l.rollback.evidence
		e.writing.Lock()
		defer e.writing.Unlock()
		var of map[string]promise
		require.NoError(t, json.Unmarshal(e.written, &of))
		return of[string(back.id)].AckIndex >= back.raft.LastIndex()
	})
	back.stop()
	l.stop() // also one that was restarted remembers
	c.start(l)

	back.disk = old
	c.start(back)
	if why := <-back.died; !errors.Is(why, ErrRolledBack) {
		t.Fatalf("out: %v", why)
	}
	if ok, why := back.Ready(); ok || len(why) == 0 {
		t.Errorf("ready: %v %v", ok, why)
	}
	assert.False(t, back.admitted(), "it takes part")
	term := back.raft.CurrentTerm()
	c.put("without it")
	if got := back.raft.CurrentTerm(); got != term {
		t.Errorf("its term went from %d to %d", term, got)
	}
	back.stop()

	back.inc, back.initial = "n-new", nil
	c.contact(back)
	c.start(back)
	c.put("with it")
	c.voting(3)
	c.level()
	assert.Equal(t, len(back.died), 0, "out again")
}

// An old copy from before its directory was replaced: its promises are forgotten
// with its server, and of the members that it knows one is left, which does not
// lead.
func oldCopyOfAReplacedDirectory(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	replace := func(m *member) {
		m.stop()
		m.disk, m.inc, m.initial = memdisk.New(), m.name+"-2", nil
		c.contact(m)
		c.start(m)
		<-m.joined
		c.voting(3)
		c.level()
	}
	stays := c.leader()
	back, other := c.others(stays)[0], c.others(stays)[1]
	back.stop()
	old, inc, initial := back.disk.Clone(), back.inc, back.initial
	c.start(back)
	replace(back)
	replace(other)
	until(t, "one leads whom the copy does not know", func() bool {
		return c.leader() == other || stays.TransferLeadership(t.Context(), other.name) == nil &&
			c.leader() == other
	})
	back.stop()
	back.disk, back.inc, back.initial = old, inc, initial
	c.start(back)
	if why := <-back.died; !errors.Is(why, ErrRolledBack) {
		t.Fatalf("out: %v", why)
	}
}

// A checkpoint may be older than its node's address, and be all that a new node
// knows of the cluster: what vouches for it is then at the address that the new
// node was given.
func vouchedForWhereTheyAreNow(t *testing.T) {
	c := cluster(t, 1, nil)
	for i := range 10 {
		c.put(fmt.Sprint(i))
	}
	was := c.leader()
	require.NoError(t, was.Snapshot())
	inc, disk, initial := was.inc, was.disk, was.initial
	was.stop()
	one := c.fresh(was.name)
	one.inc, one.disk, one.initial = inc, disk, initial
	c.start(one)
	c.leader()

	two := c.fresh("n2")
	two.contacts = []string{one.addr}
	answers(t, one.AddMember(context.Background(), Member{ID: "n2", RaftAddr: two.addr,
		Voter: true, Explicit: true}), "")
	fetched(t, two.disk, one.disk, one.node)
	c.start(two)
	until(t, "the new node votes", func() bool { return one.votersKnown() == 2 })
	c.put("together")
	c.level()
}

// A vote counts only when it is written down that it was given: also for who asks
// again, or at the same time over another connection.
func TestVoteIsNotedBeforeItCounts(t *testing.T) {
	kv := &mapKV{err: errors.New("EIO")}
	e, err := openEvidence(&votes{kv: kv, guard: unguarded(Options{}.withDefaults())})
	require.NoError(t, err)
	for range 2 {
		assert.True(t, e.voted("n2", 7) != nil, "it counts, and is not on disk")
	}
	kv.err, e.votes.guard = nil, unguarded(Options{}.withDefaults()) // as after a restart
	require.NoError(t, e.voted("n2", 7))
	if e, err = openEvidence(e.votes); err != nil || e.get("n2").VoteTerm != 7 {
		t.Errorf("%+v, %v", e.get("n2"), err)
	}
}

// goesBack puts a node's disk back to what it was before so many writes, of
// which all nodes have the last, while the others stay as they are.
func (c *nodes) goesBack(back *member, writes int, before func()) {
	c.t.Helper()
	old := back.disk.Clone()
	for i := range writes {
		c.put(fmt.Sprint("after", i))
	}
	c.level()
	before()
	c.isolate(back.name, true) // as if killed: nothing is handed over
	back.stop()
	c.isolate(back.name, false)
	back.disk = old
}

// A follower that knows another one only from what that tells each second
// objects too, where the leader that has its acknowledgements is gone.
func followersRememberEachOther(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	l := c.leader()
	back, other := c.others(l)[0], c.others(l)[1]
	c.goesBack(back, 20, func() {
		until(t, "the other one has heard", func() bool {
			return other.rollback.evidence.get(back.id).Commit >= other.fsm.progress().index
		})
		c.isolate(l.name, true)
	})
	c.start(back)
	if why := <-back.died; !errors.Is(why, ErrRolledBack) {
		t.Fatal(why)
	}
}

// A directory of the time when its node was alone, back in a cluster that has
// grown: it asks those that it is told of before it acknowledges anything.
func loneCopyAsksWhomItIsToldOf(t *testing.T) {
	c := cluster(t, 1, nil)
	c.put("before")
	one := c.members()[0]
	old := one.disk.Clone()
	for _, name := range []string{"n2", "n3"} {
		m := c.fresh(name)
		m.contacts = []string{one.addr}
		c.start(m)
	}
	c.voting(3)
	c.put("together")
	c.level()
	c.isolate(one.name, true)
	one.stop()
	c.isolate(one.name, false)
	c.put("without", one.name)
	one.disk, one.contacts = old, []string{c.get("n2").addr, c.get("n3").addr}
	require.ErrorIs(t, c.tryStart(one), ErrRolledBack, "it starts:")
}

// A copy of a running node's directory, started elsewhere, does not take its
// place.
func twinEnds(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("a")
	c.level()
	one := c.others(c.leader())[0]
	two := c.fresh("twin")
	two.name, two.inc, two.disk = one.name, one.inc, one.disk.Clone()
	c.start(two)
	if err := <-two.died; !strings.Contains(err.Error(), "runs already") {
		t.Fatal(err)
	}
	c.put("b")
	until(t, "the first one goes on", func() bool { return one.has("b") })
}
