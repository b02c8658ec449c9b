package transcode

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/vmihailenco/msgpack/v5"
)

// toJSON decodes a value as a payload is decoded.
func toJSON(b []byte, limit int) (v jsontext.Value, err error) {
	err = Decode(b, &v, limit)
	return v, err
}

func TestToJSON(t *testing.T) {
	for packed, want := range map[string]string{
		"\xc0":                                 `null`,
		"\xcf\xff\xff\xff\xff\xff\xff\xff\xff": `18446744073709551615`,
		"\xff":                                 `-1`,
		"\xca\x40\x20\x00\x00":                 `2.5`,
		"\xc4\x02\x01\x02":                     `"AQI="`,
		"\x81\xa1a\xc7\x05\x4a[1,2]":           `{"a":[1,2]}`,
	} {
		if got, err := toJSON([]byte(packed), 1<<20); err != nil || string(got) != want {
			t.Errorf("%x: %s, %v", packed, got, err)
		}
	}
	for packed, want := range map[string]string{
		"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00": "not finite",
		"\xd4\x05\x00":                         "extension type 5",
		"\xd4\x4a{":                            "does not hold JSON",
		"\xc0\xc0":                             "after the end",
		"\x82\xa1a\xc0\xa1a\xc0":               "twice",
		strings.Repeat("\x91", 65) + "\xc0":    "nested deeper",
		"\xdd\xff\xff\xff\xff":                 "unexpected end",
	} {
		if got, err := toJSON([]byte(packed), 1<<20); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%x: %s, %v", packed, got, err)
		}
	}
	if _, err := toJSON(append([]byte("\xdc\x10\x00"),
		bytes.Repeat([]byte("\xa9123456789"), 4096)...), 1000); err != ErrTooLarge {
		t.Error(err)
	}
}

// TestAppendIsCompact: lengths and numbers have the codes that the library gives them.
func TestAppendIsCompact(t *testing.T) {
	type values struct {
		Text  string   `json:"text"`
		Bytes []byte   `json:"bytes"`
		List  []string `json:"list"`
		N     int64    `json:"n"`
		Minus int64    `json:"minus"`
	}
	for shift := range 64 {
		for _, near := range []int64{-1, 0, 1} {
			v := values{N: 1<<shift + near, Minus: -1<<shift + near, List: []string{}}
			n := int(min(max(v.N, 0), 70_000))
			if shift < 18 {
				v.Text, v.Bytes, v.List = strings.Repeat("x", n), make([]byte, n), make([]string, n)
			}
			var want bytes.Buffer
			enc := msgpack.NewEncoder(&want)
			enc.UseCompactInts(true)
			enc.SetCustomStructTag("json")
			require.NoError(t, enc.Encode(&v))
			got, err := Append([]byte("before"), &v, true)
			if err != nil || string(got) != "before"+want.String() {
				t.Errorf("%d: %.50x, %v, want %.50x", n, got, err, want.Bytes())
			}
			raw, ext := jsontext.Value(v.Bytes), bytes.Buffer{}
			enc.Reset(&ext)
			_ = enc.EncodeExtHeader(jsonExt, len(raw))
			ext.Write(raw)
			if got, err := Append(nil, &raw, true); err != nil || string(got) != ext.String() {
				t.Errorf("extension of %d: %.50x, %v", n, got, err)
			}
			var text bytes.Buffer
			enc.Reset(&text)
			_ = enc.EncodeString(base64.StdEncoding.EncodeToString(v.Bytes))
			if got, err := Append(nil, &v.Bytes, false); err != nil || string(got) != text.String() {
				t.Errorf("base64 of %d: %.50x, %v", n, got, err)
			}
		}
	}
}

func TestTooDeep(t *testing.T) {
	for text, want := range map[string]bool{"[[1]]": false, "[[[1]]]": true,
		`["[[[","\\"]`: false} {
		assert.Equal(t, TooDeep([]byte(text), 2), want, "%v", text)
	}
}

// FuzzTranscode: what comes out is JSON, and comes back the same.
func FuzzTranscode(f *testing.F) {
	seed, err := msgpack.Marshal(map[string]any{"a": []any{1, "x", 2.5, nil, []byte{1}}})
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte("\xdf\x00\x00\x00\x01\xa1a\xca\x7f\x80\x00\x00"))
	f.Add([]byte("\x81\xa1a\xc7\x05\x4a[1,2]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := toJSON(b, 1<<20)
		if err != nil {
			return
		}
		for _, kept := range []bool{false, true} {
			m, err := Append(nil, &j, kept)
			require.NoError(t, err, "%s", j)
			again, err := toJSON(m, 2<<20)
			require.True(t, err == nil && bytes.Equal(canonical(t, j), canonical(t, again)),
				"%s became %s: %v", j, again, err)
		}
	})
}

func canonical(t *testing.T, b []byte) []byte {
	v := jsontext.Value(bytes.Clone(b))
	require.NoError(t, v.Canonicalize(), "%s", b)
	return v
}
