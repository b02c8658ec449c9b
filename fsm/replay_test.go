package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

// TestReplayDeepInAnUnorderedQueue: near either end a replayed message finds its
// place by the time of its first enqueue; where that would take too long to look
// for, those that are replayed come before all others, in their order.
func TestReplayDeepInAnUnorderedQueue(t *testing.T) {
	b := setup(t)
	b.queue("dead", nil)
	b.queue("to", nil)
	b.queue("q", func(p *event.Policy) { p.DeadLetterQueue = "dead" })
	fill := func(n int) {
		var ms []event.NewMessage
		for range n {
			ms = append(ms, msg("x", kindOf("red")))
		}
		b.tick(10)
		b.put("to", ms...)
		b.tick(10)
	}
	put := func(text string) { b.put("q", msg(text, kindOf("red"))) }
	fill(5)
	put("front")
	fill(1500)
	put("deep1")
	put("deep2")
	fill(1500)
	put("end")
	fill(3)
	for _, l := range b.lease("q", 4) {
		mustEqual(t, b.settle(event.OpDeadLetter, l.Lease).Status, event.StatusDeadLettered)
	}
	for _, s := range []string{"end", "deep2", "front", "deep1"} {
		b.ok(b.one(&event.Command{Replay: &event.Replay{Queue: "q", To: "to", Order: event.OrderOriginal,
			Items: []event.ReplayItem{{ID: b.newest(s)}}}}))
	}
	b.restart()
	at := map[string]int{}
	var held []event.SettleItem
	for n := 0; ; {
		l := b.lease("to", 500, []string{"red"}[n/500%2:]...) // by kind, and by none
		for _, m := range l {
			held = append(held, event.SettleItem{Op: event.OpRelease, Lease: m.Lease})
			if s := b.names[m.ID]; s != "x" {
				at[s] = n
			}
			n++
		}
		if len(l) == 0 {
			break
		}
	}
	// The first one would have been found, but it must come before the deep ones.
	mustEqual(t, at, map[string]int{"front": 0, "deep1": 1, "deep2": 2, "end": 3008})
	b.one(&event.Command{Settle: &event.Settle{Items: held[:10]}})
	mustEqual(t, b.take("to", 10), "front deep1 deep2 x x x x x x x") // they keep their place
}
