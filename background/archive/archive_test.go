package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// world is a log that grows, and its archive.
type world struct {
	t     *testing.T
	dir   string
	log   *log.Log
	index uint64

	disk vfs.FS
	at   string // the archive's directory on disk
}

func begin(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), disk: vfs.OS{}, at: filepath.Join(t.TempDir(), "archive")}
	var err error
	w.log, err = log.Open(log.Options{Dir: filepath.Join(w.dir, "log"), SegmentSize: 8 << 10})
	must(t, err)
	t.Cleanup(func() { w.log.Close() })
	return w
}

// grow appends blocks until there are n more sealed segments.
func (w *world) grow(n int) {
	w.t.Helper()
	for want := len(w.log.Segments()) + n; len(w.log.Segments()) < max(want, n+1); {
		w.index++
		id := event.NewID(int64(w.index), w.index, 0)
		content := bytes.Repeat([]byte(fmt.Sprintf("secret %d ", w.index)), 60)
		require.NoError(w.t, w.log.Append(&event.Block{Index: w.index, Time: int64(w.index),
			Events: []event.Event{
				{ID: id, Type: event.Enqueued, Subject: id,
					Content: event.EncodeContent(&event.Content{Payload: content})},
			}}))
	}
	must(w.t, w.log.Sync())
}

func (w *world) source() Source {
	return Source{
		FS: vfs.OS{}, LogDir: filepath.Join(w.dir, "log"),
		Checkpoints: filepath.Join(w.dir, "checkpoints"),
		Segments:    w.log.Segments(), RefreshErased: true,
	}
}

func (w *world) archive() *Archive {
	w.t.Helper()
	a, err := OpenFor(w.disk, w.at, "c1", 8<<10)
	must(w.t, err)
	return a
}

func (w *world) write() Written {
	w.t.Helper()
	done, err := w.archive().Write(w.t.Context(), w.source(), nil)
	must(w.t, err)
	return done
}

// sealed is the last index that can be in the archive.
func (w *world) sealed() uint64 {
	s := w.log.Segments()
	return s[len(s)-2].Last
}

// read reads the archive in a directory to its end, and verifies it; the chain there must be the
// log's.
func (w *world) read(dir string) (last uint64, fsys *FS) {
	w.t.Helper()
	a, err := Open(w.disk, w.at)
	must(w.t, err)
	fsys, err = a.Mount(w.t.Context(), dir)
	must(w.t, err)
	o := log.Options{FS: fsys, Dir: path.Join(dir, "log")}
	_, err = log.Verify(w.t.Context(), o, nil)
	must(w.t, err)
	l, err := log.OpenReadOnly(o)
	must(w.t, err)
	defer l.Close()
	for b, err := range l.Blocks(w.t.Context(), 0, math.MaxUint64) {
		must(w.t, err)
		require.True(w.t, b.Index == last+1, "block %d after %d", b.Index, last)
		last = b.Index
		chain, err := w.log.ChainAt(last)
		require.True(w.t, err != nil || chain == b.Chain, "block %d has another chain", last)
	}
	return last, fsys
}

// files returns the files of the archive that hold some bytes.
func (w *world) files(mark string) (in []string) {
	w.t.Helper()
	names, err := w.disk.List(w.at + "/log")
	must(w.t, err)
	for _, name := range names {
		b, err := vfs.ReadFile(w.disk, w.at+"/log/"+name)
		must(w.t, err)
		if bytes.Contains(b, []byte(mark)) {
			in = append(in, name)
		}
	}
	return in
}

// Retention has deleted the log's beginning; the archive has it.
func TestArchiveBeforeADirectory(t *testing.T) {
	w := begin(t)
	w.grow(6)
	w.write()
	older := filepath.Join(t.TempDir(), "older")
	err := fs.ErrNotExist
	for errors.Is(err, fs.ErrNotExist) { // a side file was renamed meanwhile
		must(t, os.RemoveAll(older))
		err = os.CopyFS(older, os.DirFS(w.dir))
	}
	must(t, err)
	w.grow(2)
	must(t, w.log.DeleteBefore(w.log.Segments()[3].First))
	last, _ := w.read(w.dir)
	assert.Equal(t, last, w.index)
	// An old copy of the directory, whose newest segment is only begun.
	w.write()
	w.dir = older
	last, _ = w.read(w.dir)
	assert.Equal(t, last, w.sealed(), "with an old copy")
}

// Wherever a run fails or the machine crashes, what can be seen is whole, and the next run
// completes it, without what was erased meanwhile.
func TestStoppedAnywhere(t *testing.T) {
	w := begin(t)
	w.grow(2)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, crash := range []bool{false, true} {
		for op := 1; ; op++ {
			disk := memdisk.New()
			w.disk = disk
			if crash {
				disk.CrashAt(op)
			} else {
				disk.FailAt(op, errors.New("no space"))
			}
			a, err := OpenFor(w.disk, w.at, "c1", 8<<10)
			if err == nil {
				_, err = a.Write(t.Context(), w.source(), nil)
			}
			if err == nil && disk.Ops() < op {
				break
			}
			assert.True(t, err != nil, "operation %d failed unnoticed", op)
			if crash {
				w.disk = disk.Crash(rng)
			}
			there, err := w.archive().Segments()
			must(t, err)
			if len(there) > 0 {
				w.read(w.at)
			}
			assert.Equal(t, w.write().UpTo, w.sealed(), "operation %d", op)
			last, _ := w.read(w.at)
			assert.Equal(t, last, w.sealed(), "operation %d", op)
			assert.False(t, strings.Contains(fmt.Sprint(w.files("")), tempMark),
				"operation %d: left over: %v", op, w.files(""))
		}
	}
}

// A segment in which contents were erased is archived again, also without its side file; a file that
// an earlier run has not finished goes with it.
func TestErasedSegmentsAreArchivedAgain(t *testing.T) {
	w := begin(t)
	w.grow(3)
	w.write()
	const secret = "secret 2 secret 2"
	require.NotEqual(t, len(w.files(secret)), 0, "the archive does not hold it to begin with")
	s := w.log.Segments()[0]
	must(t, os.WriteFile(w.at+"/log/"+s.Name+tempMark+"x", []byte(secret), 0o600))
	must(t, w.disk.Remove(w.at+"/log/"+s.SideFile))
	must(t, w.log.Erase([]event.Ref{{Index: 2}}))
	done := w.write()
	require.True(t, done.Refreshed == 1 && done.Segments == 0, "%+v", done)
	assert.EqualSlices(t, w.files(secret), nil)
	must(t, w.disk.Remove(w.at+"/log/"+s.SideFile))
	last, _ := w.read(w.at)
	assert.Equal(t, last, w.sealed())
	assert.Equal(t, w.write().Refreshed, 0, "again")
}

func TestAnotherHistoryIsRefused(t *testing.T) {
	w := begin(t)
	w.grow(3)
	w.write()
	_, err := OpenFor(w.disk, w.at, "c2", 8<<10)
	assert.ErrorIs(t, err, ErrOther, "another cluster")
	other := begin(t)
	other.at = w.at
	must(t, other.log.Append(&event.Block{Index: 1, Time: 5}))
	other.index = 1
	other.grow(3)
	_, err = other.archive().Write(t.Context(), other.source(), nil)
	assert.ErrorIs(t, err, ErrOther, "another history")
}

func TestADataDirectoryIsNoArchive(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, datadir.NodeFile), []byte("{}"), 0o600))
	_, err := OpenFor(vfs.OS{}, dir, "c1", 8<<10)
	assert.True(t, err != nil, "a data directory was made an archive")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Equal(t, len(files), 1, "files")
}

// A damaged segment is never archived, and one that was damaged in the archive is found.
func TestDamage(t *testing.T) {
	w := begin(t)
	w.grow(3)
	w.write()
	name := w.at + "/log/" + w.log.Segments()[0].Name
	b, err := vfs.ReadFile(w.disk, name)
	must(t, err)
	b[len(b)/2] ^= 4
	must(t, os.WriteFile(name, b, 0o600))
	fsys, err := w.archive().Mount(t.Context(), w.at)
	must(t, err)
	_, err = log.Verify(t.Context(), log.Options{FS: fsys, Dir: w.at + "/log"}, nil)
	assert.True(t, log.IsDamage(err), "%v", err)
	assert.ErrorContains(t, err, ".seg")
	must(t, os.WriteFile(name, b[:len(b)-1], 0o600))
	_, err = w.archive().Mount(t.Context(), w.at)
	assert.ErrorContains(t, err, "event log is corrupt", "cut off")

	name = filepath.Join(w.dir, "log", w.log.Segments()[1].Name)
	b, err = os.ReadFile(name)
	must(t, err)
	b[len(b)/2] ^= 1
	must(t, os.WriteFile(name, b, 0o600))
	w.at = filepath.Join(t.TempDir(), "archive")
	done, err := w.archive().Write(t.Context(), w.source(), nil)
	assert.True(t, log.IsDamage(err) && done.Segments == 1, "%+v, %v", done, err)
}

// History that is missing is named, in the archive and between it and a directory.
func TestMissingHistory(t *testing.T) {
	check := func(w *world, dir string, first uint64) {
		t.Helper()
		fsys, err := w.archive().Mount(t.Context(), dir)
		require.True(t, err == nil && strings.Contains(fsys.Missing, "history is missing"),
			"%q, %v", fsys.Missing, err)
		l, err := log.OpenReadOnly(log.Options{FS: fsys, Dir: path.Join(dir, "log")})
		must(t, err)
		defer l.Close()
		require.Equal(t, l.First(), first)
	}
	w := begin(t)
	w.grow(6)
	src := w.source()
	all := src.Segments
	src.Segments = all[:4]
	_, err := w.archive().Write(t.Context(), src, nil)
	must(t, err)
	must(t, w.log.DeleteBefore(all[5].First))
	check(w, w.dir, all[5].First)
	must(t, w.disk.Remove(w.at+"/log/"+all[1].Name))
	check(w, w.at, all[2].First)
}

// What is erased goes from the archive too: from segments that the log has, from those that only the
// archive has, and from a copy that a crash has left unfinished, which is in no archived segment.
func TestEraseReachesTheArchive(t *testing.T) {
	w := begin(t)
	w.grow(6)
	w.write()
	w.grow(1)
	seg := w.log.Segments()
	old, kept, unfinished := seg[1].First, seg[4].First, seg[6].First
	copied, err := os.ReadFile(filepath.Join(w.dir, "log", seg[6].Name))
	must(t, err)
	must(t, os.WriteFile(w.at+"/log/"+seg[6].Name+tempMark+"CRASHED", copied, 0o600))
	var marks []string
	for _, index := range []uint64{old, kept, unfinished} {
		marks = append(marks, fmt.Sprintf("secret %d ", index))
	}
	for _, m := range marks {
		require.Equal(t, len(w.files(m)), 1, "%q was not found before: %v", m, w.files(m))
	}
	must(t, w.log.DeleteBefore(seg[3].First))
	refs := []event.Ref{
		{Index: kept}, {Index: unfinished}, {Index: old}, {Index: old}, {Index: w.index + 100},
	}
	must(t, w.log.Erase(refs[:2]))
	ctx := t.Context()
	for want := 2; want >= 0; want -= 2 { // twice is as good as once
		n, err := w.archive().Erase(ctx, refs)
		assert.True(t, n == want && err == nil, "%d erased, %v", n, err)
	}
	for _, m := range marks {
		assert.EqualSlices(t, w.files(m), nil, "%q is still there", m)
	}
	assert.Equal(t, len(w.files("secret ")), 6, "other segments: %v", w.files("secret "))
	last, fsys := w.read(w.dir)
	assert.True(t, last == w.index && fsys.Missing == "", "the whole ends at %d, not %d; %s", last,
		w.index, fsys.Missing)
	last, _ = w.read(w.at)
	assert.Equal(t, last, seg[5].Last, "the archive's end")
}

func TestCheckDir(t *testing.T) {
	for _, name := range []string{"/a/b", "relative"} {
		assert.NoError(t, CheckDir(name), "%s", name)
	}
	for _, name := range []string{"", "gs://x", "s3://bucket/prefix", "s3://id:secret@bucket/x"} {
		err := CheckDir(name)
		assert.True(t, err != nil && !strings.Contains(err.Error(), "secret"), "%q: %v", name, err)
	}
}

// must fails the test on an error.
var must = require.NoError

func TestWhatAnArchiveHas(t *testing.T) {
	all := make([]log.SegmentInfo, 6) // segment i is index 10i+1 to 10i+10
	for i := range all {
		all[i] = log.SegmentInfo{First: uint64(10*i + 1), Last: uint64(10*i + 10),
			PrevIndex: uint64(10 * i), Chain: [32]byte{byte(i + 1)}, Sealed: i < 5}
	}
	for _, c := range []struct {
		name        string
		mine, there []log.SegmentInfo
		since, upTo uint64
	}{
		{"nothing", all, nil, 0, 0},
		{"the beginning", all, all[:2], 0, 20},
		{"all that is sealed", all, all[:5], 0, 50},
		{"not the active one", all, all, 0, 50},
		{"more than the log still has", all[3:], all[:5], 0, 50},
		// The leader had deleted its first two before it began to archive.
		{"less than the log still has", all, all[2:4], 20, 40},
		{"a hole", all, append(all[:1:1], all[2:4]...), 0, 10},
	} {
		since, upTo := archived(c.mine, c.there)
		assert.True(t, since == c.since && upTo == c.upTo, "%s: behind %d up to %d", c.name, since,
			upTo)
	}
}
