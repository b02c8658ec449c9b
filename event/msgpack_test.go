package event

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// TestAsTheLibrary holds what is written by hand against the library that
// defines the format: the same bytes, and read alike.
func TestAsTheLibrary(t *testing.T) {
	lengths := []int{0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536}
	rapid.Check(t, func(t *rapid.T) {
		var want bytes.Buffer
		enc := msgpack.NewEncoder(&want)
		dec := msgpack.NewDecoder(&want)
		same := func(what string, got []byte, err error) {
			if err != nil || !bytes.Equal(got, want.Bytes()) {
				t.Fatalf("%s: %x, the library writes %x (%v)", what, got, want.Bytes(), err)
			}
		}
		bits := rapid.IntRange(0, 64).Draw(t, "bits")
		v := rapid.Uint64().Draw(t, "v") & (math.MaxUint64 >> bits)

		b := appendUint(nil, v)
		same("uint", b, enc.EncodeUint(v))
		if got, err := dec.DecodeUint64(); err != nil || got != (&reader{b: b}).uint() {
			t.Fatalf("uint %x is read as %d, by the library as %d %v", b, (&reader{b: b}).uint(), got, err)
		}
		for _, i := range []int64{int64(v), -int64(v)} {
			want.Reset()
			b = appendInt(nil, i)
			same("int", b, enc.EncodeInt(i))
			if got, err := dec.DecodeInt64(); err != nil || got != (&reader{b: b}).int() {
				t.Fatalf("int %x is read as %d, by the library as %d %v", b, (&reader{b: b}).int(), got, err)
			}
		}
		n := rapid.SampledFrom(lengths).Draw(t, "length")
		s := strings.Repeat("x", n)
		want.Reset()
		same("string", appendString(nil, s), enc.EncodeString(s))
		want.Reset()
		same("bytes", appendBytes(nil, []byte(s)), enc.EncodeBytes([]byte(s)))
		want.Reset()
		w := &writer{}
		w.list(7, n)
		same("list", w.buf, func() error { _ = enc.EncodeUint(7); return enc.EncodeArrayLen(n) }())
		want.Reset()
		w = &writer{}
		w.bool(1, true)
		same("bool", w.buf, func() error { _ = enc.EncodeUint(1); return enc.EncodeBool(true) }())

		// Whatever bytes come: both take them for the same, or neither takes them.
		raw := append([]byte{rapid.Byte().Draw(t, "code")}, rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(t, "raw")...)
		reads := map[string]struct {
			ours    func(r *reader) int64
			library func(d *msgpack.Decoder) (int64, error)
		}{
			"number": {(*reader).int, (*msgpack.Decoder).DecodeInt64},
			"unsigned": {
				func(r *reader) int64 { return int64(r.uint()) },
				func(d *msgpack.Decoder) (int64, error) { v, err := d.DecodeUint64(); return int64(v), err },
			},
			"bool": {
				func(r *reader) int64 { return map[bool]int64{true: 1}[r.bool()] },
				func(d *msgpack.Decoder) (int64, error) {
					v, err := d.DecodeBool()
					return map[bool]int64{true: 1}[v], err
				},
			},
			"bytes": {
				func(r *reader) int64 { return int64(len(r.peek())) },
				func(d *msgpack.Decoder) (int64, error) {
					n, err := d.DecodeBytesLen()
					if err == nil && n > 0 {
						err = d.ReadFull(make([]byte, min(n, 64)))
					}
					return int64(max(n, 0)), err
				},
			},
		}
		for what, f := range reads {
			r := &reader{b: raw}
			got := f.ours(r)
			lib, err := f.library(msgpack.NewDecoder(bytes.NewReader(raw)))
			if (err == nil) != (r.err == nil) || err == nil && got != lib {
				t.Fatalf("%s of %x: %d %v, by the library %d %v", what, raw, got, r.err, lib, err)
			}
		}
	})
}
