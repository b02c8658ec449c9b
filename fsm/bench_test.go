package fsm

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// nowhere is a log that keeps nothing.
type nowhere struct{}

func (nowhere) Append(*event.Block) error { return nil }

// driver drives a machine as Raft does: with entries of many commands.
type driver struct {
	b     *testing.B
	m     *Machine
	index uint64
	rng   *rand.ChaCha8
	keys  int // of messages, in turn; 1: none
	next  int
}

func newDriver(b *testing.B, l Log, keys int) *driver {
	d := &driver{b: b, m: New(projections.New(), l), rng: rand.NewChaCha8([32]byte{}),
		keys: keys}
	p := event.DefaultPolicy()
	p.DedupWindowSeconds = 0
	if keys > 1 {
		p.Ordering = event.PerKey
	}
	d.do(event.EncodeCommand(&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: p}}))
	return d
}

// do applies one entry.
func (d *driver) do(commands ...[]byte) []event.Result {
	d.index++
	e := event.Entry{Rules: event.Rules, Time: epoch + int64(d.index), Commands: commands}
	rs, err := d.m.Apply(d.index, e.Encode())
	must(d.b, err)
	for i := range rs {
		if rs[i].Problem != nil {
			d.b.Fatal(rs[i].Problem)
		}
	}
	return rs
}

// produce is a command of n messages with contents of size random bytes.
func (d *driver) produce(n, size int) []byte {
	c := &event.Produce{Queue: "q"}
	for range n {
		m := event.NewMessage{Priority: 5, Size: 1024}
		if d.keys > 1 {
			m.Key = fmt.Sprint("k", d.next%d.keys)
			d.next++
		}
		if size > 0 {
			payload := make([]byte, size)
			_, _ = d.rng.Read(payload)
			m.Content = event.EncodeContent(&event.Content{Payload: payload, Binary: true})
		}
		c.Messages = append(c.Messages, m)
	}
	return event.EncodeCommand(&event.Command{Produce: c})
}

func (d *driver) lease(n int) []byte {
	return event.EncodeCommand(&event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: n,
		LeaseMS: 1 << 40, Worker: "worker-1"}})
}

func (d *driver) ack(leased []event.LeasedMessage) []byte {
	s := &event.Settle{Queue: "q"}
	for i := range leased {
		s.Items = append(s.Items, event.SettleItem{Op: event.OpAck, Lease: leased[i].Lease})
	}
	return event.EncodeCommand(&event.Command{Settle: s})
}

// times repeats a command: their bytes are the same.
func times(n int, command []byte) (out [][]byte) {
	for range n {
		out = append(out, command)
	}
	return out
}

// perMessage reports what each of n messages costs from now on: CPU time of the whole process,
// the log's background work included, and memory.
func perMessage(b *testing.B) func(n int) {
	cpu := func() int64 {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return u.Utime.Nano() + u.Stime.Nano()
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := cpu()
	return func(n int) {
		used := cpu() - began
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(used)/float64(n), "cpu-ns/message")
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(n), "B/message")
		b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n), "allocs/message")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkApply shows what each node does with a message on a real event log: entries of ten
// commands of a hundred messages each, produced, leased and acked. Run it with -benchtime 400x.
func BenchmarkApply(b *testing.B) {
	const commands, each = 10, 100
	open := func(b *testing.B) *driver {
		l, err := log.Open(log.Options{FS: vfs.OS{}, Dir: filepath.Join(b.TempDir(), "log"),
			CacheBytes: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
		must(b, err)
		b.Cleanup(func() { _ = l.Close() })
		return newDriver(b, l, 1)
	}
	b.Run("produce", func(b *testing.B) {
		d := open(b)
		var entry [][]byte
		for range commands {
			entry = append(entry, d.produce(each, 1024))
		}
		done := perMessage(b)
		for range b.N {
			d.do(entry...)
		}
		done(b.N * commands * each)
	})
	b.Run("lease", func(b *testing.B) {
		d := open(b)
		for range b.N {
			d.do(times(commands, d.produce(each, 1024))...)
		}
		entry := times(commands, d.lease(each))
		done := perMessage(b)
		for range b.N {
			d.do(entry...)
		}
		done(b.N * commands * each)
	})
	b.Run("ack", func(b *testing.B) {
		d := open(b)
		var entries [][][]byte
		for range b.N {
			d.do(times(commands, d.produce(each, 1024))...)
			entries = append(entries, nil)
			for _, r := range d.do(times(commands, d.lease(each))...) {
				entries[len(entries)-1] = append(entries[len(entries)-1], d.ack(r.Leased))
			}
		}
		done := perMessage(b)
		for _, e := range entries {
			d.do(e...)
		}
		done(b.N * commands * each)
	})
}

// BenchmarkCycle enqueues, leases and acks 10 messages an operation, with little and with much
// waiting, in one and in many keys: the cost must not grow.
func BenchmarkCycle(b *testing.B) {
	for _, size := range []struct{ messages, keys int }{
		{1_000, 1}, {1_000_000, 1}, {100_000, 1000}, {1_000_000, 100_000},
	} {
		b.Run(fmt.Sprintf("waiting=%d/keys=%d", size.messages, size.keys), func(b *testing.B) {
			d := newDriver(b, nowhere{}, size.keys)
			for range size.messages / 1000 {
				d.do(d.produce(1000, 0))
			}
			runtime.GC()
			for b.Loop() {
				d.do(d.produce(10, 0))
				d.do(d.ack(d.do(d.lease(10))[0].Leased))
			}
		})
	}
}
