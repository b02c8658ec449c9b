package raft

import (
	"testing"

	"github.com/qlogd/qlogd/log/vfs"
)

// openLogOn opens the Raft log alone on a disk.
func openLogOn(t testing.TB, disk vfs.FS, size int) *logStore {
	t.Helper()
	o := on(disk)
	o.SegmentBytes, o.Machine = size, noMachine{}
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.MkdirAll(o.Dir); err != nil {
		t.Fatal(err)
	}
	fail := func(err error) { t.Error(err) }
	s, err := openLog(o, faults{fail, fail}, func() uint64 { return 1 << 40 })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}
