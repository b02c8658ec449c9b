package machine

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/projections/store"
)

const epoch = 1_750_000_000_000

// bench drives a machine on a real event log, as Raft does: entries of many
// commands, each of a hundred messages of 1 KiB.
type bench struct {
	*Machine
	log   *eventlog.Log
	index uint64
	rng   *rand.ChaCha8
}

func newBench(b testing.TB, p event.Policy) *bench {
	log, err := eventlog.Open(eventlog.Options{FS: vfs.OS{}, Dir: b.TempDir() + "/log", CacheBytes: logCache, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = log.Close() })
	m := &bench{Machine: New(projections.New(), log, Options{}), log: log, rng: rand.NewChaCha8([32]byte{1})}
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

// BenchmarkFollow lets the read models follow behind what was produced, leased
// and acked: all of it in memory still, or much of it on the disk alone.
func BenchmarkFollow(b *testing.B) {
	for name, rounds := range map[string]int{"memory": 30, "disk": 100} {
		b.Run(name, func(b *testing.B) {
			m := newBench(b, plain())
			for range rounds {
				m.do(b, m.produce(1000, "q", noKey))
				m.do(b, ack(m.do(b, m.lease(1000))[0].Leased))
			}
			done := perMessage(b)
			n := 0
			for b.Loop() {
				models, err := store.Open(b.TempDir()+"/projections.db", "c", store.Options{})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				var followed sync.WaitGroup
				followed.Go(func() { _ = models.Follow(ctx, m.log) })
				if err := models.WaitFor(ctx, m.index); err != nil {
					b.Fatal(err)
				}
				cancel()
				followed.Wait()
				_ = models.Close()
				n += 1000 * rounds
			}
			done(n)
		})
	}
}

// BenchmarkContents reads what a lease of a hundred hands out: the newest
// messages, which the log has in memory, and old ones.
func BenchmarkContents(b *testing.B) {
	m := newBench(b, plain())
	var refs []event.Ref
	for range 300 {
		m.do(b, m.produce(1000, "q", noKey))
		for n := range uint32(1000) {
			refs = append(refs, event.Ref{Index: m.index, Number: n})
		}
	}
	for name, from := range map[string]int{"new": len(refs) - 30_000, "old": 0} {
		b.Run(name, func(b *testing.B) {
			done := perMessage(b)
			i, n := 0, 0
			for b.Loop() {
				if _, err := m.log.Contents(refs[from+i : from+i+100]); err != nil {
					b.Fatal(err)
				}
				i = (i + 100) % 30_000
				n += 100
			}
			done(n)
		})
	}
}

// BenchmarkStalls applies entries of ten commands of ten messages, 50,000 messages a
// second, as many as fill six segments, and tells how long the slowest of a thousand took, apart for
// those that ended a segment, those while a side file was built or the disk
// synced behind (all within 64 entries after), and the rest; and once more with
// checkpoints written one after another.
func BenchmarkStalls(b *testing.B) {
	for _, checkpoints := range []bool{false, true} {
		name := "alone"
		if checkpoints {
			name = "checkpoints"
		}
		b.Run(name, func(b *testing.B) {
			m := newBench(b, plain())
			var group [][]byte
			for range 10 {
				group = append(group, m.produce(10, "q", noKey))
			}
			entry := event.Entry{Rules: event.Rules, Time: epoch, Commands: group}
			data := entry.Encode()
			var writing sync.WaitGroup
			stop := make(chan struct{})
			if checkpoints {
				dir := b.TempDir()
				writing.Go(func() {
					for n := uint64(1); ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						f, _ := m.Freeze()
						_ = m.SyncLog()
						if err := checkpoint.Write(vfs.OS{}, dir, checkpoint.Meta{Index: n, HeadIndex: 1}, f); err != nil {
							b.Error(err)
						}
						f.Release()
					}
				})
			}
			var took, rolls, behind []time.Duration
			segments, since := 1, 1<<30
			next := time.Now()
			for b.Loop() {
				for range 6 * 64 << 20 / (100 * 1200) {
					m.index++
					next = next.Add(2 * time.Millisecond)
					time.Sleep(time.Until(next))
					began := time.Now()
					if _, err := m.Apply(m.index, data); err != nil {
						b.Fatal(err)
					}
					d := time.Since(began)
					since++
					if n := len(m.log.Raw().Segments()); n > segments {
						segments, since = n, 0
						rolls = append(rolls, d)
					} else if since < 64 {
						behind = append(behind, d)
					} else {
						took = append(took, d)
					}
				}
			}
			close(stop)
			writing.Wait()
			for name, d := range map[string][]time.Duration{"rest": took, "behind": behind, "roll": rolls} {
				slices.Sort(d)
				b.ReportMetric(d[len(d)/2].Seconds()*1e3, name+"-p50-ms")
				b.ReportMetric(d[len(d)*999/1000].Seconds()*1e3, name+"-p99.9-ms")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
