package raft

import (
	"fmt"
	"slices"

	"github.com/qlogd/qlogd/internal/event"
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

// upgrade returns the command that brings newer rules into force, or nil: not
// before every member, voter or not, has told that it knows them. One that
// can't be asked holds them back, since it may come back with the program that
// it had.
func (r *Replica) upgrade() *event.Command {
	p := r.fsm.progress()
	// Rules 2 only add marks, for which it takes two: a cluster of one goes on as
	// it is, and an older program can follow a newer one there.
	if r.o.Rules <= p.rules || r.o.Rules == event.RulesOfMarks && len(r.servers()) == 1 {
		return nil
	}
	// One that is only announced has no directory yet.
	others := slices.DeleteFunc(r.peers(), func(v peerView) bool { return r.expected(v.serverID()) })
	if known := knownByAll(r.o.Rules, others); known > p.rules {
		return &event.Command{Upgrade: &event.Upgrade{Rules: known}}
	}
	return nil
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
