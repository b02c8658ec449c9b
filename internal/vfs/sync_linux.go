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
	err := f.control(func(fd int) error {
		for {
			// Interrupted before it began: asking again is not retrying a
			// failed sync.
			if err := syscall.Fdatasync(fd); !errors.Is(err, syscall.EINTR) {
				return err
			}
		}
	})
	if err != nil {
		return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

// control makes a call on the file's descriptor, which stays its own meanwhile.
func (f osFile) control(call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := conn.Control(func(fd uintptr) { err = call(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}
