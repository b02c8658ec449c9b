package checkpoint

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

var update = flag.Bool("update", false, "write the golden files")

func meta(index uint64) Meta {
	return Meta{
		Index: index, Term: 3, SnapshotVersion: 1, Configuration: []byte("servers"),
		ConfigurationIndex: 1,
		HeadIndex:          index - 1, Chain: [32]byte{1, 2, 3}, Clock: 1_700_000_000_000,
		Digest:    [16]byte{9, 8, 7},
		ClusterID: "01HGW2N7Q0000000000000000A", CreatedAt: 1_700_000_000_123,
	}
}

type text string

func (s text) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, string(s))
	return int64(n), err
}

// file returns a checkpoint's bytes.
func file(t testing.TB, m Meta, body string) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := newWriter(&b, m)
	must(t, err)
	_, err = io.WriteString(w, body)
	must(t, err)
	must(t, w.close())
	return b.Bytes()
}

// readAll reads a checkpoint's bytes back.
func readAll(b []byte) (Meta, string, error) {
	m, r, err := newReader("test", bytes.NewReader(b))
	if err != nil {
		return m, "", err
	}
	body, err := io.ReadAll(r)
	return m, string(body), err
}

func TestRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, chunkLen - 1, chunkLen, chunkLen + 1, 3*chunkLen + 17} {
		fsys := memdisk.New()
		body := strings.Repeat("x", size)
		want := meta(42)
		must(t, fsys.MkdirAll("/c"))
		must(t, Write(fsys, "/c", want, text(body)))
		got, r, err := Open(fsys, "/c", want.Name())
		must(t, err)
		b, err := io.ReadAll(r)
		assert.True(t, err == nil && string(b) == body,
			"%d bytes: %d came back, %v", size, len(b), err)
		want.Size = int64(len(fsys.Get("/c/" + want.Name())))
		assert.DeepEqual(t, got, want)
		require.NoError(t, r.Close())
	}
}

// The bytes are frozen: a later program must read this file.
func TestGolden(t *testing.T) {
	const name = "testdata/checkpoint-v1.hex"
	b := file(t, meta(42), "the whole live state")
	if *update {
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, []byte(hex.Dump(b)), 0o644))
	}
	want, err := os.ReadFile(name)
	must(t, err)
	assert.Equal(t, cmp.Diff(string(want), hex.Dump(b)), "", "it takes a new version")
}

func TestAnotherVersionIsRefused(t *testing.T) {
	b := file(t, meta(1), "x")
	b[9]++
	_, _, err := readAll(b)
	assert.ErrorContains(t, err, "this program reads only 1")
}

// Every flipped byte is found, and named at or before its offset; no byte of a
// body that does not verify is handed out.
func TestFlippedByte(t *testing.T) {
	body := strings.Repeat("abcdefgh", 40)
	good := file(t, meta(42), body)
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x40
		_, got, err := readAll(b)
		require.True(t, err != nil, "byte %d: not found", i)
		var c *CorruptError
		assert.False(t, errors.As(err, &c) && c.Offset > int64(i), "byte %d: %v", i, err)
		assert.True(t, strings.HasPrefix(body, got), "byte %d: wrong bytes were handed out", i)
	}
	for n := range good {
		corrupt(t, good[:n], "cut to %d bytes", n)
	}
	corrupt(t, append(bytes.Clone(good), 0), "a byte too many")
}

// corrupt fails unless a checkpoint is found to be corrupt.
func corrupt(t *testing.T, b []byte, what ...any) {
	t.Helper()
	_, _, err := readAll(b)
	require.True(t, errors.As(err, new(*CorruptError)), what...)
}

// Chunks that are whole, but not in their place or of another file, are found.
func TestChunksOutOfPlace(t *testing.T) {
	body := strings.Repeat("a", chunkLen) + strings.Repeat("b", chunkLen) + "c"
	b := file(t, meta(42), body)
	head := len(file(t, meta(42), "")) - trailerLen
	one := chunkLen + 8
	swapped := slices.Concat(b[:head], b[head+one:head+2*one], b[head:head+one], b[head+2*one:])
	lost := slices.Concat(b[:head+one], b[head+2*one:])
	twice := slices.Concat(b[:head+one], b[head:])
	foreign := slices.Concat(file(t, meta(43), "")[:head], b[head:])
	for name, bad := range map[string][]byte{"swapped": swapped, "lost": lost, "twice": twice,
		"foreign": foreign} {
		corrupt(t, bad, name)
	}
}

func TestListNewestFirstAndBad(t *testing.T) {
	fsys := memdisk.New()
	metas, bad, err := List(fsys, "/none")
	assert.True(t, metas == nil && bad == nil && err == nil, "%v %v %v", metas, bad, err)
	must(t, fsys.MkdirAll("/c"))
	for _, i := range []uint64{5, 100, 20} {
		must(t, Write(fsys, "/c", meta(i), text("x")))
	}
	m := meta(7)
	fsys.Put("/c/"+m.Name(), []byte("rubbish"))
	m8 := meta(8)
	m9 := meta(9)
	// under a wrong name
	fsys.Put("/c/"+m8.Name(), fsys.Get("/c/"+(&Meta{Index: 5, Term: 3}).Name()))
	fsys.Put("/c/"+m9.Name()+vfs.TempSuffix, []byte("half"))
	metas, bad, err = List(fsys, "/c")
	must(t, err)
	var got []uint64
	for _, m := range metas {
		got = append(got, m.Index)
	}
	assert.EqualSlices(t, got, []uint64{100, 20, 5})
	assert.True(t, len(bad) == 2 && bad[0].Name == m.Name() && bad[1].Name == m8.Name(), "%v", bad)
	must(t, Clean(fsys, "/c"))
	assert.True(t, fsys.Get("/c/"+m9.Name()+vfs.TempSuffix) == nil, "a half written file stays")
	require.NoError(t, vfs.Remove(fsys, "/c", metas[0].Name(), "not there"))
	_, _, err = Open(fsys, "/c", metas[0].Name())
	assert.True(t, err != nil, "a removed one is there")
	_, err = Verify(fsys, "/c", metas[1].Name())
	must(t, err)
}

// A crash anywhere in Write leaves the old file of that name, the new one, or
// none: never one that lists but does not verify.
func TestWriteCrash(t *testing.T) {
	m := meta(42)
	for at := 1; ; at++ {
		for loss := memdisk.LoseAll; loss <= memdisk.LoseRandom; loss++ {
			fsys := memdisk.New()
			must(t, fsys.MkdirAll("/c"))
			must(t, Write(fsys, "/c", m, text("old")))
			fsys.CrashAt(fsys.Ops() + at)
			err := Write(fsys, "/c", m, text(strings.Repeat("new", 1000)))
			if !fsys.Crashed() {
				return
			}
			after := fsys.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), 1)))
			got, verr := Verify(after, "/c", m.Name())
			assert.True(t, verr == nil, "operation %d, loss %d: %v", at, loss, verr)
			assert.True(t, err != nil || got.Size >= 3000,
				"operation %d, loss %d: the new one is written, and the old one there", at, loss)
		}
	}
}

func TestThin(t *testing.T) {
	var metas []Meta
	for i := uint64(1); i <= 500; i++ {
		metas = append([]Meta{{Index: i * 100, HeadIndex: i * 100}}, metas...)
		metas, _ = Thin(metas, Keep)
		require.True(t, len(metas) <= Keep, "%d are kept", len(metas))
		require.True(t, metas[0].Index == i*100 && (i == 1 || metas[1].Index == (i-1)*100) &&
			metas[len(metas)-1].Index == 100, "after %d: %v", i, indexes(metas))
	}
	// No hole is much larger than an even spread would have.
	for i := 1; i < len(metas); i++ {
		hole := metas[i-1].HeadIndex - metas[i].HeadIndex
		assert.True(t, hole <= 3*50_000/Keep, "a hole of %d in %v", hole, indexes(metas))
	}
	_, gone := Thin(metas[:2], 0)
	assert.Equal(t, len(gone), 0, "of the newest two")
	_, gone = Thin(metas[:3], 2)
	assert.True(t, len(gone) == 1 && gone[0].Index == metas[2].Index, "of three: %v", gone)
}

func indexes(metas []Meta) string {
	var out []uint64
	for _, m := range metas {
		out = append(out, m.Index)
	}
	return fmt.Sprint(out)
}

// Whatever the bytes are, the reader ends without a panic, hands out little more
// than it was given, and takes for whole only what a writer wrote.
func FuzzReader(f *testing.F) {
	f.Add(file(f, meta(42), "body"))
	f.Add(file(f, Meta{}, ""))
	f.Add(file(f, meta(1), strings.Repeat("y", 1000)))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, body, err := readAll(b)
		require.True(t, len(body) <= len(b), "%d bytes of body in %d", len(body), len(b))
		if err != nil {
			return
		}
		m2, body2, err := readAll(file(t, m, body))
		require.True(t, err == nil && body2 == body && cmp.Equal(m, m2),
			"not the same again: %v", err)
	})
}

// must fails the test on an error.
var must = require.NoError
