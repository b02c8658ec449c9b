package transcode

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
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
		got, err := toJSON([]byte(packed), 1<<20)
		assert.NoError(t, err, "%x", packed)
		assert.Equal(t, string(got), want, "%x", packed)
	}
	for packed, want := range map[string]string{
		"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00": "not finite",
		"\xd4\x05\x00":                         "extension type 5",
		"\xd4\x4a{":                            "does not hold JSON",
	} {
		_, err := toJSON([]byte(packed), 1<<20)
		assert.ErrorContains(t, err, want, "%x", packed)
	}
	many := append([]byte("\xdc\x10\x00"), bytes.Repeat([]byte("\xa9123456789"), 4096)...)
	_, err := toJSON(many, 1000)
	assert.ErrorIs(t, err, ErrTooLarge)
}

// TestCheck: what is not well-formed is refused, also where the library accepts it.
func TestCheck(t *testing.T) {
	encode := func(v any) []byte {
		b, err := msgpack.Marshal(v)
		require.NoError(t, err)
		return b
	}
	many := map[string]any{}
	for i := range 1000 {
		many[fmt.Sprint("name", i)] = i
	}
	names := func(n int, names ...string) []byte { // a map of these names
		b := []byte{0xde, byte(n >> 8), byte(n)}
		for _, s := range names {
			b = append(append(b, encode(s)...), 1)
		}
		return b
	}
	var twice []string
	for i := range 40 {
		twice = append(twice, fmt.Sprint(i))
	}
	deep := func(n int) []byte { return append(bytes.Repeat([]byte{0x91}, n), 0xc0) }
	for _, c := range []struct {
		what string
		b    []byte
		want string // part of the error; "": none
	}{
		{"a number", encode(1), ""},
		{"all kinds", encode([]any{nil, true, -1, 300, -300, 1 << 40, 1.5, float32(2), "é",
			strings.Repeat("x", 70000), make([]byte, 300), make([]byte, 70000), many,
			make([]any, 70000), map[string]any{"a": map[string]any{"a": 1}, "b": []any{}}}), ""},
		{"extensions", []byte("\x92\xd4\x4a1\xc7\x02\x4a[]"), ""},
		{"64 deep", deep(64), ""},
		{"65 deep", deep(65), "nested deeper than 64"},
		{"16 MiB deep", deep(16 << 20), "nested deeper than 64"},
		{"nothing", nil, "unexpected end"},
		{"two values", []byte{1, 2}, "1 bytes after the end"},
		{"a name twice", names(2, "a", "a"), `name "a" appears twice`},
		{"one of many names twice", names(41, append(twice, "7")...), `name "7" appears twice`},
		{"a name in two maps", append([]byte{0x92}, append(names(1, "a"), names(1, "a")...)...),
			""},
		{"a number as a name", []byte{0x81, 1, 1}, "where a name belongs"},
		{"invalid UTF-8", []byte{0xa1, 0xff}, "not UTF-8"},
		{"invalid UTF-8 in a name", []byte{0x81, 0xa1, 0xff, 1}, "not UTF-8"},
		{"a long array cut", []byte{0xdd, 0xff, 0xff, 0xff, 0xff, 1}, "unexpected end"},
		{"a long map cut", []byte{0xdf, 0xff, 0xff, 0xff, 0xff, 1}, "unexpected end"},
		{"long bytes cut", []byte{0xc6, 0xff, 0xff, 0xff, 0xff, 1}, "unexpected end"},
		{"a long string cut", []byte{0xdb, 0xff, 0xff, 0xff, 0xff, 1}, "unexpected end"},
		{"a long extension cut", []byte{0xc9, 0xff, 0xff, 0xff, 0xff, 0x4a, 1}, "unexpected end"},
		{"a cut number", []byte{0xcf, 1}, "unexpected end"},
		{"the unused code", []byte{0xc1}, "unknown code c1"},
	} {
		_, err := toJSON(c.b, 1<<30)
		if c.want == "" {
			require.NoError(t, Check(append(bytes.Clone(c.b), 1)), "%s, and a value more", c.what)
		}
		assert.ErrorContains(t, err, c.want, "%s", c.what)
		for n := range min(len(c.b), 100) {
			assert.False(t, c.want == "" && Check(c.b[:n]) == nil,
				"%s: cut at %d and accepted", c.what, n)
		}
	}
}

// TestCheckOfStruct: a struct is decoded as strictly as a value.
func TestCheckOfStruct(t *testing.T) {
	type inner struct {
		Text string  `json:"text"`
		List []inner `json:"list"`
	}
	deep := strings.Repeat("\x81\xa4list\x91", 40) + "\x80"
	for packed, want := range map[string]string{
		"\x82\xa4text\xa1a\xa4text\xa1b":       `name "text" appears twice`,
		"\x81\xa4text\xa1\xff":                 "not UTF-8",
		"\x81\xa4text\xa2a":                    "unexpected end",
		"\x81\xa4list\xdd\xff\xff\xff\xff\x80": "unexpected end",
		"\x81\x01\xc0":                         "where a name belongs",
		"\x82\xa4text\xa1a":                    "unexpected end",
		"\xdf\xff\xff\xff\xff\xa4text\xa1a":    "unexpected end",
		"\x81\xa4text\xa1ax":                   "1 bytes after the end",
		"\x81\xa4else\xc0":                     "unknown",
		deep:                                   "nested deeper than 64",
	} {
		err := Decode([]byte(packed), &inner{}, 1<<20)
		assert.ErrorContains(t, err, want, "%.20q", packed)
	}
	other := "\x82\xa4else" + strings.Repeat("\x91", 30) + "\xc0\xa4text\xa1a"
	var v inner
	require.NoError(t, DecodeKnown([]byte(other), &v))
	assert.Equal(t, v.Text, "a", "behind an unknown name")
	other = "\x81\xa4else" + strings.Repeat("\x91", 1<<20) + "\xc0"
	assert.True(t, DecodeKnown([]byte(other), &v) != nil, "deep below an unknown name")
}

// TestListIsBounded: many small elements do not take a multiple of the body's memory.
func TestListIsBounded(t *testing.T) {
	var v []struct {
		A string `json:"a"`
	}
	list := func(n int) []byte {
		return append([]byte{0xdd, 0, byte(n >> 16), byte(n >> 8), byte(n)},
			bytes.Repeat([]byte("\x80"), n)...)
	}
	require.NoError(t, Decode(list(1<<16), &v, 1<<20))
	assert.ErrorContains(t, Decode(list(1<<16+1), &v, 1<<20), "a list of 65537 values")
}

// FuzzCheck: what passes is one value for the library too, and the library reads all of it.
func FuzzCheck(f *testing.F) {
	seed, err := msgpack.Marshal(map[string]any{"a": []any{1, "x", nil, []byte{1}}, "b": 1.5})
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte{0x82, 0xa1, 'a', 1, 0xa1, 'a', 1})
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := toJSON(b, 1<<20); err != nil {
			return
		}
		r := bytes.NewReader(b)
		d := msgpack.NewDecoder(r)
		if err := d.Skip(); err != nil && !strings.Contains(err.Error(), "unknown ext") {
			t.Fatalf("%x: accepted, and the library says %v", b, err)
		} else if err == nil && r.Len() > 0 {
			t.Fatalf("%x: accepted, and the library leaves %d bytes", b, r.Len())
		}
	})
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
			require.True(t, err == nil && string(got) == "before"+want.String(),
				"%d: %.50x, %v, want %.50x", n, got, err, want.Bytes())
			raw, ext := jsontext.Value(v.Bytes), bytes.Buffer{}
			enc.Reset(&ext)
			_ = enc.EncodeExtHeader(jsonExt, len(raw))
			ext.Write(raw)
			got, err = Append(nil, &raw, true)
			require.True(t, err == nil && string(got) == ext.String(), "extension of %d", n)
			var text bytes.Buffer
			enc.Reset(&text)
			_ = enc.EncodeString(base64.StdEncoding.EncodeToString(v.Bytes))
			got, err = Append(nil, &v.Bytes, false)
			require.True(t, err == nil && string(got) == text.String(), "base64 of %d", n)
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

// The fields of an embedded struct are those of the struct, as in JSON.
func TestEmbedded(t *testing.T) {
	type inner struct {
		A int64  `json:"a"`
		B string `json:"b,omitzero"`
	}
	type outer struct {
		ID string `json:"id"`
		inner
	}
	for _, v := range []outer{{"x", inner{1, "y"}}, {"x", inner{}}} {
		packed, err := Encode(&v)
		require.NoError(t, err)
		var text jsontext.Value
		require.NoError(t, Decode(packed, &text, 1<<10))
		want, err := json.Marshal(v)
		require.NoError(t, err)
		assert.Equal(t, string(text), string(want))
	}
}
