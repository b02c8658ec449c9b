package raft

import (
	"testing"

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
	s, err := openLog(o, faults{fail, fail}, func() uint64 { return 1 << 40 })
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.close() })
	return s
}
