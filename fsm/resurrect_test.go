package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
)

func (b *bench) resurrect(text string, set func(r *event.Resurrect)) event.Result {
	b.t.Helper()
	id := b.newest(text)
	r := &event.Resurrect{ID: id, Last: event.Ref{Index: 7}, Queue: "q", Key: "k", Kind: "red", Priority: 3, Size: 2, First: id}
	if set != nil {
		set(r)
	}
	r.Content = event.EncodeContent(&event.Content{Payload: []byte(text)})
	return b.one(&event.Command{Actor: "ops", Resurrect: r})
}

// TestEraseAfterResurrect: an erasure that was prepared before a message was
// resurrected would leave the chain of its events in a fork; it looks again.
func TestEraseAfterResurrect(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	b.wantTake("q", 1, "a")
	b.want(event.OpAck, "a", event.StatusAcked)
	old, acked := b.newest("a"), event.RefOf(b.last().Events[0].ID)
	task := b.task(event.TaskErase)
	now := b.ok(b.resurrect("a", func(r *event.Resurrect) { r.Last = acked })).ID
	erase := func(last event.Ref) int64 {
		return b.ok(b.one(&event.Command{Erase: &event.Erase{Task: task, Items: []event.EraseItem{{ID: old, Last: last}}}})).Count
	}
	mustEqual(t, erase(acked), 0)
	b.wantTells("")
	mustEqual(t, erase(event.RefOf(now)), 1)
	mustEqual(t, b.last().Events[0].Prev, event.RefOf(now))
	b.refold()
}

// TestImport: a source id is let in once for as long as its message is in the
// queue, and for a day at least.
func TestImport(t *testing.T) {
	b := setup(t)
	b.mustQueue("dead", nil)
	b.mustQueue("q", with(dlq("dead"), func(p *event.Policy) { p.DedupWindowSeconds = 0 }))
	put := func(sources ...string) event.Result {
		c := &event.Produce{Queue: "q", Import: true}
		for _, s := range sources {
			m := msg(s)
			m.SourceID = s
			copy(m.DedupKey[1:], s)
			c.Messages = append(c.Messages, m)
		}
		return b.one(&event.Command{Produce: c})
	}
	dups := func(r event.Result) (out []bool) {
		for _, p := range b.ok(r).Produced {
			out = append(out, p.Duplicate)
		}
		return out
	}
	r := put("s1", "s2", "s1")
	mustEqual(t, dups(r), []bool{false, false, true})
	mustEqual(t, r.Produced[2].ID, r.Produced[0].ID)
	mustEqual(t, []any{b.stats("q").Imported, b.stats("q").Enqueued}, []any{2, 0})
	m, _ := b.m.Message(r.Produced[0].ID)
	mustEqual(t, m.SourceID, "s1")
	b.wantTake("q", 1, "s1")
	b.want(event.OpAck, "s1", event.StatusAcked)
	mustEqual(t, dups(put("s1")), []bool{true}) // remembered
	b.tick(24*3600*1000 - 1)
	mustEqual(t, dups(put("s1", "s2")), []bool{true, true})
	b.tick(1)
	b.restart()
	mustEqual(t, dups(put("s1", "s2")), []bool{false, true}) // s2 is there still
	b.kill("q", "s2")
	mustEqual(t, dups(put("s2")), []bool{false})
	b.ok(b.replay("q", func(r *event.Replay) { r.Items = []event.ReplayItem{{ID: b.ids["s2"][1]}} }))
	b.tick(25 * 3600 * 1000)
	b.restart()
	mustEqual(t, dups(put("s2")), []bool{true})
	b.drain("q")
	mustEqual(t, dups(put("s2")), []bool{false})
	b.wantProblem(put("s3", ""), event.CodeInvalidArgument, "source_id must be set")
	b.refold()
}
