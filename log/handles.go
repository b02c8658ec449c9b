package log

import (
	"errors"
	"path"
	"sync"

	"github.com/qlogd/qlogd/log/vfs"
)

// maxIdle is how many files that nobody is reading stay open.
const maxIdle = 128

// handles keeps files open for reading: a log of 100 GB has thousands, of which
// few are wanted at a time.
type handles struct {
	fs  vfs.FS
	dir string

	mu    sync.Mutex
	open  map[string]*handle
	tick  uint64
	close bool
}

type handle struct {
	vfs.File
	users  int
	used   uint64 // tick of the last use
	gone   bool   // not in handles.open any more: close with the last user
	pinned bool   // the active segment's, open for writing: never idle
}

func newHandles(fs vfs.FS, dir string) *handles {
	return &handles{fs: fs, dir: dir, open: map[string]*handle{}}
}

// borrow returns the file, which must be given back by calling done.
func (h *handles) borrow(name string) (f *handle, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.close {
		return nil, nil, ErrClosed
	}
	f = h.open[name]
	if f == nil {
		file, err := h.fs.OpenRead(path.Join(h.dir, name))
		if err != nil {
			return nil, nil, err
		}
		f = &handle{File: file}
		h.open[name] = f
	}
	done = h.lendLocked(f)
	// Only now: before it has a user, the file just opened is the idlest of all.
	h.evict()
	return f, done, nil
}

// borrowPinned is borrow for the active segment's file, and nil where the segment
// is not the active one any more: it opens nothing.
func (h *handles) borrowPinned(name string) (f *handle, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.close {
		return nil, nil, ErrClosed
	}
	if f = h.open[name]; f == nil || !f.pinned {
		return nil, nil, nil
	}
	return f, h.lendLocked(f), nil
}

func (h *handles) lendLocked(f *handle) (done func()) {
	h.tick++
	f.users, f.used = f.users+1, h.tick
	return func() { h.giveBack(f) }
}

func (h *handles) giveBack(f *handle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f.users--
	if f.gone && f.users == 0 {
		// It was only read, or synced before: nothing can be lost.
		_ = f.Close()
	}
}

// evict closes the file that has been idle for longest, if there are too many.
func (h *handles) evict() {
	if len(h.open) <= maxIdle {
		return
	}
	oldest := ""
	for name, f := range h.open {
		if f.users == 0 && !f.pinned && (oldest == "" || f.used < h.open[oldest].used) {
			oldest = name
		}
	}
	if oldest != "" {
		_ = h.open[oldest].Close() // it was only read
		delete(h.open, oldest)
	}
}

// pin puts in the active segment's file.
func (h *handles) pin(name string, f vfs.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[name] = &handle{File: f, pinned: true}
}

// drop closes a file as soon as nobody reads it, and forgets it: it is opened
// anew if wanted again.
func (h *handles) drop(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.open[name]
	if f == nil {
		return nil
	}
	delete(h.open, name)
	f.gone = true
	if f.users > 0 {
		return nil
	}
	return f.Close()
}

func (h *handles) closeAll() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.close = true
	var errs []error
	for name, f := range h.open {
		delete(h.open, name)
		f.gone = true
		if f.users == 0 {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
