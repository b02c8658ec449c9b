package memdisk

import (
	"bytes"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// both runs a test on the real file system and on its twin.
func both(t *testing.T, test func(t *testing.T, fsys vfs.FS, dir string)) {
	t.Run("OS", func(t *testing.T) { test(t, vfs.OS{}, t.TempDir()) })
	t.Run("Disk", func(t *testing.T) { test(t, New(), "/") })
}

// must fails the test on an error.
var must = require.NoError

func TestTwinsBehaveAlike(t *testing.T) {
	both(t, func(t *testing.T, fsys vfs.FS, dir string) {
		dir = filepath.Join(dir, "a", "b")
		name := filepath.Join(dir, "f")
		_, err := fsys.List(dir)
		wantIs(t, err, fs.ErrNotExist)
		_, err = fsys.Create(name)
		wantIs(t, err, fs.ErrNotExist)
		must(t, fsys.MkdirAll(dir))
		must(t, fsys.MkdirAll(dir))
		_, err = fsys.OpenRead(name)
		wantIs(t, err, fs.ErrNotExist)
		wantIs(t, fsys.Remove(name), fs.ErrNotExist)

		f, err := fsys.Create(name)
		must(t, err)
		_, err = fsys.Create(name)
		wantIs(t, err, fs.ErrExist)
		_, err = f.WriteAt([]byte("hello"), 3)
		must(t, err)
		must(t, f.Sync())
		b := make([]byte, 10)
		n, err := f.ReadAt(b, 0)
		wantIs(t, err, io.EOF)
		require.EqualSlices(t, b[:n], []byte("\x00\x00\x00hello"), "read")
		must(t, f.Truncate(4))
		must(t, f.Truncate(6))
		must(t, f.Close())
		must(t, fsys.SyncDir(dir))

		got, err := vfs.ReadFile(fsys, name)
		must(t, err)
		require.EqualSlices(t, got, []byte("\x00\x00\x00h\x00\x00"), "read")
		r, err := fsys.OpenRead(name)
		must(t, err)
		if _, err := r.WriteAt([]byte("x"), 0); err == nil {
			t.Fatal("wrote through a file opened for reading")
		}
		must(t, r.Close())
		if _, err := r.ReadAt(b, 0); err == nil {
			t.Fatal("read a closed file")
		}

		must(t, vfs.WriteFile(fsys, name, []byte("new")))
		must(t, fsys.Rename(name, name+"2"))
		names, err := fsys.List(dir)
		must(t, err)
		require.EqualSlices(t, names, []string{"f2"}, "list")
		size, err := fsys.Stat(name + "2")
		must(t, err)
		require.Equal(t, size, 3, "bytes")
		if _, real := fsys.(vfs.OS); real {
			for name, mode := range map[string]fs.FileMode{name + "2": 0o600, dir: 0o700} {
				info, err := os.Stat(name)
				must(t, err)
				require.Equal(t, info.Mode().Perm(), mode, "%s has mode %v", name, info.Mode())
			}
		}
		must(t, fsys.Remove(name+"2"))
		_, err = fsys.Stat(name + "2")
		wantIs(t, err, fs.ErrNotExist)
	})
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	require.ErrorIs(t, err, want, "error")
}

func TestOSRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "target"), []byte("x"), 0o600))
	must(t, os.Symlink("target", filepath.Join(dir, "link")))
	if _, err := (vfs.OS{}).OpenReadWrite(filepath.Join(dir, "link")); err == nil {
		t.Fatal("opened through a link")
	}
}

// TestRename shows that a rename is lost or kept as one.
func TestRename(t *testing.T) {
	for seed := range uint64(50) {
		m := New()
		m.Put("old", []byte("1"))
		must(t, m.Rename("old", "new"))
		after := m.Crash(rng(seed))
		require.NotEqual(t, (after.Get("old") == nil), (after.Get("new") == nil),
			"seed %d: old %q, new %q", seed, after.Get("old"), after.Get("new"))
		// Over another file: its bytes or the new ones, never neither.
		m = New()
		m.Put("f", []byte("before"))
		must(t, vfs.WriteFile(m, "f", []byte("after")))
		require.Equal(t, string(m.Crash(rng(seed)).Get("f")), "after", "seed %d", seed)
	}
}

// TestCrashModel: whatever was written, truncated and synced in whatever
// order, every byte after a crash is the synced one or the newest one, and of
// each sector all bytes are from one of the two.
func TestCrashModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := New()
		m.Put("f", nil)
		f, err := m.OpenReadWrite("f")
		must(rt, err)
		var now, synced []byte
		for i := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "do") {
			case 0, 1:
				off := rapid.IntRange(0, 3000).Draw(rt, "off")
				p := bytes.Repeat([]byte{byte(i + 1)}, rapid.IntRange(1, 1500).Draw(rt, "len"))
				if n := off + len(p); n > len(now) {
					now = append(now, make([]byte, n-len(now))...)
				}
				copy(now[off:], p)
				f.WriteAt(p, int64(off))
			case 2:
				size := rapid.IntRange(0, 3000).Draw(rt, "size")
				if size < len(now) {
					now = now[:size:size]
				} else {
					now = append(now, make([]byte, size-len(now))...)
				}
				f.Truncate(int64(size))
			case 3:
				f.Sync()
				synced = slices.Clone(now)
			}
		}
		require.EqualSlices(rt, m.Get("f"), now, "a program does not see what it wrote")
		got := m.Crash(rng(rapid.Uint64().Draw(rt, "seed"))).Get("f")
		lo, hi := min(len(now), len(synced)), max(len(now), len(synced))
		require.True(rt, len(got) >= lo && len(got) <= hi,
			"size %d, not in %d..%d", len(got), lo, hi)
		at := func(b []byte, i int) byte {
			if i < len(b) {
				return b[i]
			}
			return 0
		}
		for s := 0; s < len(got); s += sector {
			isNow, isSynced := true, true
			for i := s; i < min(s+sector, len(got)); i++ {
				isNow = isNow && got[i] == at(now, i)
				isSynced = isSynced && got[i] == at(synced, i)
			}
			require.False(rt, !isNow && !isSynced,
				"sector %d is neither the synced nor the newest", s/sector)
		}
	})
}
