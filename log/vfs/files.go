package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
)

// ReadFile returns all bytes of a file.
func ReadFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// TempSuffix ends the name of a file that WriteFile has not finished: a
// leftover of a crash, which may be removed.
const TempSuffix = ".tmp"

// WriteFile puts data under name, durably and at once: after a crash the file
// holds its old bytes or the new ones, never a mixture.
func WriteFile(fsys FS, name string, data []byte) error {
	if err := writeTemp(fsys, name, data); err != nil {
		return err
	}
	if err := fsys.Rename(name+TempSuffix, name); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}

func writeTemp(fsys FS, name string, data []byte) error {
	temp := name + TempSuffix
	if err := fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(temp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		// Before the rename: a name must never lead to bytes that are not there.
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", temp, err)
	}
	return nil
}
