package forming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/raft/peer"
)

// The calls. state is asked by whoever decides and answered for life; the other
// two matter while a cluster is formed.
const (
	callState  = "forming.state"
	callPledge = "forming.pledge"
	callFormed = "forming.formed"
)

// state is the answer to forming.state. Who answers is in the handshake.
type state struct {
	Cluster string   `json:"cluster,omitempty"` // "" fresh
	Expect  int      `json:"expect,omitempty"`  // of a fresh one
	Initial []Member `json:"initial,omitempty"` // the first configuration, if it has it
}

// proposal is what forming.pledge asks for.
type proposal struct {
	Cluster string   `json:"cluster"`
	Initial []Member `json:"initial"`
}

// seat is a node's part in the deciding: what it has promised and what it
// answers.
type seat struct {
	o    Options
	news chan struct{} // something happened that makes it worth asking again

	mu sync.Mutex
	// view is what the last round has seen: all that are expected, or nil.
	view []Member
	// held is the one promise, to whom it was given, and until when. It is
	// the node's own while mine.
	held  proposal
	to    string
	until time.Time
	mine  bool
	given uint64 // pledges to others, ever
	// final is set before Save is called. Invariant: nothing is promised any
	// more from then on, also where Save has failed.
	final  bool
	result *Result
	asked  map[string]bool // incarnations that have asked
	// invite is the newest invitation, by whom, until it is followed.
	invite *peer.Identity
}

func newSeat(o Options) *seat {
	return &seat{o: o, news: make(chan struct{}, 1), asked: map[string]bool{}}
}

// serve begins to answer the others.
func (s *seat) serve() {
	s.o.Net.Handle(callState, s.tell)
	s.o.Net.Handle(callPledge, s.pledge)
	s.o.Net.Handle(peer.CallInvite, s.hear)
	s.o.Net.Handle(callFormed, func(context.Context, peer.Identity, []byte) ([]byte, error) {
		s.wake()
		return nil, nil
	})
}

// retire ends that, where nothing was decided.
func (s *seat) retire() {
	for _, name := range []string{callState, callPledge, callFormed, peer.CallInvite} {
		s.o.Net.Handle(name, nil)
	}
}

func (s *seat) wake() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// maxAsked bounds the memory that strangers can take.
const maxAsked = 1024

// tell answers forming.state. Who asks for the first time has just come up, so
// it is worth asking it too.
func (s *seat) tell(_ context.Context, from peer.Identity, _ []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.result != nil {
		return json.Marshal(state{Cluster: s.result.Cluster, Initial: s.result.Initial})
	}
	if !s.asked[from.Incarnation] && len(s.asked) < maxAsked && from.Incarnation != s.o.Net.Self().Incarnation {
		s.asked[from.Incarnation] = true
		s.wake()
	}
	return json.Marshal(state{Expect: s.o.Expect})
}

// pledge answers forming.pledge: nil is a promise to pledge to nobody else for
// pledgeTime.
func (s *seat) pledge(_ context.Context, from peer.Identity, body []byte) ([]byte, error) {
	var p proposal
	if err := json.Unmarshal(body, &p); err != nil || p.Cluster == "" || len(p.Initial) == 0 {
		return nil, &peer.Error{Code: "invalid", Detail: "not a proposal"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	no := func(format string, args ...any) ([]byte, error) {
		return nil, &peer.Error{Code: "no_pledge", Detail: fmt.Sprintf(format, args...)}
	}
	switch first := p.Initial[0]; {
	case s.result != nil:
		return no("it belongs to cluster %s", s.result.Cluster)
	case s.final:
		return no("it is deciding something else")
	case first.ID != from.Node || first.Incarnation != from.Incarnation:
		return no("%s is not the first of those it proposes", from.Node)
	case !slices.Equal(p.Initial, s.view):
		// Perhaps it only has not looked since; then it says yes next time.
		s.wake()
		return no("it does not see the same %d nodes yet", len(p.Initial))
	case s.busy() && s.to != from.Incarnation:
		return no("it is pledged to another proposal for at most %s", pledgeTime)
	}
	// Another proposal of the same coordinator: it has withdrawn the one before.
	s.held, s.to, s.until = p, from.Incarnation, time.Now().Add(pledgeTime)
	s.given++
	s.wake() // to ask soon what has become of it
	return nil, nil
}

// hear answers peer.CallInvite: nil is that it is followed, or was.
func (s *seat) hear(_ context.Context, from peer.Identity, body []byte) ([]byte, error) {
	if err := peer.TakeInvitation(s.o.Net.Self(), from, body); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.result != nil && s.result.Cluster == from.Cluster:
		return nil, nil
	case s.result != nil:
		return nil, &peer.Error{Code: "not_invited", Detail: "this node belongs to cluster " + s.result.Cluster}
	case s.o.Expect > 1:
		return nil, &peer.Error{Code: "not_invited", Detail: fmt.Sprintf("this node is to form a cluster of %d: start it without bootstrap-expect", s.o.Expect)}
	}
	s.invite = &from
	s.wake()
	return nil, nil
}

// invited takes the newest invitation.
func (s *seat) invited() (by peer.Identity, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.invite == nil {
		return by, false
	}
	by, s.invite = *s.invite, nil
	return by, true
}

// busy reports whether a promise is out. mu is held.
func (s *seat) busy() bool {
	return s.mine || s.held.Cluster != "" && time.Now().Before(s.until)
}

// promise makes p, the node's own proposal, its promise.
func (s *seat) promise(p proposal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy() {
		return false
	}
	s.held, s.to, s.mine = p, "", true
	return true
}

// withdraw ends the node's own proposal: it will never be written.
func (s *seat) withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.mine = proposal{}, false
}

func (s *seat) see(all []Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view = all
}

func (s *seat) pledges() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// begin ends all promising, unless a pledge was given since.
func (s *seat) begin(since uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given != since {
		return false
	}
	s.final = true
	return true
}

// settle makes r durable and then known. The order is the point: nobody hears
// of a cluster that a power cut could undo.
func (s *seat) settle(r Result) error {
	s.mu.Lock()
	s.final = true
	s.mu.Unlock()
	if err := s.o.Save(r); err != nil {
		return fmt.Errorf("write down that this node belongs to cluster %s: %w", r.Cluster, err)
	}
	self := s.o.Net.Self()
	self.Cluster = r.Cluster
	s.o.Net.SetSelf(self)
	s.mu.Lock()
	s.result, s.mine = &r, false
	s.mu.Unlock()
	if r.Formed() {
		s.o.Logger.Info("cluster formed", "cluster", r.Cluster, "nodes", names(r.Initial))
	} else {
		s.o.Logger.Info("cluster found", "cluster", r.Cluster, "at", r.Contacts)
	}
	return nil
}

func (s *seat) decided() *Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// collect asks all others for their pledges at once; nil: every one has given
// it.
func (s *seat) collect(ctx context.Context, p proposal) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	errs := make([]error, len(p.Initial))
	s.each(p.Initial, func(i int, m Member) {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		if _, _, err := s.o.Net.Call(ctx, target(m), callPledge, body); err != nil {
			errs[i] = fmt.Errorf("%s at %s %s", m.ID, m.RaftAddr, reason(err))
		}
	})
	return errors.Join(errs...)
}

// nudge tells the others that there is something to ask for. Who does not hear
// it asks anyway.
func (s *seat) nudge(ctx context.Context, all []Member) {
	s.each(all, func(_ int, m Member) {
		ctx, cancel := context.WithTimeout(ctx, nudgeTime)
		defer cancel()
		_, _, _ = s.o.Net.Call(ctx, target(m), callFormed, nil)
	})
}

// each calls f for every member but this node, beside each other.
func (s *seat) each(all []Member, f func(int, Member)) {
	self := s.o.Net.Self().Incarnation
	var wg sync.WaitGroup
	for i, m := range all {
		if m.Incarnation != self {
			wg.Go(func() { f(i, m) })
		}
	}
	wg.Wait()
}

func target(m Member) peer.Target {
	return peer.Target{Addr: m.RaftAddr, Node: m.ID, Incarnation: m.Incarnation}
}

func names(all []Member) (out []string) {
	for _, m := range all {
		out = append(out, m.ID)
	}
	return out
}
