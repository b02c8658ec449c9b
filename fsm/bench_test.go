package fsm

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// nowhere is a log that keeps nothing: the benchmarks measure deciding and
// folding alone.
type nowhere struct{}

func (nowhere) Append(*event.Block) error { return nil }

// filled returns a machine with messages waiting in one queue, spread over
// keys, and the next index.
func filled(b testing.TB, messages, keys int) (*Machine, uint64) {
	m := New(projections.New(), nowhere{}, Options{Known: known})
	p := event.DefaultPolicy()
	p.DedupWindowSeconds = 0
	if keys > 1 {
		p.Ordering = event.PerKey
	}
	index := uint64(1)
	apply(b, m, index, &event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: p}})
	for n := 0; n < messages; {
		c := &event.Produce{Queue: "q"}
		for i := 0; i < 1000 && n < messages; i, n = i+1, n+1 {
			c.Messages = append(c.Messages, event.NewMessage{Priority: 5, Size: 1024, Key: fmt.Sprintf("k%d", n%keys)})
		}
		index++
		apply(b, m, index, &event.Command{Produce: c})
	}
	return m, index + 1
}

func apply(b testing.TB, m *Machine, index uint64, c *event.Command) event.Result {
	e := event.Entry{Rules: event.Rules, Time: epoch + int64(index), Commands: [][]byte{event.EncodeCommand(c)}}
	rs, err := m.Apply(index, e.Encode())
	must(b, err)
	if rs[0].Problem != nil {
		b.Fatal(rs[0].Problem)
	}
	return rs[0]
}

// BenchmarkCycle enqueues, leases and acks 10 messages an operation, with
// little and with much waiting, in one and in many keys: the cost must not
// grow.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []struct{ messages, keys int }{{1_000, 1}, {1_000_000, 1}, {100_000, 1000}, {1_000_000, 100_000}} {
		b.Run(fmt.Sprintf("waiting=%d/keys=%d", size.messages, size.keys), func(b *testing.B) {
			m, index := filled(b, size.messages, size.keys)
			runtime.GC()
			n := 0
			b.ResetTimer()
			for b.Loop() {
				p := &event.Produce{Queue: "q"}
				for range 10 {
					p.Messages = append(p.Messages, event.NewMessage{Priority: 5, Size: 1024, Key: fmt.Sprintf("k%d", n%size.keys)})
					n++
				}
				apply(b, m, index, &event.Command{Produce: p})
				r := apply(b, m, index+1, &event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 10}})
				s := &event.Settle{}
				for _, l := range r.Leased {
					s.Items = append(s.Items, event.SettleItem{Op: event.OpAck, Lease: l.Lease})
				}
				apply(b, m, index+2, &event.Command{Settle: s})
				index += 3
			}
		})
	}
}
