package transcode

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// MaxDepth is how deep arrays and objects may be nested.
const MaxDepth = 64

// ErrTooLarge is returned for values whose JSON exceeds the limit.
var ErrTooLarge = errors.New("too large as JSON")

var errShort = errors.New("unexpected end")

// Decode decodes one MessagePack value, which must be all of src, into what v points to, as
// strictly as JSON is decoded: fields are named by their json tags, an unknown name and one that
// appears twice are errors, as is a string that is not UTF-8, and a *json.SemanticError says where
// a value of another type is. bin represents a base64 string, extension type 74 for the JSON that
// it holds; NaN, infinities and other extensions are errors. Bytes are not copied: v then refers
// to src. The values that have to be converted to JSON must take at most about limit bytes.
func Decode(src []byte, v any, limit int) error {
	return decode(src, v, limit, true)
}

// DecodeKnown is Decode without a limit, and ignores names that v does not have, whatever their
// values, as long as those could be JSON.
func DecodeKnown(src []byte, v any) error { return decode(src, v, math.MaxInt, false) }

// Check returns an error unless src begins with a value that Decode accepts as JSON. The library
// recurses without a limit and accepts names that appear twice and strings that are not UTF-8.
func Check(src []byte) error {
	return with(src, math.MaxInt, true, (*decoder).appendJSON)
}

func decode(src []byte, v any, limit int, strict bool) error {
	return with(src, limit, strict, func(d *decoder) error {
		err := d.value(reflect.ValueOf(v).Elem())
		if left := d.src.Len(); err == nil && left > 0 {
			err = fmt.Errorf("%d bytes after the end", left)
		}
		return err
	})
}

// with lets fn decode src, and adds the place to an error that has none.
func with(src []byte, limit int, strict bool, fn func(*decoder) error) error {
	d := decoder{
		r: msgpack.GetDecoder(), src: *bytes.NewBuffer(src), limit: limit, strict: strict,
	}
	defer msgpack.PutDecoder(d.r)
	d.r.Reset(&d.src)
	err := fn(&d)
	if _, ok := err.(*json.SemanticError); ok || err == nil || err == ErrTooLarge {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // the library's
		err = errShort
	}
	return fmt.Errorf("byte %d: %w", len(src)-d.src.Len(), err)
}

// decoder decodes MessagePack from a client or another node, and checks it on the way.
type decoder struct {
	r     *msgpack.Decoder
	src   bytes.Buffer
	depth int    // of the arrays and maps around the next value
	text  []byte // the values that were converted to JSON
	limit int    // of text
	// strict: a name that is not known is an error
	strict bool
}

// code returns the first byte of the next value; at the end, one that begins no value.
func (d *decoder) code() byte {
	if d.src.Len() == 0 {
		return 0xc1
	}
	return d.src.Bytes()[0]
}

// value decodes the next value into v. It recurses at most MaxDepth deep.
func (d *decoder) value(v reflect.Value) (err error) {
	code := d.code()
	switch p := v.Addr().Interface().(type) {
	case *jsontext.Value:
		if d.text == nil && !msgpcode.IsExt(code) { // a payload: about as long as it is here
			d.text = make([]byte, 0, d.src.Len()+d.src.Len()/8)
		}
		*p, err = d.json()
		return err
	case *string:
		if msgpcode.IsString(code) {
			b, err := d.take()
			*p = string(b)
			return err
		}
	case *int64:
		if isInt(code) {
			*p, err = d.r.DecodeInt64()
			return err
		}
	default:
		switch kind := v.Kind(); {
		case kind == reflect.Struct && isMap(code):
			return d.object(v)
		case kind == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
			if msgpcode.IsBin(code) {
				b, err := d.take()
				v.SetBytes(b)
				return err
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
	if isFloat(code) && !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...) // a float stays one, and is no whole number
	}
	return json.Unmarshal(text, v.Addr().Interface(), json.RejectUnknownMembers(d.strict))
}

// enter begins an array or a map and returns how many values are in it, names included. The
// caller ends it by taking 1 from depth.
func (d *decoder) enter() (n int, err error) {
	if isMap(d.code()) {
		n, err = d.r.DecodeMapLen()
		n *= 2
	} else {
		n, err = d.r.DecodeArrayLen()
	}
	switch {
	case err != nil:
	case d.depth == MaxDepth:
		err = fmt.Errorf("nested deeper than %d", MaxDepth)
	case n > d.src.Len(): // each takes a byte at least
		err = errShort
	}
	d.depth++
	return n, err
}

// object decodes a map into the struct v.
func (d *decoder) object(v reflect.Value) error {
	n, err := d.enter()
	fields := fieldsOf(v.Type())
	var seen uint64 // the fields
	for ; err == nil && n > 0; n -= 2 {
		name, err := d.name()
		i, ok := fields.byName[string(name)]
		switch {
		case err != nil:
		case !ok && d.strict:
			return at(string(name), &json.SemanticError{Err: json.ErrUnknownName})
		case !ok:
			_, err = d.json()
		case seen&(1<<i) != 0:
			err = twice(name)
		default:
			seen |= 1 << i
			err = d.value(v.FieldByIndex(fields.list[i].index))
		}
		if err != nil {
			return at(string(name), err)
		}
	}
	d.depth--
	return err
}

// maxList is more than any call takes. An element can be a byte here and hundreds in memory.
const maxList = 1 << 16

// list decodes an array into the slice v.
func (d *decoder) list(v reflect.Value) error {
	n, err := d.enter()
	if err == nil && n > maxList {
		err = fmt.Errorf("a list of %d values, more than %d", n, maxList)
	}
	if err != nil {
		return err
	}
	v.Set(reflect.MakeSlice(v.Type(), n, n))
	for i := range n {
		if err := d.value(v.Index(i)); err != nil {
			return at(strconv.Itoa(i), err)
		}
	}
	d.depth--
	return nil
}

// at adds the place of a value to its error.
func at(token string, err error) error {
	if e, ok := err.(*json.SemanticError); ok {
		e.JSONPointer = jsontext.Pointer("").AppendToken(token) + e.JSONPointer
	}
	return err
}

// name returns the next value, which names another one in a map.
func (d *decoder) name() ([]byte, error) {
	if code := d.code(); !msgpcode.IsString(code) && d.src.Len() > 0 {
		return nil, fmt.Errorf("code %#x where a name belongs", code)
	}
	return d.take()
}

func twice(name []byte) error { return fmt.Errorf("name %.64q appears twice", name) }

// take returns the next string's or bin's bytes, a part of src.
func (d *decoder) take() ([]byte, error) {
	text := msgpcode.IsString(d.code())
	n, err := d.r.DecodeBytesLen()
	if err == nil && n > d.src.Len() {
		err = errShort
	}
	if err != nil {
		return nil, err
	}
	b := d.src.Next(n)[:n:n]
	if text && !utf8.Valid(b) {
		err = errors.New("a string is not UTF-8")
	}
	return b, err
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
	var b []byte
	switch code := d.code(); {
	case isArray(code):
		return d.items('[', ",", ']')
	case isMap(code):
		return d.items('{', ":,", '}')
	case msgpcode.IsString(code):
		if b, err = d.take(); err == nil {
			d.text, err = jsontext.AppendQuote(d.text, b)
		}
		return err
	case msgpcode.IsBin(code):
		b, err = d.take()
		d.text = append(d.text, '"')
		d.text = append(base64.StdEncoding.AppendEncode(d.text, b), '"')
		return err
	case msgpcode.IsExt(code):
		b, err = d.ext()
		d.text = append(d.text, b...)
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
	if b, err = json.Marshal(v); err != nil { // of scalars only NaN and infinities fail
		return errors.New("a number that is not finite has no JSON")
	}
	d.text = append(d.text, b...)
	return nil
}

// items converts an array, or the names and values of a map, between begin and end. The
// separators take turns.
func (d *decoder) items(begin byte, separators string, end byte) error {
	n, err := d.enter()
	names := make([][]byte, 0, 16) // on the stack, unless there are more
	d.text = append(d.text, begin)
	for i := 0; err == nil && i < n; i++ {
		if i > 0 {
			d.text = append(d.text, separators[(i-1)%len(separators)])
		}
		if end == '}' && i%2 == 0 {
			var name []byte
			name, err = d.name()
			names = append(names, name)
			d.text, _ = jsontext.AppendQuote(d.text, name) // an error: not UTF-8, as name says
		} else {
			err = d.appendJSON()
		}
	}
	slices.SortFunc(names, bytes.Compare)
	for i := 1; err == nil && i < len(names); i++ {
		if bytes.Equal(names[i-1], names[i]) {
			err = twice(names[i])
		}
	}
	d.depth--
	d.text = append(d.text, end)
	return err
}

// ext returns the JSON in an extension, a part of src.
func (d *decoder) ext() ([]byte, error) {
	id, n, err := d.r.DecodeExtHeader()
	switch {
	case err != nil:
		return nil, err
	case id != jsonExt:
		return nil, fmt.Errorf("extension type %d has no JSON", id)
	case n > d.src.Len():
		return nil, errShort
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

func isFloat(code byte) bool { return code == msgpcode.Float || code == msgpcode.Double }
