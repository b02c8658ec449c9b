// Package memdisk is a disk in memory that forgets what was not synced, for tests and the
// simulation.
package memdisk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/qlogd/qlogd/log/vfs"
)

// ErrCrashed is what every operation of a Disk returns once its crash has come.
var ErrCrashed = errors.New("memdisk: the disk has crashed")

// Disk is a disk in memory that knows what was synced. Crash returns the disk
// as a power cut would leave it. Operations that change something (create,
// write, truncate, sync, rename, remove, mkdir, sync of a directory) are
// counted, so that a test can walk a crash or an error through each of them:
//
//	n := scenario(memdisk.New()).Ops()
//	for i := 1; i <= n; i++ {
//		disk := memdisk.New()
//		disk.CrashAt(i)
//		scenario(disk)
//		check(disk.Crash(rng))
//	}
//
// Names are cleaned and rooted: "a/b" and "/a/b" are the same file. The root
// directory is always there. A Disk is safe for use by several goroutines.
type Disk struct {
	mu    sync.Mutex
	names map[string]*inode // as a running program sees them
	// durable is what a power cut leaves of the names at least. Invariant:
	// durable with all of pending applied in order is names.
	durable map[string]*inode
	pending []nameOp

	ops     int
	crashAt int // crash at this operation; 0 = never
	crashed bool
	faults  map[int]error
}

var _ vfs.FS = (*Disk)(nil)

// nameOp is a change of the names in a directory that was not synced yet.
type nameOp struct {
	from, to string // from = "" for a creation, to = "" for a removal
	node     *inode
}

// New returns an empty disk.
func New() *Disk {
	return &Disk{names: map[string]*inode{}, durable: map[string]*inode{}, faults: map[int]error{}}
}

func clean(name string) string { return path.Clean("/" + name) }

// Ops returns the number of changing operations so far.
func (m *Disk) Ops() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ops
}

// CrashAt makes the power fail in the n-th changing operation, counted as Ops
// does: it and all later operations return ErrCrashed. What it was about to do
// counts as not synced: Crash decides how much of it is left.
func (m *Disk) CrashAt(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashAt = n
}

// FailAt makes the n-th changing operation return err. A write that fails has
// written its first half; any other operation has done nothing.
func (m *Disk) FailAt(n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults[n] = err
}

// Crashed reports whether the crash has come.
func (m *Disk) Crashed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.crashed
}

// change counts a changing operation and says what becomes of it:
// crash: do it without making anything durable, then return ErrCrashed.
func (m *Disk) change() (crash bool, err error) {
	if m.crashed {
		return false, ErrCrashed
	}
	m.ops++
	if m.ops == m.crashAt {
		m.crashed = true
		return true, nil
	}
	return false, m.faults[m.ops]
}

// do carries out a changing operation, unless check refuses it. act is given
// whether the crash comes in it: then it must make nothing durable.
func (m *Disk) do(op, name string, check func() error, act func(crash bool)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.crashed {
		if err := check(); err != nil {
			return err
		}
	}
	crash, err := m.change()
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, name, err)
	}
	act(crash)
	if crash {
		return ErrCrashed
	}
	return nil
}

func notExist(op, name string) error {
	return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
}

func (m *Disk) isDir(name string) bool {
	n := m.names[name]
	return name == "/" || n != nil && n.dir
}

func (m *Disk) apply(op nameOp) {
	m.pending = append(m.pending, op)
	op.applyTo(m.names)
}

func (op nameOp) applyTo(names map[string]*inode) {
	// A name that leads elsewhere by now is left alone: an operation that was
	// lost before this one may have been about that.
	if op.from != "" && names[op.from] == op.node {
		delete(names, op.from)
	}
	if op.to != "" {
		names[op.to] = op.node
	}
}

// Create implements FS.
func (m *Disk) Create(name string) (vfs.File, error) {
	name = clean(name)
	n := &inode{}
	err := m.do("create", name, func() error {
		if m.names[name] != nil {
			return &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
		}
		if !m.isDir(path.Dir(name)) {
			return notExist("create", name)
		}
		return nil
	}, func(bool) { m.apply(nameOp{to: name, node: n}) })
	if err != nil {
		return nil, err
	}
	return &file{m: m, n: n, name: name, write: true}, nil
}

func (m *Disk) open(name string, write bool) (vfs.File, error) {
	name = clean(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return nil, ErrCrashed
	}
	n := m.names[name]
	if n == nil {
		return nil, notExist("open", name)
	}
	if n.dir {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("is a directory")}
	}
	return &file{m: m, n: n, name: name, write: write}, nil
}

// OpenReadWrite implements FS.
func (m *Disk) OpenReadWrite(name string) (vfs.File, error) { return m.open(name, true) }

// OpenRead implements FS.
func (m *Disk) OpenRead(name string) (vfs.File, error) { return m.open(name, false) }

// List implements FS.
func (m *Disk) List(dir string) ([]string, error) {
	dir = clean(dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return nil, ErrCrashed
	}
	if !m.isDir(dir) {
		return nil, notExist("list", dir)
	}
	var names []string
	for name := range m.names {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Stat implements FS.
func (m *Disk) Stat(name string) (int64, error) {
	name = clean(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return 0, ErrCrashed
	}
	if m.isDir(name) {
		return 0, nil
	}
	n := m.names[name]
	if n == nil {
		return 0, notExist("stat", name)
	}
	return int64(len(n.data)), nil
}

// Remove implements FS.
func (m *Disk) Remove(name string) error {
	name = clean(name)
	return m.do("remove", name, func() error {
		n := m.names[name]
		if n == nil {
			return notExist("remove", name)
		}
		for other := range m.names {
			if n.dir && strings.HasPrefix(other, name+"/") {
				return &fs.PathError{Op: "remove", Path: name,
					Err: errors.New("directory not empty")}
			}
		}
		return nil
	}, func(bool) { m.apply(nameOp{from: name, node: m.names[name]}) })
}

// Rename implements FS. Directories cannot be renamed.
func (m *Disk) Rename(oldName, newName string) error {
	oldName, newName = clean(oldName), clean(newName)
	return m.do("rename", oldName, func() error {
		n := m.names[oldName]
		if n == nil || !m.isDir(path.Dir(newName)) {
			return notExist("rename", oldName)
		}
		if n.dir || m.isDir(newName) {
			return &fs.PathError{Op: "rename", Path: oldName, Err: errors.New("is a directory")}
		}
		return nil
	}, func(bool) {
		if oldName != newName {
			m.apply(nameOp{from: oldName, to: newName, node: m.names[oldName]})
		}
	})
}

// MkdirAll implements FS.
func (m *Disk) MkdirAll(dir string) error {
	dir = clean(dir)
	m.mu.Lock()
	there := m.isDir(dir) && !m.crashed
	m.mu.Unlock()
	if there {
		return nil
	}
	return m.do("mkdir", dir, func() error {
		for d := dir; d != "/"; d = path.Dir(d) {
			if n := m.names[d]; n != nil && !n.dir {
				return &fs.PathError{Op: "mkdir", Path: d, Err: errors.New("not a directory")}
			}
		}
		return nil
	}, func(bool) {
		for d := dir; d != "/"; d = path.Dir(d) {
			if m.names[d] == nil {
				n := &inode{dir: true}
				m.names[d], m.durable[d] = n, n
			}
		}
	})
}

// SyncDir implements FS.
func (m *Disk) SyncDir(dir string) error {
	dir = clean(dir)
	return m.do("sync directory", dir, func() error {
		if !m.isDir(dir) {
			return notExist("sync directory", dir)
		}
		return nil
	}, func(crash bool) {
		m.pending = slices.DeleteFunc(m.pending, func(op nameOp) bool {
			if crash || !op.in(dir) {
				return false
			}
			op.applyTo(m.durable)
			return true
		})
	})
}

func (op nameOp) in(dir string) bool {
	return op.from != "" && path.Dir(op.from) == dir || op.to != "" && path.Dir(op.to) == dir
}

// file is an open file of a Disk.
type file struct {
	m      *Disk
	n      *inode
	name   string
	write  bool
	closed bool
}

func (f *file) usable(write bool) error {
	switch {
	case f.m.crashed:
		return ErrCrashed
	case f.closed:
		return &fs.PathError{Op: "use", Path: f.name, Err: fs.ErrClosed}
	case write && !f.write:
		return &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrPermission}
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable(false); err != nil {
		return 0, err
	}
	return bytes.NewReader(f.n.data).ReadAt(p, off)
}

// WriteAt implements io.WriterAt.
func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable(true); err != nil {
		return 0, err
	}
	crash, err := f.m.change()
	if err != nil {
		half := len(p) / 2
		f.n.writeAt(p[:half], off)
		return half, fmt.Errorf("write %s: %w", f.name, err)
	}
	f.n.writeAt(p, off)
	if crash {
		return 0, ErrCrashed
	}
	return len(p), nil
}

// Truncate implements File.
func (f *file) Truncate(size int64) error {
	return f.m.do("truncate", f.name, func() error { return f.usable(true) },
		func(bool) { f.n.truncate(size) })
}

// Sync implements File.
func (f *file) Sync() error {
	return f.m.do("sync", f.name, func() error { return f.usable(false) }, func(crash bool) {
		if !crash {
			f.n.sync()
		}
	})
}

// Size implements File.
func (f *file) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.usable(false); err != nil {
		return 0, err
	}
	return int64(len(f.n.data)), nil
}

// Close implements io.Closer. It syncs nothing.
func (f *file) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.closed {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	f.closed = true
	return nil
}
