package event

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Everything is coded as msgpack maps from small integers (tags, frozen) to
// values, in rising order of tags, zero values left out. So the bytes are
// canonical, absent fields cost nothing, and a golden test can freeze them.
// An unknown tag is an error: it was written by a newer program, and a node
// that does not know a field must stop rather than guess.
//
// The bytes are those of github.com/vmihailenco/msgpack (a test holds them
// against it), written by hand: every node does this several times a message.

var errTag = errors.New("unknown field tag")

// writer builds tagged maps.
type writer struct {
	buf []byte
	n   int // fields written into the open map
}

// newWriter returns a writer with room for size bytes, which begins with the
// version. What is written is in buf.
func newWriter(size int) *writer {
	w := &writer{buf: make([]byte, 1, 1+size)}
	w.buf[0] = Version
	return w
}

// open starts a map and returns what close needs; the map's length is always
// written as map16 so that it can be filled in afterwards.
func (w *writer) open() (pos, outer int) {
	pos, outer = len(w.buf), w.n
	w.buf = append(w.buf, 0xde, 0, 0)
	w.n = 0
	return pos, outer
}

func (w *writer) close(pos, outer int) {
	w.buf[pos+1], w.buf[pos+2] = byte(w.n>>8), byte(w.n)
	w.n = outer
}

func (w *writer) tag(t int) { w.n++; w.buf = append(w.buf, byte(t)) } // all are below 128

func (w *writer) uint(t int, v uint64) {
	if v != 0 {
		w.tag(t)
		w.buf = appendUint(w.buf, v)
	}
}

func (w *writer) int(t int, v int64) {
	if v != 0 {
		w.tag(t)
		w.buf = appendInt(w.buf, v)
	}
}

func (w *writer) bool(t int, v bool) {
	if v {
		w.tag(t)
		w.buf = append(w.buf, 0xc3)
	}
}

func (w *writer) str(t int, v string) {
	if v != "" {
		w.tag(t)
		w.buf = appendString(w.buf, v)
	}
}

func (w *writer) bytes(t int, v []byte) {
	if len(v) != 0 {
		w.tag(t)
		w.buf = appendBytes(w.buf, v)
	}
}

func (w *writer) b16(t int, v [16]byte) {
	if v != [16]byte{} {
		w.tag(t)
		w.buf = append(append(w.buf, 0xc4, 16), v[:]...)
	}
}

func (w *writer) strs(t int, v []string) {
	if len(v) != 0 {
		w.list(t, len(v))
		for _, s := range v {
			w.buf = appendString(w.buf, s)
		}
	}
}

func (w *writer) ref(t int, r Ref) {
	if !r.IsZero() {
		w.list(t, 2)
		w.buf = appendUint(w.buf, r.Index)
		w.buf = appendUint(w.buf, uint64(r.Number))
	}
}

func (w *writer) blob(t int, b *Blob) {
	if !b.IsZero() {
		w.list(t, 2)
		w.buf = append(append(w.buf, 0xc4, 32), b.Digest[:]...)
		w.buf = appendBytes(w.buf, b.Bytes)
	}
}

func (w *writer) list(t, n int) {
	w.tag(t)
	switch {
	case n < 16:
		w.buf = append(w.buf, 0x90|byte(n))
	case n <= math.MaxUint16:
		w.buf = binary.BigEndian.AppendUint16(append(w.buf, 0xdc), uint16(n))
	default:
		w.buf = binary.BigEndian.AppendUint32(append(w.buf, 0xdd), uint32(n))
	}
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

func appendUint(b []byte, v uint64) []byte {
	switch {
	case v <= math.MaxInt8:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

func appendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0:
		return appendUint(b, uint64(v))
	case v >= -32:
		return append(b, byte(v))
	case v >= math.MinInt8:
		return append(b, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
}

func appendString(b []byte, v string) []byte {
	switch n := len(v); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		b = append(b, 0xd9, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, v...)
}

func appendBytes(b, v []byte) []byte {
	switch n := len(v); {
	case n <= math.MaxUint8:
		b = append(b, 0xc4, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xc5), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(n))
	}
	return append(b, v...)
}

// reader takes tagged maps apart. After an error everything reads as zero.
type reader struct {
	b    []byte
	at   int // what is left of b begins here
	err  error
	last string // the text read last: neighbours often say the same
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
		r.b, r.at = nil, 0
	}
}

var errCut = errors.New("it is cut")

// code takes one byte.
func (r *reader) code() byte {
	if r.at >= len(r.b) {
		r.fail(errCut)
		return 0
	}
	c := r.b[r.at]
	r.at++
	return c
}

// left is how many bytes are left.
func (r *reader) left() int { return len(r.b) - r.at }

// be takes a number of n bytes, big-endian.
func (r *reader) be(n int) (v uint64) {
	if r.left() < n {
		r.fail(errCut)
		return 0
	}
	for _, c := range r.b[r.at : r.at+n] {
		v = v<<8 | uint64(c)
	}
	r.at += n
	return v
}

func (r *reader) wrong(c byte, want string) { r.fail(fmt.Errorf("code %#x where %s belongs", c, want)) }

// fields calls fn with each tag of a map; fn reads the value and returns false
// for a tag that it does not know.
func (r *reader) fields(fn func(tag int) bool) {
	last := -1
	for n := r.entries(); n > 0 && r.err == nil; n-- {
		t := int(r.int())
		switch {
		case r.err != nil:
		case t <= last:
			r.fail(fmt.Errorf("tag %d after %d", t, last))
		case !fn(t):
			r.fail(fmt.Errorf("%w %d", errTag, t))
		}
		last = t
	}
}

// entries reads a map's length.
func (r *reader) entries() int {
	if r.err != nil {
		return 0
	}
	switch c := r.code(); {
	case r.err != nil:
	case c&0xf0 == 0x80:
		return int(c & 0x0f)
	case c == 0xde:
		return int(r.be(2))
	case c == 0xdf:
		return int(r.be(4))
	case c == 0xc0: // nil
	default:
		r.wrong(c, "a map")
	}
	return 0
}

// end reports the first error, or bytes left behind the value.
func (r *reader) end() error {
	if r.err == nil && r.left() != 0 {
		return fmt.Errorf("%d bytes too many", r.left())
	}
	return r.err
}

func (r *reader) uint() uint64 { return uint64(r.int()) }

// int takes a number, of whatever code: what is written as unsigned is read as
// such by the caller's conversion.
func (r *reader) int() int64 {
	if r.err != nil {
		return 0
	}
	c := r.code()
	if c < 0x80 || c >= 0xe0 {
		return int64(int8(c))
	}
	switch c {
	case 0xcc:
		return int64(r.be(1))
	case 0xcd:
		return int64(r.be(2))
	case 0xce:
		return int64(r.be(4))
	case 0xcf, 0xd3:
		return int64(r.be(8))
	case 0xd0:
		return int64(int8(r.be(1)))
	case 0xd1:
		return int64(int16(r.be(2)))
	case 0xd2:
		return int64(int32(r.be(4)))
	case 0xc0: // nil
		return 0
	}
	r.wrong(c, "a number")
	return 0
}

func (r *reader) bool() bool {
	if r.err != nil {
		return false
	}
	switch c := r.code(); c {
	case 0xc3:
		return true
	case 0xc2, 0xc0:
	default:
		if r.err == nil {
			r.wrong(c, "true or false")
		}
	}
	return false
}

func (r *reader) str() string {
	b := r.peek()
	if string(b) != r.last {
		r.last = string(b)
	}
	return r.last
}

// bytes reads a byte string into a slice of its own.
func (r *reader) bytes() []byte { return bytes.Clone(r.peek()) }

// peek reads a byte string (or a text: both are coded alike) without copying
// it: it lies in what is decoded.
func (r *reader) peek() []byte {
	if r.err != nil {
		return nil
	}
	n := 0
	switch c := r.code(); {
	case r.err != nil:
	case c&0xe0 == 0xa0:
		n = int(c & 0x1f)
	case c == 0xc4, c == 0xd9:
		n = int(r.be(1))
	case c == 0xc5, c == 0xda:
		n = int(r.be(2))
	case c == 0xc6, c == 0xdb:
		n = int(r.be(4))
	case c == 0xc0: // nil
	default:
		r.wrong(c, "a text or bytes")
	}
	if n > r.left() {
		r.fail(fmt.Errorf("%d bytes where %d are left", n, r.left()))
	}
	if r.err != nil || n == 0 {
		return nil
	}
	r.at += n
	return r.b[r.at-n : r.at : r.at]
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
	if r.err != nil {
		return 0
	}
	n := 0
	switch c := r.code(); {
	case r.err != nil:
	case c&0xf0 == 0x90:
		n = int(c & 0x0f)
	case c == 0xdc:
		n = int(r.be(2))
	case c == 0xdd:
		n = int(r.be(4))
	case c == 0xc0: // nil
	default:
		r.wrong(c, "a list")
	}
	if n > r.left() {
		r.fail(fmt.Errorf("a list of %d in %d bytes", n, r.left()))
		return 0
	}
	return n
}

func list[T any](r *reader, one func(*T)) []T {
	n := r.count()
	if n == 0 {
		return nil
	}
	// An element can be much larger than the byte that it must take.
	out := make([]T, 0, min(n, 1024))
	for i := 0; i < n && r.err == nil; i++ {
		if i == cap(out) {
			out = slices.Grow(out, 1)
		}
		out = out[:i+1] // what was made is zero
		one(&out[i])
	}
	return out
}

func (r *reader) ref() Ref {
	if n := r.count(); r.err == nil && n != 2 {
		r.fail(errors.New("a place has two numbers"))
	}
	return Ref{Index: r.uint(), Number: r.u32()}
}

func (r *reader) blob(b *Blob) {
	if n := r.count(); r.err == nil && n != 2 {
		r.fail(errors.New("a content has digest and bytes"))
	}
	d := r.peek()
	if r.err == nil && len(d) != 32 {
		r.fail(fmt.Errorf("a digest of %d bytes", len(d)))
	}
	copy(b.Digest[:], d)
	b.Bytes = r.peek()
}

func (r *reader) text(s *string) { *s = r.str() }
