package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/peer"
)

// reachableFor is how long a member counts as reachable after its last answer.
const reachableFor = time.Second

// clusterView is the replica's membership as the api's.
type clusterView struct{ *raft.Replica }

var _ api.Cluster = clusterView{}

// Refresh implements api.Cluster.
func (v clusterView) Refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	v.RefreshMembers(ctx)
}

// View implements api.Cluster.
func (v clusterView) View() wire.Cluster {
	s := v.Status()
	leader, _, _ := strings.Cut(s.LeaderID, "/") // Raft's id has the incarnation behind it
	out := wire.Cluster{ClusterID: s.ClusterID, NodeID: s.NodeID, LeaderID: leader, Term: s.Term}
	for _, m := range v.Members() {
		n := wire.Node{
			ID: m.ID, RaftAddr: m.RaftAddr, HTTPAddr: m.HTTPAddr, Voter: m.Votes, Leader: m.Leader,
			AppliedIndex: m.AppliedIndex, LogHead: m.LogHead,
		}
		if !m.Seen.IsZero() {
			age := time.Since(m.Seen)
			ms := age.Milliseconds()
			n.Reachable, n.AgeMS = age < reachableFor, &ms
		}
		if m.LogHead > 0 {
			n.ChainHash = hex.EncodeToString(m.Chain[:])
		}
		out.Nodes = append(out.Nodes, n)
	}
	slices.SortFunc(out.Nodes, func(a, b wire.Node) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Add implements api.Cluster.
func (v clusterView) Add(ctx context.Context, n wire.Node) error {
	return v.AddMember(ctx, raft.Member{ID: n.ID, RaftAddr: n.RaftAddr, HTTPAddr: n.HTTPAddr, Voter: n.Voter})
}

// Remove implements api.Cluster.
func (v clusterView) Remove(ctx context.Context, id string, force bool) error {
	return v.RemoveMember(ctx, id, force)
}

// Transfer implements api.Cluster.
func (v clusterView) Transfer(ctx context.Context, to string) error {
	return v.TransferLeadership(ctx, to)
}

// Snapshot implements api.Cluster.
func (v clusterView) Snapshot(ctx context.Context) (map[string]uint64, error) {
	return v.SnapshotAll(ctx)
}

// answerOthers answers their questions.
func (e *engine) answerOthers() {
	e.peers.Handle(api.AskOperations, func(_ context.Context, _ peer.Identity, body []byte) ([]byte, error) {
		return e.api.LocalOperations(body), nil
	})
	e.peers.Handle(api.AskWaiters, func(_ context.Context, _ peer.Identity, body []byte) ([]byte, error) {
		return e.api.LocalWaiters(body), nil
	})
	e.replica.HandleMembers(api.AskPush, e.api.PushHere)
}
