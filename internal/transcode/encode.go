package transcode

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Append appends the MessagePack of what v points to: fields are named by their json tags, bytes
// are a base64 string, whole numbers that fit are integers and others float64. With kept, bytes
// are bin, and JSON is extension type 74 with its text.
func Append(b []byte, v any, kept bool) ([]byte, error) {
	e := encoder{out: b, kept: kept}
	e.value(reflect.ValueOf(v).Elem())
	return e.out, e.err
}

// encoder appends to out. It does without the library, whose calls cost more than these few codes.
type encoder struct {
	out  []byte
	kept bool
	err  error
}

func (e *encoder) value(v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *string:
		e.string(*p)
		return
	case *int64:
		e.int(*p)
		return
	case *bool:
		e.bool(*p)
		return
	case *jsontext.Value:
		e.json(*p)
		return
	case *map[string]string:
		e.length(msgpcode.FixedMapLow, msgpcode.Map16, len(*p))
		if len(*p) > 0 {
			for _, name := range slices.Sorted(maps.Keys(*p)) {
				e.string(name)
				e.string((*p)[name])
			}
		}
		return
	case encoding.TextAppender: // a time
		if v.IsZero() {
			e.nil()
			return
		}
		at := len(e.out)
		e.out, _ = p.AppendText(append(e.out, 0))
		e.out[at] = msgpcode.FixedStrLow | byte(len(e.out)-at-1)
		return
	}
	switch kind := v.Kind(); {
	case kind == reflect.Struct:
		e.object(v)
	case kind == reflect.Pointer && v.IsNil():
		e.nil()
	case kind == reflect.Pointer:
		e.value(v.Elem())
	case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		e.bytes(v.Bytes())
	case kind == reflect.Slice:
		e.length(msgpcode.FixedArrayLow, msgpcode.Array16, v.Len())
		for i := range v.Len() {
			e.value(v.Index(i))
		}
	default:
		e.err = fmt.Errorf("no MessagePack for %s", v.Type())
	}
}

func (e *encoder) object(v reflect.Value) {
	fields, n := fieldsOf(v.Type()).list, 0
	left := func(i int) bool { return fields[i].omitZero && v.Field(i).IsZero() }
	for i := range fields {
		if !left(i) {
			n++
		}
	}
	e.length(msgpcode.FixedMapLow, msgpcode.Map16, n)
	for i := range fields {
		if !left(i) {
			e.string(fields[i].name)
			e.value(v.Field(i))
		}
	}
}

// json encodes JSON that users gave.
func (e *encoder) json(src []byte) {
	if e.kept {
		switch n := len(src); n {
		case 1, 2, 4, 8, 16:
			e.out = append(e.out, msgpcode.FixExt1+byte(bits.TrailingZeros(uint(n))))
		default:
			e.size(msgpcode.Ext8, n)
		}
		e.out = append(append(e.out, jsonExt), src...)
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
		e.nil()
		return nil
	case 't', 'f':
		e.bool(kind == 't')
		return nil
	case '"':
		e.string(tok.String())
		return nil
	case '0':
		e.number(tok.String())
		return nil
	}
	code, each := msgpcode.Map32, uint32(2)
	if tok.Kind() == '[' {
		code, each = msgpcode.Array32, 1
	}
	e.out = append(e.out, code, 0, 0, 0, 0) // the length follows at the end
	at, n := len(e.out)-4, uint32(0)
	for dec.PeekKind() != '}' && dec.PeekKind() != ']' {
		if err := e.next(dec); err != nil {
			return err
		}
		n++
	}
	binary.BigEndian.PutUint32(e.out[at:], n/each)
	_, err = dec.ReadToken()
	return err
}

func (e *encoder) number(s string) {
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		e.int(v)
	} else if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		e.uint(v)
	} else {
		v, _ := strconv.ParseFloat(s, 64)
		e.out = binary.BigEndian.AppendUint64(append(e.out, msgpcode.Double), math.Float64bits(v))
	}
}

func (e *encoder) nil() { e.out = append(e.out, msgpcode.Nil) }

func (e *encoder) bool(v bool) {
	code := msgpcode.False
	if v {
		code = msgpcode.True
	}
	e.out = append(e.out, code)
}

func (e *encoder) string(v string) {
	e.stringLen(len(v))
	e.out = append(e.out, v...)
}

func (e *encoder) stringLen(n int) {
	if n <= int(msgpcode.FixedStrMask) {
		e.out = append(e.out, msgpcode.FixedStrLow|byte(n))
	} else {
		e.size(msgpcode.Str8, n)
	}
}

func (e *encoder) bytes(v []byte) {
	switch {
	case !e.kept:
		e.stringLen(base64.StdEncoding.EncodedLen(len(v)))
		e.out = base64.StdEncoding.AppendEncode(e.out, v)
	case v == nil:
		e.nil()
	default:
		e.size(msgpcode.Bin8, len(v))
		e.out = append(e.out, v...)
	}
}

func (e *encoder) int(v int64) {
	switch {
	case v >= 0:
		e.uint(uint64(v))
	case v >= -32:
		e.out = append(e.out, byte(v))
	case v >= math.MinInt8:
		e.out = append(e.out, msgpcode.Int8, byte(v))
	case v >= math.MinInt16:
		e.out = binary.BigEndian.AppendUint16(append(e.out, msgpcode.Int16), uint16(v))
	case v >= math.MinInt32:
		e.out = binary.BigEndian.AppendUint32(append(e.out, msgpcode.Int32), uint32(v))
	default:
		e.out = binary.BigEndian.AppendUint64(append(e.out, msgpcode.Int64), uint64(v))
	}
}

func (e *encoder) uint(v uint64) {
	switch {
	case v <= uint64(msgpcode.PosFixedNumHigh):
		e.out = append(e.out, byte(v))
	case v <= math.MaxUint32:
		e.size(msgpcode.Uint8, int(v))
	default:
		e.out = binary.BigEndian.AppendUint64(append(e.out, msgpcode.Uint64), v)
	}
}

// length appends the length of an array or map: within the code fixed, or after the code wide.
func (e *encoder) length(fixed, wide byte, n int) {
	if n < 16 {
		e.out = append(e.out, fixed|byte(n))
	} else if n <= math.MaxUint8 {
		e.out = append(e.out, wide, 0, byte(n))
	} else {
		e.size(wide-1, n)
	}
}

// size appends a number after its code: narrow where it takes one byte, the next codes where it
// takes two or four.
func (e *encoder) size(narrow byte, n int) {
	switch {
	case n <= math.MaxUint8:
		e.out = append(e.out, narrow, byte(n))
	case n <= math.MaxUint16:
		e.out = binary.BigEndian.AppendUint16(append(e.out, narrow+1), uint16(n))
	default:
		e.out = binary.BigEndian.AppendUint32(append(e.out, narrow+2), uint32(n))
	}
}
