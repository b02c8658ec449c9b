package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/raft/peer"
)

// A data directory that was put back from an old copy has forgotten what it
// promised since: entries that it acknowledged, votes, terms. If it voted, or
// acknowledged to a leader that others have replaced, committed entries could
// be lost. It cannot know that itself; but each promise was made to somebody,
// who remembers it (evidence). So after a start a node takes no part in Raft
// (it is held: it neither votes nor stands, and takes no entries, which would
// change what it is judged by) until enough of the others have looked and do
// not object (I16).

// promise is what a server is known to have promised to this node.
type promise struct {
	// AckTerm and AckIndex: the newest entry that it acknowledged to this node
	// as the leader of that term, or sent to this node as such.
	AckTerm  uint64 `json:"ack_term,omitempty"`
	AckIndex uint64 `json:"ack_index,omitempty"`
	VoteTerm uint64 `json:"vote_term,omitempty"` // the newest in which it voted for this node, or stood
	// Commit: it has told that its log is committed up to there, or that it has
	// applied it.
	Commit uint64 `json:"commit,omitempty"`
}

// broken says how a log that ends at last, in a store of that term, breaks the
// promise; "" if it does not. Within a term a log never becomes shorter.
func (p promise) broken(term, last uint64) string {
	switch {
	case term < p.VoteTerm:
		return fmt.Sprintf("it has voted in term %d, and now knows only term %d", p.VoteTerm, term)
	case term < p.AckTerm:
		return fmt.Sprintf("it has acknowledged entries of term %d, and now knows only term %d", p.AckTerm, term)
	case last < p.Commit:
		return fmt.Sprintf("it has told that entry %d is committed, and its log now ends at %d", p.Commit, last)
	case term == p.AckTerm && last < p.AckIndex:
		return fmt.Sprintf("it has acknowledged entry %d of term %d, and its log now ends at %d", p.AckIndex, p.AckTerm, last)
	}
	return ""
}

// keyEvidence is in the store of terms and votes.
const keyEvidence = "Evidence"

// evidence is what the other servers have promised to this node. Votes are on
// disk before they count, acknowledgements within a second.
type evidence struct {
	votes *votes

	writing sync.Mutex // held over a write, so that none overtakes another
	mu      sync.Mutex
	of      map[hraft.ServerID]promise
	dirty   bool
}

func openEvidence(v *votes) (*evidence, error) {
	e := &evidence{votes: v, of: map[hraft.ServerID]promise{}}
	b, err := v.get(keyEvidence)
	if err == nil {
		err = json.Unmarshal(b, &e.of)
	}
	if errors.Is(err, errNotFound) {
		err = nil
	}
	return e, err
}

func (e *evidence) acked(id hraft.ServerID, term, index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.of[id]
	if term > p.AckTerm || term == p.AckTerm && index > p.AckIndex {
		p.AckTerm, p.AckIndex = term, index
		e.of[id], e.dirty = p, true
	}
}

// toldCommit notes how far a server has told that its log is committed.
func (e *evidence) toldCommit(id hraft.ServerID, index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.of[id]; index > p.Commit {
		p.Commit = index
		e.of[id], e.dirty = p, true
	}
}

func (e *evidence) voted(id hraft.ServerID, term uint64) error {
	e.mu.Lock()
	if p := e.of[id]; term > p.VoteTerm {
		p.VoteTerm = term
		e.of[id], e.dirty = p, true
	}
	e.mu.Unlock()
	// Also where it is known: who noted it may be writing it still, or have failed.
	return e.flush()
}

func (e *evidence) get(id hraft.ServerID) promise {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[id]
}

// forget drops what is known of servers that are none any more: a server id
// never comes back.
func (e *evidence) forget(keep map[hraft.ServerID]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.of {
		if !keep[id] {
			delete(e.of, id)
			e.dirty = true
		}
	}
}

// flush makes it durable.
func (e *evidence) flush() error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.mu.Lock()
	if !e.dirty {
		e.mu.Unlock()
		return nil
	}
	e.dirty = false
	b, err := json.Marshal(e.of)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err := e.votes.remember(keyEvidence, b); err != nil {
		e.mu.Lock()
		e.dirty = true // it is still to be written
		e.mu.Unlock()
		return err
	}
	return nil
}

// remember stores something else beside terms and votes. Like those, what is
// not known to be on disk ends this replica.
func (v *votes) remember(key string, value []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.kv.Set([]byte(key), seal(key, value))
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	return nil
}

// keepEvidence writes acknowledgements down, at most once a second.
func (r *Replica) keepEvidence() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-r.run.stop:
			return // end flushes once more
		}
		if err := r.rollback.evidence.flush(); err != nil {
			r.fatal(err)
			return
		}
	}
}

// vouched tells whether this node takes part in Raft.
func (r *Replica) vouched() bool { return r.run.started.Load() && r.rollback.free.Load() }

const rpcVouch = "raft.vouch"

// vouchAsk is how a node shows itself.
type vouchAsk struct {
	ID          hraft.ServerID `json:"id"`
	Incarnation string         `json:"incarnation"`
	Term        uint64         `json:"term"`
	Last        uint64         `json:"last"` // index of its newest entry, or of its newest snapshot
}

// vouchAnswer says why not, if not.
type vouchAnswer struct {
	Objection string        `json:"objection,omitempty"`
	Known     configuration `json:"known"`
}

// vouchFor answers another node. It does so from the first moment on, whether
// this node is vouched for itself or not: what is on its disk is true.
func (r *Replica) vouchFor(_ context.Context, from peer.Identity, body []byte) ([]byte, error) {
	var ask vouchAsk
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, err
	}
	if ask.ID != serverID(from.Node, from.Incarnation) && ask.ID != serverID(from.Node, "") {
		return nil, fmt.Errorf("node %s asks for %s", from.Node, ask.ID)
	}
	a := vouchAnswer{Known: r.known(), Objection: r.rollback.evidence.get(ask.ID).broken(ask.Term, ask.Last)}
	if a.Objection != "" {
		r.o.Logger.Warn("a node has come back with an older data directory", "node", from.Node, "incarnation", from.Incarnation, "why", a.Objection)
	}
	return json.Marshal(a)
}

// beVouched asks the others, until enough do not object. Each is asked at least
// once, and given a second. Where they are not found, this node's contacts are
// asked too: the only configuration that it knows may be that of a checkpoint
// which it fetched, from before the others had the addresses that they have now.
func (r *Replica) beVouched(ask vouchAsk) {
	know := r.known()
	fine := map[hraft.ServerID]bool{}
	var elsewhere []Member
	for {
		others, _ := know.jury(r.id)
		if len(others) == 0 {
			break
		}
		answers := r.askJury(append(others, elsewhere...), fine, ask)
		for _, a := range answers {
			if a.Objection != "" {
				r.out(WentBack, a.Objection)
				return
			}
			// Others may have been replaced while this node was away.
			if a.Known.Index > know.Index {
				know = a.Known
			}
		}
		if why := r.replaced(know); why != "" {
			r.out(WentBack, why)
			return
		}
		others, need := know.jury(r.id)
		n := 0
		for _, m := range others {
			if fine[m.serverID()] {
				n++
			}
		}
		if n >= need {
			break
		}
		r.setHolding(fmt.Sprintf("%d of %d other voters have vouched for this node's directory, %d are needed", n, len(others), need))
		elsewhere = r.contactsBut(others)
		select {
		case <-time.After(200 * time.Millisecond):
		case <-r.run.stop:
			return
		}
	}
	r.setHolding("")
	r.rollback.free.Store(true)
}

// askContacts is for a node that is alone as far as its directory knows: nobody
// has to vouch for it, and once Raft runs it leads and acknowledges. Where it is
// told of others it asks them first, each once, whether the cluster has grown
// since the directory's time.
func (r *Replica) askContacts(ask vouchAsk) error {
	know := r.known()
	others, _ := know.jury(r.id)
	if _, in := know.find(r.id); !in || len(others) > 0 || r.o.Net == nil {
		return nil
	}
	for _, a := range r.askJury(r.contactsBut(nil), map[hraft.ServerID]bool{}, ask) {
		if a.Objection != "" {
			return fmt.Errorf("%w: %s", ErrWentBack, a.Objection)
		}
		if more, _ := a.Known.jury(r.id); len(more) > 0 && a.Known.Index > ask.Last {
			return fmt.Errorf("%w: it knows itself alone, and there are others since entry %d", ErrWentBack, a.Known.Index)
		}
	}
	return nil
}

// contactsBut returns the contacts, of which only the address is known, but for
// those where one of the members is.
func (r *Replica) contactsBut(members []Member) (out []Member) {
	for _, addr := range r.o.Contacts {
		if addr != r.o.self().RaftAddr && !slices.ContainsFunc(members, func(m Member) bool { return m.RaftAddr == addr }) {
			out = append(out, Member{RaftAddr: addr})
		}
	}
	return out
}

// askJury asks those who have not answered yet, all at once. It notes in fine who
// they are that do not object: of a contact that is known only then.
func (r *Replica) askJury(others []Member, fine map[hraft.ServerID]bool, ask vouchAsk) []vouchAnswer {
	body, err := json.Marshal(ask)
	if err != nil {
		return nil
	}
	type answered struct {
		id hraft.ServerID
		a  vouchAnswer
	}
	ctx, cancel := r.within(time.Second)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var got []answered
	for _, m := range others {
		if fine[m.serverID()] {
			continue
		}
		wg.Go(func() {
			to := m.target()
			to.Incarnation = "" // who was replaced can still tell by whom
			b, from, err := r.o.Net.Call(ctx, to, rpcVouch, body)
			var a vouchAnswer
			if err == nil {
				err = json.Unmarshal(b, &a)
			}
			if err != nil {
				r.o.Logger.Debug("a node did not vouch for this one", "node", m.ID, "error", err)
				return
			}
			id := serverID(from.Node, from.Incarnation)
			for _, o := range others {
				if o.ID == from.Node && o.Incarnation == "" {
					id = o.serverID()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, answered{id, a})
		})
	}
	wg.Wait()
	var out []vouchAnswer
	for _, g := range got {
		fine[g.id] = g.a.Objection == ""
		out = append(out, g.a)
	}
	return out
}

// out tells, once, that this directory is no member any more. From then on the
// replica only waits for its end.
func (r *Replica) out(why Out, detail string) {
	if !r.rollback.outed.CompareAndSwap(0, int32(why)) {
		return
	}
	r.rollback.free.Store(false)
	r.setHolding(why.String() + ": " + detail)
	r.o.Logger.Error("this directory is no member of the cluster any more", "why", why.String(), "detail", detail)
	r.o.OnOut(why)
}

// setHolding keeps why this node takes no part in Raft, for Ready.
func (r *Replica) setHolding(why string) { r.rollback.holding.Store(&why) }

// within is a context that also ends with the replica.
func (r *Replica) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.run.ctx, d)
}
