package forming

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/raft/peer"
)

var n1 = peer.Identity{Node: "n1", Incarnation: "i1", Raft: "a:7071", HTTP: "a:7070"}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name   string
		expect int
		join   string
		want   string // addresses, or part of the error
	}{
		{"alone", 1, "", ""},
		{"alone without a word", 0, "", ""},
		{"all", 3, "a:7071 b:7071 c:7071", "b:7071 c:7071"},
		{"all others", 3, "b:7071 c:7071", "b:7071 c:7071"},
		{"one by another name", 3, "self:7071 b:7071 c:7071", "self:7071 b:7071 c:7071"},
		{"twice the same", 3, "b:7071 b:7071 c:7071", "b:7071 c:7071"},
		{"to join", 0, "b:7071", "b:7071"},
		{"to join, said otherwise", 1, "a:7071 b:7071", "b:7071"},
		{"nobody", 3, "", "join names nobody: it must have the raft addresses of all 3 nodes"},
		{"itself", 3, "a:7071", "join names only this node itself (a:7071): it must have the raft addresses of all 3 nodes"},
		{"to join itself", 0, "a:7071", "the address of at least one node of the cluster"},
		{"too few", 3, "b:7071 a:7071", "join names only 1 other node (b:7071)"},
		{"too many", 3, "b:7071 c:7071 d:7071 e:7071", "join names 4 other nodes"},
		{"no port", 3, "b c", "join: address b: missing port"},
		{"negative", -1, "", "must not be negative"},
	} {
		got, err := plan(n1, c.expect, strings.Fields(c.join))
		if err != nil {
			if c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v; want %q", c.name, err, c.want)
			}
		} else if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q; want %q", c.name, got, c.want)
		}
	}
	if _, err := plan(peer.Identity{Cluster: "c"}, 1, nil); err == nil {
		t.Error("a node of a cluster was taken")
	}
}

// fresh is a fresh node's answer.
func fresh(addr, id string) answer {
	return answer{addr: addr, who: peer.Identity{Node: id, Incarnation: "i" + id, Raft: addr}, state: state{Expect: 3}}
}

func of(a answer, cluster string, initial ...Member) answer {
	a.state = state{Cluster: cluster, Initial: initial}
	return a
}

func with(a answer, f func(*answer)) answer {
	f(&a)
	return a
}

func TestJudge(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	b, c, d := fresh("b:7071", "n2"), fresh("c:7071", "n3"), fresh("d:7071", "n4")
	none := func(addr string, err error) answer { return answer{addr: addr, err: err} }
	self := answer{addr: "self:7071", who: n1, state: state{Expect: 3}}
	for _, k := range []struct {
		name    string
		expect  int
		answers []answer
		want    string // of waits or the error; "" all there, "C" cluster found, "C!" and formed with this node
	}{
		{"all", 3, []answer{b, c}, ""},
		{"all, and this one by another name", 3, []answer{self, c, b}, ""},
		{"one down", 3, []answer{b, none("c:7071", refused)}, "waiting for 1 more of 3 nodes: c:7071 does not answer (connection refused)"},
		{"one silent", 3, []answer{b, none("c:7071", context.DeadlineExceeded)}, "c:7071 does not answer"},
		{"one starting", 3, []answer{b, none("c:7071", &peer.Error{Code: "unknown_call"})}, "c:7071 is starting"},
		{"one refuses", 3, []answer{b, none("c:7071", &peer.Error{Code: "refused", Detail: "no such name"})}, "c:7071 refuses: no such name"},
		{"one says rubbish", 3, []answer{b, none("c:7071", errors.New("bad magic"))}, "c:7071 does not answer (bad magic)"},
		{"both down", 3, []answer{none("b:7071", refused), none("c:7071", refused)}, "waiting for 2 more of 3 nodes: b:7071 does not answer (connection refused), c:7071"},
		{"one name too many", 3, []answer{b, c, none("d:7071", refused)}, "not all that join names: d:7071 does not answer (connection refused) (if that is this node"},
		{"one node too many", 3, []answer{b, c, d}, "with this one 4 nodes are there"},
		{"one node by two names", 3, []answer{b, with(b, func(a *answer) { a.addr = "bb:7071" })}, "several addresses of join lead to the same node (n2 at b:7071)"},
		{"same ids", 3, []answer{b, fresh("c:7071", "n2"), with(c, func(a *answer) { a.err = refused })}, "waiting"},
		{"same ids of two directories", 3, []answer{b, with(c, func(a *answer) { a.who.Node = "n2" })}, "b:7071 and c:7071 are both called n2"},
		{"same addresses", 3, []answer{b, with(c, func(a *answer) { a.who.Raft = "b:7071" })}, "both want to be reached at b:7071"},
		{"our address", 3, []answer{b, with(c, func(a *answer) { a.who.Raft = "a:7071" })}, "this node's own address"},
		{"another number", 3, []answer{b, with(c, func(a *answer) { a.Expect = 5 })}, "c:7071 (n3) expects 5 nodes, this one 3"},
		{"one that joins", 3, []answer{b, with(c, func(a *answer) { a.Expect = 0 })}, "c:7071 (n3) does not form a cluster: start it with bootstrap-expect 3"},
		{"a twin", 3, []answer{b, with(c, func(a *answer) { a.who.Node = "n1" })}, "there is a node n1 already at c:7071"},
		{"a twin in a cluster", 3, []answer{b, of(with(c, func(a *answer) { a.who.Node = "n1" }), "C")}, "there is a node n1 already at c:7071"},
		{"only itself", 3, []answer{self}, "join names only this node itself"},
		{"itself and too few", 3, []answer{self, b}, "join names only 1 other node (b:7071)"},

		{"a cluster", 3, []answer{b, of(c, "C")}, "C c:7071"},
		{"a cluster, and one down", 3, []answer{none("b:7071", refused), of(c, "C", Member{ID: "n1", Incarnation: "i0"})}, "C c:7071"},
		{"two of a cluster", 3, []answer{of(b, "C"), of(c, "C")}, "C b:7071,c:7071"},
		{"a cluster that has us", 3, []answer{of(b, "C"), of(c, "C", Member{ID: "n1", Incarnation: "i1"})}, "C! b:7071,c:7071"},
		{"two clusters", 3, []answer{of(b, "C"), of(c, "D")}, "nodes of two clusters: b:7071 belongs to C, c:7071 to D"},

		{"to join: nobody there", 0, []answer{none("b:7071", refused)}, "waiting for a cluster to join: b:7071 does not answer"},
		{"to join: fresh ones", 0, []answer{b, c}, "b:7071 (n2) belongs to none yet, c:7071 (n3) belongs to none yet"},
		{"to join: only itself", 0, []answer{self}, "at least one node of the cluster"},
		{"to join: there", 0, []answer{b, of(c, "C")}, "C c:7071"},
	} {
		v, err := judge(n1, k.expect, k.answers)
		got := v.waits
		switch {
		case err != nil:
			got = err.Error()
		case v.cluster != "":
			got = v.cluster
			if v.initial != nil {
				got += "!"
			}
			got += " " + strings.Join(v.contacts, ",")
		case k.want == "":
			if !slices.Equal(names(v.all), []string{"n1", "n2", "n3"}) || v.all[0] != (Member{"n1", "i1", "a:7071", "a:7070"}) {
				t.Errorf("%s: %+v", k.name, v)
			}
			continue
		case v.all != nil:
			got = "all"
		}
		if !strings.Contains(got, k.want) {
			t.Errorf("%s: %q; want %q", k.name, got, k.want)
		}
	}
}
