package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Dir is a store in a directory, perhaps of a shared file system.
type Dir struct{ path string }

// NewStore returns the store that a user named: a directory. An object store is
// reached by a mounted or synchronised directory.
func NewStore(name string) (Store, error) {
	if scheme, _, isURL := strings.Cut(name, "://"); isURL { // what follows may hold credentials
		return nil, fmt.Errorf("archive: must be a directory, got a %.20s:// URL: "+
			"mount or synchronise the object store and name that directory", scheme)
	}
	if name == "" {
		return nil, errors.New("archive: must be a directory, got an empty name")
	}
	return NewDir(name), nil
}

// NewDir returns the store in a directory, which is made at the first Put.
func NewDir(path string) *Dir { return &Dir{path} }

func (d *Dir) String() string { return d.path }

// Local implements Store.
func (d *Dir) Local(name string) string { return filepath.Join(d.path, filepath.FromSlash(name)) }

const tempMark = ".tmp-"

// Put implements Store: beside, synced, then renamed.
func (d *Dir) Put(ctx context.Context, name string, r io.Reader, size int64) (err error) {
	target := d.Local(name)
	folder := filepath.Dir(target)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	d.clean(folder)
	f, err := os.CreateTemp(folder, filepath.Base(target)+tempMark+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	n, err := io.Copy(f, &cancelled{ctx, r})
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("write %s: %d bytes came, not %d", name, n, size)
	}
	// Before the rename: a name must never lead to bytes that are not there.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), target); err != nil {
		return err
	}
	for _, dir := range []string{folder, d.path, filepath.Dir(d.path)} {
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return f.Close()
}

// clean removes what a crash has left, long after any writer can be at it.
func (d *Dir) clean(folder string) {
	names, _ := filepath.Glob(filepath.Join(folder, "*"+tempMark+"*"))
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(name) // it only takes room
		}
	}
}

// dropTemp removes what was not finished of objects whose names begin with prefix.
// Should somebody be at it, his Put fails and is tried again.
func (d *Dir) dropTemp(prefix string) error {
	names, err := filepath.Glob(d.Local(prefix) + "*" + tempMark + "*")
	for _, name := range names {
		if rerr := os.Remove(name); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Get implements Store.
func (d *Dir) Get(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	f, err := os.Open(d.Local(name))
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(off, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r := io.Reader(&cancelled{ctx, f})
	if n >= 0 {
		r = io.LimitReader(r, n)
	}
	return readCloser{r, f}, nil
}

// List implements Store.
func (d *Dir) List(_ context.Context, prefix string) ([]Object, error) {
	folder, begin := filepath.Split(filepath.FromSlash(prefix))
	entries, err := os.ReadDir(filepath.Join(d.path, folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Object
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(e.Name(), begin) || strings.Contains(e.Name(), tempMark) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, Object{filepath.ToSlash(folder) + e.Name(), info.Size()})
	}
	slices.SortFunc(out, func(a, b Object) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Delete implements Store.
func (d *Dir) Delete(_ context.Context, name string) error {
	if err := os.Remove(d.Local(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// cancelled reads until its context ends.
type cancelled struct {
	ctx context.Context
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
