package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft/peer"
)

// A data directory that was restored from an old copy has forgotten what it promised since:
// entries that it acknowledged, votes, terms. If it took part, committed entries could be lost. It
// cannot detect that alone, but each promise was made to another node, which remembers it
// (evidence). So after a start a node takes no part in Raft, and takes no entries, which would
// change what it is compared by, until enough of the others have compared what it shows with what
// it has promised them, and do not object (I16).
//
// A majority is enough, although a voter that is silent may know of more (settle). Where the
// directory ends before its high-water mark, all others must have answered: it has forgotten
// something, and who remembers may be the one that is silent.

// keyEvidence is in the store of terms and votes.
const keyEvidence = "Evidence"

func openEvidence(v *votes) (*witness.Promises[hraft.ServerID], error) {
	stored, err := v.get(keyEvidence)
	if err != nil {
		return nil, err
	}
	return witness.NewPromises[hraft.ServerID](stored, func(b []byte) error {
		return v.Set([]byte(keyEvidence), b) // as with terms and votes, a failed write ends the replica
	})
}

// admitted reports whether this node may take part in Raft.
func (r *Replica) admitted() bool {
	return r.run.started.Load() && r.rollback.free.Load() && r.run.dead.Load() == nil
}

// rpcAdmission is answered as rpcStatus is; its name is for the logs and the simulation.
const rpcAdmission = "raft.admission"

// ErrOlder is returned if the directory ends before its high-water mark, and no other voter can be
// asked what it has forgotten.
var ErrOlder = errors.New("the data directory ends before its high-water mark")

// admission reads what this node's disk shows, with which it asks to be admitted.
func (r *Replica) admission() (err error) {
	came := &r.rollback.came
	came.ID, came.Term, came.Held = r.id, r.stores.votes.current.Load(), true
	if came.Last, err = r.stores.log.LastIndex(); err != nil {
		return err
	}
	came.Last = max(came.Last, r.stores.snaps.Newest().Index)
	r.rollback.older, err = r.o.Witness.Compare(came.end(), r.o.Logger)
	return err
}

func (s *peerStatus) end() witness.HighWater { return witness.HighWater{Index: s.Last, Term: s.Term} }

// keepHighWater keeps the high-water mark of what this node knows to be committed: that is in its
// own log, and synced.
func (r *Replica) keepHighWater() {
	logged := oncePerMinute()
	r.o.Witness.Keep(r.run.stop, func() witness.HighWater {
		if !r.admitted() {
			return witness.HighWater{} // admit may lower it
		}
		return witness.HighWater{Index: r.raft.CommitIndex(), Term: r.raft.CurrentTerm()}
	}, func(err error) {
		r.o.Metrics.Count("witness_failures", 1)
		logged.Do(func() { r.o.Logger.Warn("high-water mark was not written", "error", err) })
	})
}

// object returns how a node that is not admitted yet breaks its promises; "": not at all. This node
// need not be admitted itself: its own records are valid.
func (r *Replica) object(s peerStatus) (why string) {
	if s.Held {
		why = r.rollback.evidence.Get(s.ID).Broken(s.Term, s.Last)
	}
	if m := memberOf(s.ID, ""); why != "" {
		r.rollback.replaced.CompareAndSwap(0, s.Last+1)
		r.o.Logger.Warn("node came back with an older data directory",
			"node", m.ID, "incarnation", m.Incarnation, "why", why)
	}
	return why
}

const admissionEvery = 200 * time.Millisecond

// seekAdmission asks the other voters until enough do not object, each at least once.
func (r *Replica) seekAdmission() {
	know, heard, enough := r.known(), map[hraft.ServerID]uint64{}, false
	for {
		round := time.Now()
		if err := r.askAdmission(&know, heard); err != nil {
			r.fatal(err)
			return
		}
		voters, need := know.otherVoters(r.id)
		silent := slices.DeleteFunc(slices.Clone(voters), func(m Member) bool {
			_, has := heard[m.serverID()]
			return has
		})
		n, older := len(voters)-len(silent), r.rollback.older
		if older != "" {
			need, older = len(voters), older+"; "
		}
		// One more round for those that start at the same time, unless they had time in this one.
		if len(silent) == 0 || n >= need && (enough || time.Since(round) >= admissionEvery) {
			if err := r.admit(know, silent, heard); err != nil {
				r.fatal(err)
			}
			return
		}
		enough = n >= need
		why := fmt.Sprintf("%s%d of %d other voters have checked this node's directory, "+
			"%d are needed", older, n, len(voters), need)
		r.rollback.holding.Store(&why)
		select {
		case <-time.After(admissionEvery):
		case <-r.run.stop:
			return
		}
	}
}

// admit lets this node take part in Raft. silent are the voters that have not answered, heard has
// the index at which the log of each other ends.
func (r *Replica) admit(know configuration, silent []Member,
	heard map[hraft.ServerID]uint64) error {
	if r.rollback.older != "" {
		if err := r.o.Witness.Set(r.rollback.came.end()); err != nil {
			return err
		}
		r.o.Logger.Info("all other voters have checked this older directory, its mark is lowered")
	}
	// A server that is in no configuration has promised nothing.
	if _, in := know.find(r.id); in && len(silent) > 0 {
		for _, m := range silent {
			r.rollback.silent.Add(m.serverID())
		}
		var others []string
		for id, last := range heard {
			others = append(others, fmt.Sprintf("%s: %d", memberOf(id, "").ID, last))
		}
		slices.Sort(others)
		r.o.Logger.Warn("admitted while voters were silent: if this directory is an old copy, "+
			"what only they have may be lost", "silent", r.unconfirmed(),
			"last", r.rollback.came.Last, "last_of_others", others)
	}
	r.rollback.free.Store(true)
	return nil
}

// unconfirmed returns the nodes of the voters that have not confirmed this one's directory.
func (r *Replica) unconfirmed() (nodes []string) {
	for _, id := range r.rollback.silent.IDs() {
		nodes = append(nodes, memberOf(id, "").ID)
	}
	return nodes
}

// settle takes the answer of a voter that may have been silent. An objection comes too late to
// keep this node out: what it has acknowledged since is in the majority's history, and without it
// there may be no majority. So it continues, and logs what may be lost.
func (r *Replica) settle(m MemberStatus, objection string) {
	switch {
	case !r.rollback.silent.Answer(m.serverID(), objection):
	case objection == "":
		r.o.Logger.Info("voter that was silent confirms this node's directory", "voter", m.ID)
	default:
		r.o.Logger.Error("this node was admitted with an older data directory: entries that were "+
			"acknowledged may be lost", "voter", m.ID, "why", objection)
	}
}

// askAdmission asks all at once the other voters that have not answered, and this node's contacts:
// the only configuration that it knows may be that of a checkpoint that it fetched, from before the
// others had their present addresses. It notes which servers do not object, with the ends of their
// logs, and the newest configuration that one of them knows. The error is ErrRolledBack.
func (r *Replica) askAdmission(know *configuration, heard map[hraft.ServerID]uint64) error {
	ctx, cancel := r.within(time.Second)
	defer cancel()
	var ask []peer.Target
	voters, _ := know.otherVoters(r.id)
	for _, m := range voters {
		if _, has := heard[m.serverID()]; !has {
			// A node that was replaced can still report by whom.
			ask = append(ask, peer.Target{Addr: m.RaftAddr, Node: m.ID})
		}
	}
	for _, addr := range r.o.Contacts {
		if addr != r.o.self().RaftAddr {
			ask = append(ask, peer.Target{Addr: addr})
		}
	}
	for _, a := range callEach[peerStatus](ctx, r.o.Net, ask, rpcAdmission, r.rollback.came) {
		if a.err != nil {
			r.o.Logger.Debug("admission check failed", "addr", a.to.Addr, "error", a.err)
			continue
		}
		if a.answer.Objection != "" {
			return fmt.Errorf("%w: %s", ErrRolledBack, a.answer.Objection)
		}
		heard[serverID(a.from.Node, a.from.Incarnation)] = a.answer.Last
		// Others may have been replaced while this node was away.
		if a.answer.Known.Index > know.Index {
			*know = a.answer.Known
		}
	}
	return r.outdated(*know, false, r.rollback.came.Last, len(voters) == 0)
}

// ErrRemoved is why a directory is no member of its cluster any more: the configuration no
// longer has it.
var ErrRemoved = errors.New("removed from the cluster")

// within is a context that also ends with the replica.
func (r *Replica) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.run.ctx, d)
}
