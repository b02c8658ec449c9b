// Package transcode converts between MessagePack and JSON, so that both forms of a
// request are validated by the same code, and bounds how deep JSON is nested.
package transcode

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"

	"github.com/qlogd/qlogd/internal/msgpackcheck"
)

// MaxDepth is how deep arrays and objects may be nested.
const MaxDepth = msgpackcheck.MaxDepth

// jsonExt is the MessagePack extension type whose data is JSON text.
const jsonExt = 74

// ErrTooLarge is returned for a value whose JSON exceeds the limit.
var ErrTooLarge = errors.New("too large as JSON")

// ToJSON returns the JSON of one MessagePack value, which must be all of src, if it
// takes at most about limit bytes. bin becomes a base64 string, and extension type 74
// the JSON that it holds. Other extensions, NaN and infinities are errors.
func ToJSON(src []byte, limit int) ([]byte, error) {
	if err := msgpackcheck.Check(src); err != nil {
		return nil, err
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(src))
	t := toJSON{dec: dec, out: make([]byte, 0, len(src)+len(src)/2), limit: limit}
	if err := t.value(); err != nil {
		return nil, err
	}
	return t.out, nil
}

type toJSON struct {
	dec   *msgpack.Decoder
	out   []byte
	limit int
}

// value converts the next value. It recurses at most MaxDepth deep: see Check.
func (t *toJSON) value() error {
	if len(t.out) > t.limit {
		return ErrTooLarge
	}
	code, err := t.dec.PeekCode()
	if err != nil {
		return err
	}
	switch {
	case msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32:
		n, err := t.dec.DecodeArrayLen()
		return t.items(err, n, '[', ",", ']')
	case msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32:
		n, err := t.dec.DecodeMapLen()
		return t.items(err, 2*n, '{', ":,", '}')
	case msgpcode.IsExt(code):
		return t.ext()
	case msgpcode.IsString(code):
		var s string
		if s, err = t.dec.DecodeString(); err == nil {
			t.out, err = jsontext.AppendQuote(t.out, s)
		}
		return err
	case msgpcode.IsBin(code):
		b, err := t.dec.DecodeBytes()
		t.out = append(base64.StdEncoding.AppendEncode(append(t.out, '"'), b), '"')
		return err
	}
	v, err := t.dec.DecodeInterface()
	if err != nil {
		return err
	}
	b, err := json.Marshal(v)
	if err != nil { // of scalars only NaN and infinities fail
		return errors.New("a number that is not finite has no JSON")
	}
	t.out = append(t.out, b...)
	return nil
}

// items converts an array, or the names and values of a map, between begin and end. The
// separators take turns.
func (t *toJSON) items(err error, n int, begin byte, separators string, end byte) error {
	if err != nil {
		return err
	}
	t.out = append(t.out, begin)
	for i := range n {
		if i > 0 {
			t.out = append(t.out, separators[(i-1)%len(separators)])
		}
		if err := t.value(); err != nil {
			return err
		}
	}
	t.out = append(t.out, end)
	return nil
}

func (t *toJSON) ext() error {
	id, n, err := t.dec.DecodeExtHeader()
	if err != nil {
		return err
	}
	if id != jsonExt {
		return fmt.Errorf("extension type %d has no JSON", id)
	}
	text := make([]byte, n)
	if err := t.dec.ReadFull(text); err != nil {
		return err
	}
	if TooDeep(text, MaxDepth) {
		return fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	if !jsontext.Value(text).IsValid() { // duplicate names and bad UTF-8 included
		return fmt.Errorf("extension type %d does not hold JSON", jsonExt)
	}
	t.out = append(t.out, text...)
	return nil
}

// FromJSON returns the MessagePack of one JSON value. Whole numbers that fit become
// integers, others float64.
func FromJSON(src []byte) ([]byte, error) {
	type container struct{ at, n int }
	var open []container
	out := bytes.NewBuffer(make([]byte, 0, len(src)))
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(out)
	enc.UseCompactInts(true)
	dec := jsontext.NewDecoder(bytes.NewBuffer(src)) // which it does not copy
	for {
		tok, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		kind := tok.Kind()
		if kind == '}' || kind == ']' {
			c := open[len(open)-1]
			open = open[:len(open)-1]
			if kind == '}' {
				c.n /= 2
			}
			binary.BigEndian.PutUint32(out.Bytes()[c.at:], uint32(c.n))
			continue
		}
		if len(open) > 0 {
			open[len(open)-1].n++
		}
		switch kind {
		case '{', '[':
			code := msgpcode.Map32
			if kind == '[' {
				code = msgpcode.Array32
			}
			out.Write([]byte{code, 0, 0, 0, 0}) // the length follows at the end
			open = append(open, container{at: out.Len() - 4})
		case 'n':
			err = enc.EncodeNil()
		case 't', 'f':
			err = enc.EncodeBool(kind == 't')
		case '"':
			err = enc.EncodeString(tok.String())
		case '0':
			err = number(enc, tok.String())
		}
		if err != nil {
			return nil, err
		}
	}
}

func number(enc *msgpack.Encoder, s string) error {
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		return enc.EncodeInt(v)
	}
	if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		return enc.EncodeUint(v)
	}
	v, _ := strconv.ParseFloat(s, 64)
	return enc.EncodeFloat64(v)
}

// TooDeep reports whether JSON is nested deeper than most. It only counts brackets:
// whether the text is JSON at all is for the decoder to find out.
func TooDeep(b []byte, most int) bool {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += stringLen(b[i+1:])
		case '{', '[':
			if depth++; depth > most {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// stringLen returns the length of the JSON string that b begins in, with its closing quote.
func stringLen(b []byte) int {
	for n := 0; ; {
		i := bytes.IndexByte(b[n:], '"')
		if i < 0 {
			return len(b)
		}
		n += i + 1
		escape := n - 1
		for escape > 0 && b[escape-1] == '\\' {
			escape--
		}
		if (n-1-escape)%2 == 0 {
			return n
		}
	}
}
