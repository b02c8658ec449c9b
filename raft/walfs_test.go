package raft

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/vfs"
)

// directTestAfter lets a log of a test go past the page cache in the middle of its
// first segment.
const directTestAfter = 10

// logOn opens the Raft log alone on a disk.
func logOn(t testing.TB, disk vfs.FS, size int, faults faults) (*logStore, error) {
	t.Helper()
	o := on(disk)
	o.SegmentBytes, o.Machine = size, noMachine{}
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.MkdirAll(o.Dir); err != nil {
		return nil, err
	}
	s, err := openLog(o, faults, func() uint64 { return 1 << 40 })
	if err == nil {
		s.life.directAfter = directTestAfter
	}
	return s, err
}

// settle waits until a full segment has its successor.
func settle(s *logStore) {
	_ = s.wal.DeleteRange(1<<50, 1<<50) // none of these is there
}

func openLogOn(t testing.TB, disk vfs.FS, size int) *logStore {
	t.Helper()
	fail := func(err error) { t.Error(err) }
	s, err := logOn(t, disk, size, faults{fail, fail})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

// entry is one whose data follows from its index.
func entry(index uint64, size int) *hraft.Log {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(index) + byte(i) | 1 // not zero
	}
	return &hraft.Log{Index: index, Term: 1, Type: hraft.LogCommand, Data: data}
}

func wantEntry(s *logStore, index uint64, size int) error {
	var l hraft.Log
	if err := s.read(index, &l); err != nil {
		return err
	}
	if !bytes.Equal(l.Data, entry(index, size).Data) {
		return fmt.Errorf("entry %d is another", index)
	}
	return nil
}

// writing is a disk that tells of the writes to its files, by the page cache and
// past it.
type writing struct {
	*vfs.Mem
	cached, direct *[]span
}

type span struct{ from, to int64 }

type writingFile struct {
	vfs.File
	to *[]span
}

func newWriting() writing { return writing{vfs.NewMem(), new([]span), new([]span)} }

func (w writing) Create(name string) (vfs.File, error) {
	f, err := w.Mem.Create(name)
	return writingFile{f, w.cached}, err
}

func (w writing) OpenReadWrite(name string) (vfs.File, error) {
	f, err := w.Mem.OpenReadWrite(name)
	return writingFile{f, w.cached}, err
}

func (w writing) OpenDirect(name string) (vfs.File, error) {
	f, err := w.Mem.OpenDirect(name)
	return writingFile{f, w.direct}, err
}

func (f writingFile) WriteAt(p []byte, off int64) (int, error) {
	*f.to = append(*f.to, span{off, off + int64(len(p))})
	return f.File.WriteAt(p, off)
}

// Before a sync needs new blocks, zeros are written into as many as it takes to
// make that rare, and no further than the segment's end; where entries are large
// none.
func TestZerosAhead(t *testing.T) {
	const size = 32 * zerosAhead
	for name, directAfter := range map[string]int64{"cached": 1 << 40, "direct": 0} {
		t.Run(name, func(t *testing.T) {
			disk := newWriting()
			files := newWalFS(disk)
			files.life.directAfter = directAfter
			f, err := files.Create("/", "x", size)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			end := func() (to int64) {
				for _, s := range slices.Concat(*disk.cached, *disk.direct) {
					to = max(to, s.to)
				}
				return to
			}
			var at, zeroed int64
			grown := 0
			write := func(n int) {
				t.Helper()
				if _, err := f.WriteAt(bytes.Repeat([]byte{7}, n), at); err != nil {
					t.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					t.Fatal(err)
				}
				at += int64(n)
				if to := end(); to > zeroed {
					grown++
					zeroed = to
				}
			}
			for at < zerosAhead {
				write(1000)
			}
			written := int64(0)
			for _, s := range slices.Concat(*disk.cached, *disk.direct) {
				written += s.to - s.from
			}
			if most := zerosAhead/1000*2*vfs.DirectBlock + 2*zerosAhead; written > int64(most) {
				t.Errorf("%d bytes were written for %d", written, at)
			}
			if grown != 1 || zeroed < zerosAhead || zeroed > zerosAhead+2*vfs.DirectBlock {
				t.Errorf("new blocks up to %d were written at %d syncs", zeroed, grown)
			}
			for range 8 {
				write(2*zerosAhead + 1000)
			}
			if zeroed > at+vfs.DirectBlock {
				t.Errorf("zeros up to %d behind large entries, which end at %d", zeroed, at)
			}
			grown = 0
			for at+1000 <= size {
				write(1000)
			}
			if grown > 40 || zeroed != size {
				t.Errorf("new blocks up to %d, of %d, were written at %d syncs", zeroed, size, grown)
			}
			write(10_000) // raft-wal fills its last segment a little further
			want := append(bytes.Repeat([]byte{7}, int(at)), make([]byte, max(0, size-int(at)))...)
			if got := disk.Get("/x"); !bytes.Equal(got, want) {
				t.Error("what was written is not what is there")
			}
			if past := len(*disk.direct) > 0; past != (directAfter == 0) {
				t.Errorf("written past the page cache: %v", past)
			}
		})
	}
}

// After so many syncs a log goes on past the page cache, in the middle of a
// segment, in the next one from its first byte on, and at a new start again.
func TestDirectAfter(t *testing.T) {
	const size = 1 << 20
	disk := newWriting()
	index := uint64(0)
	for start := range 2 {
		s := openLogOn(t, disk, size)
		for s.life.work < directTestAfter {
			index++
			if err := s.StoreLog(entry(index, 10)); err != nil {
				t.Fatal(err)
			}
			if len(*disk.direct) > 0 {
				t.Fatalf("start %d: past the page cache before sync %d", start, s.life.work)
			}
		}
		*disk.cached = nil
		const more = 300 // of 10 KiB: two segments
		for range more {
			index++
			if err := s.StoreLog(entry(index, 10<<10)); err != nil {
				t.Fatal(err)
			}
			settle(s)
		}
		// The last entry of a segment may pass its end.
		if len(*disk.direct) < more-5 || len(*disk.cached) > 10 {
			t.Errorf("start %d: of %d entries there were %d writes past the page cache, and %d through it", start, more, len(*disk.direct), len(*disk.cached))
		}
		for i := index - more + 1; i <= index; i++ {
			if err := wantEntry(s, i, 10<<10); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		*disk.direct = nil
	}
}

// The same on the disk of this machine: what goes through the page cache before is
// in nobody's way.
func TestDirectAfterOnDisk(t *testing.T) {
	const size = 8 << 20
	files := newWalFS(vfs.OS{})
	files.life.directAfter = 20
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		f, err := files.Create(dir, name, size)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		wf := f.(*walFile)
		got := make([]byte, size)
		appendAll(t, wf, size, func(want []byte) {
			if _, err := wf.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("what was written is not what is read: %v", err)
			}
		})
		switch {
		case wf.direct == nil:
			t.Skip("this file system can't")
		case wf.direct.broken:
			t.Error("it fell back to the page cache")
		}
	}
}

// What an earlier program kept for the log to go on in is deleted.
func TestOldSpareIsDeleted(t *testing.T) {
	disk := vfs.NewMem()
	if err := disk.MkdirAll("/raft"); err != nil {
		t.Fatal(err)
	}
	disk.Put("/raft/segment.spare", make([]byte, 2048))
	disk.Put("/raft/segment.spare.tmp", make([]byte, 100))
	openLogOn(t, disk, 2048)
	if disk.Get("/raft/segment.spare") != nil || disk.Get("/raft/segment.spare.tmp") != nil {
		t.Error("it is still there")
	}
}

// TestCrashAcrossSegments lets the power fail in each operation of a log that goes
// through several segments and starts, and each fail once: what was stored is
// found, and the log goes on.
func TestCrashAcrossSegments(t *testing.T) {
	// Those of whole blocks are written past the page cache in the end. The last
	// are longer than the zeros ahead.
	for _, size := range []int{2048, 3 * vfs.DirectBlock, 2*zerosAhead + 100, 2*zerosAhead + vfs.DirectBlock} {
		whole := vfs.NewMem()
		stored := segmentsStory(t, whole, size)
		ops := whole.Ops()
		t.Logf("%d operations, %d entries", ops, stored)
		step := 1
		switch {
		case everyCrash():
		case size > zerosAhead:
			step = 13
		case size > 2048:
			step = 4
		}
		for at := 1; at <= ops; at += step {
			losses := []vfs.Loss{vfs.Loss(at % 4)}
			if everyCrash() {
				losses = []vfs.Loss{vfs.LoseAll, vfs.LoseNone, vfs.LosePrefix, vfs.LoseRandom}
			}
			for _, loss := range losses {
				disk := vfs.NewMem()
				disk.CrashAt(at)
				stored := segmentsStory(t, disk, size)
				after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss))))
				if err := segmentsAfter(t, after, size, stored); err != nil {
					t.Fatalf("segments of %d, crash at operation %d, loss %d: %v", size, at, loss, err)
				}
			}
			disk := vfs.NewMem()
			disk.FailAt(at, errors.New("this one fails"))
			stored := segmentsStory(t, disk, size)
			if err := segmentsAfter(t, disk.Clone(), size, stored); err != nil {
				t.Fatalf("segments of %d, failure at operation %d: %v", size, at, err)
			}
		}
	}
}

// segmentsStory returns the last entry that was stored.
func segmentsStory(t *testing.T, disk *vfs.Mem, size int) (stored uint64) {
	for range 2 {
		s, err := logOn(t, disk, size, noFaults)
		if err != nil {
			return stored
		}
		for range 40 {
			err := s.StoreLog(entry(stored+1, size/24))
			settle(s)
			if err != nil {
				break
			}
			stored++
		}
		_ = s.close()
	}
	return stored
}

func segmentsAfter(t *testing.T, disk *vfs.Mem, size int, stored uint64) error {
	for range 2 {
		s, err := logOn(t, disk, size, noFaults)
		if err != nil {
			return err
		}
		defer s.close()
		last, err := s.LastIndex()
		if err != nil {
			return err
		}
		if last != stored && last != stored+1 {
			return fmt.Errorf("the log ends at %d, and %d was stored", last, stored)
		}
		for i := uint64(1); i <= last; i++ {
			if err := wantEntry(s, i, size/24); err != nil {
				return err
			}
		}
		for stored = last; stored < last+15; stored++ {
			if err := s.StoreLog(entry(stored+1, size/24)); err != nil {
				return err
			}
			settle(s)
		}
		if err := s.close(); err != nil {
			return err
		}
	}
	return nil
}
