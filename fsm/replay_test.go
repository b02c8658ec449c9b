package fsm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// kill leases messages of a queue, which must be these, and lets them die.
func (b *bench) kill(queue string, texts ...string) {
	b.t.Helper()
	for _, s := range texts {
		b.wantTake(queue, 1, s)
		b.want(event.OpDeadLetter, s, event.StatusDeadLettered)
	}
}

// newest is the newest id of the message with this text.
func (b *bench) newest(text string) event.ID {
	b.t.Helper()
	l := b.ids[text]
	require.NotEqual(b.t, len(l), 0, "there was no %q", text)
	return l[len(l)-1]
}

// replay replays the messages with these texts that died in a queue.
func (b *bench) replay(queue string, set func(r *event.Replay), texts ...string) event.Result {
	b.t.Helper()
	r := &event.Replay{Queue: queue}
	for _, s := range texts {
		r.Items = append(r.Items, event.ReplayItem{ID: b.newest(s)})
	}
	if set != nil {
		set(r)
	}
	return b.one(&event.Command{Replay: r})
}

func ordered(o event.Order) func(*event.Replay) { return func(r *event.Replay) { r.Order = o } }

// codes tells what became of each.
func codes(r event.Result) string {
	var out []string
	for _, m := range r.Moved {
		switch {
		case m.Code != "":
			out = append(out, m.Code)
		case m.To.IsZero():
			out = append(out, "gone")
		default:
			out = append(out, "moved")
		}
	}
	return strings.Join(out, " ")
}

func TestReplayRefusals(t *testing.T) {
	start := func(t *testing.T) *bench {
		b := setup(t)
		b.ok(b.upgrade(event.Rules))
		b.mustQueue("dead", nil)
		b.mustQueue("q", with(dlq("dead"), func(p *event.Policy) { p.MaxDepth = 2 }))
		b.mustQueue("p", dlq("dead"))
		b.fill("q", "a", "b")
		b.fill("p", "x")
		b.kill("q", "a", "b")
		b.kill("p", "x")
		return b
	}
	t.Run("one that died elsewhere is passed over", func(t *testing.T) {
		b := start(t)
		b.wantTake("dead", 1, "a")
		r := b.ok(b.replay("q", nil, "x", "a", "b", "b"))
		mustEqual(t, codes(r), "message_not_found leased moved message_not_found")
		mustEqual(t, r.Count, 1)
		mustEqual(t, codes(b.ok(b.replay("q", nil, "b"))), "message_not_found") // it lives
		b.tick(30_000)                                                          // the lease runs out
		mustEqual(t, codes(b.ok(b.replay("q", nil, "a"))), "moved")
		b.refold()
	})
	t.Run("strict", func(t *testing.T) {
		b := start(t)
		strict := func(r *event.Replay) { r.Strict = true }
		r := b.replay("q", strict, "a", "x")
		b.wantProblem(r, event.CodeMessageNotFound, fmt.Sprintf("message %s is not dead in queue \"q\"", b.newest("x")))
		mustEqual(t, []any{r.Problem.Field, r.Problem.Index}, []any{"message_ids", 1})
		b.wantTells("")
		r = b.replay("q", strict, "a", "b", "a")
		b.wantProblem(r, event.CodeInvalidArgument, fmt.Sprintf("message %s is named twice", b.newest("a")))
		mustEqual(t, r.Problem.Index, 2)
		b.wantTells("")
		b.wantTake("dead", 1, "a")
		mustEqual(t, codes(b.ok(b.replay("q", strict, "a", "b"))), "leased moved")
	})
	t.Run("a full queue takes none", func(t *testing.T) {
		b := start(t)
		b.fill("q", "c")
		r := b.replay("q", nil, "a", "b")
		b.wantProblem(r, event.CodeQueueFull, `queue "q" holds 1 of at most 2, 2 more do not fit`)
		b.wantTells("")
		mustEqual(t, codes(b.ok(b.replay("q", nil, "b"))), "moved")
	})
	t.Run("a queue that is not there", func(t *testing.T) {
		b := start(t)
		r := b.replay("q", func(r *event.Replay) { r.To = "none" }, "a")
		b.wantProblem(r, event.CodeQueueNotFound, `queue "none" does not exist`)
		mustEqual(t, r.Problem.Field, "to")
		b.ok(b.drop("q", true))
		b.wantProblem(b.replay("q", nil, "a"), event.CodeQueueNotFound, `queue "q" does not exist`)
		mustEqual(t, b.m.DeadCount("q"), 2)
		mustEqual(t, codes(b.ok(b.replay("q", func(r *event.Replay) { r.To = "p" }, "a"))), "moved")
		b.refold()
	})
	t.Run("an order that is none", func(t *testing.T) {
		b := start(t)
		b.wantProblem(b.replay("q", ordered(9), "a"), event.CodeInvalidArgument, "order must be original, append or head")
	})
	t.Run("a schema that was another one", func(t *testing.T) {
		b := start(t)
		b.mustQueue("s", func(p *event.Policy) { p.MessageSchema = []byte(`{}`) })
		to := func(rev uint64) func(*event.Replay) {
			return func(r *event.Replay) { r.To, r.Revision = "s", rev }
		}
		b.wantProblem(b.replay("q", to(1), "a"), event.CodeStaleRevision, "")
		b.ok(b.replay("q", to(b.q("s").Revision), "a"))
	})
}

// TestDeadAreFound: filters, pages, and what a purge of the dead-letter queue
// leaves at once.
func TestDeadAreFound(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", with(dlq("dead"), tries(1)))
	b.put("q", msg("a", key("k"), kindOf("red")), msg("b"), msg("c", ttl(500)), msg("d", key("k")))
	b.kill("q", "a")
	b.tick(100)
	b.wantTake("q", 1, "b")
	b.want(event.OpRetry, "b", event.StatusDeadLettered)
	b.tick(400)
	b.kill("q", "d")
	b.mustQueue("dead2", nil)
	b.mustQueue("q", with(dlq("dead2"), tries(1))) // from now on they lie elsewhere
	b.fill("q", "e")
	b.kill("q", "e")
	find := func(f event.DeadFilter) string {
		ms, more := b.m.Dead("q", f)
		var out []string
		for _, m := range ms {
			out = append(out, b.names[m.ID])
		}
		if more {
			out = append(out, "…")
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		f    event.DeadFilter
		want string
	}{
		{event.DeadFilter{}, "a b c d e"},
		{event.DeadFilter{Limit: 2}, "a b …"},
		{event.DeadFilter{Limit: 5}, "a b c d e"},
		{event.DeadFilter{After: b.newest("b"), Limit: 2}, "c d …"},
		{event.DeadFilter{Before: b.newest("c")}, "a b"},
		{event.DeadFilter{After: b.ids["e"][0]}, "e"},
		{event.DeadFilter{To: epoch + 100}, "a b"},
		{event.DeadFilter{To: epoch + 99}, "a"},
	} {
		mustEqual(t, find(c.f), c.want)
	}
	mustEqual(t, b.m.DeadCount("q"), 5)
	b.wantTake("dead", 1, "a")
	b.purge("dead")
	mustEqual(t, find(event.DeadFilter{}), "a e") // the leased one is not purged
	mustEqual(t, b.m.DeadCount("q"), 2)
	b.restart()
	mustEqual(t, b.m.DeadCount("q"), 2)
	b.tick(0)
	mustEqual(t, find(event.DeadFilter{}), "a e")
	b.refold()
}

// TestReplayDeepInAnUnorderedQueue: near either end a replayed message finds its
// place by the time of its first enqueue; where that would take too long to look
// for, those that are replayed come before all others, in their order.
func TestReplayDeepInAnUnorderedQueue(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("to", nil)
	b.mustQueue("q", dlq("dead"))
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
	b.kill("q", "front", "deep1", "deep2", "end")
	for _, s := range []string{"end", "deep2", "front", "deep1"} {
		b.ok(b.replay("q", func(r *event.Replay) { r.To, r.Order = "to", event.OrderOriginal }, s))
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
