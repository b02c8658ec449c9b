package raft

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft/peer"
)

const rpcJoin = "raft.join"

type joinAsk struct {
	Member Member `json:"member"`
}

type joinAnswer struct {
	In      bool           `json:"in,omitempty"`
	Leader  string         `json:"leader,omitempty"` // raft address of whom to ask instead
	Problem *event.Problem `json:"problem,omitempty"`
	// Healing: the refusal may pass by itself.
	Healing bool `json:"healing,omitempty"`
}

// tend does what is due now and then beside Raft.
func (r *Replica) tend() {
	if r.o.Net == nil {
		return
	}
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	ready := map[hraft.ServerID]time.Time{}
	var told minutely
	for {
		if r.member(r.id) && r.vouched() {
			if r.admitted() {
				r.join.Store(nil)
				r.noteJoined()
			}
			keep := map[hraft.ServerID]bool{}
			for _, s := range r.servers() {
				keep[s.ID] = true
			}
			r.evidence.forget(keep)
			if r.leadsReady() {
				r.promote(ready)
				r.makeRoom()
			} else {
				clear(ready)
				r.correctAddress()
			}
		}
		// Also where the newest configuration has it, as long as that is not known
		// to be committed: the leader that took it in may have failed.
		if !r.admitted() && !r.joined.Load() && r.outed.Load() == 0 {
			why, heals := r.askToJoin()
			r.join.Store(&why)
			if why != "" && told.due(time.Now()) {
				if heals {
					r.o.Logger.Info("this node is not in the cluster yet", "why", why)
				} else {
					r.o.Logger.Error("the cluster does not take this node in", "why", why)
				}
			}
		}
		select {
		case <-t.C:
		case <-r.stop:
			return
		}
	}
}

const keyJoined = "Joined"

// noteJoined remembers that the configuration has had this server: one that is
// in none after that was removed, and does not ask to come back.
func (r *Replica) noteJoined() {
	if r.told.CompareAndSwap(false, true) {
		r.o.OnJoined()
	}
	if r.joined.Load() {
		return
	}
	if err := r.stores.votes.remember(keyJoined, []byte(r.id)); err != nil {
		r.fatal(err)
		return
	}
	r.joined.Store(true)
}

// admitted tells whether a configuration that is known to be committed has this
// server.
func (r *Replica) admitted() bool {
	r.confMu.Lock()
	defer r.confMu.Unlock()
	_, in := r.conf.find(r.id)
	return in
}

// hasJoined reads it. The first configuration needs no commit: it was decided
// when the cluster was formed.
func (r *Replica) hasJoined() (bool, error) {
	first := configuration{Servers: configurationOf(r.o.Initial).Servers}
	if _, in := first.find(r.id); in || r.admitted() || r.o.Joined {
		return true, nil
	}
	return r.stores.votes.hasJoined(r.id)
}

func (v *votes) hasJoined(id hraft.ServerID) (bool, error) {
	b, err := v.get(keyJoined)
	if errors.Is(err, errNotFound) {
		return false, nil
	}
	return string(b) == string(id), err
}

// askToJoin asks whoever may know the leader, and returns why this node is not
// in; "" if it is.
func (r *Replica) askToJoin() (why string, heals bool) {
	var addrs []string
	addrs = append(addrs, r.o.Contacts...)
	for _, s := range r.servers() {
		addrs = append(addrs, memberOf(s.ID, s.Address).RaftAddr)
	}
	for _, s := range r.known().Servers {
		addrs = append(addrs, memberOf(s.ID, s.Address).RaftAddr)
	}
	self := r.self()
	why, heals = "no contact is known: start it with --join", false
	asked := map[string]bool{self.RaftAddr: true}
	for len(addrs) > 0 {
		addr := addrs[0]
		addrs = addrs[1:]
		if asked[addr] || addr == "" {
			continue
		}
		asked[addr] = true
		ctx, cancel := r.within(5 * time.Second)
		var a joinAnswer
		err := r.call(ctx, peer.Target{Addr: addr}, rpcJoin, joinAsk{self}, &a)
		cancel()
		switch {
		case err != nil:
			why, heals = fmt.Sprintf("%s did not answer: %v", addr, err), true
		case a.In:
			return "waiting for the leader's first entries", true
		case a.Problem != nil && a.Problem.Field == fieldTwin:
			// One of the two must not go on: they would vote twice.
			r.fatal(a.Problem)
			return a.Problem.Detail, false
		case a.Problem != nil:
			return a.Problem.Detail, a.Healing
		case a.Leader != "":
			addrs = append([]string{a.Leader}, addrs...)
			why, heals = "the leader at "+a.Leader+" did not answer", true
		default:
			why, heals = fmt.Sprintf("%s knows no leader", addr), true
		}
		if r.life.Err() != nil {
			return "shutting down", true
		}
	}
	return why, heals
}

// letJoin answers a node that asks to be taken in.
func (r *Replica) letJoin(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
	var ask joinAsk
	if err := json.Unmarshal(body, &ask); err != nil {
		return nil, err
	}
	if !r.leadsReady() {
		var a joinAnswer
		if to, ok := r.leaderTarget(); ok {
			a.Leader = to.Addr
		}
		return json.Marshal(a)
	}
	m := ask.Member
	m.ID, m.Incarnation = from.Node, from.Incarnation // what the handshake says
	heals, err := r.takeIn(ctx, m)
	a := joinAnswer{In: err == nil, Healing: heals}
	if err != nil {
		adm := adminAnswerOf(err)
		if a.Problem = adm.Problem; adm.Elsewhere {
			a.Problem = problem(CodeNoLeader, "leadership is moving", false, 1000)
			a.Healing = true
		}
	}
	return json.Marshal(a)
}

// takeIn takes in a node that asks for it.
func (r *Replica) takeIn(ctx context.Context, m Member) (heals bool, err error) {
	if p := m.check(); p != nil {
		return false, p
	}
	// Who asks must be where it says: the other one under its name, if it is
	// at that address, is then nowhere any more.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	who, err := r.o.Net.Hello(ctx, m.RaftAddr)
	if err != nil {
		return true, conflict("raft_addr", "the leader does not reach %s: %v", m.RaftAddr, err)
	}
	if who.Node != m.ID || who.Incarnation != m.Incarnation {
		return true, conflict("raft_addr", "at %s is node %s with another data directory", m.RaftAddr, who.Node)
	}
	select {
	case r.changing <- struct{}{}:
		defer func() { <-r.changing }()
	case <-ctx.Done():
		return true, problem(CodeNoLeader, "another change is under way", false, 1000)
	}
	m.Voter = true // unless it was announced as one that does not
	err = r.admit(m, false)
	var p *event.Problem
	return !errors.As(err, &p), err
}
