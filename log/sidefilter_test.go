package log

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/qlogd/qlogd/log/vfs"
)

// countingFS counts what is read of side files and segments.
type countingFS struct {
	vfs.FS
	reads atomic.Int64
}

type countedFile struct {
	vfs.File
	reads *atomic.Int64
}

func (f countedFile) ReadAt(b []byte, off int64) (int, error) {
	f.reads.Add(1)
	return f.File.ReadAt(b, off)
}

func (c *countingFS) OpenRead(name string) (vfs.File, error) {
	f, err := c.FS.OpenRead(name)
	if err != nil {
		return nil, err
	}
	return countedFile{f, &c.reads}, nil
}

// TestFilters: a filter says yes to each key that its segment has, and to few
// others, whatever their number.
func TestFilters(t *testing.T) {
	rng := testRand(5)
	for _, n := range []int{0, 1, 2, 3, 5, 17, 100, 3000, 50_000} {
		var hashes [3][]uint64
		for i := range n {
			hashes[tableSubjects] = append(hashes[tableSubjects], keyHash(key("subject %d", i)))
			if i%3 == 0 {
				hashes[tableAliases] = append(hashes[tableAliases], rng.Uint64())
			}
		}
		if n > 100 { // keys that collide have an entry each
			hashes[tableSubjects][7] = hashes[tableSubjects][8]
		}
		kept := [3][]uint64{tableSubjects: append([]uint64(nil), hashes[tableSubjects]...), tableAliases: append([]uint64(nil), hashes[tableAliases]...)}
		b := appendFilters(nil, hashes)
		s := &sideIndex{}
		end, err := s.loadFilters(bytes.NewReader(b), 0, int64(len(b)))
		must(t, err)
		if end != int64(len(b)) {
			t.Fatalf("%d keys: they end at %d of %d bytes", n, end, len(b))
		}
		if n == 50_000 && float64(s.filters[tableSubjects].length) > 1.25*50_000 {
			t.Errorf("%d bytes for 50,000 keys", s.filters[tableSubjects].length)
		}
		for table, hashes := range kept {
			f := &s.filters[table]
			if f.length == 0 {
				if len(hashes) > 0 {
					t.Fatalf("%d keys: no filter", len(hashes))
				}
				continue
			}
			loaded, err := f.read(bytes.NewReader(b))
			must(t, err)
			for _, h := range hashes {
				if !loaded.Contains(h) {
					t.Fatalf("%d keys: a wrong no", len(hashes))
				}
			}
			wrong := 0
			for range 20_000 {
				if loaded.Contains(rng.Uint64()) {
					wrong++
				}
			}
			if wrong > 200 { // 78 of 20,000 are to be expected
				t.Errorf("%d keys: %d wrong yes of 20,000", len(hashes), wrong)
			}
		}
	}
}

// TestLookUpReadsWhatHasTheKey: looking up a key reads the segments that have
// it, however many there are, once the filters are in memory.
func TestLookUpReadsWhatHasTheKey(t *testing.T) {
	fs := &countingFS{FS: vfs.NewMem()}
	l := mustOpen(t, Options{FS: fs, Dir: dir, SegmentSize: 2 << 10, inline: true})
	defer l.Close()
	index := uint64(0)
	add := func(name string) Ref {
		index++
		r := rec(name, strings.Repeat("x", 100))
		r.Alias = key("alias of %s", name)
		appendAll(t, l, block(index, r))
		return Ref{index, 0}
	}
	first := add("the one")
	for i := 0; len(l.Segments()) < 300; i++ {
		add(strings.Repeat("y", i%7) + string(rune('a'+i%26)) + strings.Repeat("z", i/26%50))
	}
	look := func() {
		t.Helper()
		if ref, ok, err := l.LastSince(key("the one"), 1); err != nil || !ok || ref != first {
			t.Fatalf("%v %v %v", ref, ok, err)
		}
		if ref, ok, err := l.FindAlias(key("alias of the one"), 0); err != nil || !ok || ref != first {
			t.Fatalf("%v %v %v", ref, ok, err)
		}
	}
	look() // reads the filters
	before := fs.reads.Load()
	look()
	// A page and a record each, and a few of the 600 segments' filters say yes
	// wrongly.
	if n := fs.reads.Load() - before; n > 4+12 {
		t.Errorf("%d reads for two keys that one of %d segments has", n, len(l.Segments()))
	}
	before = fs.reads.Load()
	if _, ok, err := l.Last(key("nobody")); ok || err != nil {
		t.Fatal(ok, err)
	}
	if n := fs.reads.Load() - before; n > 12 {
		t.Errorf("%d reads for a key that no segment has", n)
	}
}

// TestVerifyFindsAFilterThatHidesAKey: a filter with all checksums right that
// does not know a key of its segment is found.
func TestVerifyFindsAFilterThatHidesAKey(t *testing.T) {
	disk := frozenDisk(t, "v2.idx")
	name := dir + "/" + sideName(1)
	b := disk.Get(name)
	s, err := loadSide(bytes.NewReader(b), int64(len(b)), sideName(1))
	must(t, err)
	must(t, verifyAll(disk))
	// Another segment's filters.
	forged := appendFilters(append([]byte(nil), b[:s.filters[tableSubjects].off-filterHeadsSize]...),
		[3][]uint64{tableSubjects: {1, 2, 3}, tableAliases: {4}})
	disk.Put(name, forged)
	if err := verifyAll(disk); err == nil || !strings.Contains(err.Error(), "filter") {
		t.Errorf("another segment's filters: %v", err)
	}
	flipped := append([]byte(nil), b...)
	flipped[len(b)-1] ^= 1
	disk.Put(name, flipped)
	if err := verifyAll(disk); err == nil {
		t.Error("a flipped fingerprint was not found")
	}
	l, err := OpenReadOnly(Options{FS: disk, Dir: dir})
	must(t, err)
	defer l.Close()
	if _, _, err := l.FindAlias(key("an alias"), 0); err == nil || !strings.Contains(err.Error(), "filter") {
		t.Errorf("a flipped fingerprint was believed: %v", err)
	}
}

func verifyAll(disk *vfs.Mem) error {
	_, err := Verify(context.Background(), Options{FS: disk, Dir: dir}, 0, nil)
	return err
}
