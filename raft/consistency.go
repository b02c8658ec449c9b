package raft

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
)

// ErrDiverged ends a node whose event log or state differs from that of a majority of the
// voters at the same index (I18).
var ErrDiverged = errors.New("this node differs from the majority of the cluster")

// ErrAhead ends a node that has committed entries where the leader, and so a majority, has others:
// the majority may have been admitted with older directories (I16). Acknowledged writes may exist
// only on this node.
var ErrAhead = errors.New("this node has entries that the majority of the cluster lacks")

// mark is a node's log and state after an entry with a Mark.
type mark struct {
	Index  uint64
	Chain  string // of the event log, hex
	Digest string // of the state, hex
}

func (m mark) String() string {
	return fmt.Sprintf("chain %.16s, state %.16s", m.Chain, m.Digest)
}

const (
	keepMarks   = 64
	reportMarks = 16
)

// marks are in the order of their indexes.
type marks []mark

// at returns the mark at an index, the zero mark if there is none.
func (ms marks) at(index uint64) (m mark) {
	for _, m := range ms {
		if m.Index == index {
			return m
		}
	}
	return mark{}
}

// newest returns the index of the newest; 0 for none.
func (ms marks) newest() uint64 {
	if len(ms) == 0 {
		return 0
	}
	return ms[len(ms)-1].Index
}

// finding is the result of a comparison. Index is 0 if all known marks agree.
type finding struct {
	index  uint64
	mine   mark
	theirs mark
	who    []hraft.ServerID // the voters that have theirs
	// mustStop: a majority of the voters has theirs, and this node does not.
	mustStop bool
	// undecided: voters differ, and no value has a majority. If neither is set, this node
	// belongs to the majority.
	undecided bool
}

// compare compares a node's marks with those that voters have reported, newest first. Only a
// majority of all voters, reported or not, decides. A difference that nobody can decide does not
// count below an index at which a majority agrees with this node.
func compare(self hraft.ServerID, own marks, voters []hraft.ServerID,
	reported map[hraft.ServerID]marks) (found finding) {
	half := len(voters) / 2
	settled := false // an older difference does not count unless a majority is against this node
	for _, mine := range slices.Backward(own) {
		by := map[mark][]hraft.ServerID{}
		for _, v := range voters {
			m := reported[v].at(mine.Index)
			if v == self {
				m = mine
			}
			by[m] = append(by[m], v)
		}
		agreed := len(by[mine]) > half
		f := finding{index: mine.Index, mine: mine, undecided: !agreed}
		for _, v := range voters { // in the configuration's order
			switch m := reported[v].at(mine.Index); {
			case m == mine, m == mark{}: // the same, or not reported
			case len(by[m]) > half:
				return finding{index: mine.Index, mine: mine, theirs: m, who: by[m], mustStop: true}
			default:
				f.theirs, f.who = m, append(f.who, v)
			}
		}
		if !settled && len(f.who) > 0 {
			found = f
		}
		settled = settled || agreed || len(f.who) > 0
	}
	return found
}

func (f finding) String() string {
	names := make([]string, len(f.who))
	for i, id := range f.who {
		names[i] = memberOf(id, "").ID
	}
	them := strings.Join(names, ", ")
	return fmt.Sprintf("at index %d it has %s; %s: %s", f.index, f.mine, them, f.theirs)
}

// agreement is what comparing this node's marks with others' has shown.
type agreement struct {
	wake  chan struct{} // of capacity one: there is something to compare
	found atomic.Pointer[finding]
}

// add returns the marks with a new one, without changing what others may read.
func (ms marks) add(m mark) marks {
	return append(ms[max(0, len(ms)-keepMarks+1):len(ms):len(ms)], m)
}

// noMajority is why a node is not ready where a finding is undecided.
const noMajority = "nodes differ, and no majority decides which is right"

// agree asks the others for their status, makes their promises durable, compares this node with
// them and, where it leads, proposes marks and upgrades, until the replica stops.
func (r *Replica) agree() {
	r.askPeers()
	signal(r.agreement.wake) // so that its metrics are there from the start
	status := time.NewTicker(statusEvery)
	defer status.Stop()
	// The tick is for marks; what others report comes by a signal.
	tick := time.NewTicker(max(r.o.MarkInterval/10, time.Millisecond))
	defer tick.Stop()
	logged := oncePerMinute()
	var done chan event.Answer // of the command that this loop has proposed; nil: none
	for {
		select {
		case <-status.C:
			r.askPeers()
			r.agreeOnTime()
			if r.rollback.evidence.Flush() != nil {
				return // the replica has failed
			}
		case <-r.agreement.wake:
		case <-tick.C:
		case <-done:
			done = nil // whatever its outcome: the log shows it
		case <-r.run.stop:
			return
		}
		others, p, replaced := r.remotes(), r.fsm.progress(), r.rollback.replaced.Load()
		reported, forked := map[hraft.ServerID]marks{}, 0
		for _, m := range others {
			reported[m.serverID()] = m.Status.Marks
			if m.forked && m.Votes {
				forked++
			}
		}
		f := compare(r.id, p.marks, r.voters(), reported)
		r.agreement.found.Store(&f)
		r.o.Metrics.Gauge("raft_diverged", float64(len(f.who)))
		r.o.Metrics.Gauge("raft_mark_index", float64(p.marks.newest()))
		r.o.Metrics.Gauge("raft_unconfirmed", float64(len(r.unconfirmed())))
		switch {
		// An old directory may have elected a second leader of a term. To Raft the entries of the
		// two seem to be the same: those of the second may follow here on those of the first.
		case replaced > 0 && (f.mustStop || forked > len(r.voters())/2):
			last := min(p.head, r.rollback.came.Last)
			r.fatal(fmt.Errorf("%w: %d to %d, or some of these", ErrAhead, min(replaced, last), last))
			return
		case f.mustStop:
			r.fatal(fmt.Errorf("%w: %v", ErrDiverged, f))
			return
		case f.index == 0:
			logged = oncePerMinute()
		default:
			text := "another node differs from the majority and is expected to stop"
			if f.undecided {
				text = noMajority
			}
			logged.Do(func() { r.o.Logger.Error(text, "found", f.String()) })
		}
		if done != nil {
			continue
		}
		if c := r.markOrUpgrade(others, p); c != nil {
			d := newPending(c)
			if r.b.enqueue(d); len(d.done) == 0 { // else refused: the next tick tries again
				done = d.done
			}
		}
	}
}

// markOrUpgrade returns the command that the leader must propose now, or nil.
func (r *Replica) markOrUpgrade(others []MemberStatus, p progress) *event.Command {
	if l := r.b.leading(); !l.ready || l.closing {
		return nil
	}
	if c := r.upgrade(others, p.rules); c != nil {
		return c
	}
	if len(others) == 0 {
		return nil // there is none to compare with
	}
	// A member that was restarted, or took a snapshot, has passed the newest mark's index without
	// executing it. It would not be compared until something happens.
	newest := p.marks.newest()
	lacks := func(m MemberStatus) bool {
		return m.Reachable && m.Status.Head >= newest && m.Status.Marks.newest() < newest
	}
	due := p.unmarked > 0 || slices.ContainsFunc(others, lacks)
	if p.unmarked >= r.o.MarkEntries || due && time.Since(p.markedAt) >= r.o.MarkInterval {
		return &event.Command{Mark: &event.Mark{}}
	}
	return nil
}

// digestOf finds the state's digest in an entry's results: one of its commands was a Mark.
func digestOf(results []event.Result) (digest [16]byte, ok bool) {
	for i := range results {
		if d := results[i].Digest; d != [16]byte{} {
			return d, true
		}
	}
	return digest, false
}

// Newer rules of deciding come into force by a committed command, once the binaries
// of all members know them (I19): a cluster is upgraded node by node, and entries
// carry the version that is in force until then.

// upgrade returns the command that brings newer rules into force as soon as this node and all
// other members, voters or not, know them; else nil. One that does not answer may return with
// the binary that it had.
func (r *Replica) upgrade(others []MemberStatus, inForce uint16) *event.Command {
	known := r.o.Rules
	for _, m := range others {
		switch {
		case m.Incarnation == "": // only announced: it has no directory yet
		case !m.Reachable:
			return nil
		default:
			known = min(known, m.Status.Rules)
		}
	}
	if known <= inForce {
		return nil
	}
	return &event.Command{Upgrade: &event.Upgrade{Rules: known}}
}
