package transcode

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/qlogd/qlogd/internal/msgpackcheck"
)

// ErrTooLarge is returned for values whose JSON exceeds the limit.
var ErrTooLarge = errors.New("too large as JSON")

// Decode decodes one MessagePack value, which must be all of src, into what v points to, as
// strictly as JSON is decoded: fields are named by their json tags, an unknown name is an error,
// and a *json.SemanticError says where a value of another type is. bin represents a base64
// string, extension type 74 for the JSON that it holds; NaN, infinities and other extensions are
// errors. Bytes are not copied: v then refers to src. The values that have to be converted to
// JSON must take at most about limit bytes.
func Decode(src []byte, v any, limit int) error {
	return decode(src, v, limit, true)
}

// DecodeKnown is Decode without a limit, and ignores names that v does not have.
func DecodeKnown(src []byte, v any) error { return decode(src, v, math.MaxInt, false) }

func decode(src []byte, v any, limit int, strict bool) error {
	if err := msgpackcheck.Check(src); err != nil {
		return err
	}
	d := decoder{
		r: msgpack.GetDecoder(), src: *bytes.NewBuffer(src), limit: limit, strict: strict,
	}
	defer msgpack.PutDecoder(d.r)
	d.r.Reset(&d.src)
	return d.value(reflect.ValueOf(v).Elem())
}

// decoder decodes MessagePack that was checked.
type decoder struct {
	r     *msgpack.Decoder
	src   bytes.Buffer
	depth int    // of the arrays and maps around the next value
	text  []byte // the values that were converted to JSON
	limit int    // of text
	// strict: a name that is not known is an error
	strict bool
}

// code returns the first byte of the next value.
func (d *decoder) code() byte { return d.src.Bytes()[0] }

// value decodes the next value into v. It recurses at most MaxDepth deep: see Check.
func (d *decoder) value(v reflect.Value) error {
	code := d.code()
	switch p := v.Addr().Interface().(type) {
	case *jsontext.Value:
		if d.text == nil && !msgpcode.IsExt(code) { // a payload: about as long as it is here
			d.text = make([]byte, 0, d.src.Len()+d.src.Len()/8)
		}
		text, err := d.json()
		*p = text
		return err
	case *string:
		if msgpcode.IsString(code) {
			*p = string(d.take())
			return nil
		}
	case *int64:
		if isInt(code) {
			n, err := d.r.DecodeInt64()
			*p = n
			return err
		}
	default:
		switch kind := v.Kind(); {
		case kind == reflect.Struct && isMap(code):
			return d.object(v)
		case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
			if msgpcode.IsBin(code) {
				v.SetBytes(d.take())
				return nil
			}
		case kind == reflect.Slice && isArray(code):
			return d.list(v)
		case kind == reflect.Pointer && code != msgpcode.Nil:
			v.Set(reflect.New(v.Type().Elem()))
			return d.value(v.Elem())
		}
	}
	// What is rare or wrong is decoded as JSON, so that it is so in both forms.
	text, err := d.json()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v.Addr().Interface(), json.RejectUnknownMembers(d.strict))
}

// object decodes a map into the struct v.
func (d *decoder) object(v reflect.Value) error {
	n, err := d.r.DecodeMapLen()
	d.depth++
	defer func() { d.depth-- }()
	for fields := fieldsOf(v.Type()); err == nil && n > 0; n-- {
		name := d.take()
		i, ok := fields.byName[string(name)]
		if !ok && !d.strict {
			err = d.r.Skip()
			continue
		}
		if !ok {
			return at(string(name), &json.SemanticError{Err: json.ErrUnknownName})
		}
		if err = d.value(v.Field(i)); err != nil {
			err = at(string(name), err)
		}
	}
	return err
}

// list decodes an array into the slice v.
func (d *decoder) list(v reflect.Value) error {
	n, err := d.r.DecodeArrayLen()
	if err != nil {
		return err
	}
	d.depth++
	defer func() { d.depth-- }()
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	for i := range n {
		if err := d.value(v.Index(i)); err != nil {
			return at(strconv.Itoa(i), err)
		}
	}
	return nil
}

// at adds the place of a value to its error.
func at(token string, err error) error {
	if e, ok := err.(*json.SemanticError); ok {
		e.JSONPointer = jsontext.Pointer("").AppendToken(token) + e.JSONPointer
	}
	return err
}

// take returns the next string's or bin's bytes, a part of src.
func (d *decoder) take() []byte {
	n, _ := d.r.DecodeBytesLen() // which Check has read, too
	return d.src.Next(n)[:n:n]
}

// json returns the next value as JSON.
func (d *decoder) json() ([]byte, error) {
	if msgpcode.IsExt(d.code()) {
		return d.ext()
	}
	begin := len(d.text)
	err := d.appendJSON()
	return d.text[begin:len(d.text):len(d.text)], err
}

// appendJSON appends the next value to text.
func (d *decoder) appendJSON() (err error) {
	if len(d.text) > d.limit {
		return ErrTooLarge
	}
	switch code := d.code(); {
	case isArray(code):
		n, err := d.r.DecodeArrayLen()
		return d.items(err, n, '[', ",", ']')
	case isMap(code):
		n, err := d.r.DecodeMapLen()
		return d.items(err, 2*n, '{', ":,", '}')
	case msgpcode.IsString(code):
		d.text, err = jsontext.AppendQuote(d.text, d.take())
		return err
	case msgpcode.IsBin(code):
		d.text = append(d.text, '"')
		d.text = append(base64.StdEncoding.AppendEncode(d.text, d.take()), '"')
		return nil
	case msgpcode.IsExt(code):
		text, err := d.ext()
		d.text = append(d.text, text...)
		return err
	case isInt(code):
		n, err := d.r.DecodeInt64()
		d.text = strconv.AppendInt(d.text, n, 10)
		return err
	}
	v, err := d.r.DecodeInterface()
	if err != nil {
		return err
	}
	b, err := json.Marshal(v)
	if err != nil { // of scalars only NaN and infinities fail
		return errors.New("a number that is not finite has no JSON")
	}
	d.text = append(d.text, b...)
	return nil
}

// items converts an array, or the names and values of a map, between begin and end. The
// separators take turns.
func (d *decoder) items(err error, n int, begin byte, separators string, end byte) error {
	d.depth++
	defer func() { d.depth-- }()
	d.text = append(d.text, begin)
	for i := 0; err == nil && i < n; i++ {
		if i > 0 {
			d.text = append(d.text, separators[(i-1)%len(separators)])
		}
		err = d.appendJSON()
	}
	d.text = append(d.text, end)
	return err
}

// ext returns the JSON in an extension, a part of src.
func (d *decoder) ext() ([]byte, error) {
	id, n, err := d.r.DecodeExtHeader()
	if err == nil && id != jsonExt {
		err = fmt.Errorf("extension type %d has no JSON", id)
	}
	if err != nil {
		return nil, err
	}
	text := d.src.Next(n)[:n:n]
	if TooDeep(text, MaxDepth-d.depth) {
		return nil, fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	if !jsontext.Value(text).IsValid() { // duplicate names and bad UTF-8 included
		return nil, fmt.Errorf("extension type %d does not hold JSON", jsonExt)
	}
	return text, nil
}

func isMap(code byte) bool {
	return msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32
}

func isArray(code byte) bool {
	return msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32
}

// isInt reports whether a whole number follows that is in the range of int64.
func isInt(code byte) bool {
	return msgpcode.IsFixedNum(code) || code >= msgpcode.Int8 && code <= msgpcode.Int64 ||
		code >= msgpcode.Uint8 && code <= msgpcode.Uint32
}
