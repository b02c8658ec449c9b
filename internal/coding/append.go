// Package coding reads and writes by hand what the HTTP API's hot calls speak:
// msgpack, and JSON in one pass over the bytes. Nothing that it reads is
// believed: a length is held against what is there before it is used, and what
// is not strictly JSON, or has none, is an error.
package coding

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// JSONText is the type of an extension whose data is JSON text, taken as it
// stands: numbers keep their digits, and nobody has to write them anew.
const JSONText = 74

// AppendNil appends nil.
func AppendNil(b []byte) []byte { return append(b, 0xc0) }

// AppendBool appends true or false.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 0xc3)
	}
	return append(b, 0xc2)
}

// AppendInt appends a whole number, as short as it gets.
func AppendInt(b []byte, v int64) []byte {
	switch {
	case v >= 0:
		return AppendUint(b, uint64(v))
	case v >= -32:
		return append(b, byte(v))
	case v >= math.MinInt8:
		return append(b, 0xd0, byte(v))
	case v >= math.MinInt16:
		return append(b, 0xd1, byte(v>>8), byte(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
}

// AppendUint appends a whole number, as short as it gets.
func AppendUint(b []byte, v uint64) []byte {
	switch {
	case v <= 0x7f:
		return append(b, byte(v))
	case v <= math.MaxUint8:
		return append(b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		return append(b, 0xcd, byte(v>>8), byte(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

// AppendStr appends a text, which must be UTF-8.
func AppendStr[T ~string | ~[]byte](b []byte, s T) []byte {
	if n := len(s); n < 32 {
		b = append(b, 0xa0|byte(n))
	} else {
		b = appendLen(b, 0xd9, n)
	}
	return append(b, s...)
}

// AppendBase64 appends bytes as a base64 text.
func AppendBase64(b, v []byte) []byte {
	if n := base64.StdEncoding.EncodedLen(len(v)); n < 32 {
		b = append(b, 0xa0|byte(n))
	} else {
		b = appendLen(b, 0xd9, n)
	}
	return base64.StdEncoding.AppendEncode(b, v)
}

// AppendBin appends bytes.
func AppendBin(b, v []byte) []byte { return append(appendLen(b, 0xc4, len(v)), v...) }

// AppendJSONText appends JSON as the extension JSONText.
func AppendJSONText(b, v []byte) []byte {
	return append(append(appendLen(b, 0xc7, len(v)), JSONText), v...)
}

// appendLen appends one of three codes and a length of 1, 2 or 4 bytes.
func appendLen(b []byte, code byte, n int) []byte {
	switch {
	case n < 1<<8:
		return append(b, code, byte(n))
	case n < 1<<16:
		return append(b, code+1, byte(n>>8), byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, code+2), uint32(n))
}

// AppendMap appends the head of a map; n names with their values follow.
func AppendMap(b []byte, n int) []byte { return appendHead(b, 0x80, 0xde, n) }

// AppendArray appends the head of a list; n values follow.
func AppendArray(b []byte, n int) []byte { return appendHead(b, 0x90, 0xdc, n) }

func appendHead(b []byte, short, long byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, short|byte(n))
	case n < 1<<16:
		return append(b, long, byte(n>>8), byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, long+1), uint32(n))
}

// AppendJSON appends what JSON says. Containers have 32-bit lengths, which are
// filled in when they are closed.
func AppendJSON(dst, src []byte) ([]byte, error) {
	type open struct{ pos, n int }
	var stack []open
	dec := jsontext.NewDecoder(bytes.NewBuffer(src))
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
			dst = AppendNil(dst)
		case 't', 'f':
			dst = AppendBool(dst, kind == 't')
		case '"':
			dst = AppendStr(dst, tok.String())
		case '0':
			dst = appendNumber(dst, tok.String())
		}
	}
}

// appendNumber writes whole numbers as ints where they fit, else as float64.
func appendNumber(dst []byte, s string) []byte {
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		return AppendInt(dst, v)
	}
	if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		return AppendUint(dst, v)
	}
	v, _ := strconv.ParseFloat(s, 64)
	return binary.BigEndian.AppendUint64(append(dst, 0xcb), math.Float64bits(v))
}
