package event

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// coder encodes and decodes values as the library does, structs as maps of the fields that are not
// zero, but faster, without recursion that the input controls. Decoding is stricter: it wants the
// fields in the order of their shape, and no zeros.
//
// It writes and compares the names of fields itself, and takes strings and bytes directly from
// its input: decoded bytes are a part of it, so the input must not change afterwards.
type coder struct {
	w   *msgpack.Encoder // writes to buf, which cannot fail
	r   *msgpack.Decoder // reads from buf
	buf bytes.Buffer     // encoding: what is written; decoding: what is to be read
	err error
}

var coders = sync.Pool{New: func() any {
	c := &coder{}
	c.w, c.r = msgpack.NewEncoder(&c.buf), msgpack.NewDecoder(&c.buf)
	c.w.UseCompactInts(true)
	return c
}}

// maxPooled bounds the buffers that the pool keeps.
const maxPooled = 1 << 18

// use lets fn work on a buffer that holds b. The coder keeps its own for format.encode.
func use(b []byte, fn func(c *coder)) {
	c := coders.Get().(*coder)
	own := c.buf
	c.buf = *bytes.NewBuffer(b)
	fn(c)
	c.buf, c.err = own, nil
	coders.Put(c)
}

// format is the encoding of a type: Version and the value.
type format[T any] struct{ shape }

func formatOf[T any]() format[T] { return format[T]{shapeOf(reflect.TypeFor[T]())} }

func (f format[T]) encode(v *T) []byte {
	c := coders.Get().(*coder)
	c.buf.Reset()
	c.buf.WriteByte(Version)
	c.put(&f.shape, reflect.ValueOf(v).Elem())
	b := bytes.Clone(c.buf.Bytes())
	if c.buf.Cap() > maxPooled {
		c.buf = bytes.Buffer{}
	}
	coders.Put(c)
	return b
}

// append appends what encode returns to b.
func (f format[T]) append(b []byte, v *T) (out []byte) {
	use(b, func(c *coder) {
		c.buf.WriteByte(Version)
		c.put(&f.shape, reflect.ValueOf(v).Elem())
		out = c.buf.Bytes()
	})
	return out
}

// decode decodes b into v, which is zero.
func (f format[T]) decode(b []byte, v *T) (err error) {
	if len(b) == 0 {
		return errors.New("empty")
	}
	if b[0] != Version {
		return fmt.Errorf("version %d is not this program's %d", b[0], Version)
	}
	use(b[1:], func(c *coder) {
		c.get(&f.shape, reflect.ValueOf(v).Elem())
		if err = c.err; err == nil && c.buf.Len() > 0 {
			err = fmt.Errorf("%d bytes after the end", c.buf.Len())
		}
	})
	return err
}

// put encodes a value.
func (c *coder) put(s *shape, v reflect.Value) {
	switch s.kind {
	case kindText:
		s := v.String()
		if len(s) > int(msgpcode.FixedStrMask) {
			_ = c.w.EncodeString(s)
			return
		}
		c.buf.WriteByte(msgpcode.FixedStrLow | byte(len(s))) // as most: no need of the library
		c.buf.WriteString(s)
	case kindBytes, kindHash:
		_ = c.w.EncodeBytes(v.Bytes())
	case kindBool:
		_ = c.w.EncodeBool(v.Bool())
	case kindUint:
		if n := v.Uint(); n > uint64(msgpcode.PosFixedNumHigh) {
			_ = c.w.EncodeUint(n)
		} else {
			c.buf.WriteByte(byte(n))
		}
	case kindInt:
		_ = c.w.EncodeInt(v.Int())
	case kindRef:
		r := v.Addr().Interface().(*Ref)
		_ = c.w.EncodeArrayLen(2)
		_ = c.w.EncodeUint(r.Index)
		_ = c.w.EncodeUint(uint64(r.Number))
	case kindBlob:
		b := v.Addr().Interface().(*Blob)
		_ = c.w.EncodeArrayLen(2)
		_ = c.w.EncodeBytes(b.Digest[:])
		_ = c.w.EncodeBytes(b.Bytes)
	case kindList:
		n := v.Len()
		_ = c.w.EncodeArrayLen(n)
		for i := range n {
			c.put(s.elem, v.Index(i))
		}
	case kindPointer:
		c.put(s.elem, v.Elem())
	case kindStruct:
		c.putFields(s.fields, v)
	}
}

// putFields encodes a struct.
func (c *coder) putFields(fields []field, v reflect.Value) {
	n, at := 0, c.buf.Len()
	c.buf.WriteByte(msgpcode.FixedMapLow)
	for i := range fields {
		f := &fields[i]
		if x := f.of(v); !f.zero(x) {
			n++
			c.buf.Write(f.head)
			c.put(&f.shape, x)
		}
	}
	if n > int(msgpcode.FixedMapMask) {
		c.buf.Write([]byte{0, 0}) // room for the length
		b := c.buf.Bytes()[at:]
		copy(b[3:], b[1:])
		b[0] = msgpcode.Map16
		binary.BigEndian.PutUint16(b[1:], uint16(n))
	} else {
		c.buf.Bytes()[at] |= byte(n)
	}
}

// get decodes a value into v, which is zero.
func (c *coder) get(s *shape, v reflect.Value) {
	switch s.kind {
	case kindText:
		b := c.take(true)
		if v.SetString(string(b)); c.err == nil && !utf8.Valid(b) {
			c.err = errors.New("a string is not UTF-8")
		}
	case kindBytes:
		v.SetBytes(c.take(false)) // without a copy
	case kindHash:
		c.fill(v.Bytes())
	case kindBool:
		var x bool
		x, c.err = c.r.DecodeBool()
		v.SetBool(x)
	case kindUint:
		v.SetUint(c.number(s.bits))
	case kindInt:
		var x int64
		x, c.err = c.r.DecodeInt64()
		v.SetInt(x)
	case kindRef:
		if r := v.Addr().Interface().(*Ref); c.pair() {
			r.Index, r.Number = c.number(64), uint32(c.number(32))
		}
	case kindBlob:
		if b := v.Addr().Interface().(*Blob); c.pair() {
			c.fill(b.Digest[:])
			b.Bytes = c.take(false) // without a copy
		}
	case kindList:
		n := c.length()
		if n > 0 {
			v.Grow(n)
			v.SetLen(n)
		}
		for i := 0; i < n && c.err == nil; i++ {
			c.get(s.elem, v.Index(i))
		}
	case kindPointer:
		v.Set(reflect.New(v.Type().Elem()))
		c.get(s.elem, v.Elem())
	case kindStruct:
		c.getFields(s.fields, v)
	}
}

// getFields decodes a struct.
func (c *coder) getFields(fields []field, v reflect.Value) {
	var n int
	if n, c.err = c.r.DecodeMapLen(); c.err == nil && n < 0 { // nil is no struct
		c.err = errNotCanonical
	}
	for ; n > 0 && c.err == nil; n-- {
		name := c.take(true)
		for len(fields) > 0 && fields[0].name != string(name) {
			fields = fields[1:]
		}
		switch {
		case c.err != nil:
			return
		case len(fields) == 0:
			c.err = fmt.Errorf("unknown or misplaced field %q", name)
			return
		}
		f := &fields[0]
		x := f.of(v)
		if c.get(&f.shape, x); c.err == nil && f.zero(x) { // a zero is not encoded
			c.err = errNotCanonical
		}
		fields = fields[1:]
	}
}

// take reads a string, or bytes, and returns them as a part of the input.
func (c *coder) take(text bool) []byte {
	switch rest := c.buf.Bytes(); {
	case text && len(rest) > 0 && msgpcode.IsFixedString(rest[0]):
		// short, as most: no need of the library
		if n := int(rest[0] & msgpcode.FixedStrMask); n < len(rest) {
			return c.buf.Next(1 + n)[1 : 1+n : 1+n]
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
	if n, c.err = c.r.DecodeBytesLen(); c.err == nil && n > c.buf.Len() {
		c.err = io.ErrUnexpectedEOF
	}
	if c.err != nil {
		return nil
	}
	return c.buf.Next(n)[:n:n]
}

// length reads the length of a list; it is not positive after an error.
func (c *coder) length() (n int) {
	if n, c.err = c.r.DecodeArrayLen(); c.err == nil && n > c.buf.Len() {
		c.err = io.ErrUnexpectedEOF
		return 0
	}
	return n
}

// fill reads len(b) bytes: an id, or a digest.
func (c *coder) fill(b []byte) {
	got := c.take(false)
	if c.err == nil && len(got) != len(b) {
		c.err = fmt.Errorf("%d bytes in place of %d", len(got), len(b))
	}
	copy(b, got)
}

// pair reads the beginning of a list of two values.
func (c *coder) pair() bool {
	if n := c.length(); c.err == nil && n != 2 {
		c.err = fmt.Errorf("%d values in place of two", n)
	}
	return c.err == nil
}

// number reads a number of so many bits, without a sign.
func (c *coder) number(bits int) (n uint64) {
	switch rest := c.buf.Bytes(); {
	case c.err != nil:
		return 0
	case len(rest) > 0 && rest[0] <= msgpcode.PosFixedNumHigh:
		return uint64(c.buf.Next(1)[0]) // as most: no need of the library
	}
	if n, c.err = c.r.DecodeUint64(); c.err == nil && n>>bits != 0 {
		c.err = fmt.Errorf("%d is out of range", n)
	}
	return n
}
