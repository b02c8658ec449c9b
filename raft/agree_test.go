package raft

import (
	"fmt"
	"strings"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// told writes marks as "10a 20b": at index 10 value a, at 20 b.
func told(s string) (ms marks) {
	for _, w := range strings.Fields(s) {
		var m mark
		fmt.Sscanf(w, "%d%s", &m.Index, &m.Digest)
		ms = append(ms, m)
	}
	return ms
}

func serverIDs(s string) (ids []hraft.ServerID) {
	for _, id := range strings.Fields(s) {
		ids = append(ids, hraft.ServerID(id))
	}
	return ids
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name   string
		self   string // default n1
		own    string
		voters string // default n1 n2 n3
		told   map[string]string
		want   string // what was found: "stop", "undecided" or "outliers", the index, and who
	}{
		{name: "nothing known"},
		{name: "only its own", own: "10a"},
		{name: "all the same", own: "10a 20b", told: map[string]string{"n2": "10a 20b", "n3": "10a 20b"}},
		{name: "no index in common", own: "10a", told: map[string]string{"n2": "11b", "n3": "12c"}},
		{name: "it differs from both", own: "10x", told: map[string]string{"n2": "10a", "n3": "10a"}, want: "stop 10 n2 n3"},
		{name: "another differs", own: "10a", told: map[string]string{"n2": "10x", "n3": "10a"}, want: "outliers 10 n2"},
		{name: "all differ", own: "10a", told: map[string]string{"n2": "10b", "n3": "10c"}, want: "undecided 10 n2 n3"},
		{name: "one differs, the third is away", own: "10a", told: map[string]string{"n2": "10x"}, want: "undecided 10 n2"},
		{name: "the third has come back", own: "10a", told: map[string]string{"n2": "10x", "n3": "10a"}, want: "outliers 10 n2"},
		{name: "decided at a newer index", own: "10a 20a", told: map[string]string{"n2": "10x", "n3": "20a"}},
		{name: "still undecided at an older one", own: "10a 20a", told: map[string]string{"n2": "10x 20x"}, want: "undecided 20 n2"},
		{name: "undecided at an older one only", own: "10a 20a", told: map[string]string{"n2": "10x"}, want: "undecided 10 n2"},
		{name: "it differed once and agrees again", own: "10x 20a", told: map[string]string{"n2": "10a 20a", "n3": "10a 20a"}, want: "stop 10 n2 n3"},
		{name: "undecided, and a majority against it before", own: "10x 20a", told: map[string]string{"n2": "10a 20b", "n3": "10a"}, want: "stop 10 n2 n3"},
		{name: "another differed once", own: "10a 20a", told: map[string]string{"n2": "10x 20a", "n3": "10a 20a"}},
		{name: "two of two", own: "10a", voters: "n1 n2", told: map[string]string{"n2": "10b"}, want: "undecided 10 n2"},
		{name: "two of four", own: "10a", voters: "n1 n2 n3 n4", told: map[string]string{"n2": "10a", "n3": "10b", "n4": "10b"}, want: "undecided 10 n3 n4"},
		{name: "three of five against it", own: "10x", voters: "n1 n2 n3 n4 n5", told: map[string]string{"n2": "10a", "n3": "10a", "n4": "10a"}, want: "stop 10 n2 n3 n4"},
		{name: "two of five against it", own: "10x", voters: "n1 n2 n3 n4 n5", told: map[string]string{"n2": "10a", "n3": "10a"}, want: "undecided 10 n2 n3"},
		{name: "it has no vote and differs", self: "n9", own: "10x", told: map[string]string{"n1": "10a", "n2": "10a"}, want: "stop 10 n1 n2"},
		{name: "it has no vote and agrees", self: "n9", own: "10a", told: map[string]string{"n1": "10a", "n2": "10a", "n3": "10x"}, want: "outliers 10 n3"},
		{name: "it has no vote and one voter differs", self: "n9", own: "10x", told: map[string]string{"n1": "10a"}, want: "undecided 10 n1"},
		{name: "who has no vote does not count", own: "10x", told: map[string]string{"n2": "10a", "n8": "10a", "n9": "10a"}, want: "undecided 10 n2"},
		{name: "the one voter is right", self: "n9", own: "10x", voters: "n1", told: map[string]string{"n1": "10a"}, want: "stop 10 n1"},
		{name: "the one voter needs nobody", own: "10a", voters: "n1", told: map[string]string{"n9": "10x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			def(&c.self, "n1")
			def(&c.voters, "n1 n2 n3")
			heard := map[hraft.ServerID]marks{}
			for id, ms := range c.told {
				heard[hraft.ServerID(id)] = told(ms)
			}
			f := compare(hraft.ServerID(c.self), told(c.own), serverIDs(c.voters), heard)
			got := ""
			switch {
			case f.mustStop:
				got = "stop"
			case f.undecided:
				got = "undecided"
			case f.index > 0:
				got = "outliers"
			}
			if got != "" {
				got = fmt.Sprint(got, " ", f.index)
				for _, id := range f.who {
					got += " " + string(id)
				}
			}
			if got != c.want {
				t.Errorf("found %q, not %q", got, c.want)
			}
		})
	}
}

func TestMarksAreKept(t *testing.T) {
	a := newAgreement()
	for i := range uint64(100) {
		a.note(10*i, [32]byte{byte(i)}, [16]byte{1})
	}
	if len(a.own) != keepMarks || a.own.newest() != 990 || a.own[0].Index != 360 {
		t.Errorf("%d are kept, from %d to %d", len(a.own), a.own[0].Index, a.own.newest())
	}
	if said := a.report(); len(said) != reportMarks || said[0].Index != 840 {
		t.Errorf("%d are told, from %d on", len(said), said[0].Index)
	}
}

// TestAloneNeedsNoMarks: nobody is there to compare with.
func TestAloneNeedsNoMarks(t *testing.T) {
	o := on(vfs.NewMem())
	o.MarkEntries, o.MarkInterval = 1, time.Millisecond
	n := boot(t, o)
	for i := range 50 {
		n.put(fmt.Sprint(i))
	}
	for i, e := range n.entries() {
		for _, b := range e.Commands {
			if c, err := event.DecodeCommand(b); err != nil || c.Mark != nil {
				t.Fatalf("entry %d: %+v, %v", i, c, err)
			}
		}
	}
}
