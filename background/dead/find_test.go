package dead

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// corpses are dead messages, by id; asked is what they were asked for.
type corpses struct {
	State
	views []event.MessageView
	asked []event.DeadFilter
}

func (c *corpses) Dead(_ string, f event.DeadFilter) (out []event.MessageView, more bool) {
	c.asked = append(c.asked, f)
	for _, v := range c.views {
		if v.ID.Compare(f.After) > 0 && (f.To == 0 || v.Dead.FailedAt <= f.To) {
			if len(out) == f.Limit {
				return out, true
			}
			out = append(out, v)
		}
	}
	return out, false
}

// manyDead is a finder among n dead messages, whose error is text of their index.
func manyDead(n int, text func(index uint64) string) (*Finder, *corpses) {
	c := &corpses{}
	for i := range uint64(n) {
		id := event.NewID(int64(i+1), i+1, 0)
		c.views = append(c.views, event.MessageView{
			ID: id, Key: fmt.Sprint("k", i%10), Kind: fmt.Sprint("kind", i%3),
			Content: event.RefOf(id), Dead: &event.DeadView{
				Queue: "q", Reason: event.ReasonExpired, FailedAt: int64(i + 1),
			},
		})
	}
	return &Finder{State: c, Content: func(ref event.Ref) (*event.Content, error) {
		return &event.Content{Error: text(ref.Index)}, nil
	}}, c
}

// Nothing is applied while the state is read, so it must never have to search for what is
// rare: it is asked for pages of all there is.
func TestSelect(t *testing.T) {
	const n = 5*perRead + 7
	text := func(index uint64) string { return fmt.Sprint("Error ", index) }
	key, kind, none := "k3", "kind1", "no such"
	for _, c := range []struct {
		name string
		f    Filter
		want func(*event.MessageView) bool
	}{
		{"all", Filter{}, func(*event.MessageView) bool { return true }},
		{"key and kind", Filter{Key: &key, Kind: &kind},
			func(v *event.MessageView) bool { return v.Key == key && v.Kind == kind }},
		{"none of the key", Filter{Key: &none}, func(*event.MessageView) bool { return false }},
		{"until", Filter{To: 9}, func(v *event.MessageView) bool { return v.Dead.FailedAt <= 9 }},
		{"text", Filter{Error: "error 99"}, func(v *event.MessageView) bool {
			return strings.Contains(text(uint64(v.Dead.FailedAt)), "Error 99")
		}},
	} {
		x, state := manyDead(n, text)
		var got, want []event.ID
		search := &Search{Queue: "q", Filter: c.f}
		for v, err := range x.Select(t.Context(), search) {
			require.NoError(t, err)
			got = append(got, v.ID)
		}
		for i := range state.views {
			if c.want(&state.views[i]) {
				want = append(want, state.views[i].ID)
			}
		}
		assert.EqualSlices(t, got, want, "%s: %d, want %d", c.name, len(got), len(want))
		assert.False(t, c.f.To == 0 && search.After != state.views[n-1].ID,
			"%s: looked up to %s", c.name, search.After)
		for _, f := range state.asked {
			f.After = event.ID{}
			assert.Equal(t, f, event.DeadFilter{To: c.f.To, Limit: perRead}, "asked of the state")
		}
	}
}

func TestGroups(t *testing.T) {
	words := []string{"lion", "bear", "wolf", "lynx", "hare"}
	x, state := manyDead(2*perRead+1, func(index uint64) string {
		switch {
		case index == 1:
			return "odd one out"
		case index <= 4:
			return fmt.Sprintf("two of %d", index)
		}
		return words[index%5] + fmt.Sprintf(" %d", index)
	})
	all, err := x.Groups(t.Context(), &Search{Queue: "q"}, 6, 0)
	got := all.Groups
	require.True(t, err == nil && all.Total == 7 && len(got) == 6,
		"%d of %d: %v", len(got), all.Total, err)
	id := func(i int) string { return state.views[i].ID.String() }
	g := got[5]
	assert.EqualSlices(t, g.MessageIDs, []string{id(3), id(2), id(1)})
	assert.True(t, g.Pattern == "two of <n>" && g.Error == "two of 4" && g.Count == 3 &&
		g.FirstFailedAt == 2 && g.LastFailedAt == 4 &&
		g.Fingerprint == Fingerprint(event.ReasonExpired, g.Pattern), "%+v", g)
	part := &Search{Queue: "q", Most: perRead + 1}
	first, err := x.Groups(t.Context(), part, 6, 0)
	require.NoError(t, err)
	rest, err := x.Groups(t.Context(), &Search{Queue: "q", After: part.After, Most: perRead}, 6, 0)
	require.NoError(t, err)
	assert.Equal(t, first.NextCursor, id(perRead))
	assert.Equal(t, rest.NextCursor, "", "exactly as many were left")
	assert.Equal(t, first.Groups[0].Count+rest.Groups[0].Count, got[0].Count)
	for _, g := range got[:5] {
		m := g.MessageIDs
		assert.True(t, strings.HasSuffix(g.Pattern, " <n>") && (g.Count == 204 || g.Count == 205) &&
			len(m) == sampled && m[0] > m[4] &&
			g.Error == fmt.Sprintf("%s %d", g.Pattern[:4], int64(g.LastFailedAt)), "%+v", g)
	}
}
