package msgpackcheck

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/vmihailenco/msgpack/v5"
)

func encode(t testing.TB, v any) []byte {
	b, err := msgpack.Marshal(v)
	require.NoError(t, err)
	return b
}

func TestCheck(t *testing.T) {
	many := map[string]any{}
	for i := range 1000 {
		many[fmt.Sprint("name", i)] = i
	}
	pair := func(name string) []byte { return append(encode(t, name), 1) }
	names := func(n int, names ...string) []byte { // a map of these names
		b := []byte{0xde, byte(n >> 8), byte(n)}
		for _, s := range names {
			b = append(b, pair(s)...)
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
		{"a number", encode(t, 1), ""},
		{"all kinds", encode(t, []any{nil, true, -1, 300, -300, 1 << 40, 1.5, float32(2), "é",
			strings.Repeat("x", 70000), make([]byte, 300), make([]byte, 70000), many,
			make([]any, 70000), map[string]any{"a": map[string]any{"a": 1}, "b": []any{}}}), ""},
		{"extensions", []byte{0x92, 0xc7, 2, 5, 1, 1, 0xd6, 1, 0, 0, 0, 0}, ""},
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
		{"a cut number", []byte{0xcf, 1}, "unexpected end"},
		{"the unused code", []byte{0xc1}, "unknown code 0xc1"},
	} {
		err := Check(c.b)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
		for n := range min(len(c.b), 100) {
			assert.False(t, c.want == "" && Check(c.b[:n]) == nil,
				"%s: cut at %d and accepted", c.what, n)
		}
	}
}

// FuzzCheck: what passes is one value for the library too, and the library reads all of it.
func FuzzCheck(f *testing.F) {
	f.Add(encode(f, map[string]any{"a": []any{1, "x", nil, []byte{1}}, "b": 1.5}))
	f.Add([]byte{0x82, 0xa1, 'a', 1, 0xa1, 'a', 1})
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check(b) != nil {
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
