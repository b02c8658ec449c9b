package raft

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/raft/peer"
)

// A data directory that was restored from an old copy has forgotten what it promised since:
// entries that it acknowledged, votes, terms. If it took part, committed entries could be lost. It
// cannot detect that alone, but each promise was made to another node, which remembers it
// (evidence). So after a start a node takes no part in Raft, and takes no entries, which would
// change what it is compared by, until enough of the others have compared what it shows with what
// it has promised them, and do not object (I16).

// promise is what a server is known to have promised to this node.
type promise struct {
	// AckTerm and AckIndex: the newest entry that it acknowledged to this node as the leader
	// of that term, or sent as such.
	AckTerm  uint64 `json:"ack_term,omitempty"`
	AckIndex uint64 `json:"ack_index,omitempty"`
	// VoteTerm is the newest in which it voted for this node, or stood for election.
	VoteTerm uint64 `json:"vote_term,omitempty"`
	// Commit is the newest index that it reported as committed or applied.
	Commit uint64 `json:"commit,omitempty"`
}

// broken returns how a log that ends at last, in a store of that term, breaks the promise; ""
// if it does not. Within a term a log never becomes shorter.
func (p promise) broken(term, last uint64) string {
	switch {
	case term < p.VoteTerm:
		return fmt.Sprintf("it voted in term %d, and only knows term %d", p.VoteTerm, term)
	case term < p.AckTerm:
		return fmt.Sprintf("it acknowledged term %d, and only knows term %d", p.AckTerm, term)
	case last < p.Commit:
		return fmt.Sprintf("it reported entry %d as committed, its log ends at %d", p.Commit, last)
	case term == p.AckTerm && last < p.AckIndex:
		return fmt.Sprintf("it acknowledged entry %d of term %d, its log ends at %d",
			p.AckIndex, p.AckTerm, last)
	}
	return ""
}

// keyEvidence is in the store of terms and votes.
const keyEvidence = "Evidence"

// evidence is what the other servers have promised to this node. Votes are on disk before they
// count, acknowledgements within a second.
type evidence struct {
	votes *votes

	writing sync.Mutex // held over a write, so that none overtakes another
	written []byte     // guarded by writing: what is on disk
	mu      sync.Mutex
	of      map[hraft.ServerID]promise
}

func openEvidence(v *votes) (*evidence, error) {
	e := &evidence{votes: v, of: map[hraft.ServerID]promise{}}
	var err error
	if e.written, err = v.get(keyEvidence); err == nil && e.written != nil {
		err = json.Unmarshal(e.written, &e.of)
	}
	return e, err
}

// note records what goes beyond the promises of a server so far.
func (e *evidence) note(id hraft.ServerID, newer promise) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.of[id]
	if newer.AckTerm > p.AckTerm || newer.AckTerm == p.AckTerm && newer.AckIndex > p.AckIndex {
		p.AckTerm, p.AckIndex = newer.AckTerm, newer.AckIndex
	}
	p.VoteTerm, p.Commit = max(p.VoteTerm, newer.VoteTerm), max(p.Commit, newer.Commit)
	e.of[id] = p
}

// voted returns once a vote is durable, also if another call is still writing it.
func (e *evidence) voted(id hraft.ServerID, term uint64) error {
	e.note(id, promise{VoteTerm: term})
	return e.flush()
}

func (e *evidence) get(id hraft.ServerID) promise {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[id]
}

// forget drops all servers that are no longer members: a server id never returns.
func (e *evidence) forget(members []hraft.Server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.of, func(id hraft.ServerID, _ promise) bool {
		_, in := configuration{Servers: members}.find(id)
		return !in
	})
}

// flush makes the evidence durable. As with terms and votes, a failed write ends the replica.
func (e *evidence) flush() error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	b, err := json.Marshal(e.of) // in the order of the keys
	e.mu.Unlock()
	if err != nil || bytes.Equal(b, e.written) {
		return err
	}
	if err = e.votes.Set([]byte(keyEvidence), b); err == nil {
		e.written = b
	}
	return err
}

// admitted reports whether this node takes part in Raft.
func (r *Replica) admitted() bool {
	return r.run.started.Load() && r.rollback.free.Load() && r.run.dead.Load() == nil
}

// rpcAdmission is answered as rpcStatus is; its name is for the logs and the simulation.
const rpcAdmission = "raft.admission"

// admission is the status with which this node asks to be admitted: what its disk shows.
func (r *Replica) admission() (q peerStatus, err error) {
	q.ID, q.Term, q.Held = r.id, r.stores.votes.current.Load(), true
	q.Last, err = r.stores.log.LastIndex()
	q.Last = max(q.Last, r.stores.snaps.newest().Index)
	return q, err
}

// object returns how a node that is not admitted yet breaks its promises; "": not. This node need
// not be admitted itself: what is on its disk is true.
func (r *Replica) object(s peerStatus) (why string) {
	if s.Held {
		why = r.rollback.evidence.get(s.ID).broken(s.Term, s.Last)
	}
	if m := memberOf(s.ID, ""); why != "" {
		r.o.Logger.Warn("node came back with an older data directory",
			"node", m.ID, "incarnation", m.Incarnation, "why", why)
	}
	return why
}

// seekAdmission asks the other voters until enough do not object, each at least once.
func (r *Replica) seekAdmission(q peerStatus) {
	know, fine := r.known(), map[hraft.ServerID]bool{}
	for {
		if err := r.askAdmission(q, &know, fine); err != nil {
			r.fatal(err)
			return
		}
		voters, need := know.otherVoters(r.id)
		n := 0
		for _, m := range voters {
			if fine[m.serverID()] {
				n++
			}
		}
		if n >= need {
			r.rollback.free.Store(true)
			return
		}
		why := fmt.Sprintf("%d of %d other voters have checked this node's directory, "+
			"%d are needed", n, len(voters), need)
		r.rollback.holding.Store(&why)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-r.run.stop:
			return
		}
	}
}

// askAdmission asks all at once the other voters that are not known to be fine, and this node's
// contacts: the only configuration that it knows may be that of a checkpoint that it fetched, from
// before the others had their present addresses. It notes which servers do not object, and the
// newest configuration that one of them knows. The error is ErrRolledBack.
func (r *Replica) askAdmission(q peerStatus, know *configuration,
	fine map[hraft.ServerID]bool) error {
	ctx, cancel := r.within(time.Second)
	defer cancel()
	var ask []peer.Target
	voters, _ := know.otherVoters(r.id)
	for _, m := range voters {
		if !fine[m.serverID()] {
			// A node that was replaced can still report by whom.
			ask = append(ask, peer.Target{Addr: m.RaftAddr, Node: m.ID})
		}
	}
	for _, addr := range r.o.Contacts {
		if addr != r.o.self().RaftAddr {
			ask = append(ask, peer.Target{Addr: addr})
		}
	}
	for _, a := range callEach[peerStatus](ctx, r.o.Net, ask, rpcAdmission, q) {
		if a.err != nil {
			r.o.Logger.Debug("admission check failed", "addr", a.to.Addr, "error", a.err)
			continue
		}
		if a.answer.Objection != "" {
			return fmt.Errorf("%w: %s", ErrRolledBack, a.answer.Objection)
		}
		fine[serverID(a.from.Node, a.from.Incarnation)] = true
		// Others may have been replaced while this node was away.
		if a.answer.Known.Index > know.Index {
			*know = a.answer.Known
		}
	}
	if why := r.replaced(*know); why != "" {
		return fmt.Errorf("%w: %s", ErrRolledBack, why)
	}
	if more, _ := know.otherVoters(r.id); len(voters) == 0 && len(more) > 0 && know.Index > q.Last {
		return fmt.Errorf("%w: it is alone in its cluster, which has others since entry %d",
			ErrRolledBack, know.Index)
	}
	return nil
}

// ErrRemoved is why a directory is no member of its cluster any more: the configuration no
// longer has it.
var ErrRemoved = errors.New("removed from the cluster")

// within is a context that also ends with the replica.
func (r *Replica) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.run.ctx, d)
}
