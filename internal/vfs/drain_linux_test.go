package vfs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestSole(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS{}.Create(name)
	must(t, err)
	defer f.Close()
	sole := func(names uint64) bool { return f.(soler).sole(names) }
	if !sole(1) || sole(0) || sole(2) {
		t.Error("it has one name")
	}
	must(t, os.Link(name, name+".backup"))
	if sole(1) {
		t.Error("sole beside a backup's name")
	}
	must(t, os.Remove(name+".backup"))
	g, err := OS{}.OpenRead(name)
	must(t, err)
	must(t, os.Remove(name))
	if nameless(f) {
		t.Error("sole beside a reader")
	}
	must(t, g.Close())
	for range 2 {
		if !nameless(f) {
			t.Error("not sole")
		}
	}
}

// A backup may be made of hard links.
func TestDrainLeavesABackupWhole(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS{}.Create(name)
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(35))
	must(t, os.Link(name, name+".backup"))
	must(t, Drain(f, 10, func(time.Duration) { t.Error("a piece is gone") }))
	must(t, os.Remove(name+".backup"))
	pieces := 0
	must(t, Drain(f, 10, func(time.Duration) { pieces++ }))
	if pieces != 3 {
		t.Errorf("%d pieces", pieces)
	}
}

// What somebody still reads stays whole.
func TestReleaseBesideAReader(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS{}.Create(name)
	must(t, err)
	const size = 3*DrainPiece + 1
	must(t, f.Truncate(size))
	g, err := OS{}.OpenRead(name)
	must(t, err)
	defer g.Close()
	must(t, os.Remove(name))
	Release(f)
	if _, err := f.Size(); err == nil {
		t.Error("it is still open")
	}
	if now, err := g.Size(); err != nil || now != size {
		t.Errorf("%d bytes are left, %v", now, err)
	}
}

// ownFile is a file that nobody else has open.
type ownFile struct {
	File
	sizes  []int64
	closed chan struct{}
}

func (f *ownFile) sole(names uint64) bool { return f.File.(soler).sole(names) }

func (f *ownFile) Truncate(size int64) error {
	f.sizes = append(f.sizes, size)
	return f.File.Truncate(size)
}

func (f *ownFile) Close() error {
	defer close(f.closed)
	return f.File.Close()
}

func TestReleaseInPieces(t *testing.T) {
	for size, want := range map[int64][]int64{
		DrainPiece:       nil,
		2*DrainPiece + 5: {2 * DrainPiece, DrainPiece},
	} {
		name := filepath.Join(t.TempDir(), "f")
		raw, err := OS{}.Create(name)
		must(t, err)
		f := &ownFile{File: raw, closed: make(chan struct{})}
		must(t, raw.Truncate(size))
		must(t, os.Remove(name))
		Release(f)
		<-f.closed
		if !slices.Equal(f.sizes, want) {
			t.Errorf("%d bytes go by %v, not %v", size, f.sizes, want)
		}
	}
}
