package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"syscall"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/qlogd/qlogd/log/vfs"
)

// MaxOpen is how many files of a log stay open for reading: one of 100 GB has thousands, of
// which few are read at a time.
const MaxOpen = 128

// fileCache reads a directory's files and keeps the most recently used ones open.
type fileCache struct {
	fs  vfs.FS
	dir string

	mu     sync.Mutex
	open   *lru.Cache[string, vfs.File]
	closed bool
}

func newFileCache(fsys vfs.FS, dir string) (*fileCache, error) {
	open, err := lru.NewWithEvict(MaxOpen, func(_ string, f vfs.File) {
		_ = f.Close() // it is only read
	})
	return &fileCache{fs: fsys, dir: dir, open: open}, err
}

func (s *fileCache) get(name string) (vfs.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if f, ok := s.open.Get(name); ok {
		return f, nil
	}
	f, err := s.fs.OpenRead(path.Join(s.dir, name))
	if err == nil {
		s.open.Add(name, f)
	}
	return f, err
}

// forget closes a file that was removed or replaced.
func (s *fileCache) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open.Remove(name)
}

func (s *fileCache) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.open.Purge()
}

// segmentFile is a file of the segment that begins at first. Where retention has
// removed it, reading it returns ErrGone.
type segmentFile struct {
	l     *Log
	name  string
	first uint64
}

// ReadAt implements io.ReaderAt.
func (f segmentFile) ReadAt(b []byte, off int64) (n int, err error) {
	for {
		var file vfs.File
		if file, err = f.l.files.get(f.name); err == nil {
			n, err = file.ReadAt(b, off)
		}
		switch {
		case errors.Is(err, fs.ErrClosed):
			continue // to make room for others, since get
		case errors.Is(err, fs.ErrNotExist) && f.l.First() > f.first:
			err = ErrGone
		case errors.Is(err, syscall.EIO): // a sector that the disk cannot read is as good as wrong
			err = &CorruptionError{Segment: f.name, Offset: off, Reason: err.Error()}
		}
		return n, err
	}
}

func (l *Log) path(name string) string { return path.Join(l.dir, name) }

func (l *Log) size(name string) (int64, error) { return l.fs.Stat(l.path(name)) }

func (l *Log) file(seg *segment) segmentFile { return segmentFile{l, seg.Name, seg.First} }

// readFull is ReadAt for bytes that must exist.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	switch {
	case n == len(b):
		return nil
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return err
}

// window reads a file in large pieces and returns parts of them.
type window struct {
	r     io.ReaderAt
	limit int64 // nothing past it is read
	chunk int64 // how much is read at once, at least
	fresh bool  // returned bytes stay valid
	buf   []byte
	off   int64 // of buf
}

// errShort is returned for bytes past the limit.
var errShort = fmt.Errorf("the file ends here: %w", io.ErrUnexpectedEOF)

// at returns n bytes at off. They are valid until the next call, or for ever
// with fresh.
func (w *window) at(off, n int64) ([]byte, error) {
	if off+n > w.limit {
		return nil, errShort
	}
	if off < w.off || off+n > w.off+int64(len(w.buf)) {
		want := min(max(n, w.chunk), w.limit-off)
		if w.fresh || int64(cap(w.buf)) < want {
			w.buf = make([]byte, want)
		}
		w.buf, w.off = w.buf[:want], off
		if err := readFull(w.r, w.buf, off); err != nil {
			w.buf = nil
			return nil, err
		}
	}
	from := off - w.off
	return w.buf[from : from+n : from+n], nil
}
