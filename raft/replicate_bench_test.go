package raft

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/peer"
	"github.com/qlogd/qlogd/internal/vfs"
)

// loads are what is put on three replicas: so many callers, each with so many
// messages of 1 KiB in a command.
var loads = []struct {
	name           string
	callers, batch int
}{{"lone", 1, 1}, {"batches", 8, 100}, {"singles", 64, 1}}

// BenchmarkReplicate measures what a message costs on its way to three disks:
// three replicas in one process, over the inside network and on real files, with
// a Machine that does nothing. An operation is one message. What counts is
// cpu-µs/msg, the time that the process spent in user and system mode.
func BenchmarkReplicate(b *testing.B) {
	for _, at := range []string{"leader", "followers"} {
		for _, l := range loads {
			b.Run(fmt.Sprintf("at=%s/%s", at, l.name), func(b *testing.B) {
				t := newTrio(b)
				var takers []*Replica
				for _, r := range t.replicas {
					if r.Leader() == (at == "leader") {
						takers = append(takers, r)
					}
				}
				c := load(l.batch)
				leader := t.leader()
				entries := leader.fsm.progress().entries
				t.measure(b, l.callers, l.batch, func(caller int) error {
					_, err := takers[caller%len(takers)].Propose(context.Background(), c)
					return err
				})
				entries = leader.fsm.progress().entries - entries
				b.ReportMetric(float64(b.N)/float64(entries), "msgs/entry")
			})
		}
	}
}

// load is a command of so many messages of 1 KiB.
func load(batch int) *event.Command {
	p := &event.Produce{Queue: "q"}
	for range batch {
		content := event.EncodeContent(&event.Content{Payload: make([]byte, 1024), Binary: true})
		p.Messages = append(p.Messages, event.NewMessage{Priority: 5, Size: 1024, Content: content})
	}
	return &event.Command{Produce: p}
}

// meter counts what a benchmark's files do.
type meter struct{ syncs atomic.Int64 }

// measure lets callers call until b.N messages have been taken.
func (m *meter) measure(b *testing.B, callers, batch int, call func(caller int) error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, syncs, began := cpuTime(), m.syncs.Load(), time.Now()
	slow := make([][]time.Duration, callers)
	for i := range callers {
		wg.Go(func() {
			for left.Add(-int64(batch)) > int64(-batch) {
				start := time.Now()
				if err := call(i); err != nil {
					b.Error(err)
					return
				}
				slow[i] = append(slow[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	n := float64(b.N)
	b.ReportMetric(float64(cpu.Microseconds())/n, "cpu-µs/msg")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/n, "B/msg")
	b.ReportMetric(float64(m.syncs.Load()-syncs)/took.Seconds(), "syncs/s")
	b.ReportMetric(n/took.Seconds(), "msgs/s")
	all := slices.Concat(slow...)
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// counted is a file system that counts its fsyncs.
type counted struct {
	vfs.OS
	m *meter
}

type countedFile struct {
	vfs.File
	m *meter
}

func (c counted) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return countedFile{f, c.m}, nil
}

func (c counted) Create(name string) (vfs.File, error) { return c.file(c.OS.Create(name)) }
func (c counted) OpenReadWrite(name string) (vfs.File, error) {
	return c.file(c.OS.OpenReadWrite(name))
}

func (f countedFile) Sync() error {
	f.m.syncs.Add(1)
	return f.File.Sync()
}

// trio are three replicas with a leader.
type trio struct {
	meter
	replicas []*Replica
}

func newTrio(b *testing.B) *trio {
	t := &trio{}
	var listeners []net.Listener
	var initial []Member
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		listeners = append(listeners, l)
		name := fmt.Sprintf("n%d", i+1)
		initial = append(initial, Member{ID: name, Incarnation: name + "-1", RaftAddr: l.Addr().String(), Voter: true})
	}
	for i, m := range initial {
		n, err := peer.New(peer.Options{Listener: listeners[i], Self: peer.Identity{Cluster: "c1", Node: m.ID, Incarnation: m.Incarnation, Raft: m.RaftAddr}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { n.Close() })
		dir := b.TempDir()
		r, err := Open(Options{
			NodeID: m.ID, Incarnation: m.Incarnation, ClusterID: "c1", Dir: dir + "/raft", CheckpointDir: dir + "/checkpoints", FS: counted{m: &t.meter},
			Net: n, Machine: &countMachine{}, Initial: initial, SnapshotInterval: -1, SnapshotBytes: 1 << 60, SnapshotThreshold: 1 << 60,
			HeartbeatTimeout: 2 * time.Second, OnFatal: func(err error) { b.Error(err) },
		})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = r.Shutdown(context.Background()) })
		t.replicas = append(t.replicas, r)
	}
	until(b, "no leader", func() bool {
		ready := 0
		for _, r := range t.replicas {
			if _, ok := r.leaderTarget(); r.leadsReady() || ok {
				ready++
			}
		}
		return ready == len(t.replicas) && t.leader() != nil
	})
	return t
}

func (t *trio) leader() *Replica {
	for _, r := range t.replicas {
		if r.leadsReady() {
			return r
		}
	}
	return nil
}

// BenchmarkBareRaft is the limit: hashicorp/raft on three nodes with raft-wal,
// its own network, nothing to apply, and a group of all that waits as one entry.
func BenchmarkBareRaft(b *testing.B) {
	for _, l := range loads {
		b.Run(l.name, func(b *testing.B) {
			t := newBare(b)
			data := event.EncodeCommand(load(l.batch))
			ask := make(chan bareAsk, 1024)
			go t.group(ask)
			t.measure(b, l.callers, l.batch, func(int) error {
				a := bareAsk{data, make(chan error, 1)}
				ask <- a
				return <-a.done
			})
			close(ask)
			b.ReportMetric(float64(b.N)/float64(t.entries.Load()), "msgs/entry")
		})
	}
}

type bareAsk struct {
	data []byte
	done chan error
}

type bare struct {
	meter
	leader  *hraft.Raft
	entries atomic.Int64
}

// group proposes what waits, up to 1 MiB at a time and eight groups at once.
func (t *bare) group(ask chan bareAsk) {
	room := make(chan struct{}, 8)
	for a := range ask {
		room <- struct{}{}
		group, size := []bareAsk{a}, len(a.data)
		for len(ask) > 0 && size < 1<<20 {
			a := <-ask
			group, size = append(group, a), size+len(a.data)
		}
		data := make([]byte, 0, size)
		for _, a := range group {
			data = append(data, a.data...)
		}
		t.entries.Add(1)
		f := t.leader.Apply(data, 0)
		go func() {
			err := f.Error()
			<-room
			for _, a := range group {
				a.done <- err
			}
		}()
	}
}

type nothing struct{ hraft.FSM }

func (nothing) Apply(*hraft.Log) any { return nil }

func newBare(b *testing.B) *bare {
	t := &bare{}
	var nodes []*hraft.Raft
	var servers []hraft.Server
	var trans []*hraft.NetworkTransport
	for i := range 3 {
		tr, err := hraft.NewTCPTransport("127.0.0.1:0", nil, 3, 10*time.Second, io.Discard)
		if err != nil {
			b.Fatal(err)
		}
		trans = append(trans, tr)
		servers = append(servers, hraft.Server{ID: hraft.ServerID(fmt.Sprint(i)), Address: tr.LocalAddr()})
	}
	for i := range 3 {
		dir := b.TempDir()
		w, err := wal.Open(dir, wal.WithLogger(hclog.NewNullLogger()))
		if err != nil {
			b.Fatal(err)
		}
		conf := hraft.DefaultConfig()
		conf.LocalID, conf.Logger = servers[i].ID, hclog.NewNullLogger()
		stable, snaps := hraft.NewInmemStore(), hraft.NewInmemSnapshotStore()
		if err := hraft.BootstrapCluster(conf, w, stable, snaps, trans[i], hraft.Configuration{Servers: servers}); err != nil {
			b.Fatal(err)
		}
		r, err := hraft.NewRaft(conf, nothing{}, w, stable, snaps, trans[i])
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = r.Shutdown().Error(); trans[i].Close(); w.Close() })
		nodes = append(nodes, r)
	}
	until(b, "no leader", func() bool {
		i := slices.IndexFunc(nodes, func(r *hraft.Raft) bool { return r.State() == hraft.Leader })
		if i >= 0 {
			t.leader = nodes[i]
		}
		return i >= 0
	})
	return t
}
