package fsm

import (
	"fmt"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"pgregory.net/rapid"
)

// TestBatchesKeepTheirPlaces draws a lane whose order is not that of its ids (delays, tail retries,
// replays), and lets a message of a batch fail. What is delivered one by one after that is what
// would have been delivered without the batch.
func TestBatchesKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := &chaos{t: rt}
		b := setup(rt)
		b.queue("dead", nil)
		b.queue("q", func(p *event.Policy) {
			p.Ordering, p.LaneBatch, p.OnRetry = event.FIFO, 1, event.RetryTail
			p.DeadLetterQueue, p.MaxAttempts = "dead", 0
		})
		var died []string
		for i := range rapid.IntRange(3, 12).Draw(rt, "steps") {
			text := fmt.Sprint("m", i)
			switch draw(c, "step", "put", "put", "late", "tail", "die", "release", "replay") {
			case "put":
				b.fill("q", text)
			case "late":
				b.put("q", msg(text, delay(int64(rapid.IntRange(1, 5).Draw(rt, "delay")))))
			case "replay":
				if len(died) > 0 {
					at := rapid.IntRange(0, len(died)-1).Draw(rt, "dead")
					order := draw(c, "order", event.OrderOriginal, event.OrderAppend, event.OrderHead)
					b.ok(b.one(&event.Command{Replay: &event.Replay{Queue: "q", Order: order,
						Items: []event.ReplayItem{{ID: b.newest(died[at])}}}}))
					died = append(died[:at:at], died[at+1:]...)
				}
			case "die":
				for _, m := range b.lease("q", 1) {
					b.settle(event.OpDeadLetter, m.Lease)
					died = append(died, b.names[m.ID])
				}
			case "release":
				for _, m := range b.lease("q", 1) {
					b.settle(event.OpRelease, m.Lease)
				}
			case "tail":
				for _, m := range b.lease("q", 1) {
					b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{
						{Op: event.OpRetry, Lease: m.Lease, DelayMS: 1}}}})
				}
			}
			b.tick(draw[int64](c, "ms", 0, 2))
		}
		b.tick(10)
		b.queue("q", func(p *event.Policy) {
			p.Ordering, p.LaneBatch, p.OnRetry = event.FIFO, uint32(rapid.IntRange(2, 9).Draw(rt, "batch")), event.RetryBlock
			p.DeadLetterQueue, p.MaxAttempts = "dead", 0
		})
		copied := setup(rt)
		copied.m = newMachine(b.load(b.m.Freeze()), copied.log)
		copied.index, copied.now, copied.names = b.index, b.now, b.names
		want := copied.drain("q")

		for range rapid.IntRange(1, 3).Draw(rt, "failures") {
			batch := b.lease("q", 9)
			if len(batch) == 0 {
				break
			}
			fails := rapid.IntRange(0, len(batch)-1).Draw(rt, "fails")
			item := event.SettleItem{Op: draw(c, "op", event.OpRelease, event.OpRetry), Lease: batch[fails].Lease}
			b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{item}}})
			if rapid.Bool().Draw(rt, "restart") {
				b.restart()
			}
			if fails > 0 { // those ahead of it go back too, later
				b.settle(event.OpRelease, batch[0].Lease)
			}
		}
		require.Equal(rt, b.drain("q"), want, "the order")
	})
}

// drain acks one message after the other, and tells their texts.
func (b *bench) drain(queue string) (texts string) {
	b.t.Helper()
	for {
		ms := b.lease(queue, 1)
		if len(ms) == 0 {
			return texts
		}
		texts += " " + b.names[ms[0].ID]
		b.settle(event.OpAck, ms[0].Lease)
	}
}
