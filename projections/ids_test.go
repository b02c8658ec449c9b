package projections

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
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
				s.byID.remove(s, known[id])
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
			s.byID.remove(s, handles[old])
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

// In whatever order ids come, few slots are looked at: each look at one that is
// taken is a look at its element, anywhere in memory.
func TestIDProbes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, id := range map[string]func(n uint64) event.ID{
		"entries of 100":         func(n uint64) event.ID { return event.NewID(int64(1000+n/1000), n/100, uint32(n%100)) },
		"one long entry":         func(n uint64) event.ID { return event.NewID(1000, 1, uint32(n)) },
		"alone":                  func(n uint64) event.ID { return event.NewID(int64(1000+n/10), n, 0) },
		"behind a mark":          func(n uint64) event.ID { return event.NewID(int64(1000+n/10), n, 1) },
		"each second":            func(n uint64) event.ID { return event.NewID(1000, n/100, uint32(2*(n%100))) },
		"one of each run":        func(n uint64) event.ID { return event.NewID(1000, n/100, uint32(idRun*(n%100))) },
		"five of each run":       func(n uint64) event.ID { return event.NewID(1000, n/100, uint32(idRun*(n%100/5)+n%5)) },
		"a few, then a long way": func(n uint64) event.ID { return event.NewID(1000, n/3*7919, uint32(n%3)) },
		"random":                 func(uint64) event.ID { return event.NewID(1000, rnd.Uint64N(1<<48), rnd.Uint32N(1<<24)) },
	} {
		s := New()
		live := map[event.ID]handle{}
		add := func(n uint64) {
			h, m := s.messages.alloc()
			m.id = id(n)
			s.byID.add(s, h)
			live[m.id] = h
		}
		check := func(when string) {
			sum, most := 0, 0
			for id, h := range live {
				hash := hashID(id)
				sh, steps := s.byID.shard(hash), 0
				for i := sh.home(hash); sh.slots[i] != h; i = sh.next(i) {
					steps++
				}
				sum, most = sum+steps, max(most, steps)
			}
			if mean := float64(sum) / float64(len(live)); mean > 2 || most > 150 {
				t.Errorf("%s, %s, %d ids: %.2f steps to an id, at most %d", name, when, len(live), mean, most)
			} else {
				t.Logf("%s, %s, %d ids: %.2f steps to an id, at most %d", name, when, len(live), mean, most)
			}
		}
		n := uint64(0)
		for _, size := range []uint64{1_000, 6_000, 12_000, 17_000, 24_000, 60_000} {
			for ; n < size; n++ {
				add(n)
			}
			check("growing")
		}
		// Half of them go, here and there, and others come.
		for id, h := range live {
			if rnd.IntN(2) == 0 {
				s.byID.remove(s, h)
				s.messages.release(h)
				delete(live, id)
			}
		}
		for len(live) < 50_000 {
			add(n)
			n++
		}
		check("in use")
	}
}
