package transcode

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Append appends the MessagePack of what v points to: fields are named by their json tags, bytes
// are a base64 string, whole numbers that fit are integers and others float64. With kept, bytes
// are bin, and JSON is extension type 74 with its text.
func Append(b []byte, v any, kept bool) ([]byte, error) {
	return encode(b, v, kept, false)
}

// Encode returns what Append appends with kept, but JSON that is not valid is an error.
func Encode(v any) ([]byte, error) { return encode(nil, v, true, true) }

func encode(b []byte, v any, kept, check bool) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.out, e.kept, e.check, e.err = *bytes.NewBuffer(b), kept, check, nil
	e.value(reflect.ValueOf(v).Elem())
	b, err := e.out.Bytes(), e.err
	e.out = bytes.Buffer{}
	encoders.Put(e)
	return b, err
}

// encoder writes to out, which cannot fail: the library's errors need no check.
type encoder struct {
	w     *msgpack.Encoder // writes to out
	out   bytes.Buffer
	kept  bool
	check bool // that JSON is valid
	err   error
}

var encoders = sync.Pool{New: func() any {
	e := &encoder{}
	e.w = msgpack.NewEncoder(&e.out)
	e.w.UseCompactInts(true)
	return e
}}

func (e *encoder) value(v reflect.Value) {
	switch v.Kind() { // most, without an interface
	case reflect.String:
		_ = e.w.EncodeString(v.String())
		return
	case reflect.Struct:
		e.object(v)
		return
	}
	switch p := v.Addr().Interface().(type) {
	case *int64:
		_ = e.w.EncodeInt(*p)
		return
	case *bool:
		_ = e.w.EncodeBool(*p)
		return
	case *jsontext.Value:
		e.json(*p)
		return
	case *map[string]string:
		_ = e.w.EncodeMapLen(len(*p))
		if len(*p) > 0 {
			for _, name := range slices.Sorted(maps.Keys(*p)) {
				_ = e.w.EncodeString(name)
				_ = e.w.EncodeString((*p)[name])
			}
		}
		return
	case encoding.TextAppender: // a time
		if v.IsZero() {
			_ = e.w.EncodeNil()
			return
		}
		at := e.out.Len() // as stringLen, but the length follows at the end
		e.out.WriteByte(0)
		text, _ := p.AppendText(e.out.AvailableBuffer())
		e.out.Write(text)
		e.out.Bytes()[at] = msgpcode.FixedStrLow | byte(len(text))
		return
	}
	switch kind := v.Kind(); {
	case kind == reflect.Pointer && v.IsNil():
		_ = e.w.EncodeNil()
	case kind == reflect.Pointer:
		e.value(v.Elem())
	case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 && e.kept:
		_ = e.w.EncodeBytes(v.Bytes())
	case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		n := base64.StdEncoding.EncodedLen(v.Len())
		e.stringLen(n)
		e.out.Grow(n)
		e.out.Write(base64.StdEncoding.AppendEncode(e.out.AvailableBuffer(), v.Bytes()))
	case kind == reflect.Slice:
		_ = e.w.EncodeArrayLen(v.Len())
		for i := range v.Len() {
			e.value(v.Index(i))
		}
	default:
		e.err = fmt.Errorf("no MessagePack for %s", v.Type())
	}
}

// stringLen begins a string of n bytes that is written to out next: the library would want it to
// be allocated first.
func (e *encoder) stringLen(n int) {
	switch {
	case n <= int(msgpcode.FixedStrMask):
		e.out.WriteByte(msgpcode.FixedStrLow | byte(n))
	case n <= math.MaxUint8:
		e.out.Write([]byte{msgpcode.Str8, byte(n)})
	case n <= math.MaxUint16:
		e.out.Write([]byte{msgpcode.Str16, byte(n >> 8), byte(n)})
	default:
		e.out.Write([]byte{msgpcode.Str32, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
}

func (e *encoder) object(v reflect.Value) {
	fields, n := fieldsOf(v.Type()).list, 0
	left := func(i int) bool { return fields[i].omitZero && v.FieldByIndex(fields[i].index).IsZero() }
	for i := range fields {
		if !left(i) {
			n++
		}
	}
	_ = e.w.EncodeMapLen(n)
	for i := range fields {
		if !left(i) {
			e.out.Write(fields[i].name)
			e.value(v.FieldByIndex(fields[i].index))
		}
	}
}

// json encodes JSON that users gave.
func (e *encoder) json(src jsontext.Value) {
	if e.check && !src.IsValid() {
		e.err = fmt.Errorf("not valid JSON: %.60q", src)
	}
	if e.kept {
		_ = e.w.EncodeExtHeader(jsonExt, len(src))
		e.out.Write(src)
		return
	}
	if err := e.next(jsontext.NewDecoder(bytes.NewBuffer(src))); err != nil { // it does not copy
		e.err = err
	}
}

// next encodes the next JSON value. It recurses as deep as users may nest values.
func (e *encoder) next(dec *jsontext.Decoder) error {
	tok, err := dec.ReadToken()
	if err != nil {
		return err
	}
	switch kind := tok.Kind(); kind {
	case 'n':
		return e.w.EncodeNil()
	case 't', 'f':
		return e.w.EncodeBool(kind == 't')
	case '"':
		return e.w.EncodeString(tok.String())
	case '0':
		return e.number(tok.String())
	}
	code, each := msgpcode.Map32, uint32(2)
	if tok.Kind() == '[' {
		code, each = msgpcode.Array32, 1
	}
	e.out.Write([]byte{code, 0, 0, 0, 0}) // the length follows at the end
	at, n := e.out.Len()-4, uint32(0)
	for dec.PeekKind() != '}' && dec.PeekKind() != ']' {
		if err := e.next(dec); err != nil {
			return err
		}
		n++
	}
	binary.BigEndian.PutUint32(e.out.Bytes()[at:], n/each)
	_, err = dec.ReadToken()
	return err
}

func (e *encoder) number(s string) error {
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		return e.w.EncodeInt(v)
	}
	if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		return e.w.EncodeUint(v)
	}
	v, _ := strconv.ParseFloat(s, 64)
	return e.w.EncodeFloat64(v)
}
