package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/vfs"
)

// world is a log that grows, and a store.
type world struct {
	t     *testing.T
	dir   string
	log   *log.Log
	store Store
	index uint64
}

func begin(t *testing.T, store Store) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), store: store}
	var err error
	if w.log, err = log.Open(log.Options{Dir: filepath.Join(w.dir, "log"), SegmentSize: 8 << 10}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.log.Close() })
	return w
}

// grow appends blocks until there are n more sealed segments.
func (w *world) grow(n int) {
	w.t.Helper()
	for want := len(w.log.Segments()) + n; len(w.log.Segments()) < max(want, n+1); {
		w.index++
		var id [16]byte
		binary.BigEndian.PutUint64(id[8:], w.index)
		content := bytes.Repeat([]byte(fmt.Sprintf("secret %d ", w.index)), 60)
		if err := w.log.Append(&log.Block{Index: w.index, Time: int64(w.index), Records: []log.Record{
			{ID: id, Subject: id, Header: []byte("header"), Content: content, Digest: sha256.Sum256(content)},
		}}); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.log.Sync(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) source() Source {
	return Source{FS: vfs.OS{}, LogDir: filepath.Join(w.dir, "log"), Checkpoints: filepath.Join(w.dir, "checkpoints"), Segments: w.log.Segments()}
}

func (w *world) archive() *Archive {
	w.t.Helper()
	a, err := OpenFor(w.t.Context(), w.store, "c1", 8<<10)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) write() Written {
	w.t.Helper()
	done, err := w.archive().Write(w.t.Context(), w.source())
	if err != nil {
		w.t.Fatal(err)
	}
	return done
}

// sealed is the last index that can be in the archive.
func (w *world) sealed() uint64 {
	s := w.log.Segments()
	return s[len(s)-2].Last
}

// read reads a mounted archive to its end, and verifies it; the chain there
// must be the log's.
func (w *world) read(base vfs.FS) (last uint64, fsys *FS) {
	w.t.Helper()
	a, err := Open(w.t.Context(), w.store)
	if err != nil {
		w.t.Fatal(err)
	}
	dir := "virtual"
	if base != nil {
		dir = w.dir
	}
	fsys, err = a.Mount(w.t.Context(), base, dir)
	if err != nil {
		w.t.Fatal(err)
	}
	o := log.Options{FS: fsys, Dir: path.Join(dir, "log")}
	if _, err := log.Verify(w.t.Context(), o, 0, nil); err != nil {
		w.t.Fatal(err)
	}
	l, err := log.OpenReadOnly(o)
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	r := l.Blocks(0)
	for {
		b, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if b.Index != last+1 {
			w.t.Fatalf("block %d after %d", b.Index, last)
		}
		last = b.Index
		if chain, err := w.log.ChainAt(last); err == nil && chain != b.Chain {
			w.t.Fatalf("block %d has another chain", last)
		}
	}
	return last, fsys
}

func stores(t *testing.T, test func(t *testing.T, s Store)) {
	t.Run("directory", func(t *testing.T) { test(t, NewDir(filepath.Join(t.TempDir(), "a", "b"))) })
}

func TestArchiveHasWhatIsSealed(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, s)
		if _, err := Open(t.Context(), s); !errors.Is(err, ErrNone) {
			t.Fatalf("nothing there: %v", err)
		}
		w.grow(4)
		if done := w.write(); done.Segments != 4 || done.UpTo != w.sealed() {
			t.Errorf("%+v", done)
		}
		if done := w.write(); done.Segments != 0 || done.UpTo != w.sealed() || done.Bytes != 0 {
			t.Errorf("again: %+v", done)
		}
		w.grow(2)
		if done := w.write(); done.Segments != 2 {
			t.Errorf("more: %+v", done)
		}
		if last, fsys := w.read(nil); last != w.sealed() || fsys.Missing != "" {
			t.Errorf("the archive ends at %d, not %d; %s", last, w.sealed(), fsys.Missing)
		}
	})
}

// Retention has deleted the log's beginning; the archive has it.
func TestArchiveBeforeADirectory(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, s)
		w.grow(6)
		w.write()
		older := filepath.Join(t.TempDir(), "older")
		if err := os.CopyFS(older, os.DirFS(w.dir)); err != nil {
			t.Fatal(err)
		}
		w.grow(2)
		if err := w.log.DeleteBefore(w.log.Segments()[3].First); err != nil {
			t.Fatal(err)
		}
		if last, _ := w.read(vfs.OS{}); last != w.index {
			t.Errorf("it ends at %d, not %d", last, w.index)
		}
		// An old copy of the directory, whose newest segment is only begun.
		w.write()
		now := w.dir
		w.dir = older
		if last, _ := w.read(vfs.OS{}); last != w.sealed() {
			t.Errorf("with an old copy it ends at %d, not %d", last, w.sealed())
		}
		w.dir = now
	})
}

// failing fails, or harms, the nth Put.
type failing struct {
	Store
	puts, at int
	how      string
}

var errPulled = errors.New("the plug was pulled")

func (f *failing) Put(ctx context.Context, name string, r io.Reader, size int64) error {
	if f.puts++; f.puts != f.at {
		return f.Store.Put(ctx, name, r, size)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	switch f.how {
	case "before":
		return errPulled
	case "after":
		return errors.Join(f.Store.Put(ctx, name, bytes.NewReader(b), size), errPulled)
	case "half": // a store that does not keep its word
		return errors.Join(f.Store.Put(ctx, name, bytes.NewReader(b[:len(b)/2]), int64(len(b)/2)), errPulled)
	}
	b[len(b)/2] ^= 1
	return f.Store.Put(ctx, name, bytes.NewReader(b), size)
}

// Wherever a run is stopped, what can be seen is whole, and the next run
// completes it.
func TestStoppedAnywhere(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, nil)
		w.grow(3)
		for _, how := range []string{"before", "after", "half", "flip"} {
			for at := 2; ; at++ {
				f := &failing{at: at, how: how, Store: s}
				f.Store = NewDir(filepath.Join(s.(*Dir).path, fmt.Sprint(how, at)))
				w.store = f
				_, err := w.archive().Write(t.Context(), w.source())
				if f.puts < at {
					if err != nil {
						t.Fatal(err)
					}
					break
				}
				if err == nil {
					t.Errorf("%s at put %d was not noticed", how, at)
				}
				w.store = f.Store
				if how == "before" || how == "after" {
					// A card itself is only half there where the store breaks its word.
					if cards, err := w.archive().Segments(t.Context()); err != nil {
						t.Fatal(err)
					} else if len(cards) > 0 {
						w.read(nil)
					}
				}
				if how == "half" || how == "flip" {
					// What such a store did to a card an operator has to mend; of
					// bytes the next run sees it.
					objects, err := w.store.List(t.Context(), "log/")
					if err != nil {
						t.Fatal(err)
					}
					broken := false
					for _, o := range objects {
						if strings.HasSuffix(o.Name, ".json") {
							_, err := w.archive().card(t.Context(), o.Name)
							broken = broken || err != nil
						}
					}
					if broken {
						continue
					}
				}
				if done := w.write(); done.UpTo != w.sealed() {
					t.Errorf("%s at put %d: %+v", how, at, done)
				}
				if last, _ := w.read(nil); last != w.sealed() {
					t.Errorf("%s at put %d: it ends at %d", how, at, last)
				}
			}
		}
	})
}

func TestErasedSegmentsAreArchivedAnew(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, s)
		w.grow(3)
		w.write()
		secret := []byte("secret 2 secret 2")
		if !w.holds(secret) {
			t.Fatal("the archive does not hold it to begin with")
		}
		if err := w.log.Erase([]log.Ref{{Index: 2}}); err != nil {
			t.Fatal(err)
		}
		src := w.source()
		src.RefreshErased = true
		done, err := w.archive().Write(t.Context(), src)
		if err != nil || done.Refreshed != 1 || done.Segments != 0 {
			t.Fatalf("%+v, %v", done, err)
		}
		if w.holds(secret) {
			t.Error("it is still there")
		}
		if last, _ := w.read(nil); last != w.sealed() {
			t.Errorf("it ends at %d", last)
		}
		if done, err = w.archive().Write(t.Context(), src); err != nil || done.Refreshed != 0 {
			t.Errorf("again: %+v, %v", done, err)
		}
	})
}

// keeping is a store that deletes nothing.
type keeping struct{ Store }

func (keeping) Delete(context.Context, string) error { return errPulled }

// A refresh that was stopped once the card was written has left what was to be
// erased: the next one sees to it.
func TestErasedBytesGoAlsoAfterAStop(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, keeping{s})
		w.grow(3)
		w.write()
		if err := w.log.Erase([]log.Ref{{Index: 2}}); err != nil {
			t.Fatal(err)
		}
		src := w.source()
		src.RefreshErased = true
		if _, err := w.archive().Write(t.Context(), src); !errors.Is(err, errPulled) {
			t.Fatal(err)
		}
		w.store = s
		if _, err := w.archive().Write(t.Context(), src); err != nil {
			t.Fatal(err)
		}
		if w.holds([]byte("secret 2 secret 2")) {
			t.Error("it is still there")
		}
		if last, _ := w.read(nil); last != w.sealed() {
			t.Errorf("it ends at %d", last)
		}
	})
}

// holds reports whether some bytes are anywhere in the store.
func (w *world) holds(what []byte) bool {
	w.t.Helper()
	return len(w.objects(string(what))) > 0
}

// objects returns those in which some bytes are.
func (w *world) objects(mark string) (in []string) {
	w.t.Helper()
	objects, err := w.store.List(w.t.Context(), "log/")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range objects {
		r, err := w.store.Get(w.t.Context(), o.Name, 0, -1)
		if err != nil {
			w.t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			w.t.Fatal(err)
		}
		if bytes.Contains(b, []byte(mark)) {
			in = append(in, o.Name)
		}
	}
	return in
}

func TestAnotherHistoryIsRefused(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, s)
		w.grow(3)
		w.write()
		if _, err := OpenFor(t.Context(), s, "c2", 8<<10); !errors.Is(err, ErrOther) {
			t.Errorf("another cluster: %v", err)
		}
		other := begin(t, s)
		if err := other.log.Append(&log.Block{Index: 1, Time: 5}); err != nil {
			t.Fatal(err)
		}
		other.index = 1
		other.grow(3)
		if _, err := other.archive().Write(t.Context(), other.source()); !errors.Is(err, ErrOther) {
			t.Errorf("another history: %v", err)
		}
	})
}

func TestDamagedArchiveIsNotServed(t *testing.T) {
	dir := t.TempDir()
	w := begin(t, NewDir(dir))
	w.grow(3)
	w.write()
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	body, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	body[rand.IntN(len(body)-8<<9)+8<<8] ^= 4
	if err := os.WriteFile(segments[0], body, 0o600); err != nil {
		t.Fatal(err)
	}
	a := w.archive()
	fsys, err := a.Mount(t.Context(), nil, "x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = log.Verify(t.Context(), log.Options{FS: fsys, Dir: "x/log"}, 0, nil)
	if c, ok := errors.AsType[*log.CorruptionError](err); !ok || !strings.Contains(c.Error(), ".seg") {
		t.Errorf("%v", err)
	}
}

// A damaged segment is never archived.
func TestDamagedLogIsNotArchived(t *testing.T) {
	w := begin(t, NewDir(t.TempDir()))
	w.grow(3)
	name := filepath.Join(w.dir, "log", w.log.Segments()[1].Name)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	done, err := w.archive().Write(t.Context(), w.source())
	if _, ok := errors.AsType[*log.CorruptionError](err); !ok || done.Segments != 1 {
		t.Errorf("%+v, %v", done, err)
	}
}

// The directory begins after where the archive ends.
func TestMissingHistoryBeforeADirectoryIsTold(t *testing.T) {
	w := begin(t, NewDir(t.TempDir()))
	w.grow(6)
	src := w.source()
	all := src.Segments
	src.Segments = all[:3]
	if _, err := w.archive().Write(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	if err := w.log.DeleteBefore(all[5].First); err != nil {
		t.Fatal(err)
	}
	fsys, err := w.archive().Mount(t.Context(), vfs.OS{}, w.dir)
	if err != nil || !strings.Contains(fsys.Missing, "history is missing") {
		t.Fatalf("%q, %v", fsys.Missing, err)
	}
	l, err := log.OpenReadOnly(log.Options{FS: fsys, Dir: filepath.Join(w.dir, "log")})
	if err != nil || l.First() != all[5].First {
		t.Fatalf("it begins at %d: %v", l.First(), err)
	}
	l.Close()
}

func TestMissingHistoryIsTold(t *testing.T) {
	s := NewDir(t.TempDir())
	w := begin(t, s)
	w.grow(5)
	w.write()
	gone := w.log.Segments()[2]
	if err := s.Delete(t.Context(), cardName(logFolder, gone.Name)); err != nil {
		t.Fatal(err)
	}
	fsys, err := w.archive().Mount(t.Context(), nil, "x")
	if err != nil || !strings.Contains(fsys.Missing, "history is missing") {
		t.Fatalf("%q, %v", fsys.Missing, err)
	}
	l, err := log.OpenReadOnly(log.Options{FS: fsys, Dir: "x/log"})
	if err != nil || l.First() != gone.Last+1 {
		t.Fatalf("it begins at %d: %v", l.First(), err)
	}
	l.Close()
}

// What is erased goes from the archive too: from segments that the log has, and
// from those that only the archive has.
func TestEraseReachesTheArchive(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, s)
		w.grow(6)
		w.write()
		seg := w.log.Segments()
		old, kept := seg[1].First, seg[4].First
		marks := map[uint64]string{old: fmt.Sprintf("secret %d ", old), kept: fmt.Sprintf("secret %d ", kept)}
		for _, m := range marks {
			if len(w.objects(m)) != 1 {
				t.Fatalf("%q was not found before: %v", m, w.objects(m))
			}
		}
		if err := w.log.DeleteBefore(seg[3].First); err != nil {
			t.Fatal(err)
		}
		refs := []log.Ref{{Index: old}, {Index: kept}, {Index: old}, {Index: w.index + 100}}
		if err := w.log.Erase(refs[1:2]); err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if n, err := w.archive().Refresh(ctx, w.source(), refs); n != 1 || err != nil {
			t.Errorf("%d refreshed, %v", n, err)
		}
		if len(w.objects(marks[kept])) > 0 || len(w.objects(marks[old])) == 0 {
			t.Error("refreshed is not what the log has")
		}
		for want := 1; want >= 0; want-- { // twice is as good as once
			if n, err := w.archive().Erase(ctx, w.source(), refs); n != want || err != nil {
				t.Errorf("%d erased, %v", n, err)
			}
		}
		for _, m := range marks {
			if in := w.objects(m); len(in) > 0 {
				t.Errorf("%q is still in %v", m, in)
			}
		}
		if len(w.objects("secret ")) != 6 {
			t.Errorf("other segments: %v", w.objects("secret "))
		}
		if last, fsys := w.read(vfs.OS{}); last != w.index || fsys.Missing != "" {
			t.Errorf("the whole ends at %d, not %d; %s", last, w.index, fsys.Missing)
		}
		if last, _ := w.read(nil); last != seg[5].Last {
			t.Errorf("the archive ends at %d, not %d", last, seg[5].Last)
		}
	})
}

// A run that was stopped before its card has left bytes that no card names.
func TestLeftoversGoWithTheCard(t *testing.T) {
	stores(t, func(t *testing.T, s Store) {
		w := begin(t, s)
		w.grow(2)
		f := &failing{Store: s, at: 4, how: "before"} // about, side file, bytes, card
		w.store = f
		a := w.archive()
		if _, err := a.Write(t.Context(), w.source()); !errors.Is(err, errPulled) {
			t.Fatal(err)
		}
		w.store = s
		mark := fmt.Sprintf("secret %d ", 2)
		if len(w.objects(mark)) != 1 {
			t.Fatal("nothing was left")
		}
		if err := w.log.Erase([]log.Ref{{Index: 2}}); err != nil {
			t.Fatal(err)
		}
		w.write()
		if in := w.objects(mark); len(in) > 0 {
			t.Errorf("still in %v", in)
		}
	})
}

func TestNewStore(t *testing.T) {
	for _, name := range []string{"/a/b", "relative"} {
		if _, err := NewStore(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"", "gs://x", "s3://bucket/prefix", "s3://id:secret@bucket/x"} {
		if _, err := NewStore(name); err == nil {
			t.Errorf("%q was accepted", name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
}
