package raft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/filekv"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// used returns the disk of a node that has put names and ended, and the names.
func used(t *testing.T, puts int, change func(*Options)) (*memdisk.Disk, *node, []string) {
	t.Helper()
	disk := memdisk.New()
	o := on(disk)
	o.TrailingLogs = 1
	if change != nil {
		change(&o)
	}
	n := boot(t, o)
	for i := range puts {
		n.put(fmt.Sprint(i))
		if puts > 20 && i%10 == 9 {
			require.NoError(t, n.Snapshot())
		}
	}
	n.down()
	return disk, n, n.m.names()
}

func reopen(t *testing.T, n *node) (*node, error) {
	t.Helper()
	o := n.o
	o.Machine = nil
	return tryBoot(t, o)
}

func remove(t *testing.T, disk *memdisk.Disk, names ...string) {
	t.Helper()
	for _, name := range names {
		require.NoError(t, disk.Remove(name))
	}
}

func TestLostStoreIsRefused(t *testing.T) {
	for _, lost := range [][]string{{votesFile}, {metaFile}, {votesFile, metaFile}} {
		for _, puts := range []int{3, 30} { // without and with checkpoints
			disk, n, _ := used(t, puts, nil)
			for _, name := range lost {
				remove(t, disk, "/raft/"+name)
			}
			for range 2 { // also at the second attempt
				if _, err := reopen(t, n); !errors.Is(err, ErrLostStore) {
					t.Errorf("%v lost after %d entries: %v", lost, puts, err)
				}
			}
		}
	}
	// A Raft log that lost its end.
	disk, n, _ := used(t, 3, nil)
	m := openFake(t, disk, "/events")
	m.fold(block{Index: 1000})
	o := n.o
	o.Machine = m
	if _, err := tryBoot(t, o); !errors.Is(err, ErrLostStore) {
		t.Errorf("the event log ahead of Raft: %v", err)
	}
}

func TestHalfMadeStoreBoots(t *testing.T) {
	disk := memdisk.New()
	require.NoError(t, disk.MkdirAll("/raft"))
	kv, err := filekv.Open(disk, "/raft/"+metaFile)
	require.NoError(t, err)
	require.NoError(t, kv.CommitState(mustLoad(t, kv)))
	votesKV, err := filekv.Open(disk, "/raft/"+votesFile)
	require.NoError(t, err)
	// As hashicorp/raft's bootstrap is cut: the first term and no entry.
	require.NoError(t,
		(&votes{kv: votesKV, disk: unwatched(Options{}.withDefaults())}).SetUint64([]byte(keyCurrentTerm), 1))
	boot(t, on(disk)).put("a")
}

func TestUnknownNodeDoesNotBootstrap(t *testing.T) {
	o := on(memdisk.New())
	o.Initial, o.LeaderWait = nil, 100*time.Millisecond
	n, err := tryBoot(t, o)
	require.NoError(t, err)
	if ok, why := n.Ready(); ok || !slices.Contains(why, "no leader is known") {
		t.Errorf("ready %v, %v", ok, why)
	}
	notApplied(t, n.refused(context.Background(), put("a")), event.CodeNoLeader)
	notApplied(t, n.Barrier(context.Background()), event.CodeNoLeader)
}

// A checkpoint is never ahead of the event log, which was synced before: one that is shows
// that the log has lost its end.
func TestCheckpointAheadOfTheEventLogIsRefused(t *testing.T) {
	ahead, from, _ := used(t, 40, nil)
	newest := from.Status().Checkpoints[0]
	disk, n, _ := used(t, 3, nil)
	disk.Put("/checkpoints/"+newest.Name(), ahead.Get("/checkpoints/"+newest.Name()))
	if _, err := reopen(t, n); err == nil || !strings.Contains(err.Error(), "its end is lost") {
		t.Error(err)
	}
}

func TestLogOfAnotherTermIsEmptied(t *testing.T) {
	disk, n, want := used(t, 3, nil)
	last := n.Status().Head
	m := openFake(t, disk, "/events")
	frozen := m.Freeze()
	head, chain := m.Tip()
	// A checkpoint at the log's last index, of a later term.
	o := on(disk)
	err := checkpoint.Write(disk, "/checkpoints", checkpoint.Meta{
		Index: last, Term: 99, SnapshotVersion: 1, HeadIndex: head, Chain: chain, Digest: frozen.Digest(),
		Configuration: hraft.EncodeConfiguration(hraft.Configuration{Servers: o.first().Servers}), ConfigurationIndex: 1, ClusterID: "c1",
	}, frozen)
	require.NoError(t, err)
	n, err = reopen(t, n)
	require.NoError(t, err)
	if first, _ := n.stores.log.FirstIndex(); first <= last && first != 0 {
		t.Errorf("the Raft log still begins at %d", first)
	}
	n.ready()
	n.put("more")
	assert.EqualSlices(t, n.m.names(), append(want, "more"))
}

// The newest checkpoint is damaged: the one before it and the Raft log, which
// reaches back to it, make up everything.
func TestNewestCheckpointIsBad(t *testing.T) {
	disk, n, want := used(t, 40, nil)
	name := "/checkpoints/" + n.Status().Checkpoints[0].Name()
	b := disk.Get(name)
	b[20] ^= 1
	disk.Put(name, b)
	n, err := reopen(t, n)
	require.NoError(t, err)
	n.ready()
	n.put("more")
	assert.EqualSlices(t, n.m.names(), append(want, "more"))
	require.NoError(t, n.Snapshot())
}

func TestHoleBehindTheCheckpointIsRefused(t *testing.T) {
	disk, n, _ := used(t, 40, nil)
	for _, c := range n.Status().Checkpoints {
		remove(t, disk, "/checkpoints/"+c.Name())
	}
	if _, err := reopen(t, n); err == nil || !strings.Contains(err.Error(), "are lost") {
		t.Errorf("%v", err)
	}
}

func TestCheckpointOfAnotherCluster(t *testing.T) {
	_, n, _ := used(t, 40, nil)
	n.o.ClusterID = "c2"
	if _, err := reopen(t, n); err == nil || !strings.Contains(err.Error(), `cluster "c1"`) {
		t.Errorf("%v", err)
	}
}

// A flipped bit in an entry that is not applied yet is an error with its index,
// never a command.
func TestFlippedBitInTheRaftLog(t *testing.T) {
	mark := strings.Repeat("m", 64)
	disk, n, _ := used(t, 0, nil)
	n, err := reopen(t, n)
	require.NoError(t, err)
	n.ready()
	n.put(mark)
	n.put("behind it")
	n.down()
	names, _ := disk.List("/raft")
	flipped := false
	for _, name := range names {
		b := disk.Get("/raft/" + name)
		if i := bytes.Index(b, []byte(mark)); strings.HasSuffix(name, ".wal") && i >= 0 {
			b[i+5] ^= 4
			disk.Put("/raft/"+name, b)
			flipped = true
		}
	}
	require.True(t, flipped, "the entry is nowhere")
	if _, err := reopen(t, n); err == nil || !strings.Contains(err.Error(), "wrong checksum of entry") {
		t.Errorf("%v", err)
	}
}

// F1 of reliability.md: hashicorp/raft must see that the log has no holes, or a
// deposed leader's entries reach Apply without ever being committed.
func TestLogStoreIsMonotonic(t *testing.T) {
	n := boot(t, on(memdisk.New()))
	var store hraft.LogStore = n.stores.log
	m, ok := store.(hraft.MonotonicLogStore)
	assert.True(t, ok && m.IsMonotonic(), "the Raft log does not say that it is monotonic")
}

func TestSeed(t *testing.T) {
	disk, _, want := used(t, 30, nil)
	m := openFake(t, disk, "/events")
	frozen := m.Freeze()
	head, chain := m.Tip()

	into := memdisk.New()
	into.Put("/events", disk.Get("/events"))
	o := on(into)
	o.NodeID, o.ClusterID, o.Initial = "new", "c2", nil
	meta := checkpoint.Meta{HeadIndex: head, Chain: chain, Clock: frozen.Clock(), Digest: frozen.Digest()}
	require.NoError(t, Seed(o, meta, frozen))
	if err := Seed(o, meta, frozen); err == nil {
		t.Error("seeded twice")
	}
	n := boot(t, o)
	if res := n.put("more"); res.Index <= head {
		t.Errorf("index %d at head %d", res.Index, head)
	}
	require.NoError(t, n.Snapshot())
	n = n.again()
	assert.EqualSlices(t, n.m.names(), append(want, "more"))
	if first, err := Held(Options{Dir: "/nowhere", FS: into, OpenKV: o.OpenKV}); first != 0 || err != nil {
		t.Errorf("held from %d, %v", first, err)
	}
}

func (o Options) withTestMachine(t *testing.T) Options {
	o.Machine = openFake(t, o.FS, "/events")
	return o
}

func mustLoad(t *testing.T, m waltypes.MetaStore) (s waltypes.PersistentState) {
	t.Helper()
	s, err := m.Load("")
	require.NoError(t, err)
	return s
}

// TestStoreLogsInPieces: many large entries at once are all stored, in order.
func TestStoreLogsInPieces(t *testing.T) {
	o := on(memdisk.New()).withTestMachine(t).withDefaults()
	fail := func(err error) { t.Error(err) }
	s, err := openStores(o, newDisk(o, fail, fail))
	require.NoError(t, err)
	defer s.close()
	last, err := s.log.LastIndex()
	require.NoError(t, err)
	var logs []*hraft.Log
	for i, size := range []int{10, storeAtOnce, 700 << 10, 700 << 10, 700 << 10, storeAtOnce + 1, 0, 5} {
		logs = append(logs, &hraft.Log{Index: last + 1 + uint64(i), Term: 9, Type: hraft.LogCommand, Data: bytes.Repeat([]byte{byte(i)}, size)})
	}
	require.NoError(t, s.log.StoreLogs(logs))
	for _, want := range logs {
		var got hraft.Log
		if err := s.log.GetLog(want.Index, &got); err != nil || got.Term != 9 || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("entry %d: %d bytes, %v; want %d", want.Index, len(got.Data), err, len(want.Data))
		}
	}
}
