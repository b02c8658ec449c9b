// Package vfs is the small file system interface under everything durable of qlogd, so
// that tests can use a disk that forgets unsynced data.
//
// OS is the real one. Names are ordinary slash separated paths. Errors
// satisfy errors.Is(err, fs.ErrNotExist) and so on.
package vfs

import "io"

// FS is what the event log, the checkpoints and the Raft log need of a file
// system. A created, renamed or removed name is durable only after SyncDir of
// its directory; a file's bytes only after its Sync.
type FS interface {
	// Create creates a file and opens it for reading and writing. It fails with
	// fs.ErrExist if the name exists.
	Create(name string) (File, error)
	// OpenReadWrite opens an existing file for reading and writing.
	OpenReadWrite(name string) (File, error)
	// OpenRead opens an existing file for reading only.
	OpenRead(name string) (File, error)
	// List returns the names (not paths) in dir, sorted.
	List(dir string) ([]string, error)
	// Stat returns the size of a file, 0 for a directory, or fs.ErrNotExist.
	Stat(name string) (size int64, err error)
	Remove(name string) error
	// Rename replaces newName atomically.
	Rename(oldName, newName string) error
	// MkdirAll creates dir and its parents with mode 0700, durably.
	MkdirAll(dir string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
}

// File is an open file. Writes happen at the offset given; there is no
// cursor, so a file can be read and written from several goroutines.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the file's bytes and size durable. After a failed Sync the
	// state of the unsynced bytes is unknown: never retry it.
	Sync() error
	Truncate(size int64) error
	Size() (int64, error)
}
