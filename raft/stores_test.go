package raft

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// used returns the disk of a node that has put names and ended, and the names.
func used(t *testing.T, puts int) (*memdisk.Disk, *node, []string) {
	t.Helper()
	disk := memdisk.New()
	o := on(disk)
	o.TrailingLogs = 1
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

// What a replica does not start on, at the second attempt either.
func TestRefusedAtTheStart(t *testing.T) {
	lost := func(files ...string) func(*testing.T, *memdisk.Disk, *node) {
		return func(t *testing.T, disk *memdisk.Disk, _ *node) {
			for _, name := range files {
				require.NoError(t, disk.Remove("/raft/"+name))
			}
		}
	}
	ahead, from, _ := used(t, 40)
	for name, c := range map[string]struct {
		puts   int // over 20 there are checkpoints
		change func(t *testing.T, disk *memdisk.Disk, n *node)
		want   string
	}{
		"no votes":                 {3, lost(votesFile), ErrLostStore.Error()},
		"no votes, checkpoints":    {30, lost(votesFile), ErrLostStore.Error()},
		"no log":                   {3, lost(metaFile), ErrLostStore.Error()},
		"no log, checkpoints":      {30, lost(metaFile), ErrLostStore.Error()},
		"no log, no votes":         {3, lost(votesFile, metaFile), ErrLostStore.Error()},
		"only events, checkpoints": {30, lost(votesFile, metaFile), ErrLostStore.Error()},
		"a log that lost its end": {3, func(t *testing.T, disk *memdisk.Disk, _ *node) {
			m := openFake(t, disk, "/events")
			require.NoError(t, m.write(block{Index: 1000}))
		}, ErrLostStore.Error()},
		// The event log is synced before a checkpoint is written.
		"an event log that lost its end": {3, func(_ *testing.T, disk *memdisk.Disk, _ *node) {
			name := "/checkpoints/" + from.Status().Checkpoints[0].Name()
			disk.Put(name, ahead.Get(name))
		}, "its end is lost"},
		"a hole behind the checkpoint": {40, func(t *testing.T, disk *memdisk.Disk, n *node) {
			for _, c := range n.Status().Checkpoints {
				require.NoError(t, disk.Remove("/checkpoints/"+c.Name()))
			}
		}, "are lost"},
		"a flipped bit": {3, func(t *testing.T, disk *memdisk.Disk, n *node) {
			n = n.again()
			n.put(marker(0))
			for range 150 { // a file full: the newest is copied at the start
				n.put(marker(1))
			}
			n.down()
			for _, name := range holds(t, disk, marker(0)) {
				b := disk.Get("/raft/" + name)
				b[bytes.Index(b, []byte(marker(0)))] ^= 4
				disk.Put("/raft/"+name, b)
			}
		}, "wrong checksum of entry"},
		"another cluster": {40, func(_ *testing.T, _ *memdisk.Disk, n *node) {
			n.o.ClusterID = "c2"
		}, `cluster "c1"`},
		"an older binary": {0, func(t *testing.T, _ *memdisk.Disk, n *node) {
			n.o.Rules = 2
			newer := n.again()
			_, err := newer.Propose(t.Context(), &event.Command{Upgrade: &event.Upgrade{Rules: 2}})
			require.NoError(t, err)
			newer.down()
			n.o.Rules = 1
		}, "requires rules version 2, this binary supports up to 1"},
	} {
		t.Run(name, func(t *testing.T) {
			disk, n, _ := used(t, c.puts)
			c.change(t, disk, n)
			for range 2 {
				_, err := reopen(t, n)
				require.True(t, err != nil && strings.Contains(err.Error(), c.want), "%v", err)
			}
		})
	}
}

// Seed's directory is of a new cluster of one, which goes on where the event log ends.
func TestSeed(t *testing.T) {
	disk, _, want := used(t, 30)
	into := memdisk.New()
	into.Put("/events", disk.Get("/events"))
	m := openFake(t, into, "/events")
	frozen := m.Freeze()
	head, chain := m.Tip()
	o := on(into)
	o.NodeID, o.ClusterID, o.Initial = "new", "c2", nil
	meta := checkpoint.Meta{HeadIndex: head, Chain: chain, Clock: frozen.Clock(),
		Digest: frozen.Digest()}
	require.NoError(t, Seed(o, meta, frozen))
	assert.True(t, Seed(o, meta, frozen) != nil, "seeded twice")
	n := boot(t, o)
	assert.True(t, n.put("more").Index > head, "an index is used twice")
	assert.EqualSlices(t, n.again().m.names(), append(want, "more"))
}

// fetched puts on a disk what raft/fetch installs of another node's: the
// event log up to exactly the newest checkpoint's head, and that checkpoint.
func fetched(t *testing.T, disk, from *memdisk.Disk, n *node) {
	t.Helper()
	newest := n.Status().Checkpoints[0]
	var events []byte
	for line := range bytes.Lines(from.Get("/events")) {
		var b block
		require.NoError(t, json.Unmarshal(line[8:], &b))
		if b.Index > newest.HeadIndex {
			break
		}
		events = append(events, line...)
	}
	disk.Put("/events", events)
	name := "/checkpoints/" + newest.Name()
	require.NoError(t, disk.MkdirAll("/checkpoints"))
	disk.Put(name, from.Get(name))
}

// What a node brought from another is in place, and its own Raft store is what it was before, in
// a term in which it led, alone: it goes on behind the checkpoint, and nothing that was never
// committed is applied.
func TestStartOnWhatWasFetched(t *testing.T) {
	ahead, from, want := used(t, 40)
	newest := from.Status().Checkpoints[0]
	for name, entries := range map[string]struct{ first, last uint64 }{
		"wiped, with a term only":               {},
		"behind":                                {1, newest.Index - 3},
		"up to the checkpoint, of another term": {2, newest.Index},
		"deposed, with a longer log":            {2, newest.Index + 100},
	} {
		t.Run(name, func(t *testing.T) {
			disk := memdisk.New()
			o := on(disk)
			o.Machine = openFake(t, disk, "/events")
			o = o.withDefaults()
			s, err := openStores(o, unwatched(o))
			require.NoError(t, err)
			require.NoError(t, s.votes.SetUint64([]byte(keyCurrentTerm), newest.Term+5))
			for i := entries.first; i <= entries.last && i > 0; i++ {
				require.NoError(t, s.log.StoreLog(&hraft.Log{Index: i, Term: newest.Term + 5,
					Type: hraft.LogCommand, Data: []byte("never committed")}))
			}
			require.NoError(t, s.close())
			fetched(t, disk, ahead, from)
			n := boot(t, on(disk))
			first, err := n.stores.log.FirstIndex()
			require.NoError(t, err)
			assert.Equal(t, first, newest.Index+1, "the Raft log begins")
			n.put("more")
			// All of them, but for what came behind the checkpoint.
			had, got := slices.Index(want, "39"), n.m.names()
			end := len(got) - 1
			if end < 29 || end > had+1 || !slices.Equal(got[:end], want[:end]) || got[end] != "more" {
				t.Errorf("applied %v, want %v and one more", got, want)
			}
			n = n.again()
			assert.EqualSlices(t, n.m.names(), got, "after a restart")
			require.NoError(t, n.Snapshot())
		})
	}
}
