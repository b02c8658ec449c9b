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

	"github.com/qlogd/qlogd/internal/transcode"
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
// its input: decoded bytes are a part of it, so the input must not change afterwards. What has no
// fixed depth it has checked before the library reads it.
type coder struct {
	w        *msgpack.Encoder // writes to buf, which cannot fail
	r        *msgpack.Decoder // reads from buf
	decoding bool
	buf      bytes.Buffer // encoding: what is written; decoding: what is to be read

	n   int    // encoding: fields so far; decoding: fields that follow the pending one
	key []byte // decoding: name of the pending field, empty for none
	err error
}

var coders = sync.Pool{New: func() any {
	c := &coder{}
	c.w, c.r = msgpack.NewEncoder(&c.buf), msgpack.NewDecoder(&c.buf)
	c.w.UseCompactInts(true)
	c.w.SetOmitEmpty(true)
	c.r.DisallowUnknownFields(true)
	return c
}}

// maxPooled bounds the buffers that the pool keeps.
const maxPooled = 1 << 18

// use lets fn work on a buffer that holds b. The coder keeps its own for encodeWith.
func use(b []byte, decoding bool, fn func(c *coder)) {
	c := coders.Get().(*coder)
	own := c.buf
	c.buf, c.decoding = *bytes.NewBuffer(b), decoding
	fn(c)
	c.buf, c.key, c.err = own, nil, nil
	coders.Put(c)
}

// encodeWith returns the version and what write encodes.
func encodeWith(write func(c *coder)) []byte {
	c := coders.Get().(*coder)
	c.decoding = false
	c.buf.Reset()
	c.buf.WriteByte(Version)
	write(c)
	b := bytes.Clone(c.buf.Bytes())
	if c.buf.Cap() > maxPooled {
		c.buf = bytes.Buffer{}
	}
	coders.Put(c)
	return b
}

// appendTo appends the version and the encoding of v to b.
func appendTo(b []byte, v fielder) (out []byte) {
	use(b, false, func(c *coder) {
		c.buf.WriteByte(Version)
		c.encode(v)
		out = c.buf.Bytes()
	})
	return out
}

// decodeWith decodes all that follows the version of b by read.
func decodeWith(b []byte, read func(c *coder)) (err error) {
	if len(b) == 0 {
		return errors.New("empty")
	}
	if b[0] != Version {
		return fmt.Errorf("version %d is not this program's %d", b[0], Version)
	}
	use(b[1:], true, func(c *coder) {
		read(c)
		if err = c.err; err == nil && c.buf.Len() > 0 {
			err = fmt.Errorf("%d bytes after the end", c.buf.Len())
		}
	})
	return err
}

// encode encodes the struct v.
func (c *coder) encode(v fielder) {
	n, at := c.n, c.buf.Len()
	c.n = 0
	c.buf.WriteByte(msgpcode.FixedMapLow)
	v.fields(c)
	if c.n > int(msgpcode.FixedMapMask) {
		c.buf.Write([]byte{0, 0}) // room for the length
		b := c.buf.Bytes()[at:]
		copy(b[3:], b[1:])
		b[0] = msgpcode.Map16
		binary.BigEndian.PutUint16(b[1:], uint16(c.n))
	} else {
		c.buf.Bytes()[at] |= byte(c.n)
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
	c.buf.WriteByte(msgpcode.FixedStrLow | byte(len(name)))
	c.buf.WriteString(name)
}

func (c *coder) string(name string, p *string) { c.field(name, *p == "", p) }
func (c *coder) bytes(name string, p *[]byte)  { c.field(name, len(*p) == 0, p) }
func (c *coder) bool(name string, p *bool)     { c.field(name, !*p, p) }
func (c *coder) id(name string, p *[16]byte)   { c.field(name, *p == [16]byte{}, p) }
func (c *coder) int(name string, p *int64)     { c.field(name, *p == 0, p) }
func (c *coder) ref(name string, p *Ref)       { c.field(name, p.IsZero(), p) }
func (c *coder) blob(name string, p *Blob) {
	c.field(name, p.Bytes == nil && p.Digest == [32]byte{}, p)
}

// field encodes or decodes the field that p points to.
func (c *coder) field(name string, zero bool, p any) {
	switch {
	case c.absent(name, zero):
	case c.decoding:
		c.next(c.get(p))
	default:
		c.name(name)
		c.put(p)
	}
}

// put encodes what p points to.
func (c *coder) put(p any) {
	switch p := p.(type) {
	case *string:
		_ = c.w.EncodeString(*p)
	case *[]byte:
		_ = c.w.EncodeBytes(*p)
	case *bool:
		_ = c.w.EncodeBool(*p)
	case *[16]byte:
		_ = c.w.EncodeBytes(p[:])
	case *int64:
		_ = c.w.EncodeInt(*p)
	case *Ref:
		_ = p.EncodeMsgpack(c.w)
	case *Blob:
		_ = p.EncodeMsgpack(c.w)
	default:
		if err := c.w.EncodeValue(reflect.ValueOf(p).Elem()); err != nil {
			panic(fmt.Sprintf("event: encode %T: %v", p, err)) // no type of this package
		}
	}
}

// get decodes into what p points to, and reports whether that is zero. What the library decodes
// on its own is checked before.
func (c *coder) get(p any) (zero bool) {
	switch p := p.(type) {
	case *string:
		b := c.take(true)
		if *p = string(b); c.err == nil && !utf8.Valid(b) {
			c.err = errors.New("a string is not UTF-8")
		}
		return *p == ""
	case *[]byte:
		*p = c.take(false) // without a copy
		return len(*p) == 0
	case *bool:
		*p, c.err = c.r.DecodeBool()
		return !*p
	case *[16]byte:
		c.fill(p[:])
		return *p == [16]byte{}
	case *int64:
		*p, c.err = c.r.DecodeInt64()
		return *p == 0
	case *int:
		*p, c.err = c.r.DecodeInt()
		return *p == 0
	case *[]string:
		for n := c.length(); len(*p) < n && c.err == nil; {
			*p = append(*p, "")
			c.get(&(*p)[len(*p)-1])
		}
		return len(*p) == 0
	case *Ref:
		c.err = p.DecodeMsgpack(c.r)
		return p.IsZero()
	case *Blob: // without a copy
		if c.err = decodePair(c.r); c.err == nil {
			c.fill(p.Digest[:])
		}
		if c.err == nil {
			p.Bytes = c.take(false)
		}
		return false
	}
	if c.err = transcode.Check(c.buf.Bytes()); c.err == nil {
		c.err = c.r.Decode(p)
	}
	return reflect.ValueOf(p).Elem().IsZero()
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
	if n := c.length(); n > 0 {
		*p = make([]T, n)
	}
	for i := 0; i < len(*p) && c.err == nil; i++ {
		c.decode(P(&(*p)[i]))
	}
}
