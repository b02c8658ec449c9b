package raft

import (
	"bytes"
	"testing"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	waltypes "github.com/hashicorp/raft-wal/types"

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

// The copy of a sealed tail has all of its entries and is sealed too; the next one follows it.
func TestRepairOfASealedTail(t *testing.T) {
	const each, batches = 30, 3 // of 64 KiB: the third batch reaches the limit
	disk := memdisk.New()
	require.NoError(t, disk.MkdirAll("/wal"))
	filer := segment.NewFiler("/wal", walFS{disk})
	tail := waltypes.SegmentInfo{ID: 1, BaseIndex: 5, MinIndex: 7, Codec: wal.CodecBinaryV1,
		SizeLimit: 4_100_000}
	w, err := filer.Create(tail)
	require.NoError(t, err)
	var all []waltypes.LogEntry
	for b := range uint64(batches) {
		for i := range uint64(each) {
			l := &hraft.Log{Index: 5 + b*each + i, Term: 1, Data: make([]byte, 64<<10)}
			var raw bytes.Buffer
			require.NoError(t, (&wal.BinaryCodec{}).Encode(sealLogs([]*hraft.Log{l})[0], &raw))
			all = append(all, waltypes.LogEntry{Index: l.Index, Data: raw.Bytes()})
		}
		require.NoError(t, w.Append(all[b*each:]))
	}
	sealed, _, err := w.Sealed()
	require.True(t, err == nil && sealed, "the tail is not sealed: %v", err)
	require.NoError(t, w.Close())

	next := uint64(2)
	out, err := repairTail(tail, &next, filer)
	require.NoError(t, err)
	require.True(t, len(out) == 2 && next == 4, "%d files, the next is %d", len(out), next)
	fresh, err := filer.Open(out[0])
	require.NoError(t, err)
	for _, e := range all[2:] {
		got, err := fresh.GetLog(e.Index)
		require.NoError(t, err)
		require.True(t, bytes.Equal(got.Bs, e.Data), "entry %d is another one", e.Index)
		got.Close()
	}
	end := all[len(all)-1].Index
	require.True(t, out[0].MaxIndex == end && out[1].BaseIndex == end+1 && out[1].SealTime.IsZero(),
		"it ends at %d, the next begins at %d", out[0].MaxIndex, out[1].BaseIndex)
}
