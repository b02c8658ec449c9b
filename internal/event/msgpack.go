package event

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// Everything is coded as msgpack maps from small integers (tags, frozen) to
// values, in rising order of tags, zero values left out. So the bytes are
// canonical, absent fields cost nothing, and a golden test can freeze them.
// An unknown tag is an error: it was written by a newer program, and a node
// that does not know a field must stop rather than guess.

var errTag = errors.New("unknown field tag")

// writer builds tagged maps.
type writer struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
	n   int // fields written into the open map
}

var writers = sync.Pool{New: func() any {
	w := &writer{}
	w.enc = msgpack.NewEncoder(&w.buf)
	return w
}}

// newWriter returns an empty writer; done gives it back.
func newWriter() *writer { return writers.Get().(*writer) }

// keepWriter bounds the memory that a writer in the pool holds.
const keepWriter = 256 << 10

// done returns what was written, in a slice of its own, and gives the writer
// back.
func (w *writer) done() []byte {
	b := bytes.Clone(w.buf.Bytes())
	w.free()
	return b
}

func (w *writer) free() {
	if w.buf.Cap() > keepWriter {
		return
	}
	w.buf.Reset()
	w.n = 0
	writers.Put(w)
}

// open starts a map and returns what close needs; the map's length is always
// written as map16 so that it can be filled in afterwards.
func (w *writer) open() (pos, outer int) {
	pos, outer = w.buf.Len(), w.n
	w.buf.Write([]byte{0xde, 0, 0})
	w.n = 0
	return pos, outer
}

func (w *writer) close(pos, outer int) {
	b := w.buf.Bytes()
	b[pos+1], b[pos+2] = byte(w.n>>8), byte(w.n)
	w.n = outer
}

// The encoder's errors are the buffer's, which has none.

func (w *writer) tag(t int) { w.n++; _ = w.enc.EncodeUint(uint64(t)) }

func (w *writer) uint(t int, v uint64) {
	if v != 0 {
		w.tag(t)
		_ = w.enc.EncodeUint(v)
	}
}

func (w *writer) int(t int, v int64) {
	if v != 0 {
		w.tag(t)
		_ = w.enc.EncodeInt(v)
	}
}

func (w *writer) bool(t int, v bool) {
	if v {
		w.tag(t)
		_ = w.enc.EncodeBool(true)
	}
}

func (w *writer) str(t int, v string) {
	if v != "" {
		w.tag(t)
		_ = w.enc.EncodeString(v)
	}
}

func (w *writer) bytes(t int, v []byte) {
	if len(v) != 0 {
		w.tag(t)
		_ = w.enc.EncodeBytes(v)
	}
}

func (w *writer) b16(t int, v [16]byte) {
	if v != [16]byte{} {
		w.tag(t)
		_ = w.enc.EncodeBytes(v[:])
	}
}

func (w *writer) strs(t int, v []string) {
	if len(v) != 0 {
		w.list(t, len(v))
		for _, s := range v {
			_ = w.enc.EncodeString(s)
		}
	}
}

func (w *writer) ref(t int, r Ref) {
	if !r.IsZero() {
		w.list(t, 2)
		_ = w.enc.EncodeUint(r.Index)
		_ = w.enc.EncodeUint(uint64(r.Number))
	}
}

func (w *writer) blob(t int, b Blob) {
	if !b.IsZero() {
		w.list(t, 2)
		_ = w.enc.EncodeBytes(b.Digest[:])
		_ = w.enc.EncodeBytes(b.Bytes)
	}
}

func (w *writer) list(t, n int) {
	w.tag(t)
	_ = w.enc.EncodeArrayLen(n)
}

// sub writes a nested map under a tag.
func (w *writer) sub(t int, fn func()) {
	w.tag(t)
	w.item(fn)
}

// item writes a map as an element of a list.
func (w *writer) item(fn func()) {
	pos, outer := w.open()
	fn()
	w.close(pos, outer)
}

// reader takes tagged maps apart. After an error everything reads as zero.
type reader struct {
	all []byte
	src bytes.Reader // of all
	dec *msgpack.Decoder
	err error
}

var readers = sync.Pool{New: func() any { return &reader{dec: msgpack.NewDecoder(nil)} }}

// newReader returns a reader of b; end gives it back.
func newReader(b []byte) *reader {
	r := readers.Get().(*reader)
	r.all, r.err = b, nil
	r.src.Reset(b)
	r.dec.Reset(&r.src)
	return r
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// fields calls fn with each tag of a map; fn reads the value and returns false
// for a tag that it does not know.
func (r *reader) fields(fn func(tag int) bool) {
	if r.err != nil {
		return
	}
	n, err := r.dec.DecodeMapLen()
	if err != nil {
		r.fail(err)
		return
	}
	last := -1
	for i := 0; i < n && r.err == nil; i++ {
		t, err := r.dec.DecodeInt()
		switch {
		case err != nil:
			r.fail(err)
		case t <= last:
			r.fail(fmt.Errorf("tag %d after %d", t, last))
		case !fn(t):
			r.fail(fmt.Errorf("%w %d", errTag, t))
		}
		last = t
	}
}

// end reports the first error, or bytes left behind the value, and gives the
// reader back.
func (r *reader) end() error {
	err := r.err
	if err == nil && r.src.Len() != 0 {
		err = fmt.Errorf("%d bytes too many", r.src.Len())
	}
	r.all, r.err = nil, nil
	r.src.Reset(nil)
	readers.Put(r)
	return err
}

func read[T any](r *reader, fn func() (T, error)) T {
	var zero T
	if r.err != nil {
		return zero
	}
	v, err := fn()
	if err != nil {
		r.fail(err)
		return zero
	}
	return v
}

func (r *reader) uint() uint64 { return read(r, r.dec.DecodeUint64) }
func (r *reader) int() int64   { return read(r, r.dec.DecodeInt64) }
func (r *reader) bool() bool   { return read(r, r.dec.DecodeBool) }
func (r *reader) str() string  { return string(r.peek()) }

// bytes reads a byte string into a slice of its own.
func (r *reader) bytes() []byte { return bytes.Clone(r.peek()) }

// peek reads a byte string (or a text: both are coded alike) without copying
// it: it lies in what is decoded. The library would make room for whatever
// length is claimed; here it must be there.
func (r *reader) peek() []byte {
	n := read(r, r.dec.DecodeBytesLen)
	if n > r.src.Len() {
		r.fail(fmt.Errorf("%d bytes where %d are left", n, r.src.Len()))
	}
	if r.err != nil || n <= 0 {
		return nil
	}
	at := len(r.all) - r.src.Len()
	_, _ = r.src.Seek(int64(n), io.SeekCurrent) // they are there
	return r.all[at : at+n : at+n]
}

func (r *reader) u32() uint32 { return narrow[uint32](r, 1<<32-1) }
func (r *reader) u16() uint16 { return narrow[uint16](r, 1<<16-1) }
func (r *reader) u8() uint8   { return narrow[uint8](r, 1<<8-1) }

func narrow[T ~uint8 | ~uint16 | ~uint32](r *reader, limit uint64) T {
	v := r.uint()
	if v > limit {
		r.fail(fmt.Errorf("%d is over %d", v, limit))
		return 0
	}
	return T(v)
}

func (r *reader) b16() (out [16]byte) {
	b := r.peek()
	if r.err == nil && len(b) != 16 {
		r.fail(fmt.Errorf("%d bytes where 16 belong", len(b)))
	}
	copy(out[:], b)
	return out
}

// count reads a list's length. Each element takes at least a byte, so a length
// over what is left is refused before anything is allocated for it.
func (r *reader) count() int {
	n := read(r, r.dec.DecodeArrayLen)
	if n < 0 {
		n = 0
	}
	if n > r.src.Len() {
		r.fail(fmt.Errorf("a list of %d in %d bytes", n, r.src.Len()))
		return 0
	}
	return n
}

func list[T any](r *reader, one func() T) []T {
	n := r.count()
	if n == 0 {
		return nil
	}
	// An element can be much larger than the byte that it must take.
	out := make([]T, 0, min(n, 1024))
	for i := 0; i < n && r.err == nil; i++ {
		out = append(out, one())
	}
	return out
}

func (r *reader) ref() Ref {
	if n := r.count(); r.err == nil && n != 2 {
		r.fail(errors.New("a place has two numbers"))
	}
	return Ref{Index: r.uint(), Number: r.u32()}
}

func (r *reader) blob() (b Blob) {
	if n := r.count(); r.err == nil && n != 2 {
		r.fail(errors.New("a content has digest and bytes"))
	}
	d := r.peek()
	if r.err == nil && len(d) != 32 {
		r.fail(fmt.Errorf("a digest of %d bytes", len(d)))
	}
	copy(b.Digest[:], d)
	b.Bytes = r.peek()
	return b
}
