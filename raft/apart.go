package raft

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"
)

// apart are the voters whose event log is another one than this node's. Marks
// compare the state of nodes that execute the same entries (agree.go); this
// compares the logs of any two, also where one is far ahead of the other: each
// second, at the head of the one that is behind.
type apart struct {
	mu   sync.Mutex
	of   map[hraft.ServerID]string
	told minutely
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
	a := &r.apart
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
