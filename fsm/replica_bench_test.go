package fsm_test

import (
	"log/slog"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

const epoch = 1_750_000_000_000

// bench drives a machine on a real event log, as Raft does: entries of many
// commands, each of a hundred messages of 1 KiB.
type bench struct {
	*fsm.Replica
	log   *eventlog.Log
	index uint64
	rng   *rand.ChaCha8
}

func newBench(b testing.TB, p event.Policy) *bench {
	log, err := eventlog.Open(eventlog.Options{FS: vfs.OS{}, Dir: b.TempDir() + "/log", CacheBytes: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = log.Close() })
	m := &bench{Replica: fsm.NewReplica(projections.New(), log, fsm.Options{}), log: log, rng: rand.NewChaCha8([32]byte{1})}
	m.do(b, event.EncodeCommand(&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: p}}))
	return m
}

func plain() event.Policy {
	p := event.DefaultPolicy()
	p.DedupWindowSeconds = 0
	return p
}

// do applies one entry.
func (m *bench) do(b testing.TB, commands ...[]byte) []event.Result {
	m.index++
	e := event.Entry{Rules: event.Rules, Time: epoch + int64(m.index), Commands: commands}
	rs, err := m.Apply(m.index, e.Encode())
	if err != nil {
		b.Fatal(err)
	}
	for i := range rs {
		if rs[i].Problem != nil {
			b.Fatal(rs[i].Problem)
		}
	}
	return rs
}

// produce is a command of n messages of 1 KiB of random bytes.
func (m *bench) produce(n int, queue string, key func(i int) string) []byte {
	c := &event.Produce{Queue: queue}
	for i := range n {
		payload := make([]byte, 1024)
		_, _ = m.rng.Read(payload)
		c.Messages = append(c.Messages, event.NewMessage{
			Key: key(i), Priority: 5, Size: 1024, Content: event.EncodeContent(&event.Content{Payload: payload, Binary: true}),
		})
	}
	return event.EncodeCommand(&event.Command{Produce: c})
}

func (m *bench) lease(n int) []byte {
	return event.EncodeCommand(&event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: n, LeaseMS: 1 << 40, Worker: "worker-1"}})
}

func ack(leased []event.LeasedMessage) []byte {
	s := &event.Settle{Queue: "q"}
	for i := range leased {
		s.Items = append(s.Items, event.SettleItem{Op: event.OpAck, Lease: leased[i].Lease})
	}
	return event.EncodeCommand(&event.Command{Settle: s})
}

func noKey(int) string { return "" }

// cpu is what this process has used of all its threads.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// perMessage reports the processor's time and the bytes allocated for each of n
// messages since it was made: of all that runs, the log's background too.
func perMessage(b *testing.B) func(n int) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := cpu()
	return func(n int) {
		used := cpu() - began
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(used.Nanoseconds())/float64(n), "cpu-ns/message")
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(n), "B/message")
		b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n), "allocs/message")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkApply tells what each node does with a message: entries of ten
// commands of a hundred messages each, produced, leased and acked.
func BenchmarkApply(b *testing.B) {
	const commands, each = 10, 100
	b.Run("produce", func(b *testing.B) {
		m := newBench(b, plain())
		var group [][]byte
		for range commands {
			group = append(group, m.produce(each, "q", noKey))
		}
		runtime.GC()
		done := perMessage(b)
		n := 0
		for b.Loop() {
			m.do(b, group...)
			n += commands * each
		}
		done(n)
	})
	b.Run("lease", func(b *testing.B) {
		m := newBench(b, plain())
		for range b.N/1000 + 400 {
			m.do(b, m.produce(1000, "q", noKey))
		}
		var group [][]byte
		for range commands {
			group = append(group, m.lease(each))
		}
		runtime.GC()
		b.ResetTimer()
		done := perMessage(b)
		n := 0
		for n < 400_000 {
			rs := m.do(b, group...)
			for i := range rs {
				n += len(rs[i].Leased)
			}
		}
		done(n)
	})
	b.Run("ack", func(b *testing.B) {
		m := newBench(b, plain())
		var groups [][][]byte
		for range 400 {
			m.do(b, m.produce(1000, "q", noKey))
			var group [][]byte
			for range commands {
				group = append(group, ack(m.do(b, m.lease(each))[0].Leased))
			}
			groups = append(groups, group)
		}
		runtime.GC()
		b.ResetTimer()
		done := perMessage(b)
		for _, g := range groups {
			m.do(b, g...)
		}
		done(len(groups) * commands * each)
	})
}
