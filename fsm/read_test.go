package fsm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections"
)

// A search in steps finds, in their order and once, those that stay, whatever
// leaves and comes between the steps.
func TestWalk(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := setup(t)
		b.queue("q", nil)
		texts := func(from, n int) (out []string) {
			for i := range n {
				out = append(out, fmt.Sprintf("%c%d", 'a'+r.IntN(2), from+i))
			}
			return out
		}
		stays := texts(0, 1+r.IntN(20))
		b.fillKeys("q", stays...)
		f := event.MessageFilter{Limit: r.IntN(2) * 5}
		if r.IntN(2) == 0 {
			f.Key = new("a")
		}
		if r.IntN(2) == 0 { // perhaps of one that leaves
			f.After = b.ids[stays[r.IntN(len(stays))]][0]
		}
		first := slices.Clone(stays)
		var w projections.Walk
		steps, done := 0, false
		for n := 1 + r.IntN(4); !done; steps++ {
			b.m.View(func(s *projections.State) { done = w.Messages(s, "q", f, n) })
			for range r.IntN(3) {
				if len(stays) > 0 {
					i := r.IntN(len(stays))
					b.one(&event.Command{Delete: &event.DeleteMessage{ID: b.newest(stays[i])}})
					stays = slices.Delete(stays, i, i+1)
				}
			}
			if steps < 5 {
				b.fillKeys("q", texts(100*(1+steps), 1)...)
			}
			require.True(t, steps <= 100, "seed %d: no end", seed)
		}
		var found []string
		for i, m := range w.Found {
			if i > 0 && m.ID.Compare(w.Found[i-1].ID) <= 0 || m.ID.Compare(f.After) <= 0 || f.Key != nil && m.Key != *f.Key {
				t.Errorf("seed %d: %s is out of place", seed, b.names[m.ID])
			}
			found = append(found, b.names[m.ID])
		}
		if f.Limit > 0 && len(found) > f.Limit || w.More && len(found) != f.Limit {
			t.Errorf("seed %d: %d found, more %v, limit %d", seed, len(found), w.More, f.Limit)
		}
		for _, text := range stays {
			fits := b.ids[text][0].Compare(f.After) > 0 && (f.Key == nil || text[:1] == *f.Key)
			assert.False(t, slices.Contains(first, text) && fits && !w.More &&
				!slices.Contains(found, text), "seed %d: %s was not found", seed, text)
		}
	}
}
