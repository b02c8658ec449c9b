package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/raft/peer"
)

// Offer is a leader's checkpoint, which this node needs and whose event log it
// lacks.
type Offer struct {
	From peer.Target
	Meta checkpoint.Meta
}

// Offers hold the newest offer until somebody takes it. It is made with room for
// one; Put serves as OnLacking.
type Offers chan Offer

// Put puts an offer in the place of an older one that nobody has taken.
func (o Offers) Put(f Offer) {
	select {
	case <-o:
	default:
	}
	select {
	case o <- f:
	default:
	}
}

// Sources are the nodes from which to fetch what an offer leads up to: those that
// follow before the one that leads, which has enough to do.
func (r *Replica) Sources(o Offer) []peer.Target {
	var out []peer.Target
	for _, m := range r.Members() {
		if t := m.target(); m.Reachable && t != o.From && m.serverID() != r.id && m.LogHead >= o.Meta.HeadIndex {
			out = append(out, t)
		}
	}
	return append(out, o.From)
}

const rpcOffer = "raft.offer"

type offerAsk struct {
	Term uint64          `json:"term"` // of the leader
	Meta checkpoint.Meta `json:"meta"`
}

// What a receiver may answer to an offer.
const (
	offerHave    = "have"    // its Raft log, or a checkpoint of its own, covers it: go on from there
	offerReady   = "ready"   // its event log covers it, its Raft log does not: send the checkpoint
	offerLacking = "lacking" // it is fetching
)

type offerAnswer struct {
	Is   string `json:"is"`
	Term uint64 `json:"term"`
}

// errLacking is why hashicorp/raft may not send a snapshot yet.
var errLacking = errors.New("the other node lacks the event log up to this checkpoint; it fetches that by itself")

// offer stands before each snapshot that hashicorp/raft wants to send. The
// library puts one deadline over stream, restore and answer, while the
// receiver's main loop stands still; so bulk never goes that way (I17): the receiver
// is told, fetches what it lacks in the background, and this call waits for
// that. send says that the library may go on; otherwise resp is the answer.
func (r *Replica) offer(id hraft.ServerID, addr hraft.ServerAddress, args *hraft.InstallSnapshotRequest, resp *hraft.InstallSnapshotResponse) (send bool, err error) {
	for {
		meta, ok := r.stores.snaps.find(args.LastLogIndex, args.LastLogTerm)
		if !ok {
			return false, fmt.Errorf("checkpoint of index %d is gone", args.LastLogIndex)
		}
		a, err := r.askOffer(memberOf(id, addr), offerAsk{Term: args.Term, Meta: meta})
		switch {
		case err != nil:
			r.o.Logger.Debug("a checkpoint could not be offered", "node", id, "error", err)
			if !r.awaitPeer(id, addr, args.Term) {
				return false, err
			}
		case a.Term > args.Term:
			resp.Term = a.Term // hashicorp/raft steps down
			return false, nil
		case a.Is == offerReady:
			return true, nil
		case a.Is == offerHave:
			// What the checkpoint covers is durable there, so this is what the
			// library would hear after it had sent it.
			resp.Term, resp.Success = args.Term, true
			r.rollback.evidence.acked(id, args.Term, args.LastLogIndex)
			return false, nil
		default:
			r.stores.snaps.pin(string(id), meta, time.Now())
		}
		began := time.Now()
		waited := func() bool { return time.Since(began) >= time.Second }
		if !r.replicatesUntil(id, addr, args.Term, waited) {
			return false, errLacking
		}
	}
}

func (r *Replica) askOffer(m Member, ask offerAsk) (a offerAnswer, err error) {
	ctx, cancel := r.within(5 * time.Second)
	defer cancel()
	_, err = r.call(ctx, m.target(), rpcOffer, ask, &a)
	return a, err
}

// takeOffer answers a leader.
func (r *Replica) takeOffer(_ context.Context, from peer.Identity, body []byte) ([]byte, error) {
	var ask offerAsk
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, err
	}
	if !r.admitted() {
		return nil, errHeld
	}
	a := offerAnswer{Term: r.raft.CurrentTerm()}
	if ask.Meta.ClusterID != r.o.ClusterID {
		return nil, fmt.Errorf("checkpoint %s is of cluster %q", ask.Meta.Name(), ask.Meta.ClusterID)
	}
	if ask.Term >= a.Term {
		is, err := r.judgeOffer(ask.Meta)
		if err != nil {
			// One leader's word ends nobody: it may be the one that is wrong.
			// The marks tell by majority (I18).
			if r.lacking.told.due(time.Now()) {
				r.o.Logger.Error("a checkpoint was offered that can't be taken", "from", from.Node, "error", err)
			}
			return nil, err
		}
		if a.Is = is; is == offerLacking {
			r.lacking.set(ask.Meta.HeadIndex, time.Now())
			r.b.waiters.releaseAll()
			r.o.OnLacking(Offer{
				From: peer.Target{Addr: from.Raft, Node: from.Node, Incarnation: from.Incarnation},
				Meta: ask.Meta,
			})
		} else {
			r.lacking.set(0, time.Time{})
		}
	}
	return json.Marshal(a)
}

// judgeOffer says what this node has of a checkpoint. An error means that its
// log is another one.
func (r *Replica) judgeOffer(meta checkpoint.Meta) (string, error) {
	p := r.fsm.progress()
	if p.head >= meta.HeadIndex {
		chain, known, err := r.chainAt(p, meta.HeadIndex)
		if err != nil {
			return "", err
		}
		if known && chain != meta.Chain {
			return "", fmt.Errorf("%w: at index %d this node's event log has chain %x, the leader's %x", ErrDiverged, meta.HeadIndex, chain, meta.Chain)
		}
	}
	// An entry of the same index and term is the same, and so is all before it.
	var l hraft.Log
	if err := r.stores.log.GetLog(meta.Index, &l); err == nil && l.Term == meta.Term {
		return offerHave, nil
	}
	if newest, ok := r.stores.snaps.newest(); ok && newest.Index >= meta.Index {
		return offerHave, nil
	}
	switch {
	case p.head < meta.HeadIndex:
		return offerLacking, nil
	// The library cannot install over a longer log: see transport.refuse. What
	// is fetched, the checkpoint alone, is taken in by a new start of Raft,
	// which empties that log (stores.alignLog).
	case r.raft.LastIndex() > meta.Index:
		return offerLacking, nil
	}
	return offerReady, nil
}

// chainAt returns the event log's chain at an index up to its head, if that is
// known.
func (r *Replica) chainAt(p progress, index uint64) (chain [32]byte, known bool, err error) {
	if index == p.head {
		return p.chain, true, nil
	}
	if c, ok := r.o.Machine.(interface {
		ChainAt(index uint64) (chain [32]byte, known bool, err error)
	}); ok {
		return c.ChainAt(index)
	}
	return chain, false, nil
}

// lack is what a leader's last offer showed to be missing.
type lack struct {
	mu   sync.Mutex
	upTo uint64
	at   time.Time
	told throttle // that an offer can't be taken
}

func (l *lack) set(upTo uint64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.upTo, l.at = upTo, at
}

// now returns up to which index the event log is missing; offers are renewed
// each second while that is so.
func (l *lack) now() (upTo uint64, lacking bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.upTo, l.upTo > 0 && time.Since(l.at) < 10*time.Second
}

// behind tells whether this node lacks a part of the log, and so can't come any
// further before it has fetched that.
func (r *Replica) behind() bool {
	_, lacking := r.lacking.now()
	return lacking
}

// A checkpoint that was offered, and the Raft log behind it, stay while the
// receiver is fetching: or it would be behind again when it is done.
const (
	pinFor = 2 * time.Minute  // after the last renewal
	pinMax = 30 * time.Minute // in all, for one receiver
)

// pinned is what is kept for one receiver.
type pinned struct {
	names        map[string]bool // of the checkpoints that it was offered
	index        uint64          // the lowest of them: it may be at work on that
	first, newly time.Time
}

func (p pinned) holds(now time.Time) bool {
	return now.Sub(p.newly) < pinFor && now.Sub(p.first) < pinMax
}

// pin keeps a checkpoint for a receiver.
func (s *snapshots) pin(who string, meta checkpoint.Meta, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins == nil {
		s.pins = map[string]pinned{}
	}
	p, ok := s.pins[who]
	if !ok || now.Sub(p.newly) >= pinFor { // or a receiver that had ended
		p = pinned{names: map[string]bool{}, index: meta.Index, first: now}
	}
	p.names[meta.Name()], p.newly = true, now
	p.index = min(p.index, meta.Index)
	s.pins[who] = p
}

// unpin lets go of what is kept for some receivers.
func (s *snapshots) unpin(done func(who string) bool) (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for who := range s.pins {
		if done(who) {
			delete(s.pins, who)
			any = true
		}
	}
	return any
}

// pinnedLocked returns the names that are kept, and the lowest index.
func (s *snapshots) pinnedLocked(now time.Time) (names map[string]bool, lowest uint64) {
	names = map[string]bool{}
	for who, p := range s.pins {
		if !p.holds(now) {
			// One that took too long in all is not begun anew by its next
			// renewal: it stays in the map until it is silent.
			if now.Sub(p.newly) >= pinFor {
				delete(s.pins, who)
			}
			continue
		}
		maps.Copy(names, p.names)
		if lowest == 0 || p.index < lowest {
			lowest = p.index
		}
	}
	return names, lowest
}

func (s *snapshots) find(index, term uint64) (checkpoint.Meta, bool) {
	for _, m := range s.metas() {
		if m.Index == index && m.Term == term {
			return m, true
		}
	}
	return checkpoint.Meta{}, false
}
