package log

import (
	"fmt"
	"io"
	"sync"
)

// window reads a file in large pieces.
type window struct {
	r     io.ReaderAt
	limit int64 // nothing past it is read
	chunk int64 // how much is read at once, at least
	fresh bool  // pieces handed out stay as they are
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
		if _, err := readFull(w.r, w.buf, off); err != nil {
			w.buf = nil
			return nil, err
		}
	}
	from := off - w.off
	return w.buf[from : from+n : from+n], nil
}

// walkBuffers are for the windows of cursors: most lookups find all they want in
// one piece of this length.
var walkBuffers = sync.Pool{New: func() any { return new([sparseGap + pageSize]byte) }}
