package vfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// OS is the operating system's file system: files with mode 0600, directories
// with mode 0700, and no file is opened through a symbolic link.
type OS struct{}

var _ FS = OS{}

// osFile is an os.File whose Sync flushes bytes and size.
type osFile struct{ *os.File }

func (OS) open(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Create implements FS.
func (o OS) Create(name string) (File, error) {
	return o.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// OpenReadWrite implements FS.
func (o OS) OpenReadWrite(name string) (File, error) { return o.open(name, os.O_RDWR) }

// OpenRead implements FS.
func (o OS) OpenRead(name string) (File, error) { return o.open(name, os.O_RDONLY) }

// List implements FS.
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

// Stat implements FS. It does not follow a symbolic link.
func (OS) Stat(name string) (int64, error) {
	fi, err := os.Lstat(name)
	if err != nil || fi.IsDir() {
		return 0, err
	}
	return fi.Size(), nil
}

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// Rename implements FS.
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// MkdirAll implements FS.
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

// SyncDir implements FS.
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

// Size implements File.
func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
