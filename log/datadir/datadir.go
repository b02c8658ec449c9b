// Package datadir is a node's data directory: its layout, its lock, and its metadata,
// node.json.
//
//	log/            the event log: *.seg and their side files
//	checkpoints/    the live state at some indexes
//	raft/           Raft's own log, votes and snapshots
//	projections.db  read models; can be deleted and is built again
//	erased.json     index up to which erasures were carried out here; rebuilt if missing
//	node.json       format version; node, incarnation and cluster id
//	lock            held by the process that serves from it
package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/qlogd/qlogd/log/vfs"
)

// The names in a data directory.
const (
	LogDir         = "log"
	CheckpointDir  = "checkpoints"
	RaftDir        = "raft"
	ProjectionFile = "projections.db"
	IncomingDir    = "incoming" // what raft/fetch fetched, until the next opening installs it
	NodeFile       = "node.json"
	lockFile       = "lock"
)

// Path joins a data directory and one of its names.
func Path(dir, name string) string { return filepath.Join(dir, name) }

// Acquire returns the exclusive right to use a data directory. It creates dir if it is missing
// (0700), refuses one that other users can write to or that is a symbolic link, locks it against a
// second process, and removes other users' permissions on its files. The lock ends when it is
// closed, or with the process.
func Acquire(dir string) (io.Closer, error) {
	if _, err := os.Lstat(dir); err != nil { // a link that leads nowhere is refused below
		if err := (vfs.OS{}).MkdirAll(filepath.Clean(dir)); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(Path(dir, lockFile), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid := make([]byte, 32)
		n, _ := f.ReadAt(pid, 0)
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			who := "another process"
			if p, perr := strconv.Atoi(strings.TrimSpace(string(pid[:n]))); perr == nil {
				who = fmt.Sprintf("the process with pid %d", p)
			}
			return nil, fmt.Errorf("data directory %s is in use by %s", dir, who)
		}
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	// For the second process's error message; the lock itself is the flock.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	if err := filepath.WalkDir(dir, makePrivate); err != nil {
		f.Close()
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return f, nil
}

// makePrivate is a fs.WalkDirFunc that removes other users' permissions on a file or directory.
func makePrivate(name string, d fs.DirEntry, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fs.SkipDir // a file system's lost+found
	case err != nil || !d.IsDir() && !d.Type().IsRegular():
		return err
	}
	info, err := d.Info()
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	return os.Chmod(name, info.Mode().Perm()&0o700)
}

func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("data directory %s is a symbolic link; name the directory itself", dir)
	case !info.IsDir():
		return fmt.Errorf("data directory %s is not a directory", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("data directory %s can be written to by others (mode %04o); chmod 700 it",
			dir, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() &&
		os.Geteuid() != 0 {
		return fmt.Errorf("data directory %s belongs to another user (uid %d)", dir, st.Uid)
	}
	return nil
}

// HasSegments reports whether the event log in dir has ever been written to.
func HasSegments(dir string) (bool, error) {
	names, err := vfs.List(vfs.OS{}, Path(dir, LogDir))
	segment := func(name string) bool { return strings.HasSuffix(name, ".seg") }
	return slices.ContainsFunc(names, segment), err
}

// ErasedFile says up to which index of the event log this directory has carried
// out what `erased` events say. It is derived: where it is missing, or says less
// than is true, the log is read again from there, and erased contents
// are skipped.
//
// Invariant: every content that an event up to that index names as erased is
// overwritten in this directory's event log. So it is put back when older
// segments are put in place.
const ErasedFile = "erased.json"

const erasedFormat = 1

type erased struct {
	Format    int    `json:"format"`
	UpToIndex uint64 `json:"up_to_index"`
}

// ReadErased returns what a directory's ErasedFile says; 0 where there is none
// that this program can read.
func ReadErased(fsys vfs.FS, dir string) (upTo uint64, err error) {
	b, err := vfs.ReadFile(fsys, Path(dir, ErasedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	var e erased
	if err != nil || json.Unmarshal(b, &e) != nil || e.Format != erasedFormat {
		return 0, err
	}
	return e.UpToIndex, nil
}

// WriteErased writes it, durably.
func WriteErased(fsys vfs.FS, dir string, upTo uint64) error {
	b, _ := json.Marshal(erased{erasedFormat, upTo}) // numbers: it never fails
	if err := vfs.WriteFile(fsys, Path(dir, ErasedFile), append(b, '\n')); err != nil {
		return fmt.Errorf("%s: %w", ErasedFile, err)
	}
	return nil
}
