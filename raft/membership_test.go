package raft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/raft/peer"
)

// answers holds an error against a problem's code; "" is none.
func answers(t *testing.T, err error, code string) {
	t.Helper()
	var p *event.Problem
	switch {
	case code == "" && err == nil:
	case code == "":
		t.Errorf("refused: %v", err)
	case !errors.As(err, &p) || p.Code != code:
		t.Errorf("%v, want %s", err, code)
	}
}

// voting waits until so many vote and are all there is.
func (c *nodes) voting(n int, but ...string) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("%d nodes vote", n), func() bool {
		l := c.leader(but...)
		return l.votersKnown() == n && len(l.Members()) == n
	})
}

// join starts a node that asks those that are there.
func (c *nodes) join(name string) *member {
	c.t.Helper()
	m := c.fresh(name)
	c.contact(m)
	c.start(m)
	return m
}

// contact gives a node the addresses of all others.
func (c *nodes) contact(m *member) {
	m.contacts = nil
	for _, o := range c.others(m) {
		m.contacts = append(m.contacts, o.addr)
	}
}

func oneNodeGrowsToThreeAndBack(t *testing.T) {
	ctx := context.Background()
	c := cluster(t, 1, nil)
	n1 := c.get("n1")
	n1.ready()
	c.put("alone")
	second := c.fresh("n2")
	answers(t, n1.AddMember(ctx, Member{ID: "n2", RaftAddr: second.addr, Voter: true,
		Explicit: true}), "")
	c.contact(second)
	c.start(second)
	c.voting(2)
	c.put("two")

	// n3 is announced before it comes, by a node that does not lead.
	n3 := c.fresh("n3")
	n2 := c.get("n2")
	follower := n2
	if c.leader() == n2 {
		follower = n1
	}
	answers(t, follower.AddMember(ctx, Member{ID: "n3", RaftAddr: n3.addr, Voter: true}), "")
	answers(t, follower.AddMember(ctx, Member{ID: "n3", RaftAddr: n3.addr, Voter: true}),
		"") // again
	answers(t, n1.AddMember(ctx, Member{ID: "n3", RaftAddr: "127.0.0.1:1", Voter: true}),
		event.CodeConflict)
	answers(t, n1.AddMember(ctx, Member{ID: "n4", RaftAddr: n2.addr, Voter: true}),
		event.CodeConflict)
	answers(t, n1.AddMember(ctx, Member{ID: "n4", RaftAddr: n3.addr, Voter: true}),
		event.CodeConflict)
	answers(t, n1.AddMember(ctx, Member{ID: "n/4", RaftAddr: n3.addr}), event.CodeInvalidArgument)
	n3.contacts = []string{n2.addr, n1.addr}
	c.start(n3)
	<-n3.joined
	c.voting(3)
	c.put("three")
	c.level()

	answers(t, n3.RemoveMember(ctx, "n9", false), event.CodeNodeNotFound)
	answers(t, n3.TransferLeadership(ctx, "n9"), event.CodeNodeNotFound)
	l := c.leader()
	until(t, "the leader reaches it", func() bool {
		err := l.TransferLeadership(ctx, c.others(l)[0].name)
		return err == nil || c.leader() != l
	})
	until(t, "another leads", func() bool { return c.leader() != l })

	// The leader itself is removed, asked at a node that does not lead.
	l = c.leader()
	until(t, "the leader is removed", func() bool {
		return c.others(l)[0].RemoveMember(ctx, l.name, false) == nil
	})
	require.ErrorIs(t, <-l.died, ErrRemoved)
	c.put("without it", l.name)
	c.voting(2, l.name)
	l.stop()
	// Also one that was away when it was removed.
	l = c.leader()
	up := func(m *member) bool { return m.node != nil }
	others := c.others(l)
	gone := others[slices.IndexFunc(others, up)]
	answers(t, l.RemoveMember(ctx, gone.name, false), "")
	require.ErrorIs(t, <-gone.died, ErrRemoved)
	gone.stop()
	c.start(gone)
	require.ErrorIs(t, <-gone.died, ErrRemoved)
	gone.stop()
	answers(t, l.RemoveMember(ctx, l.name, true), event.CodeConflict)
	answers(t, l.TransferLeadership(ctx, ""), event.CodeConflict)
	c.put("alone again")
}

// A node that is to admit announced ones only refuses others, says so once, and admits them when
// they are announced. Unless an operator asks for it, the first of them does not get a vote before
// the second one does.
func onlyAnnouncedAreAdmitted(t *testing.T) {
	ctx := context.Background()
	var logged lines
	c := cluster(t, 1, func(o *Options) {
		o.AnnouncedOnly = true
		o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	})
	n1 := c.get("n1")
	c.put("alone")
	for i, name := range []string{"n2", "n3"} {
		m := c.join(name)
		until(t, "it is told what to do", func() bool {
			_, why := m.Ready()
			return contains(why, "qlogd cluster add "+name+" "+m.addr)
		})
		// Nor does it announce itself.
		var a adminResponse
		_, err := peer.Ask(ctx, m.net, peer.Target{Addr: n1.addr}, rpcAdmin,
			adminRequest{Do: "add", Member: Member{ID: name, RaftAddr: m.addr, Voter: true}}, &a)
		e, _ := errors.AsType[*peer.Error](err)
		require.True(t, e != nil && e.Code == codeNoMember, "announced by itself: %v", err)
		assert.Equal(t, len(n1.Members()), i+1, "members")
		answers(t, n1.AddMember(ctx, Member{ID: name, RaftAddr: m.addr, Voter: true}), "")
		<-m.joined
		c.put("with " + name)
		until(t, "it has caught up", func() bool { return m.has("with " + name) })
		if i == 0 {
			since := time.Now()
			until(t, "some rounds", func() bool { return time.Since(since) > 3*time.Second })
			assert.Equal(t, n1.votersKnown(), 1, "voters without a third node")
		}
	}
	c.voting(3)
	const warning = "not announced was refused"
	assert.Equal(t, strings.Count(logged.String(), warning), 1, "lines of the log in this minute")
}

// A node that is removed as soon as it has joined may hear of its removal, and not that the removal
// is committed: nobody sends it anything any more. A leader that is alone tells it both at once.
// Either way it stays removed.
func removedAsSoonAsItJoined(others int) func(*testing.T) {
	return func(t *testing.T) {
		c := cluster(t, others, nil)
		c.put("before")
		m := c.join("joins")
		until(t, "it has the entry that added it", func() bool {
			return len(m.Members()) == others+1
		})
		c.put("with it")
		until(t, "it knows that the entry is committed", func() bool { return m.has("with it") })
		answers(t, c.leader().RemoveMember(t.Context(), m.name, false), "")
		until(t, "it is out", func() bool { return len(m.died) > 0 })
		require.ErrorIs(t, <-m.died, ErrRemoved)
		assert.Equal(t, len(m.joined), 1, "it has recorded before that it was a member")
	}
}

func wipedNodeComesBack(t *testing.T) {
	c, l, wiped, _ := three(t)
	wiped.stop()
	c.put("meanwhile")
	wiped.disk, wiped.inc = memdisk.New(), "wiped"
	wiped.initial, wiped.contacts = nil, []string{l.addr}
	c.start(wiped)
	<-wiped.joined
	c.voting(3)
	c.put("after")
	c.level()
	// At another address it would be a second n-something, and is told so.
	wiped.stop()
	other := c.fresh(wiped.name)
	other.inc, other.contacts = "elsewhere", []string{l.addr}
	c.start(other)
	until(t, "it is told why", func() bool {
		ok, why := other.Ready()
		return !ok && contains(why, "remove it first: qlogd cluster remove "+other.name)
	})
}

// Taking a vote away is no smaller thing than taking a node out, and what was
// heard of a node a moment ago says nothing of it now.
func votesAreTakenWithAMajorityOnly(t *testing.T) {
	if raceEnabled {
		t.Skip("hashicorp/raft v1.8.0 itself races where a server's address changes: " +
			"startStopReplication writes what updateLastAppended reads")
	}
	c, l, one, other := three(t)
	demote := func(m *member) error {
		return l.AddMember(context.Background(), Member{ID: m.name, RaftAddr: m.addr})
	}
	other.stop()
	answers(t, demote(one), event.CodeConflict)
	answers(t, l.RemoveMember(context.Background(), one.name, false), event.CodeConflict)
	c.put("it goes on")
	c.start(other)
	until(t, "all are there", func() bool { return demote(one) == nil })
	until(t, "two voters are left", func() bool { return l.votersKnown() == 2 })
	// The leader's own vote goes when another one leads.
	until(t, "the leader is demoted", func() bool { return demote(l) == nil })
	until(t, "another one leads, alone", func() bool {
		return other.leadsReady() && other.votersKnown() == 1
	})
	answers(t, other.AddMember(context.Background(),
		Member{ID: other.name, RaftAddr: other.addr}), event.CodeConflict)
}

// A node that listens elsewhere than last time tells so, also where it does not
// lead.
func followersAddressIsCorrected(t *testing.T) {
	if raceEnabled {
		t.Skip("hashicorp/raft v1.8.0 itself races where a server's address changes: " +
			"startStopReplication writes what updateLastAppended reads")
	}
	c, _, moved, _ := three(t)
	there := c.moves(moved)
	until(t, "all know the new address", func() bool {
		for _, m := range c.members() {
			for _, s := range m.Members() {
				if s.ID == there.name && s.RaftAddr != there.addr {
					return false
				}
			}
		}
		return true
	})
	c.put("b")
	c.level()
}

func snapshotAll(t *testing.T) {
	c, l, _, _ := three(t)
	until(t, "all are reached", func() bool {
		got, err := l.SnapshotAll(context.Background())
		return err == nil && len(got) == 3
	})
	for _, m := range c.members() {
		assert.NotEqual(t, len(m.Replica.Status().Checkpoints), 0, "%s has no checkpoint", m.name)
	}
}

// How old a stale read is: nothing at the leader, growing where a node is cut
// off.
func ageGrowsWhenCutOff(t *testing.T) {
	c, l, f, _ := three(t)
	if age, ok := l.Age(); !ok || age != 0 {
		t.Errorf("the leader's age is %v, %v", age, ok)
	}
	until(t, "it knows its age", func() bool { _, ok := f.Age(); return ok })
	c.isolate(f.name, true)
	until(t, "it ages", func() bool { age, ok := f.Age(); return ok && age > 500*time.Millisecond })
}

func contains(list []string, part string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, part) })
}
