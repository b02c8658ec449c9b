package event

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// groupCodec takes what is in the golden file, and no more.
var groupCodec = codec[[]Forwarded]{"groups",
	func(g *[]Forwarded) []byte { return AppendGroup([]byte("before"), *g)[len("before"):] },
	func(b []byte) (*[]Forwarded, error) {
		g, err := DecodeGroup(b, 2, 21)
		return &g, err
	}}

func TestGoldenGroups(t *testing.T) {
	groupCodec.golden(t, func(name string, g *[]Forwarded, b []byte) {
		assert.Equal(t, GroupSize(*g), len(b), "%s: bytes foretold", name)
		for i := range b {
			flipped := bytes.Clone(b)
			flipped[i] ^= 4
			for _, bad := range [][]byte{b[:i], flipped} {
				_, err := DecodeGroup(bad, 2, 1000)
				assert.True(t, err != nil, "%s is taken, cut or flipped at byte %d", name, i)
			}
		}
	})
}

// TestGroupLimits: what is over a limit is refused, whatever its sum says.
func TestGroupLimits(t *testing.T) {
	ok := Forwarded{Class: ClassProduce, Weight: 1, Data: []byte{Version, 1, 2}}
	for name, c := range map[string]struct {
		group []Forwarded
		want  string
	}{
		"nothing":       {nil, "0 commands"},
		"too many":      {[]Forwarded{ok, ok, ok}, "3 commands"},
		"too large":     {[]Forwarded{{Data: []byte{Version, 1, 2, 3}}}, "has 4 bytes"},
		"no class":      {[]Forwarded{ok, {Class: Classes, Data: ok.Data}}, "class 4"},
		"empty":         {[]Forwarded{{}}, "another version"},
		"other version": {[]Forwarded{{Data: []byte{Version + 1}}}, "another version"},
	} {
		if _, err := DecodeGroup(AppendGroup(nil, c.group), 2, 3); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	claim := func(count, length uint32) []byte {
		b := append([]byte{Version}, 0, 0, 0, 0)
		binary.BigEndian.PutUint32(b[1:], count)
		b = append(b, 0, 0, 0, 0, 1)
		b = binary.BigEndian.AppendUint32(b, length)
		b = append(b, Version)
		return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	}
	for _, b := range [][]byte{claim(1<<32-1, 1), claim(2, 1), claim(1, 1<<32-1), claim(1, 2)} {
		if _, err := DecodeGroup(b, 1<<30, 1<<30); err == nil {
			t.Errorf("%x is taken", b)
		}
	}
}

func FuzzDecodeGroup(f *testing.F) {
	codec[[]Forwarded]{"groups", func(g *[]Forwarded) []byte {
		return AppendGroup(nil, *g)
	}, func(b []byte) (*[]Forwarded, error) {
		if len(b) >= groupTail { // else hardly anything would pass
			b = b[: len(b)-groupTail : len(b)-groupTail]
			b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
		}
		g, err := DecodeGroup(b, 1000, 1<<20)
		return &g, err
	}}.fuzz(f)
}
