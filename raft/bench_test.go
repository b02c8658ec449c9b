package raft

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/vfs"
)

// BenchmarkPropose shows what grouping is worth: clients that wait for their
// answer each, on real files with real fsyncs, 1 KiB a command.
func BenchmarkPropose(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			dir := b.TempDir()
			o := on(vfs.OS{})
			o.OpenKV, o.Dir, o.CheckpointDir, o.SegmentBytes = nil, dir+"/raft", dir+"/checkpoints", 64<<20
			o.Machine = &countMachine{}
			m := &node{t: b, o: o, died: make(chan error, 1)}
			o.OnFatal = func(err error) { m.died <- err }
			var err error
			if m.Replica, err = Open(o); err != nil {
				b.Fatal(err)
			}
			defer m.down()
			m.ready()
			content := event.EncodeContent(&event.Content{Payload: make([]byte, 1024), Binary: true})
			c := &event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{{Priority: 5, Size: 1024, Content: content}}}}
			b.SetParallelism(clients)
			b.ReportAllocs()
			if clients == 1 {
				for b.Loop() {
					if _, err := m.Propose(context.Background(), c); err != nil {
						b.Fatal(err)
					}
				}
				return
			}
			work := make(chan struct{}, b.N)
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			done := make(chan error, clients)
			b.ResetTimer()
			for range clients {
				go func() {
					for range work {
						if _, err := m.Propose(context.Background(), c); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for range clients {
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
			b.ReportMetric(float64(m.fsm.progress().entries), "entries")
		})
	}
}

// BenchmarkStoreLogs stores one entry after the other on real files with real
// fsyncs, through the page cache and past it. cpu is the process's and longest is
// the worst call, a new segment's first ones included.
func BenchmarkStoreLogs(b *testing.B) {
	for _, size := range []int{1200, 25_000} {
		for _, kind := range []string{"cached", "direct"} {
			b.Run(fmt.Sprintf("bytes=%d/%s", size, kind), func(b *testing.B) {
				o := on(vfs.OS{})
				o.OpenKV, o.Dir, o.SegmentBytes, o.Machine = nil, b.TempDir(), 32<<20, noMachine{}
				o, err := o.withDefaults()
				if err != nil {
					b.Fatal(err)
				}
				s, err := openLog(o, noFaults, func() uint64 { return 0 })
				if err != nil {
					b.Fatal(err)
				}
				defer s.close()
				if s.life.directAfter = 0; kind == "cached" {
					s.life.directAfter = math.MaxInt64
				}
				l := &hraft.Log{Term: 1, Type: hraft.LogCommand, Data: make([]byte, size)}
				for i := range l.Data {
					l.Data[i] = byte(i*7) | 1
				}
				var each []time.Duration
				cpu := cpuTime()
				for b.Loop() {
					l.Index++
					start := time.Now()
					if err := s.StoreLog(l); err != nil {
						b.Fatal(err)
					}
					each = append(each, time.Since(start))
				}
				cpu = cpuTime() - cpu
				slices.Sort(each)
				b.ReportMetric(float64(cpu.Microseconds())/float64(len(each)), "cpu-µs/op")
				b.ReportMetric(float64(each[len(each)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(each[len(each)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(float64(each[len(each)-1].Microseconds()), "longest-µs")
			})
		}
	}
}

// swallowing is a file system that keeps nothing of what is written.
type swallowing struct{ vfs.OS }

type swallowingFile struct{ vfs.File }

func (s swallowing) Create(name string) (vfs.File, error) {
	f, err := s.OS.Create(name)
	return swallowingFile{f}, err
}

func (swallowingFile) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (swallowingFile) Sync() error                            { return nil }

// BenchmarkEncodeLogs is BenchmarkStoreLogs without the disk.
func BenchmarkEncodeLogs(b *testing.B) {
	for _, size := range []int{1200, 25_000, 400_000} {
		b.Run(fmt.Sprintf("bytes=%d", size), func(b *testing.B) {
			o := on(swallowing{})
			o.OpenKV, o.Dir, o.SegmentBytes, o.Machine = nil, b.TempDir(), 1<<30, noMachine{}
			o, err := o.withDefaults()
			if err != nil {
				b.Fatal(err)
			}
			s, err := openLog(o, noFaults, func() uint64 { return 0 })
			if err != nil {
				b.Fatal(err)
			}
			defer s.close()
			l := &hraft.Log{Term: 1, Type: hraft.LogCommand, Data: make([]byte, size), AppendedAt: time.Now()}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				l.Index++
				if err := s.StoreLog(l); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// countMachine only counts: what is measured is Raft.
type countMachine struct {
	Machine
	head  uint64
	clock int64
}

func (m *countMachine) Apply(index uint64, entry []byte) ([]event.Result, error) {
	e, err := event.DecodeEntry(entry)
	if err != nil {
		return nil, err
	}
	m.head, m.clock = index, e.Time
	out := make([]event.Result, len(e.Commands))
	for i, c := range e.Commands {
		if len(c) > 32 {
			continue
		}
		if cmd, err := event.DecodeCommand(c); err == nil && cmd.Mark != nil {
			out[i].Digest[0] = 1
		}
	}
	return out, nil
}
func (m *countMachine) Head() (uint64, [32]byte) { return m.head, [32]byte{} }
func (m *countMachine) NextDue() (int64, bool)   { return 0, false }
func (m *countMachine) Clock() int64             { return m.clock }
func (m *countMachine) Rules() uint16            { return event.Rules }
func (m *countMachine) SyncLog() error           { return nil }
