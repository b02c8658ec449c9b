package event

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// fuzz holds a decoder to this: no panic, no memory out of proportion, and what
// it accepts comes out the same when written and read again; canonical bytes come
// out as they went in.
func (c codec[T]) fuzz(f *testing.F) {
	for _, b := range readGolden(f, c.file) {
		f.Add(b)
	}
	f.Add([]byte{})
	f.Add([]byte{Version, 0xdf, 0xff, 0xff, 0xff, 0xff})                                        // a map of 2^32 fields
	f.Add([]byte{Version, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0}) // an entry of 2^32 commands
	for _, name := range []byte("abcdefghijk") {
		for _, code := range []byte{0xc6, 0xdb, 0xdd, 0xdf} { // bytes, a string, a list, a map
			f.Add([]byte{Version, 0x81, 0xa1, name, code, 0x10, 0, 0, 0, 'x'}) // of 256 Mi
			f.Add([]byte{Version, 0x81, 0xa1, name, code, 0xff, 0xff, 0xff, 0xff, 'x'})
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v, err := c.decode(b)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20+uint64(len(b))*1024 {
			t.Fatalf("%d bytes took %d bytes of memory", len(b), n)
		}
		if err != nil {
			return
		}
		once := c.encode(v)
		again, err := c.decode(once)
		require.NoError(t, err, "what was taken is refused when written anew")
		if twice := c.encode(again); !bytes.Equal(once, twice) {
			t.Fatalf("written %x, then %x", once, twice)
		}
	})
}

func FuzzDecodeCommand(f *testing.F) { commandCodec.fuzz(f) }

func FuzzDecodeHeader(f *testing.F) { headerCodec.fuzz(f) }

func FuzzDecodeContent(f *testing.F) { contentCodec.fuzz(f) }

func FuzzDecodeEntry(f *testing.F) { entryCodec.fuzz(f) }

func FuzzDecodeResult(f *testing.F) { resultCodec.fuzz(f) }

func FuzzDecodePolicy(f *testing.F) { policyCodec.fuzz(f) }

func FuzzDecodeAnswers(f *testing.F) { answersCodec.fuzz(f) }
