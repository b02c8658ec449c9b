package vfs

import (
	"errors"
	"os"
	"syscall"
)

// Sync implements File with fdatasync: it flushes the bytes and the size (all
// that is needed to read them back), but not the times, which saves a journal
// commit when the size is unchanged.
func (f osFile) Sync() error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = conn.Control(func(fd uintptr) {
		for {
			serr = syscall.Fdatasync(int(fd))
			// Interrupted before it began: asking again is not retrying a
			// failed sync.
			if !errors.Is(serr, syscall.EINTR) {
				return
			}
		}
	})
	if err == nil {
		err = serr
	}
	if err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}
