package event

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// The types that every message passes through list their fields themselves, in one order for
// both directions, because the library's reflection costs several times more. They are maps
// from one-letter names to values, in the order of the list, without zero values: the same value
// always has the same bytes, and a name that is unknown, repeated or out of order is an error.

// lister is a type that lists its fields: fields passes each of them to f, always in the same
// order.
type lister interface{ fields(f *fields) }

// fields encodes or decodes the fields of a lister. After an error it does nothing.
type fields struct {
	enc  *msgpack.Encoder // nil: decoding
	dec  *msgpack.Decoder
	src  *source // what dec reads
	buf  *buffer // what enc writes to
	n    int     // encoding: fields written; decoding: fields still to be read, with next
	next byte    // decoding: the name that was read; 0 at the end
	err  error
}

func encodeFields(e *msgpack.Encoder, v lister) error {
	f := &fields{enc: e, buf: e.Writer().(*buffer)}
	f.object(v)
	return f.err
}

// decodeFields reads v from a decoder of a source.
func decodeFields(d *msgpack.Decoder, v lister) error {
	f := &fields{dec: d, src: d.Buffered().(*source)}
	f.object(v)
	return f.err
}

var errFieldName = errors.New("unknown, repeated or misplaced field")

// object encodes or decodes one map.
func (f *fields) object(v lister) {
	if f.err != nil {
		return
	}
	if f.enc != nil {
		f.encodeObject(v)
		return
	}
	n, next := f.n, f.next
	var err error
	if f.n, err = f.dec.DecodeMapLen(); err != nil {
		f.fail(err)
		return
	}
	f.n++
	f.pull()
	v.fields(f)
	if f.err == nil && f.n > 0 {
		f.fail(fmt.Errorf("%w %q", errFieldName, f.next))
	}
	f.n, f.next = n, next
}

func (f *fields) encodeObject(v lister) {
	n := f.n
	f.n = 0
	at := len(f.buf.b)
	f.buf.b = append(f.buf.b, 0x80) // a map of up to 15 fields; the number follows
	v.fields(f)
	if f.n < 16 {
		f.buf.b[at] |= byte(f.n)
	} else {
		f.buf.b = slices.Replace(f.buf.b, at, at+1, 0xde, byte(f.n>>8), byte(f.n))
	}
	f.n = n
}

func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// pull reads the name of the next field.
func (f *fields) pull() {
	f.n--
	f.next = 0
	if f.n == 0 || f.err != nil {
		return
	}
	b, err := f.src.take(2)
	if err == nil && b[0] != 0xa1 {
		err = fmt.Errorf("%w, beginning %q", errFieldName, b)
	}
	if err != nil {
		f.fail(err)
		return
	}
	f.next = b[1]
}

// begin reports whether the field's value must be encoded or decoded now. present says whether
// there is one to encode.
func (f *fields) begin(name byte, present bool) bool {
	if f.enc == nil {
		return f.next == name && f.err == nil && f.n > 0
	}
	if present {
		f.n++
		f.buf.b = append(f.buf.b, 0xa1, name) // a string of one byte
	}
	return present
}

// str decodes a string. Neighbours that are equal share memory.
func (f *fields) str() string {
	if len(f.src.b) > 0 && f.src.b[0] >= 0xc4 && f.src.b[0] <= 0xc6 {
		f.fail(errors.New("bytes where a string belongs"))
		return ""
	}
	if b := f.raw(); string(b) != f.src.last {
		f.src.last = string(b)
	}
	return f.src.last
}

// raw decodes a string or bytes without copying them.
func (f *fields) raw() []byte {
	n, err := f.dec.DecodeBytesLen()
	if err != nil {
		f.fail(err)
		return nil
	}
	if n <= 0 {
		return nil
	}
	b, err := f.src.take(n)
	f.fail(err)
	return b
}

func (f *fields) text(name byte, p *string) {
	if !f.begin(name, *p != "") {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeString(*p))
		return
	}
	*p = f.str()
	f.pull()
}

// bytes decodes without copying: *p is then a part of the source.
func (f *fields) bytes(name byte, p *[]byte) {
	if !f.begin(name, len(*p) > 0) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeBytes(*p))
		return
	}
	*p = f.raw()
	f.pull()
}

func (f *fields) bool(name byte, p *bool) {
	if !f.begin(name, *p) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeBool(true))
		return
	}
	v, err := f.dec.DecodeBool()
	f.fail(err)
	*p = v
	f.pull()
}

func (f *fields) int(name byte, p *int64) {
	if !f.begin(name, *p != 0) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeInt(*p))
		return
	}
	v, err := f.dec.DecodeInt64()
	f.fail(err)
	*p = v
	f.pull()
}

// count is a field of type int.
func (f *fields) count(name byte, p *int) {
	v := int64(*p)
	f.int(name, &v)
	*p = int(v)
}

func uintField[T ~uint8 | ~uint16 | ~uint32 | ~uint64](f *fields, name byte, p *T) {
	if !f.begin(name, *p != 0) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeUint(uint64(*p)))
		return
	}
	v, err := f.dec.DecodeUint64()
	f.fail(err)
	if *p = T(v); uint64(*p) != v {
		f.fail(fmt.Errorf("field %c: %d is out of range", name, v))
	}
	f.pull()
}

// enum is uintField for a number below n.
func enum[T ~uint8](f *fields, name byte, p *T, n int) {
	uintField(f, name, p)
	if f.enc == nil && int(*p) >= n {
		f.fail(fmt.Errorf("field %c: %d is out of range", name, *p))
	}
}

// array is an ID or a Hash.
func (f *fields) array(name byte, p *[16]byte) {
	if !f.begin(name, *p != [16]byte{}) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeBytes(p[:]))
		return
	}
	b := f.raw()
	if f.err == nil && len(b) != len(p) {
		f.fail(fmt.Errorf("field %c: %d bytes, want %d", name, len(b), len(p)))
	}
	copy(p[:], b)
	f.pull()
}

func (f *fields) blob(name byte, p *Blob) {
	if !f.begin(name, !p.IsZero()) {
		return
	}
	if f.enc != nil {
		f.fail(p.EncodeMsgpack(f.enc))
		return
	}
	f.fail(p.DecodeMsgpack(f.dec))
	f.pull()
}

func (f *fields) ref(name byte, p *Ref) {
	if !f.begin(name, !p.IsZero()) {
		return
	}
	if f.enc != nil {
		f.fail(p.EncodeMsgpack(f.enc))
		return
	}
	f.fail(p.DecodeMsgpack(f.dec))
	f.pull()
}

// other is a field that the library encodes and decodes; p points to it.
func (f *fields) other(name byte, present bool, p any) {
	if !f.begin(name, present) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.Encode(p))
		return
	}
	f.fail(f.dec.Decode(p))
	f.pull()
}

// texts is a list of strings.
func (f *fields) texts(name byte, p *[]string) {
	if !f.begin(name, len(*p) > 0) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeArrayLen(len(*p)))
		for _, s := range *p {
			f.fail(f.enc.EncodeString(s))
		}
		return
	}
	n, err := f.dec.DecodeArrayLen()
	f.fail(err)
	for i := 0; i < n && f.err == nil; i++ {
		*p = append(*p, f.str())
	}
	f.pull()
}

// optional is a lister behind a pointer, which may be nil; at returns its address.
func optional[T any](f *fields, name byte, p **T, at func(*T) lister) {
	if !f.begin(name, *p != nil) {
		return
	}
	if f.enc != nil {
		f.object(at(*p))
		return
	}
	*p = new(T)
	f.object(at(*p))
	f.pull()
}

// objects is a list of listers; at returns the address of one.
func objects[T any](f *fields, name byte, p *[]T, at func(*T) lister) {
	if !f.begin(name, len(*p) > 0) {
		return
	}
	if f.enc != nil {
		f.fail(f.enc.EncodeArrayLen(len(*p)))
		for i := range *p {
			f.object(at(&(*p)[i]))
		}
		return
	}
	n, err := f.dec.DecodeArrayLen()
	f.fail(err)
	// A length that is only claimed must not cost memory: an element takes a byte at least.
	if n > len(f.src.b) {
		f.fail(io.ErrUnexpectedEOF)
	}
	if n > 0 && f.err == nil {
		*p = make([]T, 0, min(n, 1024))
	}
	for i := 0; i < n && f.err == nil; i++ {
		var zero T
		*p = append(*p, zero)
		f.object(at(&(*p)[i]))
	}
	f.pull()
}

// source is bytes to be decoded. Fields that are bytes stay where they are.
type source struct {
	b    []byte // what is left
	all  []byte
	last string // the string read last
}

// take returns the next n bytes without copying them.
func (s *source) take(n int) ([]byte, error) {
	if n > len(s.b) {
		return nil, io.ErrUnexpectedEOF
	}
	b := s.b[:n:n]
	s.b = s.b[n:]
	return b, nil
}

func (s *source) Read(b []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.b)
	s.b = s.b[n:]
	return n, nil
}

func (s *source) ReadByte() (byte, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c, nil
}

// UnreadByte implements io.ByteScanner. The library unreads only what it has read.
func (s *source) UnreadByte() error {
	s.b = s.all[len(s.all)-len(s.b)-1:]
	return nil
}

// buffer is where an encoder writes.
type buffer struct{ b []byte }

func (w *buffer) Write(b []byte) (int, error) {
	w.b = append(w.b, b...)
	return len(b), nil
}

func (w *buffer) WriteByte(c byte) error {
	w.b = append(w.b, c)
	return nil
}

func (w *buffer) WriteString(s string) (int, error) {
	w.b = append(w.b, s...)
	return len(s), nil
}
