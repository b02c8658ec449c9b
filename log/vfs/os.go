package vfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// OS is the operating system's file system, an FS: files with mode 0600, directories
// with mode 0700, and no file is opened or stated through a symbolic link.
type OS struct{}

// osFile is an os.File whose Sync flushes bytes and size.
type osFile struct{ *os.File }

func (OS) open(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (o OS) Create(name string) (File, error) {
	return o.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}
func (o OS) OpenReadWrite(name string) (File, error) { return o.open(name, os.O_RDWR) }
func (o OS) OpenRead(name string) (File, error)      { return o.open(name, os.O_RDONLY) }

func (OS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (OS) Stat(name string) (int64, error) {
	fi, err := os.Lstat(name)
	if err != nil || fi.IsDir() {
		return 0, err
	}
	return fi.Size(), nil
}

func (OS) Remove(name string) error             { return os.Remove(name) }
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

func (o OS) MkdirAll(dir string) error {
	if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := o.MkdirAll(parent); err != nil {
		return err
	}
	// It is no error if another process has just created it.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return o.SyncDir(parent)
}

func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
