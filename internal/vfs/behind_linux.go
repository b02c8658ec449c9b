package vfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

var _ Cached = osFile{}

// Uncache implements Cached.
func (f osFile) Uncache(from, to int64) {
	_ = f.control(func(fd int) error { return unix.Fadvise(fd, from, to-from, unix.FADV_DONTNEED) })
}

// WriteBack implements Cached. Where memory is short it is left to the system: what
// went wrong with the disk, the file remembers, and a wait or a sync tells it.
func (f osFile) WriteBack(from, to int64) error {
	err := f.syncRange(from, to, unix.SYNC_FILE_RANGE_WRITE)
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", ErrNotNow, err)
	}
	return err
}

// WrittenBack implements Cached.
func (f osFile) WrittenBack(from, to int64) error {
	return f.syncRange(from, to, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
}

// syncRange is ErrNotNow where there is no such call (gVisor has a part of it), or
// it is forbidden. No disk answers so: any other error may be one that the kernel
// tells but once.
func (f osFile) syncRange(from, to int64, flags int) error {
	err := f.control(func(fd int) error { return unix.SyncFileRange(fd, from, to-from, flags) })
	if err == nil {
		return nil
	}
	err = &os.PathError{Op: "sync_file_range", Path: f.Name(), Err: err}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: %w", ErrNotNow, err)
	}
	return err
}
