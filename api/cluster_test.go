package api

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/raft"
)

// fakeCluster is a configuration in memory, led by n1.
type fakeCluster struct {
	mu        sync.Mutex
	nodes     map[string]raft.MemberStatus
	calls     int
	refreshed int
	err       error
	enter     func() // called by AddMember, unlocked
}

func newFakeCluster() *fakeCluster {
	n1 := raft.MemberStatus{Votes: true, Leader: true, Seen: time.Now()}
	n1.ID, n1.RaftAddr, n1.HTTPAddr = "n1", "h1:1", "h1:2"
	n1.Status.Applied, n1.Status.Head, n1.Status.Chain[0] = 7, 7, 0xab
	return &fakeCluster{nodes: map[string]raft.MemberStatus{"n1": n1}}
}

func (c *fakeCluster) RefreshMembers(context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshed++
}

func (c *fakeCluster) Status() raft.Status {
	return raft.Status{ClusterID: "c", NodeID: "n1", LeaderID: "n1/01", Term: 3}
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
		return event.Problemf(codeNodeNotFound, "id", "no node %s", id)
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
		return event.Problemf(codeNodeNotFound, "to", "no node %s", to)
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

const n2 = `{"id":"n2","raft_addr":"h2:1","http_addr":"h2:2","voter":true}`

func TestCluster(t *testing.T) {
	h := setup(t)
	c := h.cluster
	h.do("GET", "/v1/cluster", "").want(200).with("leader_id", "n1", "term", 3.0,
		"nodes.0.chain_hash", "ab"+strings.Repeat("00", 31), "nodes.0.log_head", 7.0)
	if h.do("GET", "/v1/cluster?consistency=linearizable", "").want(200); c.refreshed != 2 {
		t.Errorf("asked the nodes %d times", c.refreshed)
	}
	h.do("POST", "/v1/cluster/nodes", n2).want(201).with("id", "n2", "voter", true)
	h.do("POST", "/v1/cluster/nodes", n2).want(200)
	h.do("POST", "/v1/cluster/nodes", `{"id":"n2","raft_addr":"h9:1"}`).want(409).
		with("code", "conflict", "outcome", "not_applied")
	h.do("POST", "/v1/cluster/transfer-leadership", "").want(200)
	h.do("POST", "/v1/cluster/transfer-leadership", `{"to":"n2"}`).want(200)
	h.do("POST", "/v1/cluster/transfer-leadership", `{"to":"n9"}`).want(404).
		with("code", "node_not_found", "field", "to")
	h.do("POST", "/v1/cluster/snapshot", "").want(200).with("indexes.n1", 7.0)
	h.do("DELETE", "/v1/cluster/nodes/n2", "").want(204)
	h.do("DELETE", "/v1/cluster/nodes/n2", "").want(404)
	h.do("DELETE", "/v1/cluster/nodes/n1", "").want(409)
	c.err = &event.Problem{Code: codeNoLeader, Index: -1, Unknown: true}
	a := h.do("POST", "/v1/cluster/nodes", n2).want(503).with("outcome", "unknown")
	assert.NotEqual(t, a.Header().Get("Retry-After"), "", "%v", a.Header())
	c.err = context.DeadlineExceeded
	h.do("POST", "/v1/cluster/snapshot", "").want(503).with("outcome", "unknown")
	assert.Equal(t, h.proposals(), 0, "a cluster call reached the proposer")
}

func TestClusterIdempotencyKey(t *testing.T) {
	h := setup(t)
	key := "Idempotency-Key: k"
	first := h.do("POST", "/v1/cluster/nodes", n2, key).want(201)
	h.do("DELETE", "/v1/cluster/nodes/n2", "", key).want(204)
	h.do("POST", "/v1/cluster/nodes", n2, key).repeats(first)
	assert.Equal(t, h.cluster.asked(), 2, "calls")
	if a := h.do("DELETE", "/v1/cluster/nodes/n2", "", key).want(204); a.Header().
		Get("Idempotent-Replayed") != "true" {
		t.Errorf("%v", a.Header())
	}
	h.do("POST", "/v1/cluster/nodes", `{"id":"n3","raft_addr":"h3:1"}`, key).want(422).
		with("code", "idempotency_key_reused")
	h.do("DELETE", "/v1/cluster/nodes/n2?force=true", "", key).want(422)
	h.do("POST", "/v1/cluster/nodes", n2, "Idempotency-Key: a b").want(400)

	// An error is not kept.
	h.cluster.err = &event.Problem{Code: codeNoLeader, Index: -1}
	h.do("POST", "/v1/cluster/nodes", n2, "Idempotency-Key: e").want(503)
	h.cluster.err = nil
	h.do("POST", "/v1/cluster/nodes", n2, "Idempotency-Key: e").want(201)

	// One that comes while the first is executed waits for its answer.
	begun, go_ := make(chan struct{}), make(chan struct{})
	h.cluster.enter = func() { close(begun); <-go_ }
	n := h.cluster.asked()
	var both sync.WaitGroup
	var answers [2]answer
	both.Go(func() { answers[0] = h.do("POST", "/v1/cluster/nodes", n2, "Idempotency-Key: w") })
	<-begun
	both.Go(func() { answers[1] = h.do("POST", "/v1/cluster/nodes", n2, "Idempotency-Key: w") })
	close(go_)
	both.Wait()
	if h.cluster.asked() != n+1 || answers[0].Code != 200 || answers[1].Code != 200 ||
		answers[1].Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("%d calls; %d, %d", h.cluster.asked()-n, answers[0].Code, answers[1].Code)
	}
}
