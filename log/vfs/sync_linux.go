package vfs

import (
	"errors"
	"os"
	"syscall"
)

// Sync implements File with fdatasync. It flushes the bytes and the size but not
// the times, which saves a journal commit when the size is unchanged.
func (f osFile) Sync() error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) {
		// A call that was interrupted has not begun: this does not retry a failed sync.
		for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
			err = syscall.Fdatasync(int(fd))
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}
