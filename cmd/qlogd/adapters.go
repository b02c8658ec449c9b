package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/push"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/webhook"
)

// reachableFor is how long a member counts as reachable after its last answer.
const reachableFor = time.Second

// clusterView is the replica's membership in the api's words.
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
	leader, _, _ := strings.Cut(s.LeaderID, "/") // Raft's id is followed by the incarnation
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

// pushActor is the actor, in events, of the cluster's own deliveries.
const pushActor = "push"

// newPush returns the engine that delivers for queues with push. It leases and settles through the
// api, which must be there before it is started.
func (e *engine) newPush(n *node, registry *prometheus.Registry) *push.Engine {
	d := push.Deps{
		Leads: e.replica.Leader, Barrier: e.replica.Barrier, Queues: e.machine.Queues,
		Lease: func(ctx context.Context, lease *event.Lease, wait time.Duration) ([]event.LeasedMessage, error) {
			return e.api.LeaseHere(ctx, &event.Command{Actor: pushActor, Lease: lease}, wait)
		},
		Settle: func(ctx context.Context, item event.SettleItem, to string, answer *wire.NewMessage) (event.Settled, error) {
			return e.api.SettleHere(ctx, pushActor, item, to, answer)
		},
		Content: func(ref event.Ref) (*event.Content, error) {
			c, err := e.log.Content(ref)
			if errors.Is(err, log.ErrErased) {
				return nil, nil
			}
			return c, err
		},
		Now: e.replica.Clock, Secrets: pushSecrets(n.hooked),
		Client: n.egress, MaxPayload: e.c.MaxPayloadBytes, Worker: "push@" + e.card.NodeID,
		Registry: registry, Logger: e.logger,
	}
	if e.card.PushOff() {
		d.Off = "this data directory continues a copy of the past (qlogd replay --into): " +
			"push_off in its node.json says whether it delivers"
	}
	return push.New(d)
}

// pushSecrets finds secrets where webhooks have theirs.
func pushSecrets(hooked *webhook.Secrets) func(env, files []string) (secrets, missing []string) {
	return func(env, files []string) (secrets, missing []string) {
		where := &wire.VerifyHMAC{SecretEnv: env, SecretFile: files}
		secrets, err := hooked.Of(where)
		if err != nil {
			return nil, hooked.Missing(where)
		}
		return secrets, nil
	}
}
