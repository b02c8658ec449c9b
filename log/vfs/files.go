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

// List returns the names in a directory, sorted; none if it does not exist.
func List(fsys FS, dir string) ([]string, error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return names, err
}

// TempSuffix ends the name of a file that Write has not finished: a leftover of a
// crash, which may be removed.
const TempSuffix = ".tmp"

// WriteFile is Write of bytes.
func WriteFile(fsys FS, name string, data []byte) error {
	return Write(fsys, name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Write puts what fill writes under name, durably and at once: after a crash the file
// holds its old bytes or the new ones, never a mixture.
func Write(fsys FS, name string, fill func(io.Writer) error) error {
	temp := name + TempSuffix
	if err := fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(temp)
	if err != nil {
		return err
	}
	err = fill(&appender{f: f})
	if err == nil {
		// Before the rename: a name must never lead to missing bytes.
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = fsys.Remove(temp) // it is of no use
		return fmt.Errorf("write %s: %w", temp, err)
	}
	if err := fsys.Rename(temp, name); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}

// Remove removes files of a directory, durably. Those that are not there are removed already.
func Remove(fsys FS, dir string, names ...string) error {
	gone := false
	for _, name := range names {
		err := fsys.Remove(path.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		gone = gone || err == nil
	}
	if !gone {
		return nil
	}
	return fsys.SyncDir(dir)
}

// syncEvery bounds how much one fsync has to write: large files are written beside the
// logs, whose fsyncs wait behind it.
const syncEvery = 1 << 20

// appender writes at the end of a file.
type appender struct {
	f            File
	size, synced int64
}

func (a *appender) Write(b []byte) (int, error) {
	if a.size-a.synced >= syncEvery {
		if err := a.f.Sync(); err != nil {
			return 0, err
		}
		a.synced = a.size
	}
	n, err := a.f.WriteAt(b, a.size)
	a.size += int64(n)
	return n, err
}
