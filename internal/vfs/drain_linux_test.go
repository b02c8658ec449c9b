package vfs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS{}.Create(name)
	must(t, err)
	defer f.Close()
	g, err := OS{}.OpenRead(name)
	must(t, err)
	must(t, os.Remove(name))
	if alone(f) {
		t.Error("alone beside a reader")
	}
	must(t, g.Close())
	for range 2 {
		if !alone(f) {
			t.Error("not alone")
		}
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

func (f *ownFile) alone() bool { return alone(f.File) }

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
