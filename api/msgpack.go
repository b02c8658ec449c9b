package api

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/internal/event"
)

// msgpack is made JSON on its way in and made from JSON on its way out, so
// that there is one validation and one shape. bin becomes a base64 string (so
// payload_base64 can be given as bin); ext types, map keys that are not
// strings, NaN and infinities have no JSON and are refused. Every length is
// checked against what is there before it is believed.

// msgpackToJSON appends src's JSON to dst, at most limit bytes.
func msgpackToJSON(dst, src []byte, limit int) ([]byte, error) {
	t := transcoder{src: src, out: dst, limit: limit}
	if dst == nil {
		t.out = make([]byte, 0, len(src)+len(src)/4+16)
	}
	t.value(1)
	if t.err == nil && t.pos != len(src) {
		t.fail("something after the end")
	}
	return t.out, t.err
}

type transcoder struct {
	src   []byte
	pos   int
	out   []byte
	limit int
	err   error
}

func (t *transcoder) fail(what string) {
	if t.err == nil {
		t.err = event.Problemf(codeInvalidMsgpack, "", "at byte %d: %s", t.pos, what)
	}
}

// take returns the next n bytes, nil where there are fewer.
func (t *transcoder) take(n uint64) []byte {
	if t.err != nil {
		return nil
	}
	if n > uint64(len(t.src)-t.pos) {
		t.fail("unexpected end")
		return nil
	}
	b := t.src[t.pos : t.pos+int(n)]
	t.pos += int(n)
	return b
}

// uint reads a big-endian number of n bytes.
func (t *transcoder) uint(n uint64) (v uint64) {
	for _, c := range t.take(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

func (t *transcoder) value(depth int) {
	b := t.take(1)
	if b == nil {
		return
	}
	if len(t.out) > t.limit {
		t.err = event.Problemf(codePayloadTooLarge, "", "the body is larger than %d bytes as JSON", t.limit)
		return
	}
	switch c := b[0]; {
	case c <= 0x7f:
		t.out = strconv.AppendUint(t.out, uint64(c), 10)
	case c >= 0xe0:
		t.out = strconv.AppendInt(t.out, int64(int8(c)), 10)
	case c <= 0x8f:
		t.object(uint64(c&0x0f), depth)
	case c <= 0x9f:
		t.array(uint64(c&0x0f), depth)
	case c <= 0xbf:
		t.str(t.take(uint64(c & 0x1f)))
	case c == 0xc0:
		t.out = append(t.out, "null"...)
	case c == 0xc2:
		t.out = append(t.out, "false"...)
	case c == 0xc3:
		t.out = append(t.out, "true"...)
	case c >= 0xc4 && c <= 0xc6:
		t.bin(t.take(t.uint(1 << (c - 0xc4))))
	case c == 0xca:
		t.float(float64(math.Float32frombits(uint32(t.uint(4)))), 32)
	case c == 0xcb:
		t.float(math.Float64frombits(t.uint(8)), 64)
	case c >= 0xcc && c <= 0xcf:
		t.out = strconv.AppendUint(t.out, t.uint(1<<(c-0xcc)), 10)
	case c >= 0xd0 && c <= 0xd3:
		n := uint64(1) << (c - 0xd0)
		v := int64(t.uint(n)<<(64-8*n)) >> (64 - 8*n) // sign
		t.out = strconv.AppendInt(t.out, v, 10)
	case c >= 0xd9 && c <= 0xdb:
		t.str(t.take(t.uint(1 << (c - 0xd9))))
	case c == 0xdc || c == 0xdd:
		t.array(t.uint(2<<(c-0xdc)), depth)
	case c == 0xde || c == 0xdf:
		t.object(t.uint(2<<(c-0xde)), depth)
	default:
		t.fail("an extension type, which has no JSON")
	}
}

func (t *transcoder) object(n uint64, depth int) {
	if depth > maxDepth {
		t.fail("nested deeper than " + strconv.Itoa(maxDepth))
	}
	t.out = append(t.out, '{')
	for i := uint64(0); i < n && t.err == nil; i++ {
		if i > 0 {
			t.out = append(t.out, ',')
		}
		if t.pos < len(t.src) {
			if c := t.src[t.pos]; c>>5 != 5 && (c < 0xd9 || c > 0xdb) {
				t.fail("a map's key that is not a string")
				return
			}
		}
		t.value(depth + 1)
		t.out = append(t.out, ':')
		t.value(depth + 1)
	}
	t.out = append(t.out, '}')
}

func (t *transcoder) array(n uint64, depth int) {
	if depth > maxDepth {
		t.fail("nested deeper than " + strconv.Itoa(maxDepth))
	}
	t.out = append(t.out, '[')
	for i := uint64(0); i < n && t.err == nil; i++ {
		if i > 0 {
			t.out = append(t.out, ',')
		}
		t.value(depth + 1)
	}
	t.out = append(t.out, ']')
}

func (t *transcoder) str(b []byte) {
	if t.err != nil {
		return
	}
	out, err := jsontext.AppendQuote(t.out, b)
	if err != nil {
		t.fail("a string that is not UTF-8")
		return
	}
	t.out = out
}

func (t *transcoder) bin(b []byte) {
	if t.err != nil {
		return
	}
	t.out = append(t.out, '"')
	t.out = base64.StdEncoding.AppendEncode(t.out, b)
	t.out = append(t.out, '"')
}

func (t *transcoder) float(v float64, bits int) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		t.fail("a number that JSON does not have")
		return
	}
	t.out = jsontext.AppendFloat(t.out, v, bits)
}

// jsonToMsgpack appends src's msgpack to dst. Containers have 32-bit lengths,
// which are filled in when they are closed.
func jsonToMsgpack(dst, src []byte) ([]byte, error) {
	type open struct{ pos, n int }
	var stack []open
	dec := jsontext.NewDecoder(bytes.NewBuffer(src))
	if dst == nil {
		dst = make([]byte, 0, len(src)+16)
	}
	for {
		tok, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return dst, nil
		}
		if err != nil {
			return nil, err
		}
		kind := tok.Kind()
		if kind == '}' || kind == ']' {
			o := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			n := o.n
			if kind == '}' {
				n /= 2
			}
			binary.BigEndian.PutUint32(dst[o.pos:], uint32(n))
			continue
		}
		if len(stack) > 0 {
			stack[len(stack)-1].n++
		}
		switch kind {
		case '{', '[':
			code := byte(0xdf)
			if kind == '[' {
				code = 0xdd
			}
			dst = append(dst, code, 0, 0, 0, 0)
			stack = append(stack, open{pos: len(dst) - 4})
		case 'n':
			dst = append(dst, 0xc0)
		case 't':
			dst = append(dst, 0xc3)
		case 'f':
			dst = append(dst, 0xc2)
		case '"':
			dst = appendStr(dst, tok.String())
		case '0':
			dst = appendNumber(dst, tok.String())
		}
	}
}

func appendStr(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n < 1<<8:
		dst = append(dst, 0xd9, byte(n))
	case n < 1<<16:
		dst = append(dst, 0xda, byte(n>>8), byte(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

// appendNumber writes whole numbers as ints where they fit, else as float64.
func appendNumber(dst []byte, s string) []byte {
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		switch {
		case v >= 0 && v <= 0x7f, v < 0 && v >= -32:
			return append(dst, byte(v))
		case v >= 0 && v <= math.MaxUint32:
			return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(v))
		}
		return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(v))
	}
	if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		return binary.BigEndian.AppendUint64(append(dst, 0xcf), v)
	}
	v, _ := strconv.ParseFloat(s, 64)
	return binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(v))
}
