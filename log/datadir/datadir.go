// Package datadir is a node's data directory: where what lies in it, who may
// use it, and its identity card, node.json.
//
//	log/            the event log: *.seg and their side files
//	checkpoints/    the live state at some indexes
//	raft/           Raft's own log, votes and snapshots
//	projections.db  read models; can be deleted and is built anew
//	erased.json     up to where erasures were carried out here; made anew if missing
//	node.json       format version; node, incarnation and cluster id
//	lock            held by the process that serves from it
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// The names in a data directory.
const (
	LogDir         = "log"
	CheckpointDir  = "checkpoints"
	RaftDir        = "raft"
	ProjectionFile = "projections.db"
	NodeFile       = "node.json"
	lockFile       = "lock"
)

// Path joins a data directory and one of its names.
func Path(dir, name string) string { return filepath.Join(dir, name) }

// Lock is the right to write to a data directory.
type Lock struct{ f *os.File }

// Acquire makes dir if it is missing (0700), refuses one that others can write
// to or that is reached through a link, and locks it against a second process.
// The lock goes with the process, however it ends.
func Acquire(dir string) (*Lock, error) {
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
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
	// For whoever comes second; the lock itself is the flock.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return &Lock{f}, nil
}

// makeDir makes dir and what is missing above it, each name durable: or a power
// cut could take a directory with all that was promised in it.
func makeDir(dir string) error {
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// Release gives the directory free.
func (l *Lock) Release() error { return l.f.Close() }

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
		return fmt.Errorf("data directory %s can be written to by others (mode %04o); chmod 700 it", dir, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return fmt.Errorf("data directory %s belongs to another user (uid %d)", dir, st.Uid)
	}
	return nil
}

// HasSegments reports whether the event log in dir has ever been written to.
func HasSegments(dir string) (bool, error) {
	names, err := os.ReadDir(Path(dir, LogDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, n := range names {
		if strings.HasSuffix(n.Name(), ".seg") {
			return true, nil
		}
	}
	return false, nil
}

// Empty reports whether dir is missing or has nothing in it.
func Empty(dir string) (bool, error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return len(names) == 0, err
}
