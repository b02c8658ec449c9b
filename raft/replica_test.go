package raft

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

func TestMain(m *testing.M) {
	// hashicorp/raft never answers for an entry that was committed, but not yet
	// applied, when it was shut down: tests of a failing disk leave one waiter.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

func TestSnapshotTruncateRestart(t *testing.T) {
	o := on(memdisk.New())
	o.TrailingLogs, o.KeepCheckpoints = 1, 2
	n := boot(t, o)
	var want []string
	for round := range 4 {
		for i := range 10 {
			name := fmt.Sprintf("%d-%d", round, i)
			n.put(name)
			want = append(want, name)
		}
		require.NoError(t, n.Snapshot())
		if err := n.Snapshot(); err != nil { // nothing new is no error
			t.Fatal(err)
		}
	}
	s := n.Status()
	assert.True(t, len(s.Checkpoints) == 2 && s.Checkpoints[0].HeadIndex == s.Head,
		"checkpoints %+v at head %d", s.Checkpoints, s.Head)
	// The log begins at the newest checkpoint but one, with the entry at its index: a node that has
	// fetched that checkpoint is sent what follows together with that entry's term.
	if first, _ := n.stores.log.FirstIndex(); first != s.Checkpoints[1].Index {
		t.Errorf("the log begins at %d, checkpoints %v", first, s.Checkpoints)
	}
	n = n.again()
	assert.EqualSlices(t, n.m.names(), want, "after the restart")
	n.put("more")
	assert.NoError(t, n.Snapshot(), "snapshot after a restart")
}

// TestReplaceCheckpoint: a damaged checkpoint goes, and where it was one of the newest two, two that
// are newer are there: with any one of them the directory is whole.
func TestReplaceCheckpoint(t *testing.T) {
	disk, n, want := used(t, 40)
	n, err := reopen(t, n)
	require.NoError(t, err)
	n.ready()
	for _, age := range []int{2, 1, 0} {
		before := n.Status().Checkpoints
		name := before[age].Name()
		require.NoError(t, n.ReplaceCheckpoint(t.Context(), name))
		now := n.Status().Checkpoints
		assert.True(t, disk.Get("/checkpoints/"+name) == nil, "%s is still there", name)
		if age == 2 {
			assert.Equal(t, now[0].Name(), before[0].Name())
		} else {
			assert.True(t, now[1].Index >= before[0].Index && now[0].Index > before[0].Index,
				"checkpoint %d: %+v, before: %+v", age, now, before)
		}
	}
	// One that is found at the start is in no list.
	newest := n.Status().Checkpoints[0].Name()
	n.down()
	disk.Put("/checkpoints/"+newest, []byte("damaged"))
	n, err = reopen(t, n)
	require.NoError(t, err)
	n.ready()
	require.NoError(t, n.ReplaceCheckpoint(t.Context(), newest))
	assert.True(t, disk.Get("/checkpoints/"+newest) == nil, "%s is still there", newest)
	assert.True(t, n.Status().Checkpoints[1].Name() > newest, "two are newer")
	assert.EqualSlices(t, n.m.names(), want)
}

// A checkpoint that a failed replica is asked for does not leave the caller waiting: hashicorp/raft's
// main loop, which should answer, died when it could not write its vote.
func TestSnapshotAfterTheDiskFailed(t *testing.T) {
	disk := memdisk.New()
	n := boot(t, on(disk))
	n.put("a")
	disk.CrashAt(disk.Ops() + 1)
	outcomeUnknown(t, n.refused(context.Background(), put("b")))
	alive := func() error { return n.raft.Barrier(100 * time.Millisecond).Error() }
	for !errors.Is(alive(), hraft.ErrEnqueueTimeout) { // it still takes what it refuses
	}
	assert.True(t, n.Snapshot() != nil, "a checkpoint without a disk")
}

// A checkpoint is due after a number of entries or, by bytes, after as many as are asked for and
// as the last one has; not before.
func TestSnapshotIsDue(t *testing.T) {
	for _, due := range []Options{
		{SnapshotThreshold: 5}, {SnapshotThreshold: 1 << 40, SnapshotBytes: 100},
	} {
		o := on(memdisk.New())
		o.SnapshotThreshold, o.SnapshotBytes = due.SnapshotThreshold, due.SnapshotBytes
		o.KeepCheckpoints = 5
		n := boot(t, o)
		for len(n.stores.snaps.Metas()) < o.KeepCheckpoints {
			n.put("more")
		}
		metas, logged := n.stores.snaps.Metas(), n.entries()
		for i, last := range metas[1:] {
			entries, size := uint64(0), 0
			for index, e := range logged {
				if index > last.Index && index <= metas[i].Index {
					entries, size = entries+1, size+len(e.Encode())
				}
			}
			assert.True(t, entries >= due.SnapshotThreshold ||
				due.SnapshotBytes > 0 && size >= max(int(due.SnapshotBytes), int(last.Size)),
				"%d entries, %d bytes after a checkpoint of %d", entries, size, last.Size)
		}
	}
}

// slowRemoval is a disk on which the removal of a file of that name ends when gate is closed.
type slowRemoval struct {
	vfs.FS
	name        string
	began, gate chan struct{}
}

func (s *slowRemoval) Remove(name string) error {
	if path.Base(name) == s.name {
		close(s.began)
		<-s.gate
	}
	return s.FS.Remove(name)
}

// Entries are applied while an old checkpoint is being removed.
func TestApplyDoesNotWaitForTheCheckpoints(t *testing.T) {
	o := on(memdisk.New())
	slow := &slowRemoval{o.FS, "old.ckpt", make(chan struct{}), make(chan struct{})}
	o.FS = slow
	n := boot(t, o)
	n.put("before")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	removed := make(chan error, 1)
	go func() { removed <- n.stores.snaps.Remove(slow.name) }()
	<-slow.began
	_, err := n.Propose(ctx, put("meanwhile"))
	close(slow.gate)
	require.NoError(t, err)
	require.NoError(t, <-removed)
}

func TestManyProposersAreGrouped(t *testing.T) {
	n := boot(t, on(memdisk.New()))
	release := make(chan struct{})
	n.m.hold = release
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() { n.put(fmt.Sprint(i)) })
	}
	n.waitFor(func(l load) bool { return l.Waiting+l.InFlight == 500 })
	close(release)
	wg.Wait()
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	total := 0
	for _, b := range n.m.blocks {
		total += len(b.Names)
	}
	if entries := len(n.m.blocks); total != 500 || entries > 100 {
		t.Errorf("%d commands in %d entries", total, entries)
	}
}

// load is how much waits and is in flight: commands, but for Entries.
type load struct{ Waiting, WaitingBytes, InFlight, Entries int }

func (b *batcher) load() load {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loadLocked()
}

func (b *batcher) loadLocked() load {
	l := load{Waiting: b.queues.n, WaitingBytes: b.queues.bytes, Entries: len(b.flight)}
	for _, e := range b.flight {
		for _, d := range e.group {
			if d != nil {
				l.InFlight++
			}
		}
	}
	return l
}

func (n *node) load() load { return n.b.load() }

// waitFor waits until the batcher's load is as wanted.
func (n *node) waitFor(ok func(load) bool) {
	n.t.Helper()
	n.b.poll(context.Background(), func() bool { return ok(n.b.loadLocked()) })
}
