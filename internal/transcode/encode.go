package transcode

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Encode returns the MessagePack of what v points to: fields are named by their json tags, bytes
// are a base64 string, whole numbers that fit are integers and others float64. With kept, bytes
// are bin, and JSON is extension type 74 with its text.
func Encode(v any, kept bool) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.kept = kept
	e.out.Reset()
	err := e.value(reflect.ValueOf(v).Elem())
	b := bytes.Clone(e.out.Bytes())
	if e.out.Cap() <= maxPooled {
		encoders.Put(e)
	}
	return b, err
}

type encoder struct {
	w    *msgpack.Encoder // to out
	out  bytes.Buffer
	kept bool
}

var encoders = sync.Pool{New: func() any {
	e := &encoder{}
	e.w = msgpack.NewEncoder(&e.out)
	e.w.UseCompactInts(true)
	return e
}}

// maxPooled bounds the buffers that the pool keeps.
const maxPooled = 1 << 18

func (e *encoder) value(v reflect.Value) error {
	switch p := v.Addr().Interface().(type) {
	case *string:
		return e.w.EncodeString(*p)
	case *int64:
		return e.w.EncodeInt(*p)
	case *bool:
		return e.w.EncodeBool(*p)
	case *jsontext.Value:
		return e.json(*p)
	case *map[string]string:
		err := e.w.EncodeMapLen(len(*p))
		for _, name := range slices.Sorted(maps.Keys(*p)) {
			err = errors.Join(err, e.w.EncodeString(name), e.w.EncodeString((*p)[name]))
		}
		return err
	case fmt.Stringer: // a time
		if v.IsZero() {
			return e.w.EncodeNil()
		}
		return e.w.EncodeString(p.String())
	}
	switch v.Kind() {
	case reflect.Struct:
		return e.object(v)
	case reflect.Pointer:
		if v.IsNil() {
			return e.w.EncodeNil()
		}
		return e.value(v.Elem())
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			return e.list(v)
		}
		if e.kept {
			return e.w.EncodeBytes(v.Bytes())
		}
		return e.w.EncodeString(base64.StdEncoding.EncodeToString(v.Bytes()))
	}
	return fmt.Errorf("no MessagePack for %s", v.Type())
}

func (e *encoder) object(v reflect.Value) error {
	fields, n := fieldsOf(v.Type()).list, 0
	left := func(i int) bool { return fields[i].omitZero && v.Field(i).IsZero() }
	for i := range fields {
		if !left(i) {
			n++
		}
	}
	err := e.w.EncodeMapLen(n)
	for i := 0; i < len(fields) && err == nil; i++ {
		if left(i) {
			continue
		}
		if err = e.w.EncodeString(fields[i].name); err == nil {
			err = e.value(v.Field(i))
		}
	}
	return err
}

func (e *encoder) list(v reflect.Value) error {
	err := e.w.EncodeArrayLen(v.Len())
	for i := 0; i < v.Len() && err == nil; i++ {
		err = e.value(v.Index(i))
	}
	return err
}

// json encodes JSON that users gave.
func (e *encoder) json(src []byte) error {
	if e.kept {
		err := e.w.EncodeExtHeader(jsonExt, len(src))
		e.out.Write(src)
		return err
	}
	return e.next(jsontext.NewDecoder(bytes.NewBuffer(src))) // which it does not copy
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
