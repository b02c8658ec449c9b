package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft/peer"
)

// Offer is a leader's checkpoint, which this node needs.
type Offer struct {
	From peer.Target
	Meta checkpoint.Meta
	at   time.Time
}

// Offers returns a channel that receives a value when there is a new Offer.
func (r *Replica) Offers() <-chan struct{} { return r.offers }

// Offer returns the newest offer, nil if this node lacks nothing.
func (r *Replica) Offer() *Offer { return r.lacking.Load() }

// Sources returns the nodes from which the segments before an offer's checkpoint can be
// fetched: followers first, and last the leader, which has enough to do.
func (r *Replica) Sources(o *Offer) []peer.Target {
	followers := slices.DeleteFunc(r.Holders(o.Meta.HeadIndex),
		func(t peer.Target) bool { return t == o.From })
	return append(followers, o.From)
}

// Holders returns the other nodes within reach whose event log goes up to an index.
func (r *Replica) Holders(index uint64) (out []peer.Target) {
	for _, m := range r.remotes() {
		if m.Reachable && m.Status.Head >= index {
			out = append(out, m.target())
		}
	}
	return out
}

const rpcOffer = "raft.offer"

type offerAsk struct {
	Term uint64 `json:"term"` // of the leader
	// Index and LogTerm are of the snapshot that hashicorp/raft wants to send, Meta is the
	// leader's newest checkpoint.
	Index   uint64          `json:"index"`
	LogTerm uint64          `json:"log_term"`
	Meta    checkpoint.Meta `json:"meta"`
}

type offerAnswer struct {
	Have bool   `json:"have"` // its Raft log, or a checkpoint of its own, covers the snapshot
	Term uint64 `json:"term"`
}

// errFetching is returned to hashicorp/raft for a snapshot that is not sent.
var errFetching = errors.New("the other node is fetching the checkpoint")

// While a node fetches, and opens its directory again, the leader writes no checkpoint unless it is
// asked to: with the next but one, the node would lack the beginning of the Raft log that is left,
// and have to fetch again, and so on for ever where that takes longer than two checkpoints.
const (
	holdFor  = 2 * time.Minute  // after the last offer that the node has answered
	holdMost = 30 * time.Minute // after the first one
)

// offer replaces hashicorp/raft's sending of a snapshot, during which the receiver's main loop is
// blocked, under one deadline (I17): it is offered the newest checkpoint, fetches what it lacks in
// the background, and opens its directory again. This call returns when it has done that.
func (r *Replica) offer(id hraft.ServerID, addr hraft.ServerAddress,
	args *hraft.InstallSnapshotRequest, resp *hraft.InstallSnapshotResponse) error {
	for first := time.Now(); ; {
		meta := r.stores.snaps.Newest()
		if meta.Index == 0 {
			return errors.New("there is no checkpoint")
		}
		var a offerAnswer
		ctx, cancel := r.within(5 * time.Second)
		ask := offerAsk{
			Term: args.Term, Index: args.LastLogIndex, LogTerm: args.LastLogTerm, Meta: meta,
		}
		_, err := peer.Ask(ctx, r.o.Net, memberOf(id, addr).target(), rpcOffer, ask, &a)
		cancel()
		switch {
		case err != nil:
			r.o.Logger.Debug("checkpoint could not be offered", "node", id, "error", err)
			if !r.awaitPeer(id, addr, args.Term) {
				return err
			}
		case a.Term > args.Term:
			resp.Term = a.Term // hashicorp/raft steps down
			return nil
		case a.Have:
			// What the snapshot covers is durable there: the response that the library would get
			// after it had sent it.
			resp.Term, resp.Success = args.Term, true
			r.rollback.evidence.Note(id, witness.Promise{AckTerm: args.Term, AckIndex: args.LastLogIndex})
			return nil
		case time.Since(first) < holdMost:
			until := time.Now().Add(holdFor)
			r.holdUntil.Store(&until)
		}
		began := time.Now()
		waited := func() bool { return time.Since(began) >= time.Second }
		if !r.replicatesUntil(id, addr, args.Term, waited) {
			return errFetching
		}
	}
}

// takeOffer answers a leader.
func (r *Replica) takeOffer(_ context.Context, from peer.Identity, ask offerAsk) (
	a offerAnswer, err error) {
	if err := r.apart(serverID(from.Node, from.Incarnation)); err != nil {
		return a, err
	}
	a.Term = r.raft.CurrentTerm()
	if ask.Meta.ClusterID != r.o.ClusterID {
		return a, fmt.Errorf("checkpoint %s is of cluster %q", ask.Meta.Name(), ask.Meta.ClusterID)
	}
	if ask.Term < a.Term {
		return a, nil
	}
	// An entry of the same index and term is the same, and so is all before it.
	var l hraft.Log
	has := r.stores.log.GetLog(ask.Index, &l) == nil && l.Term == ask.LogTerm
	if a.Have = has || r.stores.snaps.Newest().Index >= ask.Index; a.Have {
		r.lacking.Store(nil)
		return a, nil
	}
	leader := peer.Target{Addr: from.Raft, Node: from.Node, Incarnation: from.Incarnation}
	r.lacking.Store(&Offer{From: leader, Meta: ask.Meta, at: time.Now()})
	r.fsm.wake()
	signal(r.offers)
	return a, nil
}

// missing returns up to which index the event log is missing, so that no more entries can be
// applied before it is fetched; 0: it is not. Offers are renewed each second while it is.
func (r *Replica) missing() (upTo uint64) {
	if o := r.lacking.Load(); o != nil && time.Since(o.at) < 10*time.Second {
		return o.Meta.HeadIndex
	}
	return 0
}
