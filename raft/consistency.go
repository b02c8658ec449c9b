package raft

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
)

// ErrDiverged is why a node ends whose event log or state differs from what a
// majority of the voters has at the same index (I18).
var ErrDiverged = errors.New("this node differs from the majority of the cluster")

// mark is where a node stood after an entry with a Mark.
type mark struct {
	Index  uint64
	Chain  string // of the event log, hex
	Digest string // of the state, hex
}

func (m mark) String() string {
	return fmt.Sprintf("chain %.16s, state %.16s", m.Chain, m.Digest)
}

const (
	keepMarks = 64 // how many a node remembers, of itself and of each other
	tellMarks = 16 // how many it tells
)

// marks are in the order of their indexes.
type marks []mark

func (ms marks) at(index uint64) (mark, bool) {
	i, ok := ms.find(index)
	if !ok {
		return mark{}, false
	}
	return ms[i], true
}

func (ms marks) find(index uint64) (int, bool) {
	return slices.BinarySearchFunc(ms, index, func(m mark, index uint64) int { return cmp.Compare(m.Index, index) })
}

// newest returns the index of the newest; 0 for none.
func (ms marks) newest() uint64 {
	if len(ms) == 0 {
		return 0
	}
	return ms[len(ms)-1].Index
}

// with returns them with others put in: those at the same index take the place.
func (ms marks) with(others []mark) marks {
	out := slices.Clone(ms)
	for _, m := range others {
		if i, ok := out.find(m.Index); ok {
			out[i] = m
		} else {
			out = slices.Insert(out, i, m)
		}
	}
	return out[max(0, len(out)-keepMarks):]
}

// finding is what comparing marks came to. Index is 0 where all that is known
// agrees.
type finding struct {
	index  uint64
	mine   mark
	theirs mark
	who    []hraft.ServerID // who has theirs
	// mustStop: theirs is what a majority of the voters has, and mine is not.
	mustStop bool
	// undecided: voters differ, and no value has a majority.
	undecided bool
	// outliers are voters that differ from the majority, to which this node
	// belongs.
	outliers []hraft.ServerID
}

// compare holds a node's marks against what voters have told, newest first. A
// majority is one of all voters, told or not: what fewer say decides nothing. A
// difference that nobody can decide is of no account below an index at which a
// majority agrees with this node.
func compare(self hraft.ServerID, own marks, voters []hraft.ServerID, told map[hraft.ServerID]marks) finding {
	var found finding
	agreed := false
	for _, mine := range slices.Backward(own) {
		by := map[mark][]hraft.ServerID{}
		for _, v := range voters { // in the configuration's order
			m, ok := told[v].at(mine.Index)
			if v == self {
				m, ok = mine, true
			}
			if ok {
				by[m] = append(by[m], v)
			}
		}
		var others []hraft.ServerID // voters with anything else than mine
		var theirs mark
		for _, v := range voters {
			if m, ok := told[v].at(mine.Index); ok && v != self && m != mine {
				if len(by[m]) > len(voters)/2 {
					return finding{index: mine.Index, mine: mine, theirs: m, who: by[m], mustStop: true}
				}
				others, theirs = append(others, v), m
			}
		}
		switch {
		case agreed || found.undecided:
			// Only a majority against this node would count.
		case len(by[mine]) > len(voters)/2:
			agreed = true
			if len(others) > 0 {
				found = finding{index: mine.Index, mine: mine, theirs: theirs, who: others, outliers: others}
			}
		case len(others) > 0:
			found = finding{index: mine.Index, mine: mine, theirs: theirs, who: others, undecided: true}
		}
	}
	return found
}

func (f finding) String() string {
	names := make([]string, len(f.who))
	for i, id := range f.who {
		names[i] = memberOf(id, "").ID
	}
	return fmt.Sprintf("at index %d it has %s; %s: %s", f.index, f.mine, strings.Join(names, ", "), f.theirs)
}

// agreement is what a replica knows of the marks, its own and others'.
type agreement struct {
	wake chan struct{} // takes one: something to look at

	mu    sync.Mutex
	own   marks
	since time.Time // when the newest of its own was noted
	told  map[hraft.ServerID]marks
	found finding // of the last comparison
}

func newAgreement() *agreement {
	return &agreement{wake: make(chan struct{}, 1), told: map[hraft.ServerID]marks{}, since: time.Now()}
}

func (a *agreement) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// note is told by the FSM where the node stands after an entry with a Mark that
// it has just executed. Of entries that it skipped it knows nothing.
func (a *agreement) note(index uint64, chain [32]byte, digest [16]byte) {
	a.mu.Lock()
	a.own = a.own.with([]mark{{index, hex.EncodeToString(chain[:]), hex.EncodeToString(digest[:])}})
	a.since = time.Now()
	a.mu.Unlock()
	a.signal()
}

// tell returns what is told to others (raft.status).
func (a *agreement) tell() []mark {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.own[max(0, len(a.own)-tellMarks):])
}

// undecided returns why this node is not ready for what the marks say; "" if it
// is.
func (a *agreement) undecided() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.found.undecided {
		return ""
	}
	return "nodes differ, and no majority says which is right: " + a.found.String()
}

// hear takes what others have told and compares. Members that are gone are
// forgotten.
func (a *agreement) hear(self hraft.ServerID, voters []hraft.ServerID, others []peerView) finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := make(map[hraft.ServerID]marks, len(others))
	for i := range others {
		id := others[i].serverID()
		said := others[i].Status.Marks
		told[id] = a.told[id].with(said[:min(len(said), tellMarks)])
	}
	a.told = told
	a.found = compare(self, a.own, voters, told)
	return a.found
}

// toldEvery is how often a difference that lasts is logged.
const toldEvery = time.Minute

// agree compares this node with the others, and, where it leads, proposes marks
// and upgrades, until stop is closed.
func (r *Replica) agree() {
	// The tick is for marks; what others tell comes by a signal.
	tick := time.NewTicker(max(r.o.MarkInterval/10, time.Millisecond))
	defer tick.Stop()
	var (
		last  time.Time   // a difference was logged
		done  chan answer // of the command that this loop has proposed; nil none
		asked = map[hraft.ServerID]uint64{}
	)
	for {
		select {
		case <-r.consistency.agreement.wake:
		case <-tick.C:
		case <-done:
			done = nil // whatever became of it: the log tells
		case <-r.run.failed:
			return
		case <-r.run.stop:
			return
		}
		others := r.remotes()
		f := r.consistency.agreement.hear(r.id, r.voters(), others)
		r.o.Metrics.Gauge("raft_diverged", float64(len(f.who)))
		newest, _ := r.consistency.agreement.newest()
		r.o.Metrics.Gauge("raft_mark_index", float64(newest))
		switch {
		case f.mustStop:
			r.fatal(fmt.Errorf("%w: %v", ErrDiverged, f))
			return
		case f.index == 0:
			last = time.Time{}
		case time.Since(last) >= toldEvery:
			last = time.Now()
			if f.undecided {
				r.o.Logger.Error("nodes differ, and no majority says which is right", "found", f.String())
			} else {
				r.o.Logger.Error("another node differs from the majority, and is expected to stop", "found", f.String())
			}
		}
		if done != nil {
			continue
		}
		if c := r.agreed(others, asked); c != nil {
			d := newPending(c)
			if refused := r.b.enqueue(d); refused == nil {
				done = d.done
			}
		}
	}
}

// agreed returns the upgrade or the mark that the leader is to propose now, or
// nil.
func (r *Replica) agreed(others []peerView, asked map[hraft.ServerID]uint64) *event.Command {
	if l := r.b.leading(); !l.ready() || l.closing {
		return nil
	}
	if c := r.upgrade(); c != nil {
		return c
	}
	if len(others) == 0 {
		return nil // there is nobody to compare with
	}
	p := r.fsm.progress()
	newest, age := r.consistency.agreement.newest()
	lacks := lacksMark(newest, others, asked)
	if lacks || p.unmarked >= r.o.MarkEntries || p.unmarked > 0 && age >= r.o.MarkInterval {
		return &event.Command{Mark: &event.Mark{}}
	}
	return nil
}

func (a *agreement) newest() (index uint64, age time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.own.newest(), time.Since(a.since)
}

// lacksMark tells whether a member has come by the newest mark's index without
// executing it: it was restarted, or took a snapshot. It would not be compared
// until something happens, so it gets a mark at once, but one only: asked says
// what each was at when it got its own.
func lacksMark(newest uint64, others []peerView, asked map[hraft.ServerID]uint64) (lacks bool) {
	for i := range others {
		p, id := &others[i], others[i].serverID()
		at := marks(p.Status.Marks).newest()
		was, ok := asked[id]
		switch {
		case !p.Reachable || p.Status.Head < newest:
		case at >= newest:
			delete(asked, id)
		case !ok || was != at:
			asked[id] = at
			lacks = true
		}
	}
	return lacks
}

func (r *Replica) voters() (ids []hraft.ServerID) {
	for _, s := range r.servers() {
		if s.Suffrage == hraft.Voter {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// digestOf finds the state's digest in an entry's answers: one of its commands
// was a Mark.
func digestOf(results []event.Result) (digest [16]byte, ok bool) {
	for i := range results {
		if d := results[i].Digest; d != [16]byte{} {
			return d, true
		}
	}
	return digest, false
}

// apart are the voters whose event log is another one than this node's. Marks
// compare the state of nodes that execute the same entries (agree.go); this
// compares the logs of any two, also where one is far ahead of the other: each
// second, at the head of the one that is behind.
type apart struct {
	mu   sync.Mutex
	of   map[hraft.ServerID]string
	told throttle
}

// compareLogs holds a status against this node's event log (I18).
func (r *Replica) compareLogs(s peerStatus) {
	p := r.fsm.progress()
	if s.Head == 0 || s.Head > p.head {
		return // that node looks
	}
	chain, known, err := r.chainAt(p, s.Head)
	if err != nil || !known {
		return // let go of by retention, or not to be read now
	}
	a := &r.consistency.apart
	a.mu.Lock()
	defer a.mu.Unlock()
	if chain == s.Chain {
		delete(a.of, s.ID)
		return
	}
	if a.of == nil {
		a.of = map[hraft.ServerID]string{}
	}
	a.of[s.ID] = fmt.Sprintf("at index %d the event log here has chain %x, that of %s %x", s.Head, chain[:8], memberOf(s.ID, "").ID, s.Chain[:8])
	voters := 0
	var differ []string
	for _, v := range r.servers() {
		if v.Suffrage == hraft.Voter {
			voters++
			if what, ok := a.of[v.ID]; ok && v.ID != r.id {
				differ = append(differ, what)
			}
		}
	}
	slices.Sort(differ)
	what := strings.Join(differ, "; ")
	if len(differ) > voters/2 {
		r.fatal(fmt.Errorf("%w: %s", ErrDiverged, what))
		return
	}
	if len(differ) > 0 && a.told.due(time.Now()) {
		r.o.Logger.Error("event logs differ, and no majority tells which is right", "what", what)
	}
}

// reason says for Ready why this node can't be trusted; "" if it can.
func (a *apart) reason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, what := range a.of {
		return "event logs differ: " + what
	}
	return ""
}
