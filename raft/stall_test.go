package raft

import (
	"strings"
	"sync/atomic"

	"github.com/qlogd/qlogd/log/vfs"
)

// stallFS is a disk whose syncs of the Raft log hang while on is set, until the
// gate is closed.
type stallFS struct {
	vfs.FS
	on   atomic.Bool
	gate chan struct{}
}

func (s *stallFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".wal") {
		return f, err
	}
	return stallFile{f, s}, nil
}

func (s *stallFS) Create(name string) (vfs.File, error) {
	f, err := s.FS.Create(name)
	return s.wrap(name, f, err)
}

func (s *stallFS) OpenReadWrite(name string) (vfs.File, error) {
	f, err := s.FS.OpenReadWrite(name)
	return s.wrap(name, f, err)
}

type stallFile struct {
	vfs.File
	s *stallFS
}

func (f stallFile) Sync() error {
	if f.s.on.Load() {
		<-f.s.gate
	}
	return f.File.Sync()
}
