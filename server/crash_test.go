package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"testing"
	"time"

	"github.com/hashicorp/raft-wal/types"
	"github.com/qlogd/qlogd/background/retention"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/filekv"
	"github.com/qlogd/qlogd/internal/simtest/invariants"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/projections"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/raft/peer"
	"github.com/qlogd/qlogd/replay"
)

// stack is what stores and decides of a node, on a disk in memory: event log,
// state, checkpoints, Raft log; built as Start builds it.
type stack struct {
	log     *log.Log
	machine *fsm.Replica
	replica *raft.Replica
	peers   *peer.Net
	ctx     context.Context   // ends when the replica can't go on, as the process would
	seen    map[uint64]string // what each block held when it was appended
}

// openStack recovers what is on a disk.
func openStack(disk vfs.FS) (*stack, error) {
	ctx, die := context.WithCancel(context.Background())
	s := &stack{ctx: ctx, seen: map[uint64]string{}}
	ro := raft.Options{
		Node: datadir.Node{NodeID: "n1", ClusterID: "c1", Initial: []datadir.Member{{ID: "n1"}}},
		Dir:  "/raft", CheckpointDir: "/checkpoints", FS: disk,
		OpenKV: func(name string) (types.MetaStore, error) {
			return filekv.Open(disk, name)
		},
		OnFatal: func(error) { die() }, OnJoined: func() {},
		SnapshotInterval: -1, SnapshotThreshold: 1 << 40, TrailingLogs: 1,
		KeepCheckpoints: 2, SegmentBytes: 4096, HeartbeatTimeout: 20 * time.Millisecond,
		LeaderLeaseTimeout: 20 * time.Millisecond,
	}
	err := errors.Join(disk.MkdirAll("/raft"), disk.MkdirAll("/checkpoints"), disk.MkdirAll("/log"))
	if err != nil {
		return nil, err
	}
	if ro.Witness, err = witness.Open(disk, "/"+witness.FileName, &ro.Node); err != nil {
		return nil, err
	}
	heldFrom, err := raft.Held(ro)
	if err != nil {
		return nil, err
	}
	history, state, err := replay.Recover(ctx, log.Options{
		FS: disk, Dir: "/log", SegmentSize: 2048, HeldFrom: heldFrom,
		Logger: slog.New(slog.DiscardHandler),
	}, "/checkpoints")
	if err != nil {
		return nil, err
	}
	s.log = history.Log
	s.machine = fsm.NewReplica(state, recorder{s.log, s.seen})
	ro.Machine = s.machine
	network := memnet.New(memnet.Options{})
	l, err := network.Listen("n1:7071")
	if err != nil {
		return nil, err
	}
	self := peer.Identity{Cluster: "c1", Node: "n1", Raft: "n1:7071"}
	s.peers, err = peer.New(peer.Options{Listener: l, Dial: network.Dialer("n1"), Self: self})
	if err != nil {
		return nil, err
	}
	ro.Net = s.peers
	if s.replica, err = raft.Open(ro); err != nil {
		s.peers.Close()
		s.log.Close()
		return nil, err
	}
	return s, nil
}

// recorder is an event log that records the blocks appended to it.
type recorder struct {
	*log.Log
	seen map[uint64]string
}

// Append implements fsm.Log.
func (r recorder) Append(b *event.Block) error {
	if err := r.Log.Append(b); err != nil {
		return err
	}
	r.seen[b.Index] = sumBlock(b)
	return nil
}

func sumBlock(b *event.Block) string {
	h := sha256.New()
	fmt.Fprint(h, b.Index, b.Time, len(b.Events))
	for i := range b.Events {
		e := &b.Events[i]
		h.Write(e.ID[:])
		h.Write(e.Subject[:])
		h.Write(event.AppendHeader(nil, e))
		h.Write(e.Content.Bytes)
	}
	return string(h.Sum(nil))
}

func (s *stack) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = s.replica.Shutdown(ctx)
	_ = s.peers.Close()
	_ = s.log.Close()
}

// do proposes until the replica leads; nil means that it was not acknowledged.
func (s *stack) do(c *event.Command) *event.Result {
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	for {
		r, err := s.replica.Propose(ctx, c)
		if err == nil {
			return &r
		}
		var p *event.Problem
		if !errors.As(err, &p) || p.Unknown || ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Millisecond): // not the leader yet
		}
	}
}

// tale is the scenario: enqueue, lease, settle, over several segments, with
// checkpoints, truncation, retention and a restart. It returns what was
// acknowledged: the index of each entry with what its block held.
func tale(disk vfs.FS) (acked map[uint64]string) {
	acked = map[uint64]string{}
	var leases []event.ID
	for round := range 2 {
		s, err := openStack(disk)
		if err != nil {
			return acked
		}
		do := func(c *event.Command) *event.Result {
			r := s.do(c)
			if r == nil || r.Problem != nil {
				return nil
			}
			acked[r.Index] = s.seen[r.Index]
			return r
		}
		p := event.DefaultPolicy()
		p.Ordering = event.PerKey
		ok := do(&event.Command{
			PutQueue: &event.PutQueue{Name: "q", Policy: p, DeadLetterAuto: true},
		}) != nil
		for i := 0; i < 4 && ok; i++ {
			c := &event.Produce{Queue: "q"}
			for k := range 3 {
				text := fmt.Sprintf("%0200d", 10*i+k)
				c.Messages = append(c.Messages, event.NewMessage{
					Priority: 5, Key: fmt.Sprint(k), Size: 200,
					Content: event.EncodeContent(&event.Content{Payload: []byte(text)}),
				})
			}
			request := &event.Request{Key: event.Hash{byte(i), byte(len(acked))}}
			ok = do(&event.Command{Produce: c, Request: request}) != nil
			lease := &event.Lease{Queues: []string{"q"}, Max: 3}
			if r := do(&event.Command{Lease: lease}); r != nil {
				for _, l := range r.Leased {
					leases = append(leases, l.Lease)
				}
			}
			ops := []event.SettleOp{event.OpAck, event.OpRetry, event.OpDeadLetter, event.OpRelease}
			st := &event.Settle{}
			for n, l := range leases {
				st.Items = append(st.Items, event.SettleItem{Op: ops[n%len(ops)], Lease: l})
			}
			do(&event.Command{Settle: st})
			if i%2 == 1 {
				_ = s.replica.Snapshot() // fails where the disk has
			}
		}
		// So much that all that is needed of the first history can be carried out of it: contents
		// are counted by 64 indexes.
		for _, head := range []uint64{80, 140} {
			for round == 1 && s.log.Head() < head {
				if do(&event.Command{PauseQueue: &event.PauseQueue{Name: "q"}}) == nil {
					break
				}
			}
			_ = s.replica.Snapshot()
		}
		_ = (&retention.Retention{
			Limit: time.Millisecond, Log: s.log, State: s.machine, Replica: s.replica,
			KeepFrom: func() uint64 { return math.MaxUint64 }, Logger: slog.New(slog.DiscardHandler),
		}).Once(s.ctx)
		s.close()
	}
	return acked
}

// TestCrashAnywhere lets the power fail in each write, sync, creation, rename
// and removal of the tale, and holds what a restart finds against what was
// acknowledged: the block of each acknowledged entry as it was, in a log that
// verifies, whose fold is the state; and the node goes on.
func TestCrashAnywhere(t *testing.T) {
	whole := memdisk.New()
	n := len(tale(whole))
	require.True(t, n >= 26, "only %d entries were acknowledged on a good disk", n)
	l, err := log.OpenReadOnly(log.Options{FS: whole, Dir: "/log"})
	require.NoError(t, err)
	defer l.Close()
	before, _ := l.Begins()
	require.True(t, before > 0, "retention has deleted nothing of %d", l.Head())
	ops, crashes := whole.Ops(), 0
	defer func() { t.Logf("figures: %d crashes in %d operations of a node", crashes, ops) }()
	step, losses := 7, 1
	if testing.Short() {
		step = 31
	} else if os.Getenv("QLOGD_CRASH") == "full" {
		step, losses = 1, 4
	}
	kinds := []memdisk.Loss{memdisk.LoseAll, memdisk.LoseRandom, memdisk.LosePrefix, memdisk.LoseNone}
	for at := 1; at <= ops && !t.Failed(); at += step {
		for n := range losses {
			crashes++
			crashAt(t, at, kinds[(at/step+n)%4])
		}
	}
}

func crashAt(t *testing.T, at int, loss memdisk.Loss) {
	t.Helper()
	disk := memdisk.New()
	disk.CrashAt(at)
	acked := tale(disk)
	after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss))))
	defer func() {
		if t.Failed() {
			t.Logf("crash at operation %d, loss %d", at, loss)
		}
	}()
	s, err := openStack(after)
	require.NoError(t, err, "restart")
	defer s.close()
	r := s.do(&event.Command{Settle: &event.Settle{}})
	require.True(t, r != nil, "the node does not go on: %v", s.replica.Status())
	found := map[uint64]string{}
	for b, err := range s.log.Blocks(context.Background(), 0, math.MaxUint64) {
		require.NoError(t, err)
		found[b.Index] = sumBlock(b)
	}
	for index, sum := range acked {
		assert.True(t, index < s.log.First() || found[index] == sum,
			"the acknowledged entry %d is not in the log as it was", index)
	}
	report, err := replay.Verify(context.Background(), after, "/", nil, nil)
	assert.NoError(t, err, "%+v", report)
	s.machine.View(func(st *projections.State) {
		assert.NoError(t, invariants.Check(st))
		st.All(func(m event.MessageView) bool {
			_, err := s.log.Content(m.Content)
			assert.NoError(t, err, "content of message %s", m.ID)
			return true
		})
	})
	names, _ := after.List("/checkpoints")
	for _, n := range names {
		assert.NotEqual(t, path.Ext(n), ".tmp", "%s was left behind", n)
	}
}
