package api

import (
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/projections/store"
)

// replaysGone are replays of which history has let go of all but the newest; the
// read model does not know that yet.
type replaysGone struct {
	Models
	gone, kept []event.ID
	upTo       uint64
}

func (f *replaysGone) Position() (uint64, int64) { return f.upTo, 0 }

func (f *replaysGone) Replayed(_ string, after event.ID, limit int) (out []store.Replayed,
	err error) {
	for _, id := range slices.Concat(f.gone, f.kept) {
		if id.Compare(after) > 0 && len(out) < limit {
			out = append(out, store.Replayed{ID: id})
		}
	}
	return out, nil
}

// A page of nothing but what is gone is not the end, nor is it read for ever.
func TestReplayedThatAreGone(t *testing.T) {
	h, m := onMachine(t)
	h.queue("q", "unordered", "")
	h.put("q", "", "1")
	h.die("q", "e")
	a := h.do("POST", "/v1/queues/q/dead/replay", `{"filter":{}}`).want(200)
	kept, err := event.ParseID(a.str("messages.0.new_message_id"))
	require.NoError(t, err)
	f := &replaysGone{kept: []event.ID{kept}, upTo: m.log.Head()}
	for i := range uint32(450) { // numbers that no entry has: as good as gone
		f.gone = append(f.gone, event.NewID(1, 1, 1000+i))
	}
	m.s.deps.Models = f
	if got := h.dead("q", "?state=replayed", "new_message_id"); !slices.Equal(got,
		[]string{kept.String()}) {
		t.Fatal(got)
	}
}
