package api

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/raft"
)

// fakeCluster is a configuration in memory, led by n1.
type fakeCluster struct {
	mu    sync.Mutex
	nodes map[string]raft.MemberStatus
	calls int
	err   error
	enter func() // called by AddMember, unlocked
}

func newFakeCluster() *fakeCluster {
	n1 := raft.MemberStatus{Votes: true, Leader: true, Reachable: true, Seen: time.Now()}
	n1.ID, n1.RaftAddr, n1.HTTPAddr = "n1", "h1:1", "h1:2"
	n1.Status.Applied, n1.Status.Head, n1.Status.Chain[0] = 7, 7, 0xab
	return &fakeCluster{nodes: map[string]raft.MemberStatus{"n1": n1}}
}

// RefreshMembers finds that n1 has applied one entry more.
func (c *fakeCluster) RefreshMembers(context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n1 := c.nodes["n1"]
	n1.Status.Applied++
	c.nodes["n1"] = n1
}

func (c *fakeCluster) Status() raft.Status {
	s := raft.Status{ClusterID: "c", NodeID: "n1", LeaderID: "n1"}
	s.Term = 3
	return s
}

func (c *fakeCluster) Members() []raft.MemberStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.nodes))
}

func (c *fakeCluster) AddMember(_ context.Context, m raft.Member) error {
	if c.enter != nil {
		c.enter()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.err != nil {
		return c.err
	}
	if old, ok := c.nodes[m.ID]; ok && old.RaftAddr != m.RaftAddr {
		return event.Problemf(event.CodeConflict, "id", "n2 is another node")
	}
	c.nodes[m.ID] = raft.MemberStatus{Member: m, Votes: m.Voter}
	return nil
}

func (c *fakeCluster) RemoveMember(_ context.Context, id string, force bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if _, ok := c.nodes[id]; !ok {
		return event.Problemf(event.CodeNodeNotFound, "id", "no node %s", id)
	}
	if len(c.nodes) == 1 && !force {
		return event.Problemf(event.CodeConflict, "id", "the last voter")
	}
	delete(c.nodes, id)
	return nil
}

func (c *fakeCluster) TransferLeadership(_ context.Context, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if _, ok := c.nodes[to]; to != "" && !ok {
		return event.Problemf(event.CodeNodeNotFound, "to", "no node %s", to)
	}
	return c.err
}

func (c *fakeCluster) SnapshotAll(context.Context) (map[string]uint64, error) {
	return map[string]uint64{"n1": 7}, c.err
}

func (c *fakeCluster) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// A repeated call that comes while the first is executed waits for its answer.
func TestClusterCallsAtTheSameTime(t *testing.T) {
	h := setup(t)
	const n2 = `{"id":"n2","raft_addr":"h2:1","http_addr":"h2:2","voter":true}`
	begun, go_ := make(chan struct{}), make(chan struct{})
	h.cluster.enter = func() { close(begun); <-go_ }
	var both sync.WaitGroup
	var answers [2]answer
	both.Go(func() { answers[0] = h.do("POST", "/v1/cluster/nodes", n2, "Idempotency-Key: w") })
	<-begun
	both.Go(func() { answers[1] = h.do("POST", "/v1/cluster/nodes", n2, "Idempotency-Key: w") })
	close(go_)
	both.Wait()
	answers[1].repeats(answers[0].want(201))
	assert.Equal(t, h.cluster.asked(), 1, "calls")
}

// Only "voter": true is an operator's request for a vote; to leave it out is not one.
func TestVoteAskedFor(t *testing.T) {
	h := setup(t)
	for voter, want := range map[string]raft.Member{
		``: {Voter: true}, `,"voter":null`: {Voter: true},
		`,"voter":true`: {Voter: true, Explicit: true}, `,"voter":false`: {},
	} {
		h.do("POST", "/v1/cluster/nodes", `{"id":"n2","raft_addr":"h2:1"`+voter+`}`)
		got := h.cluster.nodes["n2"].Member
		want.ID, want.RaftAddr = "n2", "h2:1"
		assert.Equal(t, got, want, "%q", voter)
	}
}
