package raft

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// fetched puts on a disk what raft/fetch installs of another node's: the
// event log up to exactly the newest checkpoint's head, and that checkpoint.
func fetched(t *testing.T, disk, from *memdisk.Disk, n *node) {
	t.Helper()
	newest := n.Status().Checkpoints[0]
	b := from.Get("/events")
	end := 0
	for end < len(b) {
		size := 8 + int(binary.BigEndian.Uint32(b[end:]))
		var bl block
		require.NoError(t, json.Unmarshal(b[end+8:end+size], &bl))
		if bl.Index > newest.HeadIndex {
			break
		}
		end += size
	}
	disk.Put("/events", b[:end])
	name := "/checkpoints/" + newest.Name()
	require.NoError(t, disk.MkdirAll("/checkpoints"))
	disk.Put(name, from.Get(name))
}

// withStores changes what Raft remembers on a disk.
func withStores(t *testing.T, disk *memdisk.Disk, change func(*stores) error) {
	t.Helper()
	o := on(disk)
	o.Machine = openFake(t, disk, "/events")
	s, err := openStores(o.withDefaults(), unwatched(o.withDefaults()))
	require.NoError(t, err)
	require.NoError(t, change(s))
	require.NoError(t, s.close())
}

// What a node brought from another is in place, and its own Raft store is what
// it was before: it goes on behind the checkpoint, and nothing that was never
// committed is applied.
func TestStartOnWhatWasFetched(t *testing.T) {
	ahead, from, want := used(t, 40, nil)
	newest := from.Status().Checkpoints[0]
	term := func(s *stores) error { return s.votes.SetUint64([]byte(keyCurrentTerm), newest.Term+5) }
	// entries are of a term in which this node led, alone.
	entries := func(s *stores, first, last uint64) error {
		for i := first; i <= last; i++ {
			if err := s.log.StoreLog(&hraft.Log{Index: i, Term: newest.Term + 5, Type: hraft.LogCommand, Data: []byte("never committed")}); err != nil {
				return err
			}
		}
		return nil
	}
	for name, before := range map[string]func(*stores) error{
		"wiped, with a term only": term,
		"behind": func(s *stores) error {
			if err := term(s); err != nil {
				return err
			}
			return entries(s, 1, newest.Index-3)
		},
		"up to the checkpoint, of another term": func(s *stores) error {
			if err := term(s); err != nil {
				return err
			}
			return entries(s, 2, newest.Index)
		},
		"deposed, with a longer log of another term": func(s *stores) error {
			if err := term(s); err != nil {
				return err
			}
			return entries(s, 2, newest.Index+100)
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := memdisk.New()
			withStores(t, disk, before)
			fetched(t, disk, ahead, from)
			n := boot(t, on(disk))
			if first, err := n.stores.log.FirstIndex(); err != nil || first != newest.Index+1 {
				t.Errorf("the Raft log begins at %d, want %d, %v", first, newest.Index+1, err)
			}
			n.put("more")
			had := slices.Index(want, "39") // all of them, but for what came behind the checkpoint
			got := n.m.names()
			if len(got) < 30 || len(got) > had+2 || !slices.Equal(got[:len(got)-1], want[:len(got)-1]) || got[len(got)-1] != "more" {
				t.Errorf("applied %v, want %v and one more", got, want)
			}
			n = n.again()
			assert.EqualSlices(t, n.m.names(), got, "after a restart")
			require.NoError(t, n.Snapshot())
		})
	}
}
