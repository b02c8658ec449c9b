package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/witness"
)

// A directory that is put back from an old copy does not vote, does not
// acknowledge, and comes back as another incarnation, which is promoted.
func oldCopyIsFoundOut(t *testing.T) {
	c, _, back, _ := three(t)
	back.stop()
	old := back.disk.Clone()
	c.start(back)
	c.puts("after", 20)
	c.level()
	l := c.leader()
	l.recorded(back)
	back.stop()
	l.stop() // also one that was restarted remembers
	c.start(l)

	back.disk = old
	c.start(back)
	require.ErrorIs(t, <-back.died, ErrRolledBack)
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
	require.NoError(t, witness.Remove(back.disk, "/"+witness.FileName))
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
	c, stays, back, other := three(t)
	replace := func(m *member) {
		m.stop()
		m.disk, m.inc, m.initial = memdisk.New(), m.name+"-2", nil
		c.contact(m)
		c.start(m)
		<-m.joined
		c.voting(3)
		c.level()
	}
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
	require.ErrorIs(t, <-back.died, ErrRolledBack)
}

// A checkpoint may be older than its node's address, and be all that a new node
// knows of the cluster: what vouches for it is then at the address that the new
// node was given.
func vouchedForWhereTheyAreNow(t *testing.T) {
	c := cluster(t, 1, nil)
	c.puts("", 10)
	was := c.leader()
	require.NoError(t, was.Snapshot())
	one := c.moves(was)
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

// A follower that knows another one only from what that tells each second
// objects too, where the leader that has its acknowledgements is gone.
func followersRememberEachOther(t *testing.T) {
	c, l, back, other := three(t)
	old := back.disk.Clone()
	c.puts("after", 20)
	c.level()
	until(t, "the other one has heard", func() bool {
		return other.rollback.evidence.Get(back.id).Commit >= other.fsm.progress().index
	})
	c.isolate(l.name, true)
	c.isolate(back.name, true) // as if killed: nothing is handed over
	back.stop()
	c.isolate(back.name, false)
	back.disk = old
	c.start(back)
	require.ErrorIs(t, <-back.died, ErrRolledBack)
}

// recorded waits until what back has acknowledged to a leader is on the leader's disk.
func (m *member) recorded(back *member) {
	m.t.Helper()
	until(m.t, "what was acknowledged is written down", func() bool {
		on, err := openEvidence(m.stores.votes)
		require.NoError(m.t, err)
		return on.Get(back.id).AckIndex >= back.raft.LastIndex()
	})
}

// markApart restarts a node with its mark on a disk of its own.
func (c *nodes) markApart(m *member) {
	mark := memdisk.New()
	m.set = func(o *Options) {
		var err error
		o.Witness, err = witness.Open(mark, "/mark", &o.Node)
		require.NoError(c.t, err)
	}
	m.stop()
	c.start(m)
	c.put("with a mark")
	c.level()
}

// among is the case that three nodes cannot survive: one was away before the copy was made that
// another one is put back from, and the third, which has everything that was acknowledged since, is
// down. A mark on another disk (apart) is not put back. elected: after the copy there was an election,
// so the next one is in the same term, and entries of two leaders seem to be the same.
func among(t *testing.T, apart, elected bool) (c *nodes, back, away, has *member) {
	c, has, away, back = three(t)
	if apart {
		c.markApart(back)
	}
	away.stop()
	old := back.disk.Clone()
	if elected {
		has.stop()
		c.start(has)
	}
	c.puts("after", 20)
	c.level()
	has.recorded(back)
	c.isolate(has.name, true) // they are killed
	c.isolate(back.name, true)
	has.stop()
	back.stop()
	c.net.HealAll()
	back.disk = old
	back.log = &lines{}
	c.start(away)
	c.start(back)
	return c, back, away, has
}

// Without a mark the two elect, and what was acknowledged is lost. It is reported: when it happens,
// while the third one is silent, and when that one comes back.
// instead is how many entries they have written by then.
func oldCopyAmong(elected bool, instead int) func(t *testing.T) {
	return func(t *testing.T) {
		c, back, away, has := among(t, false, elected)
		silent := func() []string {
			for _, m := range away.Members() {
				if m.ID == back.name {
					return m.Status.Unconfirmed
				}
			}
			return nil
		}
		c.puts("instead", instead, has.name)
		until(t, "the others know who was silent", func() bool {
			return slices.Equal(silent(), []string{has.name})
		})
		warn := fmt.Sprintf("silent=[%s] last=%d last_of_others=\"[%s: %d]\"",
			has.name, back.rollback.came.Last, away.name, back.rollback.came.Last)
		assert.True(t, back.log.has("level=WARN", warn), "no %s in\n%s", warn, back.log)
		if !elected {
			// Its power failed: what it had applied is only in its Raft log, and its mark says so.
			has.disk = has.disk.CrashWith(memdisk.LoseAll, rng(1))
		}
		c.start(has)
		until(t, "it ends", func() bool { return has.run.dead.Load() != nil })
		why := <-has.died
		require.ErrorIs(t, why, ErrAhead)
		lost := fmt.Sprintf("%d to %d", back.rollback.came.Last+1, back.rollback.came.Last+20)
		assert.True(t, elected || strings.Contains(why.Error(), lost), "%v, not %s", why, lost)
		// It may have ended before it could object.
		assert.True(t, elected || back.log.has("level=ERROR", "why="), "no objection in\n%s", back.log)
		c.put("and on", has.name)
		assert.Equal(t, len(silent()), 1, "it is confirmed")
	}
}

// The one whose entries were replaced comes back while the leader of the two others is cut off. It has
// the longest log of the newest term, but the third must not elect it: it would end by what it says.
func replacedOneComes(instead int) func(t *testing.T) {
	return func(t *testing.T) {
		c, back, away, has := among(t, false, true)
		c.puts("instead", instead, has.name)
		last := fmt.Sprint("instead", instead-1)
		until(t, "both have it", func() bool { return away.has(last) && back.has(last) })
		c.isolate(c.leader().name, true)
		c.start(has)
		time.Sleep(20 * time.Second)
		assert.False(t, has.Leader(), "it was elected")
		c.net.HealAll()
		require.ErrorIs(t, <-has.died, ErrAhead)
		c.put("and on", has.name)
		assert.True(t, back.run.dead.Load() == nil && away.run.dead.Load() == nil, "they ended")
		assert.True(t, back.has(last) && away.has(last), "theirs is lost")
	}
}

// A voter that was silent, and knows nothing newer, confirms when it is back.
func silentVoterConfirms(t *testing.T) {
	c, l, down, again := three(t)
	down.stop()
	again.stop()
	c.start(again)
	until(t, "it takes part", func() bool { return again.admitted() })
	assert.DeepEqual(t, again.unconfirmed(), []string{down.name})
	c.put("b", down.name)
	c.start(down)
	until(t, "it is confirmed", func() bool { return len(again.unconfirmed()) == 0 })
	c.level()
	again.stop()
	l.stop()
	c.start(again)
	until(t, "it is removed", func() bool { // leadership may move meanwhile
		p, _ := errors.AsType[*event.Problem](down.RemoveMember(t.Context(), l.name, true))
		return p == nil || p.Code == event.CodeNodeNotFound
	})
	until(t, "who is no member has nothing to confirm", func() bool {
		return again.admitted() && len(again.unconfirmed()) == 0
	})
}

// With a mark on another disk the copy waits for the third, which objects.
func oldCopyBelowItsMark(t *testing.T) {
	c, back, away, has := among(t, true, false)
	until(t, "the other one has answered", func() bool {
		why := back.rollback.holding.Load()
		return why != nil && strings.Contains(*why, "1 of 2 other voters") &&
			strings.Contains(*why, "2 are needed")
	})
	assert.True(t, back.log.has("level=WARN", fmt.Sprintf("last=%d", back.rollback.came.Last),
		fmt.Sprintf("mark=%d", back.rollback.came.Last+20)), "no indexes in\n%s", back.log)
	time.Sleep(time.Minute)
	assert.True(t, !back.admitted() && !away.Leader(), "the copy counts")
	c.start(has)
	require.ErrorIs(t, <-back.died, ErrRolledBack)
	until(t, "nothing is lost", func() bool { return away.has("after19") && has.has("after19") })
}

// A copy from before its node was a member knows nobody to wait for: it returns as another member, if
// it can find the others.
func emptyCopyBelowItsMark(t *testing.T) {
	c, _, m, _ := three(t)
	c.markApart(m)
	m.stop()
	m.disk, m.initial = memdisk.New(), nil
	require.ErrorIs(t, c.tryStart(m), ErrOlder)
	synctest.Wait() // its listener is closed
	c.contact(m)
	require.ErrorIs(t, c.tryStart(m), ErrRolledBack)
}

// Nobody can be asked for a single node's mark: it does not start unless the loss is accepted.
func TestSingleNodeBelowItsMark(t *testing.T) {
	disk, mark := memdisk.New(), memdisk.New()
	start := func(disk *memdisk.Disk, accept bool) (*node, error) {
		o := on(disk)
		var err error
		o.Witness, err = witness.Open(mark, "/mark", &o.Node)
		require.NoError(t, err)
		o.Witness.Accept = accept
		return tryBoot(t, o)
	}
	n, err := start(disk, false)
	require.NoError(t, err)
	n.ready()
	n.put("a")
	n.down()
	old, is := disk.Clone(), n.o.Witness.HighWater()
	n, err = start(disk, false)
	require.NoError(t, err)
	n.ready()
	n.put("b")
	n.down()
	_, err = start(old, false)
	require.ErrorIs(t, err, ErrOlder)
	for _, index := range []uint64{is.Index, n.o.Witness.HighWater().Index} {
		assert.True(t, strings.Contains(err.Error(), fmt.Sprintf("index %d in term", index)), "%v", err)
	}
	for _, accept := range []bool{true, false} { // once is enough
		n, err = start(old, accept)
		require.NoError(t, err)
		n.ready()
		n.down()
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
	c, _, one, _ := three(t)
	two := c.fresh("twin")
	two.name, two.inc, two.disk = one.name, one.inc, one.disk.Clone()
	c.start(two)
	require.Contains(t, (<-two.died).Error(), "runs already")
	c.put("b")
	until(t, "the first one goes on", func() bool { return one.has("b") })
}
