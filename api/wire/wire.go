// Package wire has the requests and answers of qlogd's HTTP API and their codecs. It knows nothing
// of the server, so that clients can use it too.
//
// Times are RFC 3339 in UTC with milliseconds, durations whole numbers with the unit in the name.
package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/internal/transcode"
)

// TimeFormat is how every time is written.
const TimeFormat = "2006-01-02T15:04:05.000Z"

// Time is an instant, Unix milliseconds. The zero Time is null in JSON.
type Time int64

// TimeOf returns t as a Time.
func TimeOf(t time.Time) Time { return Time(t.UnixMilli()) }

// Time returns the instant as a time in UTC.
func (t Time) Time() time.Time { return time.UnixMilli(int64(t)).UTC() }

// String returns the instant as it is written, "" if it is zero.
func (t Time) String() string {
	b, _ := t.AppendText(make([]byte, 0, len(TimeFormat)))
	return string(b)
}

// AppendText implements encoding.TextAppender. There is no error.
func (t Time) AppendText(b []byte) ([]byte, error) {
	if t == 0 {
		return b, nil
	}
	b = t.Time().AppendFormat(b, time.RFC3339) // the fastest
	ms := byte(t % 1000 / 10)
	return append(b[:len(b)-1], '.', '0'+ms/10, '0'+ms%10, '0'+byte(t%10), 'Z'), nil
}

// MarshalJSONTo writes the time, or null.
func (t Time) MarshalJSONTo(enc *jsontext.Encoder) error {
	if t == 0 {
		return enc.WriteToken(jsontext.Null)
	}
	b, _ := t.AppendText(append(enc.AvailableBuffer(), '"'))
	return enc.WriteValue(append(b, '"'))
}

// UnmarshalJSONFrom reads an RFC 3339 time of the years 1970 to 9999, or null.
func (t *Time) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	tok, err := dec.ReadToken()
	if err != nil {
		return err
	}
	switch tok.Kind() {
	case 'n':
		*t = 0
		return nil
	case '"':
		v, err := time.Parse(time.RFC3339Nano, tok.String())
		if err == nil && v.UnixMilli() >= 0 && v.Year() <= 9999 {
			*t = TimeOf(v)
			return nil
		}
	}
	return &json.SemanticError{JSONKind: tok.Kind(), Err: errTime}
}

var errTime = errors.New("must be an RFC 3339 time such as 2026-01-31T12:00:00.000Z")

// Opt is a field that can be left out, be null, or have a value. The zero Opt is left out.
type Opt[T any] struct {
	Set   bool // it was there, null included
	Null  bool
	Value T
}

// Some returns an Opt with a value.
func Some[T any](v T) Opt[T] { return Opt[T]{Set: true, Value: v} }

// Null returns an Opt that is null.
func Null[T any]() Opt[T] { return Opt[T]{Set: true, Null: true} }

// IsZero reports whether the field was left out.
func (o Opt[T]) IsZero() bool { return !o.Set }

// Or returns the value, or def where there is none.
func (o Opt[T]) Or(def T) T {
	if !o.Set || o.Null {
		return def
	}
	return o.Value
}

// MarshalJSONTo writes the value or null.
func (o Opt[T]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if !o.Set || o.Null {
		return enc.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(enc, o.Value)
}

// UnmarshalJSONFrom reads the value or null. As into any struct, missing members stay.
func (o *Opt[T]) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() == 'n' {
		*o = Null[T]()
		_, err := dec.ReadToken()
		return err
	}
	o.Set, o.Null = true, false
	return json.UnmarshalDecode(dec, &o.Value)
}

// Marshal returns v's JSON, the same bytes for the same value. A nil slice is [], a nil map {}.
func Marshal(v any) ([]byte, error) { return json.Marshal(v, json.Deterministic(true)) }

// Write writes the JSON that Marshal returns.
func Write(w io.Writer, v any) error { return json.MarshalWrite(w, v, json.Deterministic(true)) }

// Unmarshal reads JSON into v; unknown members are ignored, so that a client
// outlives new fields in answers. The server reads requests with Decode.
func Unmarshal(b []byte, v any) error { return json.Unmarshal(b, v) }

// MediaMsgpack is the media type of MessagePack, and AcceptMsgpack asks for what UnmarshalMsgpack
// reads best.
const (
	MediaMsgpack  = "application/msgpack"
	AcceptMsgpack = MediaMsgpack + "; payload=bin"
)

// MarshalMsgpack returns the MessagePack of the request that v points to. Payloads are sent as they
// are: JSON as an extension, bytes as bin.
func MarshalMsgpack(v any) ([]byte, error) { return transcode.Encode(v) }

// UnmarshalMsgpack reads an answer into what v points to, which then refers to b; unknown members
// are ignored.
func UnmarshalMsgpack(b []byte, v any) error { return transcode.DecodeKnown(b, v) }

// Decode reads a request strictly: no unknown or duplicate names, no bad UTF-8, nothing behind it.
func Decode(b []byte, v any) error { return json.Unmarshal(b, v, strict) }

var strict = json.RejectUnknownMembers(true)

// Bytes is a payload that is no JSON: a base64 string in JSON. nil is left out, or null.
type Bytes []byte

// IsZero reports whether there is nothing, not even an empty payload.
func (b Bytes) IsZero() bool { return b == nil }

// MarshalJSONTo writes base64 (RFC 4648 section 4, padded), or null.
func (b Bytes) MarshalJSONTo(enc *jsontext.Encoder) error {
	if b == nil {
		return enc.WriteToken(jsontext.Null)
	}
	text := append(enc.AvailableBuffer(), '"')
	text = append(base64.StdEncoding.AppendEncode(text, b), '"')
	return enc.WriteValue(text)
}

// UnmarshalJSONFrom reads base64, padded or not, or null.
func (b *Bytes) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	v, err := dec.ReadValue()
	if err != nil {
		return err
	}
	*b = nil
	switch v.Kind() {
	case 'n':
		return nil
	case '"':
		text := []byte(v[1 : len(v)-1])
		if bytes.IndexByte(text, '\\') >= 0 {
			text, _ = jsontext.AppendUnquote(nil, v) // no error: it was read
		}
		if *b, err = base64.StdEncoding.AppendDecode([]byte{}, text); err != nil { // not padded
			*b, err = base64.RawStdEncoding.AppendDecode([]byte{}, text)
		}
		if err == nil {
			return nil
		}
	}
	return &json.SemanticError{JSONKind: v.Kind(), Err: ErrBase64}
}

// ErrBase64 is for a text that is not base64.
var ErrBase64 = errors.New("must be base64 (RFC 4648 section 4)")
