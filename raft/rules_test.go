package raft

import (
	"strings"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/event"
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

// TestUpgradeAlone: a single node's first entry brings the newest rules, in an
// entry that wants them, and what follows carries them; once, for good.
func TestUpgradeAlone(t *testing.T) {
	const newer = event.RulesOfMarks + 1
	o := on(vfs.NewMem())
	o.Rules = 1
	n := boot(t, o)
	first := n.put("a").Index
	if rules := n.m.Rules(); rules != 1 {
		t.Fatalf("rules %d came into force by themselves", rules)
	}
	n.o.Rules = newer // the program is exchanged
	n = n.again()
	last := n.put("b").Index
	if rules := n.m.Rules(); rules != newer {
		t.Fatalf("rules %d are in force", rules)
	}
	n = n.again()
	again := n.put("c").Index
	upgrades := 0
	for i, e := range n.entries() {
		want := uint16(1)
		if i > first {
			want = newer
		}
		if e.Rules != want {
			t.Errorf("entry %d wants rules %d, not %d", i, e.Rules, want)
		}
		for _, b := range e.Commands {
			c, err := event.DecodeCommand(b)
			if err != nil {
				t.Fatal(err)
			}
			if c.Upgrade != nil {
				upgrades++
			}
		}
	}
	// Between two of ours lie Raft's own and the opening entry of a leadership,
	// which carries the upgrade.
	if upgrades != 1 || last != first+3 || again != last+3 {
		t.Errorf("%d upgrades; a at %d, b at %d, c at %d", upgrades, first, last, again)
	}
}

// TestOlderProgramRefuses: a program that does not know the rules in force does
// not start.
func TestOlderProgramRefuses(t *testing.T) {
	o := on(vfs.NewMem())
	o.Rules = 3
	n := boot(t, o)
	n.put("a")
	n.down()
	o = n.o
	o.Rules, o.Machine = 2, nil
	_, err := tryBoot(t, o)
	if err == nil || !strings.Contains(err.Error(), "rules 3 are in force in this data directory, this program knows 2: run a newer one") {
		t.Fatal(err)
	}
}
