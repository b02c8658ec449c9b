package raft

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/peer"
	"github.com/qlogd/qlogd/internal/vfs"
)

func knows(rules ...uint16) (out []peerView) {
	for _, n := range rules {
		out = append(out, peerView{Reachable: true, Status: peerStatus{Rules: n}})
	}
	return out
}

// TestKnownByAll: one member that is unreachable, has not told yet, or knows
// less, holds newer rules back.
func TestKnownByAll(t *testing.T) {
	away := peerView{Status: peerStatus{Rules: 9}}
	for _, c := range []struct {
		name   string
		own    uint16
		others []peerView
		want   uint16
	}{
		{"alone", 3, nil, 3},
		{"all the same", 3, knows(3, 3), 3},
		{"one is older", 3, knows(3, 1), 1},
		{"some are newer", 2, knows(3, 4), 2},
		{"one has not told", 3, knows(3, 0), 0},
		{"one is away", 3, append(knows(3), away), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := knownByAll(c.own, c.others); got != c.want {
				t.Errorf("rules %d, not %d", got, c.want)
			}
		})
	}
}

// entries returns the entries that the Raft log holds, by index.
func (n *node) entries() map[uint64]*event.Entry {
	n.t.Helper()
	out := map[uint64]*event.Entry{}
	s := n.Status()
	for i := s.HeldFirst; i <= s.HeldLast; i++ {
		var l hraft.Log
		if err := n.stores.log.GetLog(i, &l); err != nil {
			n.t.Fatal(err)
		}
		if l.Type != hraft.LogCommand {
			continue
		}
		e, err := event.DecodeEntry(l.Data)
		if err != nil {
			n.t.Fatal(err)
		}
		out[i] = e
	}
	return out
}

// upgrades returns the entries that bring rules, and checks that these stand in
// front and that each entry wants what is in force from there on.
func (n *node) upgrades() (at []uint64) {
	n.t.Helper()
	entries := n.entries()
	inForce := uint16(1)
	for _, i := range slices.Sorted(maps.Keys(entries)) {
		e := entries[i]
		for k, b := range e.Commands {
			c, err := event.DecodeCommand(b)
			if err != nil {
				n.t.Fatal(err)
			}
			if c.Upgrade == nil {
				continue
			}
			at = append(at, i)
			if inForce = max(inForce, c.Upgrade.Rules); k > 0 {
				n.t.Errorf("entry %d: the upgrade is command %d", i, k)
			}
		}
		if e.Rules != inForce {
			n.t.Errorf("entry %d wants rules %d, not %d", i, e.Rules, inForce)
		}
	}
	return at
}

// TestUpgradeAlone: a cluster of one goes on under the rules that its log began
// with, whatever its program knows, until a command wants newer ones: that comes
// in an entry that brings them, once, for good.
func TestUpgradeAlone(t *testing.T) {
	o := on(vfs.NewMem())
	o.Rules = 1
	n := boot(t, o)
	n.put("a")
	n.o.Rules = event.Rules // the program is exchanged
	n = n.again()
	n.put("b")
	if rules := n.m.Rules(); rules != 1 {
		t.Fatalf("rules %d came into force by themselves", rules)
	}
	if rules := n.CommonRules(); rules != event.Rules {
		t.Errorf("alone it goes by rules %d where no other program is asked", rules)
	}
	var first uint64
	for _, name := range []string{"c", "d"} {
		r, err := n.Propose(t.Context(), newerOf(name))
		if err != nil || r.Problem != nil {
			t.Fatalf("%s: %v, %+v", name, err, r.Problem)
		}
		first = cmp.Or(first, r.Index)
	}
	if rules := n.m.Rules(); rules != event.RulesOfReplay {
		t.Fatalf("rules %d are in force", rules)
	}
	n = n.again()
	n.put("e")
	if got := n.m.names(); !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) {
		t.Errorf("applied %v", got)
	}
	if at := n.upgrades(); !slices.Equal(at, []uint64{first}) {
		t.Errorf("upgrades at %d, wanted first at %d", at, first)
	}
}

// TestUpgradeAlongside: a command that wants newer rules gets them whatever it
// comes with, by Begin or in a crowd, and each gets its own answer.
func TestUpgradeAlongside(t *testing.T) {
	n := boot(t, on(vfs.NewMem()))
	n.m.hold = make(chan struct{})
	held := n.async(t.Context(), put("held")) // what follows gathers behind it
	n.waitFor(func(l Load) bool { return l.Entries > 0 })
	waits := n.Begin(produceOf("a"), []*event.Command{newerOf("b"), leaseOf("c")})
	for i := range 20 {
		c := put(fmt.Sprint(i))
		if i%2 > 0 {
			c = newerOf(fmt.Sprint(i))
		}
		waits = append(waits, n.Begin(c, nil)...)
	}
	close(n.m.hold)
	for i, wait := range waits {
		r, err := wait(t.Context())
		if err != nil || r.Problem != nil {
			t.Fatalf("%d: %v, %+v", i, err, r.Problem)
		}
		e := n.entries()[r.Index]
		c, err := event.DecodeCommand(e.Commands[r.Count]) // the fake counts so
		if want := []string{"a", "b", "c"}; err != nil || i < 3 && nameOf(c) != want[i] || i >= 3 && nameOf(c) != fmt.Sprint(i-3) {
			t.Errorf("%d was answered for %+v", i, c)
		}
	}
	if err := <-held; err != nil {
		t.Error(err)
	}
	if at := n.upgrades(); len(at) == 0 {
		t.Error("no upgrade")
	}
}

// TestNotAllKnow: as long as a member knows only older rules, a command that
// wants newer ones is refused by the leader and on a follower, and nothing of it
// is in an entry; what comes with it goes on. As soon as all know, it is done.
func TestNotAllKnow(t *testing.T) {
	inBubble(t, 3, func(i int, o *Options) {
		if i == 2 {
			o.Rules = 2
		}
	}, func(c *together) {
		t := c.t
		if l := c.leader(); l.o.NodeID == "n3" {
			if err := l.TransferLeadership(t.Context(), "n1"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		refused := func(n *node, name string) {
			t.Helper()
			waits := n.Begin(newerOf(name), nil)
			waits = append(waits, n.Begin(put("with "+name), nil)...)
			_, err := waits[0](t.Context())
			if p := asProblem(t, err); p.Code != event.CodeConflict || p.RetryAfterMS == 0 || p.Unknown ||
				!strings.Contains(p.Detail, "wants rules 3, and not all nodes run a program that knows them") {
				t.Errorf("%+v", p)
			}
			if _, err := waits[1](t.Context()); err != nil {
				t.Errorf("what came with %s: %v", name, err)
			}
		}
		l := c.leader()
		for i, n := range c.nodes {
			refused(n, fmt.Sprint("refused ", i))
		}
		// A leader whose program has no word for such a group.
		l.o.Net.Handle(callForwardNewer, nil)
		refused(c.follower(), "refused by an older one")
		l.o.Net.Handle(callForwardNewer, l.forMembers(l.p.serveForwardNewer))
		if l.m.Rules() != 2 {
			t.Fatalf("rules %d are in force", l.m.Rules())
		}
		if rules := l.CommonRules(); rules != 2 {
			t.Errorf("an older program may be asked next, and this one goes by rules %d", rules)
		}
		for i, n := range c.nodes {
			if n.o.NodeID == "n3" {
				c.restart(i, func(o *Options) { o.Rules = event.Rules })
			}
		}
		l = c.leader()
		until(t, "n3 has told that it knows them", func() bool { return l.knownRules() == event.Rules })
		if r, err := c.follower().Propose(t.Context(), newerOf("done")); err != nil || r.Problem != nil {
			t.Fatalf("%v, %+v", err, r.Problem)
		}
		time.Sleep(10 * time.Second)
		for _, n := range c.nodes {
			names := n.m.names()
			if i := slices.IndexFunc(names, func(s string) bool { return strings.HasPrefix(s, "refused") }); i >= 0 || !slices.Contains(names, "done") || n.m.Rules() != event.Rules {
				t.Errorf("%s has applied %v under rules %d", n.o.NodeID, names, n.m.Rules())
			}
		}
	})
}

// TestNewerGroup: where nobody has brought the rules yet, a follower's command
// does, and one that the leader can't read is refused alone.
func TestNewerGroup(t *testing.T) {
	n := boot(t, on(vfs.NewMem()))
	unknown := event.EncodeCommand(put("x"))
	unknown = append(unknown[:len(unknown):len(unknown)], 0xff)
	group := event.AppendGroup(nil, []event.Forwarded{
		{Class: event.ClassSettle, Data: event.EncodeCommand(put("a"))}, {Class: event.ClassSettle, Data: unknown},
		{Class: event.ClassSettle, Data: event.EncodeCommand(newerOf("b"))},
	})
	body, err := n.p.serveForwardNewer(t.Context(), peer.Identity{Node: "n2"}, group)
	if err != nil {
		t.Fatal(err)
	}
	got, err := event.DecodeAnswers(body, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Refusal != nil || got[2].Refusal != nil || got[1].Refusal == nil || got[1].Refusal.Code != event.CodeConflict || got[1].Back {
		t.Errorf("%+v", got)
	}
	if names := n.m.names(); !slices.Equal(names, []string{"a", "b"}) || n.m.Rules() != event.RulesOfReplay {
		t.Errorf("applied %v under rules %d", names, n.m.Rules())
	}
}

// TestOlderProgramRefuses: a program that does not know the rules in force does
// not start.
func TestOlderProgramRefuses(t *testing.T) {
	o := on(vfs.NewMem())
	o.Rules = 3
	n := boot(t, o)
	if _, err := n.Propose(t.Context(), newerOf("a")); err != nil {
		t.Fatal(err)
	}
	n.down()
	o = n.o
	o.Rules, o.Machine = 2, nil
	_, err := tryBoot(t, o)
	if err == nil || !strings.Contains(err.Error(), "rules 3 are in force in this data directory, this program knows 2: run a newer one") {
		t.Fatal(err)
	}
}
