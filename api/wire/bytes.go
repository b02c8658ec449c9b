package wire

import (
	"encoding/base64"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bytes is a payload that is no JSON: a base64 string in JSON, bin in msgpack.
// nil is left out, or null.
type Bytes []byte

// IsZero reports whether there is nothing, not even an empty payload.
func (b Bytes) IsZero() bool { return b == nil }

// MarshalJSONTo writes base64 (RFC 4648 section 4, padded), or null.
func (b Bytes) MarshalJSONTo(enc *jsontext.Encoder) error {
	if b == nil {
		return enc.WriteToken(jsontext.Null)
	}
	v := make(jsontext.Value, 0, base64.StdEncoding.EncodedLen(len(b))+2)
	v = base64.StdEncoding.AppendEncode(append(v, '"'), b)
	return enc.WriteValue(append(v, '"'))
}

// UnmarshalJSONFrom reads base64, padded or not, or null.
func (b *Bytes) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	v, err := dec.ReadValue()
	if err != nil {
		return err
	}
	switch v.Kind() {
	case 'n':
		*b = nil
		return nil
	case '"':
		text, err := jsontext.AppendUnquote(nil, v)
		if err != nil {
			return err
		}
		if *b, err = DecodeBase64(text); err != nil {
			return &json.SemanticError{JSONKind: '"', Err: err}
		}
		return nil
	}
	return &json.SemanticError{JSONKind: v.Kind(), Err: ErrBase64}
}

// DecodeBase64 returns the bytes of a base64 text, padded or not.
func DecodeBase64(text []byte) (Bytes, error) {
	out := make(Bytes, base64.RawStdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(out, text)
	if err != nil {
		if n, err = base64.RawStdEncoding.Decode(out, text); err != nil {
			return nil, ErrBase64
		}
	}
	return out[:n:n], nil
}

// ErrBase64 is for a text that is not base64.
var ErrBase64 = errors.New("must be base64 (RFC 4648 section 4)")
