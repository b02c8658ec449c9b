package fsm

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// nowhere is a log that keeps nothing.
type nowhere struct{}

func (nowhere) Append(*event.Block) error { return nil }

// BenchmarkCycle enqueues, leases and acks 10 messages an operation, with little and with much
// waiting, in one and in many keys: the cost must not grow.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []struct{ messages, keys int }{
		{1_000, 1}, {1_000_000, 1}, {100_000, 1000}, {1_000_000, 100_000},
	} {
		b.Run(fmt.Sprintf("waiting=%d/keys=%d", size.messages, size.keys), func(b *testing.B) {
			m, index, put := New(projections.New(), nowhere{}), uint64(0), 0
			do := func(c *event.Command) event.Result {
				index++
				e := event.Entry{Rules: event.Rules, Time: epoch + int64(index),
					Commands: [][]byte{event.EncodeCommand(c)}}
				rs, err := m.Apply(index, e.Encode())
				must(b, err)
				if rs[0].Problem != nil {
					b.Fatal(rs[0].Problem)
				}
				return rs[0]
			}
			produce := func(n int) {
				p := &event.Produce{Queue: "q"}
				for range n {
					put++
					p.Messages = append(p.Messages, event.NewMessage{Priority: 5, Size: 1024,
						Key: fmt.Sprint("k", put%size.keys)})
				}
				do(&event.Command{Produce: p})
			}
			p := event.DefaultPolicy()
			p.Ordering, p.DedupWindowSeconds = event.PerKey, 0
			if size.keys == 1 {
				p.Ordering = event.Unordered
			}
			do(&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: p}})
			for range size.messages / 1000 {
				produce(1000)
			}
			runtime.GC()
			for b.Loop() {
				produce(10)
				s := &event.Settle{Queue: "q"}
				lease := &event.Lease{Queues: []string{"q"}, Max: 10, LeaseMS: 1 << 40, Worker: "w"}
				for _, l := range do(&event.Command{Lease: lease}).Leased {
					s.Items = append(s.Items, event.SettleItem{Op: event.OpAck, Lease: l.Lease})
				}
				do(&event.Command{Settle: s})
			}
		})
	}
}
