package event

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/qlogd/qlogd/internal/msgpackcheck"
)

// fielder is a type whose values pass through the codec once or more per message on every
// node. It lists its fields once, for both directions, so that neither needs reflection.
type fielder interface {
	// fields calls one of coder's methods for each field, in the order of the encoding.
	fields(c *coder)
}

// fieldsOf is a pointer to a T that lists its fields.
type fieldsOf[T any] interface {
	*T
	fielder
}

// coder encodes and decodes structs as the library does: as a map of the fields that are not
// zero. Decoding is stricter: it wants the fields in the order of fields, and no zeros.
//
// It writes and compares the names of fields itself, and takes strings and bytes directly from
// its input. What has no fixed depth it has checked before the library reads it.
type coder struct {
	w        *msgpack.Encoder // writes to out
	r        *msgpack.Decoder // reads from in
	decoding bool

	out     []byte // writing to it cannot fail
	scratch []byte // for out, where the caller has no buffer
	in      []byte
	at      int // in in: what is read next

	n   int    // encoding: fields so far; decoding: fields that follow the pending one
	key []byte // decoding: name of the pending field, empty for none
	err error
}

var coders = sync.Pool{New: func() any {
	c := &coder{}
	c.w, c.r = msgpack.NewEncoder(c), msgpack.NewDecoder(c)
	c.w.UseCompactInts(true)
	c.w.SetOmitEmpty(true)
	c.r.DisallowUnknownFields(true)
	return c
}}

// maxPooled bounds the buffers that the pool keeps.
const maxPooled = 1 << 18

// encodeWith returns the version and what write encodes.
func encodeWith(write func(c *coder)) []byte {
	c := coders.Get().(*coder)
	c.begin(c.scratch[:0])
	write(c)
	b := bytes.Clone(c.out)
	if c.scratch = c.out; cap(c.scratch) > maxPooled {
		c.scratch = nil
	}
	c.end()
	return b
}

// appendTo appends the version and the encoding of v to b.
func appendTo(b []byte, v fielder) []byte {
	c := coders.Get().(*coder)
	c.begin(b)
	c.encode(v)
	b = c.out
	c.end()
	return b
}

// begin starts encoding, behind b.
func (c *coder) begin(b []byte) {
	c.decoding, c.err = false, nil
	c.out = append(b, Version)
}

// end ends encoding. It panics if the library failed, which it does for no type of this package.
func (c *coder) end() {
	if c.err != nil {
		panic(fmt.Sprintf("event: encode: %v", c.err))
	}
	c.out = nil
	coders.Put(c)
}

// decodeWith decodes all that follows the version of b by read.
func decodeWith(b []byte, read func(c *coder)) error {
	if len(b) == 0 {
		return errors.New("empty")
	}
	if b[0] != Version {
		return fmt.Errorf("version %d is not this program's %d", b[0], Version)
	}
	c := coders.Get().(*coder)
	c.decoding, c.err = true, nil
	c.in, c.at = b, 1
	read(c)
	err := c.err
	if n := len(b) - c.at; err == nil && n > 0 {
		err = fmt.Errorf("%d bytes after the end", n)
	}
	c.in, c.key = nil, nil
	coders.Put(c)
	return err
}

// Write and WriteByte append to the output, for the library's encoder.
func (c *coder) Write(b []byte) (int, error) {
	c.out = append(c.out, b...)
	return len(b), nil
}

// WriteByte implements io.ByteWriter.
func (c *coder) WriteByte(b byte) error {
	c.out = append(c.out, b)
	return nil
}

// Read, ReadByte and UnreadByte read the input, for the library's decoder.
func (c *coder) Read(b []byte) (int, error) {
	if c.at == len(c.in) {
		return 0, io.EOF
	}
	n := copy(b, c.in[c.at:])
	c.at += n
	return n, nil
}

// ReadByte implements io.ByteScanner.
func (c *coder) ReadByte() (byte, error) {
	if c.at == len(c.in) {
		return 0, io.EOF
	}
	c.at++
	return c.in[c.at-1], nil
}

// UnreadByte implements io.ByteScanner.
func (c *coder) UnreadByte() error {
	c.at--
	return nil
}

// encode encodes the struct v.
func (c *coder) encode(v fielder) {
	n, at := c.n, len(c.out)
	c.n, c.out = 0, append(c.out, msgpcode.FixedMapLow)
	v.fields(c)
	if c.n <= int(msgpcode.FixedMapMask) {
		c.out[at] |= byte(c.n)
	} else {
		c.out[at] = msgpcode.Map16
		c.out = slices.Insert(c.out, at+1, byte(c.n>>8), byte(c.n))
	}
	c.n = n
}

// decode decodes a struct into v, which is zero.
func (c *coder) decode(v fielder) {
	n, key := c.n, c.key
	c.n, c.err = c.r.DecodeMapLen()
	c.next(c.n < 0) // nil is no struct
	v.fields(c)
	if c.err == nil && len(c.key) > 0 {
		c.err = fmt.Errorf("unknown or misplaced field %q", c.key)
	}
	c.n, c.key = n, key
}

// library encodes or decodes what p points to as the library does.
func (c *coder) library(p any) {
	if !c.decoding {
		c.err = c.w.EncodeValue(reflect.ValueOf(p).Elem())
	} else if _, c.err = msgpackcheck.First(c.in[c.at:]); c.err == nil {
		c.err = c.r.Decode(p)
	}
}

// next reads the name of the next field of the struct that is being decoded. The field before
// it must not be zero, since a zero is not encoded.
func (c *coder) next(zero bool) {
	c.key = nil
	switch {
	case c.err != nil:
	case zero:
		c.err = errNotCanonical
	case c.n > 0:
		c.n--
		if c.key = c.take(true); c.err == nil && len(c.key) == 0 {
			c.err = errors.New("field without a name")
		}
	}
}

// take reads a string, or bytes, and returns them as a part of the input.
func (c *coder) take(text bool) []byte {
	switch rest := c.in[c.at:]; {
	case text && len(rest) > 0 && msgpcode.IsFixedString(rest[0]):
		// short, as most: no need of the library
		if n := int(rest[0] & msgpcode.FixedStrMask); n < len(rest) {
			c.at += 1 + n
			return rest[1 : 1+n : 1+n]
		}
		c.err = io.ErrUnexpectedEOF
	case len(rest) == 0:
		c.err = io.ErrUnexpectedEOF
	case text && !msgpcode.IsString(rest[0]), !text && !msgpcode.IsBin(rest[0]):
		c.err = errNotCanonical
	}
	if c.err != nil {
		return nil
	}
	var n int
	if n, c.err = c.r.DecodeBytesLen(); c.err == nil && n > len(c.in)-c.at {
		c.err = io.ErrUnexpectedEOF
	}
	if c.err != nil {
		return nil
	}
	c.at += n
	return c.in[c.at-n : c.at : c.at]
}

// absent reports whether a field is not in the encoding: it is zero, or is not the pending one.
func (c *coder) absent(name string, zero bool) bool {
	if c.decoding {
		// The first bytes nearly always differ: comparing all costs more.
		return len(c.key) == 0 || c.key[0] != name[0] || string(c.key) != name
	}
	return zero
}

// name begins to encode a field that is not zero. The name is at most 31 bytes long.
func (c *coder) name(name string) {
	c.n++
	c.out = append(append(c.out, msgpcode.FixedStrLow|byte(len(name))), name...)
}

func (c *coder) string(name string, p *string) {
	if c.absent(name, *p == "") {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = c.w.EncodeString(*p)
		return
	}
	b := c.take(true)
	if *p = string(b); c.err == nil && !utf8.Valid(b) {
		c.err = errors.New("a string is not UTF-8")
	}
	c.next(*p == "")
}

func (c *coder) bytes(name string, p *[]byte) {
	if c.absent(name, len(*p) == 0) {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = c.w.EncodeBytes(*p)
		return
	}
	*p = bytes.Clone(c.take(false))
	c.next(len(*p) == 0)
}

func (c *coder) bool(name string, p *bool) {
	if c.absent(name, !*p) {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = c.w.EncodeBool(*p)
		return
	}
	*p, c.err = c.r.DecodeBool()
	c.next(!*p)
}

// id encodes ids and hashes.
func (c *coder) id(name string, p *[16]byte) {
	if c.absent(name, *p == [16]byte{}) {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = c.w.EncodeBytes(p[:])
		return
	}
	b := c.take(false)
	if c.err == nil && len(b) != len(p) {
		c.err = fmt.Errorf("an id of %d bytes", len(b))
	}
	copy(p[:], b)
	c.next(*p == [16]byte{})
}

func (c *coder) int(name string, p *int64) {
	if c.absent(name, *p == 0) {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = c.w.EncodeInt(*p)
		return
	}
	*p, c.err = c.r.DecodeInt64()
	c.next(*p == 0)
}

// number encodes a number without a sign.
func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *coder, name string, p *T) {
	if c.absent(name, *p == 0) {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = c.w.EncodeUint(uint64(*p))
		return
	}
	var v uint64
	v, c.err = c.r.DecodeUint64()
	if *p = T(v); c.err == nil && uint64(*p) != v {
		c.err = fmt.Errorf("%d is out of range", v)
	}
	c.next(*p == 0)
}

// blob decodes without a copy: the bytes are a part of the input.
func (c *coder) blob(name string, p *Blob) {
	if c.absent(name, p.Bytes == nil && p.Digest == [32]byte{}) {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = p.EncodeMsgpack(c.w)
		return
	}
	if c.err = decodePair(c.r); c.err == nil {
		digest := c.take(false)
		if c.err == nil && len(digest) != len(p.Digest) {
			c.err = fmt.Errorf("a digest of %d bytes", len(digest))
		}
		copy(p.Digest[:], digest)
	}
	if c.err == nil {
		p.Bytes = c.take(false)
	}
	c.next(false)
}

func (c *coder) ref(name string, p *Ref) {
	if c.absent(name, p.IsZero()) {
		return
	}
	if !c.decoding {
		c.name(name)
		_ = p.EncodeMsgpack(c.w)
		return
	}
	c.err = p.DecodeMsgpack(c.r)
	c.next(p.IsZero())
}

// other encodes what few messages pass through as the library does. p points to the field.
func (c *coder) other(name string, zero bool, p any) {
	if c.absent(name, zero) {
		return
	}
	if !c.decoding {
		c.name(name)
	}
	if c.library(p); c.decoding {
		c.next(reflect.ValueOf(p).Elem().IsZero())
	}
}

// pointer encodes a struct that may be missing.
func pointer[T any, P fieldsOf[T]](c *coder, name string, p *P) {
	if c.absent(name, *p == nil) {
		return
	}
	if !c.decoding {
		c.name(name)
		c.encode(*p)
		return
	}
	*p = new(T)
	c.decode(*p)
	c.next(false)
}

// list encodes a list of structs.
func list[T any, P fieldsOf[T]](c *coder, name string, p *[]T) {
	if c.absent(name, len(*p) == 0) {
		return
	}
	if !c.decoding {
		c.name(name)
	}
	if elements[T, P](c, p); c.decoding {
		c.next(len(*p) == 0)
	}
}

func elements[T any, P fieldsOf[T]](c *coder, p *[]T) {
	if !c.decoding {
		_ = c.w.EncodeArrayLen(len(*p))
		for i := range *p {
			c.encode(P(&(*p)[i]))
		}
		return
	}
	var n int
	if n, c.err = c.r.DecodeArrayLen(); c.err == nil && n > len(c.in)-c.at {
		c.err = io.ErrUnexpectedEOF
	}
	if c.err == nil && n > 0 {
		*p = make([]T, n)
	}
	for i := 0; i < len(*p) && c.err == nil; i++ {
		c.decode(P(&(*p)[i]))
	}
}
