package raft

import (
	"strings"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

func knows(rules ...uint16) (out []MemberStatus) {
	for _, n := range rules {
		out = append(out, MemberStatus{Reachable: true, Status: peerStatus{Rules: n}})
	}
	return out
}

// TestKnownByAll: one member that is unreachable, has not told yet, or knows
// less, holds newer rules back.
func TestKnownByAll(t *testing.T) {
	away := MemberStatus{Status: peerStatus{Rules: 9}}
	for _, c := range []struct {
		name   string
		own    uint16
		others []MemberStatus
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
	i, _ := n.stores.log.FirstIndex()
	last, _ := n.stores.log.LastIndex()
	for ; i > 0 && i <= last; i++ {
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

func TestOlderBinaryRefuses(t *testing.T) {
	o := on(vfs.NewMem())
	o.Rules = 2
	n := boot(t, o)
	if _, err := n.Propose(t.Context(),
		&event.Command{Upgrade: &event.Upgrade{Rules: 2}}); err != nil {
		t.Fatal(err)
	}
	n.down()
	o = n.o
	o.Rules, o.Machine = 1, nil
	_, err := tryBoot(t, o)
	if err == nil || !strings.Contains(err.Error(),
		"requires rules version 2, this binary supports up to 1") {
		t.Fatal(err)
	}
}
