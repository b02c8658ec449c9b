package fsm

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

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
	if err != nil {
		b.Fatal(err)
	}
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

// BenchmarkFlat enqueues, leases and acks one message an operation and tells the
// median of each: the mean would show the collector's work, not the queue's.
func BenchmarkFlat(b *testing.B) {
	for _, size := range []struct{ messages, keys int }{{1_000, 1}, {1_000_000, 1}, {1_000_000, 100_000}} {
		b.Run(fmt.Sprintf("waiting=%d/keys=%d", size.messages, size.keys), func(b *testing.B) {
			m, index := filled(b, size.messages, size.keys)
			runtime.GC()
			var took [3][]time.Duration
			n := 0
			for b.Loop() {
				began := time.Now()
				step := func(i int) {
					now := time.Now()
					took[i] = append(took[i], now.Sub(began))
					began, index = now, index+1
				}
				apply(b, m, index, &event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{
					{Priority: 5, Size: 1024, Key: fmt.Sprintf("k%d", n%size.keys)},
				}}})
				step(0)
				n++
				r := apply(b, m, index, &event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 1}})
				step(1)
				apply(b, m, index, &event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: event.OpAck, Lease: r.Leased[0].Lease}}}})
				step(2)
			}
			for i, what := range []string{"enqueue", "lease", "ack"} {
				slices.Sort(took[i])
				b.ReportMetric(float64(took[i][len(took[i])/2]), what+"-p50-ns")
			}
		})
	}
}

// BenchmarkBeside enqueues while checkpoints of 1,000,000 messages are written
// one after another, and while none is, and tells the longest that one entry
// took: Freeze, and the first writes after it, which copy.
func BenchmarkBeside(b *testing.B) {
	for _, writing := range []bool{false, true} {
		b.Run(fmt.Sprintf("writing=%v", writing), func(b *testing.B) {
			m, index := filled(b, 1_000_000, 1000)
			runtime.GC()
			written := make(chan *Frozen, 1)
			var froze, took []time.Duration
			checkpoints := 0
			write := func() {
				began := time.Now()
				f := m.Freeze()
				froze = append(froze, time.Since(began))
				go func() {
					_, _ = f.WriteTo(io.Discard)
					written <- f
				}()
			}
			if writing {
				write()
			}
			for b.Loop() {
				began := time.Now()
				apply(b, m, index, &event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{
					{Priority: 5, Size: 1024, Key: fmt.Sprintf("k%d", index%1000)},
				}}})
				index++
				took = append(took, time.Since(began))
				select {
				case f := <-written:
					f.Release()
					checkpoints++
					write()
				default:
				}
			}
			if writing {
				(<-written).Release()
				b.ReportMetric(float64(slices.Max(froze))/1e6, "max-freeze-ms")
				b.ReportMetric(float64(checkpoints), "checkpoints")
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*999/1000])/1e6, "p99.9-ms")
			b.ReportMetric(float64(took[len(took)-1])/1e6, "max-ms")
		})
	}
}

// BenchmarkMemory tells the heap that a waiting message costs.
func BenchmarkMemory(b *testing.B) {
	for _, keys := range []int{1, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			const n = 1_000_000
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				m, _ := filled(b, n, keys)
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/n, "bytes/message")
				runtime.KeepAlive(m)
			}
		})
	}
}

// BenchmarkFreeze tells how long a checkpoint of 1,000,000 messages holds up
// the machine.
func BenchmarkFreeze(b *testing.B) {
	m, _ := filled(b, 1_000_000, 1000)
	for b.Loop() {
		m.Freeze().Release()
	}
}

// BenchmarkCheckpoint writes and loads 1,000,000 messages.
func BenchmarkCheckpoint(b *testing.B) {
	m, _ := filled(b, 1_000_000, 1000)
	var buf bytes.Buffer
	f := m.Freeze()
	if _, err := f.WriteTo(&buf); err != nil {
		b.Fatal(err)
	}
	f.Release()
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			f := m.Freeze()
			if _, err := f.WriteTo(io.Discard); err != nil {
				b.Fatal(err)
			}
			f.Release()
		}
		b.SetBytes(int64(buf.Len()))
	})
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			if _, err := projections.Load(bytes.NewReader(buf.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
		b.SetBytes(int64(buf.Len()))
	})
}

// BenchmarkGrowth enqueues, leases and acks a hundred messages an operation beside
// what waits already, in how many keys and queues, and tells the median of each
// for a message; and what else could grow: memory, the hold of a checkpoint, and a
// collection of garbage.
func BenchmarkGrowth(b *testing.B) {
	for _, size := range []struct{ messages, keys, queues int }{
		{1_000, 1, 1}, {1_000_000, 1, 1}, {10_000_000, 1, 1},
		{1_000_000, 100_000, 1}, {1_000_000, 1_000_000, 1}, {1_000_000, 1, 10_000},
	} {
		b.Run(fmt.Sprintf("waiting=%d/keys=%d/queues=%d", size.messages, size.keys, size.queues), func(b *testing.B) {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			m, index := filled(b, 0, size.keys)
			p := event.DefaultPolicy()
			p.DedupWindowSeconds = 0
			if size.keys > 1 {
				p.Ordering = event.PerKey
			}
			queue := func(n int) string { return fmt.Sprintf("q%d", n%size.queues) }
			for n := range size.queues {
				apply(b, m, index, &event.Command{PutQueue: &event.PutQueue{Name: queue(n), Policy: p}})
				index++
			}
			next := 0
			produce := func(queue string, n int) {
				c := &event.Produce{Queue: queue}
				for range n {
					c.Messages = append(c.Messages, event.NewMessage{Priority: 5, Size: 1024, Key: fmt.Sprintf("k%d", next%size.keys)})
					next++
				}
				apply(b, m, index, &event.Command{Produce: c})
				index++
			}
			for n := 0; next < size.messages; n++ {
				produce(queue(n), min(1000, max(1, size.messages/size.queues), size.messages-next))
			}
			began := time.Now()
			runtime.GC()
			collection := time.Since(began)
			runtime.ReadMemStats(&after)
			began = time.Now()
			f := m.Freeze()
			freeze := time.Since(began)
			f.Release()
			const each = 100
			var took [3][]time.Duration
			n := 0
			for b.Loop() {
				q := queue(n * 7919)
				n++
				step := func(i int, fn func()) {
					began := time.Now()
					fn()
					took[i] = append(took[i], time.Since(began))
				}
				step(0, func() { produce(q, each) })
				var r event.Result
				step(1, func() {
					r = apply(b, m, index, &event.Command{Lease: &event.Lease{Queues: []string{q}, Max: each}})
					index++
				})
				s := &event.Settle{}
				for i := range r.Leased {
					s.Items = append(s.Items, event.SettleItem{Op: event.OpAck, Lease: r.Leased[i].Lease})
				}
				step(2, func() { apply(b, m, index, &event.Command{Settle: s}); index++ })
			}
			for i, what := range []string{"enqueue", "lease", "ack"} {
				slices.Sort(took[i])
				b.ReportMetric(float64(took[i][len(took[i])/2])/each, what+"-ns/message")
			}
			b.ReportMetric(collection.Seconds()*1e3, "collection-ms")
			b.ReportMetric(freeze.Seconds()*1e3, "freeze-ms")
			b.ReportMetric(float64(after.HeapInuse-before.HeapInuse)/float64(size.messages), "bytes/message")
			b.ReportMetric(0, "ns/op")
		})
	}
}
