package raft

import (
	"bytes"
	"slices"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

// openLogOn opens the Raft log alone on a disk.
func openLogOn(t testing.TB, disk vfs.FS, size int) *logStore {
	t.Helper()
	o := on(disk)
	o.SegmentBytes = size
	o = o.withDefaults()
	require.NoError(t, disk.MkdirAll(o.Dir))
	fail := func(err error) { t.Error(err) }
	s, err := openLog(o, newDisk(o, fail, fail), func() uint64 { return 1 << 40 })
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.close() })
	return s
}

// The Raft log has what was stored last, and nothing that was deleted: on disk, and in its cache.
func TestLogStore(t *testing.T) {
	s := openLogOn(t, memdisk.New(), 1<<20)
	var want []*hraft.Log
	next := uint64(1)
	store := func(term uint64, sizes ...int) {
		t.Helper()
		var logs []*hraft.Log
		for i, size := range sizes {
			logs = append(logs, &hraft.Log{Index: next, Term: term,
				Data: bytes.Repeat([]byte{byte(i)}, size)})
			next++
		}
		require.NoError(t, s.StoreLogs(logs))
		want = append(want, logs...)
	}
	check := func() {
		t.Helper()
		for i, w := range want {
			for _, get := range []func(uint64, *hraft.Log) error{s.GetLog, s.read} {
				var l hraft.Log
				require.NoError(t, get(w.Index, &l))
				require.True(t, l.Index == w.Index && l.Term == w.Term && bytes.Equal(l.Data, w.Data),
					"entry %d: %d of term %d, %d bytes", w.Index, l.Index, l.Term, len(l.Data))
				if i%16 > 0 {
					break // for each read of the disk raft-wal takes 64 KiB
				}
			}
		}
		for _, beside := range []uint64{next - uint64(len(want)) - 1, next} {
			require.ErrorIs(t, s.GetLog(beside, new(hraft.Log)), hraft.ErrLogNotFound)
		}
	}
	check()
	store(1, slices.Repeat([]int{10}, cachedEntries+50)...)
	check()
	require.NoError(t, s.DeleteRange(next-10, next-1)) // by the next leader
	want, next = want[:len(want)-10], next-10
	store(2, 10, 10)
	check()
	require.NoError(t, s.DeleteRange(1, 100)) // a compaction
	want = want[100:]
	check()
	store(3, 10, storeAtOnce, 700<<10, 700<<10, 700<<10, storeAtOnce+1, 0, 5) // in several batches
	check()
	// Else hashicorp/raft would look for holes (#697).
	assert.True(t, s.IsMonotonic(), "it may have holes")
	s.cache.put([]*hraft.Log{{Index: next - 1, Data: make([]byte, cachedBytes)}})
	assert.Equal(t, s.cache.bytes, cachedBytes, "what is cached beside an entry as large as may be")
	require.NoError(t, s.DeleteRange(101, next-1))
	want = nil
	check()
}
