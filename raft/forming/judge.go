package forming

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/raft/peer"
)

// plan refuses settings that can't work and returns whom to ask: nobody where
// the node is to form a cluster alone.
func plan(self peer.Identity, expect int, join []string) ([]string, error) {
	switch {
	case self.Cluster != "":
		return nil, fmt.Errorf("forming: this node belongs to cluster %s already", self.Cluster)
	case expect < 0:
		return nil, fmt.Errorf("bootstrap-expect must not be negative, it is %d", expect)
	case expect > 1 && len(join) == 0:
		return nil, fmt.Errorf("bootstrap-expect is %d, but join names nobody: it must have the raft addresses of all %d nodes (this one may be left out)", expect, expect)
	case len(join) == 0:
		return nil, nil
	}
	var others []string
	for _, a := range join {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}
		if a != self.Raft && !slices.Contains(others, a) {
			others = append(others, a)
		}
	}
	switch {
	case len(others) == 0:
		return nil, onlySelf(self, expect)
	case expect > 1 && len(others) < expect-1:
		return nil, tooFew(expect, others)
	case expect > 1 && len(others) > expect:
		return nil, fmt.Errorf("bootstrap-expect is %d, but join names %d other nodes (%s)", expect, len(others), strings.Join(others, ", "))
	}
	return others, nil
}

func onlySelf(self peer.Identity, expect int) error {
	what := "the address of at least one node of the cluster"
	if expect > 1 {
		what = fmt.Sprintf("the raft addresses of all %d nodes", expect)
	}
	return fmt.Errorf("join names only this node itself (%s): it must have %s", self.Raft, what)
}

func tooFew(expect int, others []string) error {
	return fmt.Errorf("bootstrap-expect is %d, but join names only %d other %s (%s): to form a cluster it must have all; to join one leave bootstrap-expect out",
		expect, len(others), plural(len(others), "node", "nodes"), strings.Join(others, ", "))
}

// verdict is what follows from one round of answers: exactly one of cluster,
// all and waits is set.
type verdict struct {
	cluster  string
	initial  []Member // this node is in it
	contacts []string
	all      []Member // those who can form a cluster, by id
	waits    string
}

// judge holds the answers against what is expected. It is a function of its
// arguments, so that each case can be told in a test.
func judge(self peer.Identity, expect int, answers []answer) (verdict, error) {
	var others, fresh, belong []answer // but this node
	var lacking []string
	for _, a := range answers {
		switch {
		case a.err != nil:
			lacking = append(lacking, a.addr+" "+reason(a.err))
		case a.who.Node == self.Node && a.who.Incarnation == self.Incarnation:
			continue
		case a.who.Node == self.Node:
			return verdict{}, fmt.Errorf("there is a node %s already at %s, with another data directory: give each node an id of its own (node-id)", self.Node, a.addr)
		case a.Cluster != "":
			belong = append(belong, a)
		default:
			fresh = append(fresh, a)
		}
		others = append(others, a)
	}
	if len(belong) > 0 {
		return found(self, belong)
	}
	if len(others) == 0 {
		return verdict{}, onlySelf(self, expect)
	}
	if expect > 1 && len(others) < expect-1 {
		var addrs []string
		for _, a := range others {
			addrs = append(addrs, a.addr)
		}
		return verdict{}, tooFew(expect, addrs)
	}
	if expect <= 1 {
		for _, a := range fresh {
			lacking = append(lacking, fmt.Sprintf("%s (%s) belongs to none yet", a.addr, a.who.Node))
		}
		return verdict{waits: "waiting for a cluster to join: " + strings.Join(lacking, ", ")}, nil
	}
	fresh = distinct(fresh)
	if what := conflict(self, expect, fresh); what != "" {
		return verdict{waits: "waiting: " + what}, nil
	}
	here := len(fresh) + 1
	switch {
	case len(lacking) > 0 && here < expect:
		return verdict{waits: fmt.Sprintf("waiting for %d more of %d nodes: %s", expect-here, expect, strings.Join(lacking, ", "))}, nil
	case len(lacking) > 0:
		// One address too many, unless it is this node's own under another name.
		return verdict{waits: fmt.Sprintf("waiting: %d nodes are there, but not all that join names: %s (if that is this node, raft-advertise should be the same)",
			here, strings.Join(lacking, ", "))}, nil
	case here < expect:
		return verdict{waits: fmt.Sprintf("waiting for %d more of %d nodes: several addresses of join lead to the same node (%s)", expect-here, expect, told(fresh))}, nil
	case here > expect:
		return verdict{waits: fmt.Sprintf("waiting: bootstrap-expect is %d, but with this one %d nodes are there that belong to no cluster (%s): "+
			"is this node one of those that form it? join should then name it (%s)", expect, here, told(fresh), self.Raft)}, nil
	}
	v := verdict{all: []Member{memberOf(self)}}
	for _, a := range fresh {
		v.all = append(v.all, memberOf(a.who))
	}
	slices.SortFunc(v.all, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	v.waits = fmt.Sprintf("all %d nodes are there: %s forms the cluster", expect, v.all[0].ID)
	return v, nil
}

// found judges where some belong to a cluster.
func found(self peer.Identity, belong []answer) (verdict, error) {
	v := verdict{cluster: belong[0].Cluster}
	for _, a := range belong {
		if a.Cluster != v.cluster {
			return verdict{}, fmt.Errorf("join names nodes of two clusters: %s belongs to %s, %s to %s", belong[0].addr, v.cluster, a.addr, a.Cluster)
		}
		v.contacts = append(v.contacts, a.addr)
		if slices.ContainsFunc(a.Initial, func(m Member) bool { return m.ID == self.Node && m.Incarnation == self.Incarnation }) {
			v.initial = a.Initial
		}
	}
	return v, nil
}

// distinct leaves of several addresses of one node the first.
func distinct(as []answer) (out []answer) {
	for _, a := range as {
		if !slices.ContainsFunc(out, func(b answer) bool { return a.who.Node == b.who.Node && a.who.Incarnation == b.who.Incarnation }) {
			out = append(out, a)
		}
	}
	return out
}

// conflict says what keeps fresh nodes from forming a cluster with this one, or
// "": things that their operator can mend while this node waits.
func conflict(self peer.Identity, expect int, fresh []answer) string {
	for i, a := range fresh {
		if a.Expect <= 1 {
			return fmt.Sprintf("%s (%s) does not form a cluster: start it with bootstrap-expect %d, as this one", a.addr, a.who.Node, expect)
		}
		if a.Expect != expect {
			return fmt.Sprintf("%s (%s) expects %d nodes, this one %d: bootstrap-expect must be the same on each", a.addr, a.who.Node, a.Expect, expect)
		}
		if a.who.Raft == self.Raft {
			return fmt.Sprintf("%s (%s) wants to be reached at %s, which is this node's own address: is raft-advertise right?", a.addr, a.who.Node, a.who.Raft)
		}
		for _, b := range fresh[:i] {
			if a.who.Node == b.who.Node {
				return fmt.Sprintf("%s and %s are both called %s: give each node an id of its own (node-id)", b.addr, a.addr, a.who.Node)
			}
			if a.who.Raft == b.who.Raft {
				return fmt.Sprintf("%s (%s) and %s (%s) both want to be reached at %s: is raft-advertise right?", b.addr, b.who.Node, a.addr, a.who.Node, a.who.Raft)
			}
		}
	}
	return ""
}

func told(fresh []answer) string {
	var out []string
	for _, a := range fresh {
		out = append(out, fmt.Sprintf("%s at %s", a.who.Node, a.addr))
	}
	return strings.Join(out, ", ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
