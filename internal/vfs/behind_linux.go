package vfs

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func (f osFile) uncache(from, to int64) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.Fadvise(int(fd), from, to-from, unix.FADV_DONTNEED)
	})
}

func (f osFile) writeBack(from, to int64) error {
	// Without flags it does nothing but look whether it could: any error behind
	// that is the disk's.
	if err := f.syncRange(from, to, 0); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return f.syncRange(from, to, unix.SYNC_FILE_RANGE_WRITE)
}

func (f osFile) writtenBack(from, to int64) error {
	return f.syncRange(from, to, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
}

func (f osFile) syncRange(from, to int64, flags int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.SyncFileRange(int(fd), from, to-from, flags) }); err != nil {
		return err
	}
	if serr != nil {
		return &os.PathError{Op: "sync_file_range", Path: f.Name(), Err: serr}
	}
	return nil
}
