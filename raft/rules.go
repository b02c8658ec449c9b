package raft

import (
	"fmt"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Newer rules of deciding come into force by a committed command, once the binaries
// of all members know them (I19): a cluster is upgraded node by node, and entries
// carry the version that is in force until then.

// checkRules refuses a state under rules that this binary does not know, rather than
// fail at the next entry.
func checkRules(o Options) error {
	if rules := o.Machine.Rules(); rules > o.Rules {
		return fmt.Errorf("data directory requires rules version %d, this binary supports up to %d", rules, o.Rules)
	}
	return nil
}

// rulesOf returns the rules that an entry of these commands carries: those in force,
// or those that one of the commands brings. Entries that were proposed before newer
// rules came into force are decided by them all the same.
func rulesOf(inForce uint16, group []*pending) uint16 {
	for _, d := range group {
		inForce = max(inForce, d.rules)
	}
	return inForce
}

// upgrade returns the command that brings newer rules into force as soon as all
// members know them, or nil.
func (r *Replica) upgrade() *event.Command {
	inForce := r.fsm.progress().rules
	if r.o.Rules <= inForce {
		return nil
	}
	// A member that is only announced has no directory yet.
	others := slices.DeleteFunc(r.remotes(), func(v MemberStatus) bool { return v.Incarnation == "" })
	if known := knownByAll(r.o.Rules, others); known > inForce {
		return &event.Command{Upgrade: &event.Upgrade{Rules: known}}
	}
	return nil
}

// knownByAll returns the newest rules that this node and all others know. It is 0
// while a member, voter or not, does not answer: it may return with the binary that
// it had.
func knownByAll(own uint16, others []MemberStatus) uint16 {
	for i := range others {
		if !others[i].Reachable {
			return 0
		}
		own = min(own, others[i].Status.Rules)
	}
	return own
}
