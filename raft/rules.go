package raft

import (
	"fmt"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Rules of deciding come into force by a committed command (I19), so that a
// cluster is upgraded node by node: entries carry what is in force, which the
// programs of all members know, until all have been exchanged for newer ones.

// checkRules refuses a state under rules that this program does not know: it
// would fail at the next entry only.
func checkRules(o Options) error {
	if rules := o.Machine.Rules(); rules > o.Rules {
		return fmt.Errorf("raft: rules %d are in force in this data directory, this program knows %d: run a newer one", rules, o.Rules)
	}
	return nil
}

// wants returns the rules that an entry of these commands is to carry: those in
// force, or those that one of the commands brings. What a node has not applied
// yet does not count: entries that were proposed before rules came into force
// are decided by them all the same.
func wants(inForce uint16, group []*pending) uint16 {
	for _, d := range group {
		inForce = max(inForce, d.rules)
	}
	return inForce
}

// upgrade returns the command that brings newer rules into force as soon as all
// know them, or nil. A cluster of one goes on as it is until a command wants
// more (bringRulesLocked): so an older program can follow a newer one there.
func (r *Replica) upgrade() *event.Command {
	p := r.fsm.progress()
	if r.o.Rules <= p.rules || len(r.servers()) == 1 {
		return nil
	}
	if known := r.knownRules(); known > p.rules {
		return upgradeTo(known)
	}
	return nil
}

func upgradeTo(rules uint16) *event.Command {
	return &event.Command{Upgrade: &event.Upgrade{Rules: rules}}
}

// CommonRules returns the newest rules that all programs know which may be asked
// next: those in force, which no other program goes on with; in a cluster of one
// those that this one knows.
func (r *Replica) CommonRules() uint16 {
	inForce := r.fsm.progress().rules
	if inForce < r.o.Rules && len(r.servers()) == 1 {
		return r.o.Rules
	}
	return inForce
}

// knownRules returns the newest rules that every member, voter or not, has told
// that it knows. One that can't be asked holds newer ones back, since it may
// come back with the program that it had.
func (r *Replica) knownRules() uint16 {
	// One that is only announced has no directory yet.
	others := slices.DeleteFunc(r.peers(), func(v peerView) bool { return r.expected(v.serverID()) })
	return knownByAll(r.o.Rules, others)
}

// bringRulesLocked puts in front of commands that want newer rules than are in
// force the one that brings these, in the same entry, so that nobody decides
// them by older ones. What not all members know is refused, and not proposed: a
// node that does not know a command stops at its entry.
func (p *proposer) bringRulesLocked(group []*pending, bytes int) ([]*pending, int) {
	inForce := p.fsm.progress().rules
	if !wantsAbove(inForce, group) {
		return group, bytes
	}
	known, wanted := max(p.rules(), inForce), uint16(0)
	group = slices.DeleteFunc(group, func(d *pending) bool {
		if d.wants > known {
			d.state = settled
			d.deliver(answer{problem: event.TooNew(d.wants)})
			bytes -= len(d.data)
			return true
		}
		wanted = max(wanted, d.wants)
		return false
	})
	if wanted <= inForce {
		return group, bytes
	}
	d := newPending(upgradeTo(wanted))
	// Nobody waits for it, and if the entry comes back, the next one gets its own.
	d.state, d.gone = inFlight, true
	return slices.Insert(group, 0, d), bytes + len(d.data)
}

func wantsAbove(rules uint16, group []*pending) bool {
	return slices.ContainsFunc(group, func(d *pending) bool { return d.wants > rules })
}

// knownByAll returns the newest rules that this node and all others know; 0
// where that can't be told now.
func knownByAll(own uint16, others []peerView) uint16 {
	for i := range others {
		if !others[i].Reachable {
			return 0
		}
		own = min(own, others[i].Status.Rules)
	}
	return own
}
