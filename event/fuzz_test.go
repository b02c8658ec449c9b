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
func fuzz[T any](f *testing.F, golden string, decode func([]byte) (T, error), encode func(T) []byte) {
	for _, b := range goldenBytes(f, golden) {
		f.Add(b)
	}
	f.Add([]byte{})
	f.Add([]byte{Version, 0xdf, 0xff, 0xff, 0xff, 0xff})                                        // a map of 2^32 fields
	f.Add([]byte{Version, 0x81, 0xa1, 'd', 0xdd, 0xff, 0xff, 0xff, 0xff})                       // a list of 2^32
	f.Add([]byte{Version, 0x81, 0xa1, 'b', 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'})                  // a string of 4 GiB
	f.Add([]byte{Version, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0}) // an entry of 2^32 commands
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v, err := decode(b)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 8<<20+uint64(len(b))*1024 {
			t.Fatalf("%d bytes took %d bytes of memory", len(b), n)
		}
		if err != nil {
			return
		}
		once := encode(v)
		again, err := decode(once)
		require.NoError(t, err, "what was taken is refused when written anew")
		if twice := encode(again); !bytes.Equal(once, twice) {
			t.Fatalf("written %x, then %x", once, twice)
		}
	})
}

func FuzzDecodeCommand(f *testing.F) { fuzz(f, "commands", DecodeCommand, EncodeCommand) }

func FuzzDecodeHeader(f *testing.F) {
	fuzz(f, "headers", func(b []byte) (*Event, error) {
		e := &Event{}
		if err := DecodeHeader(b, e); err != nil {
			return nil, err
		}
		return e, nil
	}, EncodeHeader)
}

func FuzzDecodeContent(f *testing.F) {
	fuzz(f, "contents", DecodeContent, func(c *Content) []byte { return EncodeContent(c).Bytes })
}

func FuzzDecodeEntry(f *testing.F) { fuzz(f, "entries", DecodeEntry, (*Entry).Encode) }

func FuzzDecodeResult(f *testing.F) { fuzz(f, "results", DecodeResult, EncodeResult) }

func FuzzDecodePolicy(f *testing.F) { fuzz(f, "policies", DecodePolicy, EncodePolicy) }
