package raft

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/raft/peer"
)

// TestCluster runs clusters in simulated time, on disks and a network in memory.
func TestCluster(t *testing.T) {
	for name, scenario := range map[string]func(*testing.T){
		"AnswersOnASlowLineConfirmNothing":   answersOnASlowLineConfirmNothing,
		"LeaderThatDiffersEnds":              leaderThatDiffersEnds,
		"OneThatWasRestartedIsComparedAgain": oneThatWasRestartedIsComparedAgain,
		"TwoThatDifferAreNotReady":           twoThatDifferAreNotReady,
		"MarksComeAndGo":                     marksComeAndGo,
		"UpgradeWhenAllKnow":                 upgradeWhenAllKnow,
		"TransferToOneThatHasDied":           transferToOneThatHasDied,
		"LeaderWithoutRoomHandsOver":         leaderWithoutRoomHandsOver,
		"MembersAskTheLeader":                membersAskTheLeader,
		"OneNodeGrowsToThreeAndBack":         oneNodeGrowsToThreeAndBack,
		"OnlyAnnouncedAreAdmitted":           onlyAnnouncedAreAdmitted,
		"RemovedAsSoonAsItJoined":            removedAsSoonAsItJoined(2),
		"RemovedAsSoonAsItJoinedOne":         removedAsSoonAsItJoined(1),
		"WipedNodeComesBack":                 wipedNodeComesBack,
		"VotesAreTakenWithAMajorityOnly":     votesAreTakenWithAMajorityOnly,
		"FollowersAddressIsCorrected":        followersAddressIsCorrected,
		"SnapshotAll":                        snapshotAll,
		"AgeGrowsWhenCutOff":                 ageGrowsWhenCutOff,
		"StalledDisks":                       stalledDisks,
		"OldCopyIsFoundOut":                  oldCopyIsFoundOut,
		"OldCopyOfAReplacedDirectory":        oldCopyOfAReplacedDirectory,
		"VouchedForWhereTheyAreNow":          vouchedForWhereTheyAreNow,
		"FollowersRememberEachOther":         followersRememberEachOther,
		"OldCopyAmongThoseWhoWereAway":       oldCopyAmong(false, 1),
		"OldCopyElectsInTheSameTerm":         oldCopyAmong(true, 1),
		"OldCopyGoesOnInTheSameTerm":         oldCopyAmong(true, 40),
		"ReplacedOneIsNotElected":            replacedOneComes(3),
		"ReplacedOneIsNotElectedByOneEntry":  replacedOneComes(1),
		"OldCopyBelowItsMark":                oldCopyBelowItsMark,
		"EmptyCopyBelowItsMark":              emptyCopyBelowItsMark,
		"SilentVoterConfirms":                silentVoterConfirms,
		"LoneCopyAsksWhomItIsToldOf":         loneCopyAsksWhomItIsToldOf,
		"TwinEnds":                           twinEnds,
		"DeposedLeaderAnswersNobody":         deposedLeaderAnswersNobody,
		"LeadersGo":                          leadersGo,
		"OneClockYearsAhead":                 oneClockYearsOff(5 * year),
		"OneClockYearsBehind":                oneClockYearsOff(-5 * year),
		"CommitsNothingUnchecked":            commitsNothingUnchecked,
		"HeartbeatThatDeposes":               heartbeatThatDeposes,
		"DeposedLeaderComesBack":             deposedLeaderComesBack,
		"OneFetchIsEnough":                   oneFetchIsEnough,
		"FollowersKnowWhatIsCommitted":       followersKnowWhatIsCommitted,
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, scenario) })
	}
}

// nodes are a cluster.
type nodes struct {
	t   testing.TB
	set func(*Options)
	net *memnet.Network

	mu   sync.Mutex
	all  map[string]*member
	slow map[string]time.Duration // how long bytes take to a node
	port int
}

// member is a node that can be down.
type member struct {
	*node
	name, inc string
	addr      string
	net       *peer.Net
	disk      *memdisk.Disk
	initial   []datadir.Member
	contacts  []string
	set       func(*Options) // after the cluster's
	joined    chan struct{}
	joinedAs  atomic.Value // the incarnation that was last told that it is a member
	log       *lines       // nil: not kept
}

// lines are what a node has logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// has reports whether one line has all parts.
func (l *lines) has(parts ...string) bool {
	for line := range strings.Lines(l.String()) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			return true
		}
	}
	return false
}

// cluster starts n nodes that form one.
func cluster(t testing.TB, n int, set func(*Options)) *nodes {
	t.Helper()
	c := &nodes{t: t, set: set, all: map[string]*member{}}
	c.net = memnet.New(memnet.Options{Latency: func(_, to string) time.Duration {
		c.mu.Lock()
		defer c.mu.Unlock()
		return 100*time.Microsecond + c.slow[to]
	}})
	var initial []datadir.Member
	for i := range n {
		m := c.fresh(fmt.Sprintf("n%d", i+1))
		initial = append(initial, datadir.Member{ID: m.name, Incarnation: m.inc, RaftAddr: m.addr})
	}
	for _, m := range c.members() {
		m.initial = initial
		c.start(m)
	}
	return c
}

// three starts three nodes, which have all applied an entry.
func three(t testing.TB) (c *nodes, leader, one, other *member) {
	t.Helper()
	c = cluster(t, 3, nil)
	c.put("before")
	c.level()
	leader = c.leader()
	others := c.others(leader)
	return c, leader, others[0], others[1]
}

func (c *nodes) members() (out []*member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.all {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *member) int { return strings.Compare(a.name, b.name) })
	return out
}

// fresh is a node with an empty disk and a port.
func (c *nodes) fresh(name string) *member {
	c.port++
	m := &member{
		name: name, inc: name + "-1", addr: fmt.Sprintf("%s:%d", name, c.port), disk: memdisk.New(),
		joined: make(chan struct{}, 100),
	}
	c.mu.Lock()
	c.all[name] = m
	c.mu.Unlock()
	return m
}

// start starts a node on its disk, and its port.
func (c *nodes) start(m *member) {
	c.t.Helper()
	require.NoError(c.t, c.tryStart(m))
}

func (c *nodes) tryStart(m *member) error {
	o := on(m.disk)
	l, err := c.net.Listen(m.addr)
	if err != nil {
		return err
	}
	m.net, err = peer.New(peer.Options{
		Listener: l,
		Self:     peer.Identity{Cluster: "c1", Node: m.name, Incarnation: m.inc, Raft: m.addr},
		Dial:     c.net.Dialer(m.name),
	})
	if err != nil {
		return err
	}
	o.NodeID, o.Incarnation, o.Net = m.name, m.inc, m.net
	o.Initial, o.Contacts = m.initial, m.contacts
	inc := m.inc
	o.Joined = m.joinedAs.Load() == inc
	o.OnJoined = func() {
		m.joinedAs.Store(inc)
		m.joined <- struct{}{}
	}
	if m.log != nil {
		o.Logger = slog.New(slog.NewTextHandler(m.log, nil))
	}
	if os.Getenv("RAFT_LOG") != "" {
		all := &slog.HandlerOptions{Level: slog.LevelDebug}
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, all)).With("node", m.name)
	}
	// Each heartbeat is work in simulated time too.
	o.HeartbeatTimeout, o.CommitTimeout = 2*time.Second, 500*time.Millisecond
	if c.set != nil {
		c.set(&o)
	}
	if m.set != nil {
		m.set(&o)
	}
	m.node, err = tryBoot(c.t, o)
	n := m.net
	c.t.Cleanup(func() { n.Close() })
	if err != nil {
		n.Close()
		m.node = nil
	}
	return err
}

// stop ends a node in order.
func (m *member) stop() {
	m.down()
	m.net.Close()
	m.node = nil
}

// isolate cuts a node off from all others, or heals that.
func (c *nodes) isolate(name string, off bool) {
	set := c.net.Heal
	if off {
		set = c.net.CutBoth
	}
	for _, o := range c.others(c.get(name)) {
		set(name, o.name)
	}
}

// until waits for something that other goroutines bring about.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-late:
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// leader waits until one of the nodes that are up, but for some, leads.
func (c *nodes) leader(but ...string) *member {
	c.t.Helper()
	var found *member
	until(c.t, "no leader", func() bool {
		for _, m := range c.members() {
			if m.node != nil && !slices.Contains(but, m.name) && m.leadsReady() {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

// put writes through whoever leads, until it is done.
func (c *nodes) put(name string, but ...string) {
	c.t.Helper()
	until(c.t, "put "+name, func() bool {
		_, err := c.leader(but...).Propose(context.Background(), put(name))
		return err == nil
	})
}

// puts writes so many.
func (c *nodes) puts(name string, n int, but ...string) {
	c.t.Helper()
	for i := range n {
		c.put(fmt.Sprint(name, i), but...)
	}
}

// moves restarts a node at another address.
func (c *nodes) moves(m *member) *member {
	c.t.Helper()
	m.stop()
	there := c.fresh(m.name)
	there.inc, there.disk, there.initial = m.inc, m.disk, m.initial
	c.start(there)
	return there
}

// level waits until all nodes that are up have applied the same, but for some.
func (c *nodes) level(but ...string) {
	c.t.Helper()
	until(c.t, "the nodes differ", func() bool {
		var chain [][32]byte
		for _, m := range c.members() {
			if m.node != nil && !slices.Contains(but, m.name) {
				_, ch := m.m.Tip()
				chain = append(chain, ch)
			}
		}
		for _, ch := range chain {
			if ch != chain[0] {
				return false
			}
		}
		return true
	})
}

// others returns the members but for one, by name.
func (c *nodes) others(but *member) []*member {
	return slices.DeleteFunc(c.members(), func(m *member) bool { return m == but })
}

func (c *nodes) get(name string) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[name]
}

// voters counts those of a node's configuration that vote.
func (m *member) votersKnown() (n int) {
	for _, s := range m.Members() {
		if s.Votes {
			n++
		}
	}
	return n
}
