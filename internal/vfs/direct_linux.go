package vfs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// directFile is a file of O_DIRECT and O_DSYNC.
type directFile struct {
	osFile
	async bool // asyncSyncs
}

// OpenDirect implements Directs.
func (o OS) OpenDirect(name string) (File, error) {
	f, err := o.open(name, os.O_RDWR|syscall.O_DIRECT|syscall.O_DSYNC)
	if err != nil {
		return nil, unsupported(err)
	}
	of := f.(osFile)
	return directFile{of, of.asyncSyncs()}, nil
}

// WriteAt implements io.WriterAt.
func (f directFile) WriteAt(p []byte, off int64) (int, error) {
	if err := aligned(p, off); err != nil {
		return 0, err
	}
	n, err := f.writeDirect(p, off)
	if n == 0 {
		err = unsupported(err)
	}
	return n, err
}

// unsupported marks the error of a file system, or a disk, that can't.
func unsupported(err error) error {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}
