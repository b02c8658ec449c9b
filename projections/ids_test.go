package projections

import (
	"slices"
	"testing"

	"github.com/qlogd/qlogd/internal/event"
	"pgregory.net/rapid"
)

// The table of ids is a map, whatever is put in and taken out in whatever
// order, while it grows and shrinks.
func TestIDTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := New()
		known := map[event.ID]handle{}
		var ids []event.ID
		steps := rapid.IntRange(1, 60).Draw(rt, "steps")
		next := uint64(0)
		for range steps {
			// Many at once, so that shards fill: 1,024 of them share what comes.
			n := rapid.IntRange(0, 400).Draw(rt, "n")
			if rapid.IntRange(0, 2).Draw(rt, "what") > 0 {
				for range n {
					next++
					h, m := s.messages.alloc()
					m.id = event.NewID(1000, next/7+1, uint32(next%7))
					s.byID.add(s, h)
					known[m.id] = h
					ids = append(ids, m.id)
				}
				continue
			}
			for range min(n, len(ids)) {
				i := rapid.IntRange(0, len(ids)-1).Draw(rt, "i")
				id := ids[i]
				ids[i] = ids[len(ids)-1]
				ids = ids[:len(ids)-1]
				s.byID.remove(s, id)
				s.messages.release(known[id])
				delete(known, id)
				if _, ok := s.byID.find(s, id); ok {
					rt.Fatalf("%s is still found", id)
				}
			}
		}
		for id, h := range known {
			if got, ok := s.byID.find(s, id); !ok || got != h {
				rt.Fatalf("%s is at %d, found at %d", id, h, got)
			}
		}
		if s.byID.n != len(known) {
			rt.Fatalf("%d, not %d", s.byID.n, len(known))
		}
		for i := range s.byID.shards {
			if sh := &s.byID.shards[i]; 4*sh.n > 3*len(sh.slots) {
				rt.Fatalf("shard %d holds %d in %d", i, sh.n, len(sh.slots))
			}
		}
	})
}

// One shard alone, filled and emptied a thousand times over.
func TestIDShardUnderChurn(t *testing.T) {
	s := New()
	var live []event.ID
	handles := map[event.ID]handle{}
	for n := uint64(1); n < 200_000; n++ {
		id := event.NewID(1000, n, 0)
		if hashID(id)>>(64-idShardBits) != 7 {
			continue
		}
		h, m := s.messages.alloc()
		m.id = id
		s.byID.add(s, h)
		handles[id] = h
		if live = append(live, id); len(live) > int(n/2000) {
			old := live[n%uint64(len(live))]
			live = slices.DeleteFunc(live, func(id event.ID) bool { return id == old })
			s.byID.remove(s, old)
			s.messages.release(handles[old])
			delete(handles, old)
		}
		for id, h := range handles {
			if got, ok := s.byID.find(s, id); !ok || got != h {
				t.Fatalf("after %d: %s is at %d, found at %d", n, id, h, got)
			}
		}
	}
	if len(live) < 50 {
		t.Fatalf("only %d are left", len(live))
	}
}
