package raft

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/vfs"
)

const (
	spareName = "/raft/" + spareFile
	spareTemp = spareName + vfs.TempSuffix
)

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
	s, err := openLog(o, faults, func() uint64 { return 1 << 40 }, true)
	if err == nil {
		s.spare.work.Wait()
		s.spare.share = 1
	}
	return s, err
}

// settle waits until a full segment has its successor, and the spare is made.
func settle(s *logStore) {
	_ = s.wal.DeleteRange(1<<50, 1<<50) // none of these is there
	s.spare.work.Wait()
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

func TestSegmentsAreMadeOfASpare(t *testing.T) {
	for _, size := range []int{2048, 3*zeroPiece + 100} {
		disk := vfs.NewMem()
		each := size / 40
		s := openLogOn(t, disk, size)
		n := uint64(0)
		for n < 120 || disk.Get(spareName) == nil {
			n++
			if err := s.StoreLog(entry(n, each)); err != nil {
				t.Fatal(err)
			}
			settle(s)
		}
		if s.spare.taken.Load() < 3 {
			t.Errorf("%d segments of %d bytes were made of a spare", s.spare.taken.Load(), size)
		}
		if disk.Get(spareTemp) != nil {
			t.Error("half a spare is left")
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		s = openLogOn(t, disk, size)
		if s.spare.taken.Load() != 1 {
			t.Error("the spare of an earlier process is not taken")
		}
		for i := uint64(1); i <= n; i++ {
			if err := wantEntry(s, i, each); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Large entries fill a segment with few syncs: zeros would cost more than they save.
func TestLargeEntriesNeedNoSpare(t *testing.T) {
	const size = 1 << 20
	disk := vfs.NewMem()
	s := openLogOn(t, disk, size)
	for i := uint64(1); i <= 30; i++ {
		if err := s.StoreLog(entry(i, size/8)); err != nil {
			t.Fatal(err)
		}
		s.spare.work.Wait()
	}
	if disk.Get(spareName) != nil || s.spare.taken.Load() > 0 {
		t.Error("there is a spare")
	}
}

// A spare of unknown state never becomes a segment.
func TestSpareIsChecked(t *testing.T) {
	const size = 2048
	dirty := make([]byte, size)
	dirty[size-1] = 1
	for what, c := range map[string]struct {
		spare []byte
		taken uint64
	}{
		"whole":          {make([]byte, size), 1},
		"of stale bytes": {dirty, 0},
		"short":          {make([]byte, size-1), 0},
		"long":           {make([]byte, size+1), 0},
	} {
		disk := vfs.NewMem()
		if err := disk.MkdirAll("/raft"); err != nil {
			t.Fatal(err)
		}
		disk.Put(spareName, c.spare)
		disk.Put(spareTemp, dirty)
		s := openLogOn(t, disk, size)
		if got := s.spare.taken.Load(); got != c.taken || disk.Get(spareName) != nil || disk.Get(spareTemp) != nil {
			t.Errorf("a spare that is %s: %d taken", what, got)
		}
	}
}

// Near the reserve a spare is not made.
func TestSpareNeedsRoom(t *testing.T) {
	disk := vfs.NewMem()
	s := openLogOn(t, disk, 2048)
	s.spare.room = func() bool { return false }
	for i := uint64(1); i <= 50; i++ {
		if err := s.StoreLog(entry(i, 200)); err != nil {
			t.Fatal(err)
		}
		s.spare.work.Wait()
	}
	if disk.Get(spareName) != nil || s.spare.taken.Load() > 0 {
		t.Error("there is a spare")
	}
}

// What raft-wal writes stays, whatever zeros are written ahead of it meanwhile.
func TestZerosAheadOfTheWriter(t *testing.T) {
	const size = 8 * zeroPiece
	disk := vfs.NewMem()
	s := openLogOn(t, disk, size)
	w, err := walFS{disk, s.spare}.Create("/raft", "x.wal", size)
	if err != nil {
		t.Fatal(err)
	}
	f := w.(*walFile)
	rng := rand.New(rand.NewPCG(1, 1))
	want := make([]byte, size)
	done := make(chan error)
	for range 4 {
		go func() {
			var err error
			for range 3 {
				err = errors.Join(err, s.spare.ahead(f))
			}
			done <- err
		}()
	}
	for at := 0; at < size; {
		n := min(1+rng.IntN(20_000), size-at)
		for i := range n {
			want[at+i] = byte(1 + rng.IntN(255))
		}
		if _, err := w.WriteAt(want[at:at+n], int64(at)); err != nil {
			t.Fatal(err)
		}
		at += n
	}
	for range 4 {
		// The walkers see each other's zeros and the writer's bytes only behind them.
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if !bytes.Equal(disk.Get("/raft/x.wal"), want) {
		t.Error("what was written is not what is there")
	}
	if f.direct.Load() == nil {
		t.Error("with its zeros written the segment is still written through the page cache")
	}
}

// Zeros go into holes only.
func TestZerosNeverReplaceBytes(t *testing.T) {
	const size = 4096
	disk := vfs.NewMem()
	s := openLogOn(t, disk, size)
	full := bytes.Repeat([]byte{7}, size)
	disk.Put("/raft/x.wal", full)
	w, err := walFS{disk, s.spare}.OpenWriter("/raft", "x.wal")
	if err != nil {
		t.Fatal(err)
	}
	s.spare.work.Wait()
	f := w.(*walFile)
	if err := s.spare.ahead(f); err != nil { // its end is not known
		t.Error(err)
	}
	if _, err := w.WriteAt([]byte{7}, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.spare.ahead(f); err == nil {
		t.Error("zeros over bytes")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.spare.ahead(f); err != nil { // another may be writing it by now
		t.Error(err)
	}
	if !bytes.Equal(disk.Get("/raft/x.wal"), full) {
		t.Error("bytes are lost")
	}
}

// leaving is a disk on which a file is closed and deleted as soon as it is opened
// to have zeros written.
type leaving struct {
	*vfs.Mem
	leave func()
}

func (l leaving) OpenReadWrite(name string) (vfs.File, error) {
	f, err := l.Mem.OpenReadWrite(name)
	l.leave()
	return f, err
}

// A segment that is deleted while zeros are to be written ahead of its end is no
// reason to have no spare.
func TestSegmentLeaves(t *testing.T) {
	const size = 1 << 20 // whole blocks
	disk := vfs.NewMem()
	s := openLogOn(t, disk, size)
	w, err := walFS{disk, s.spare}.Create("/raft", "x.wal", size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteAt([]byte{7}, 0); err != nil {
		t.Fatal(err)
	}
	s.spare.fsys = leaving{disk, func() {
		if err := errors.Join(w.Close(), disk.Remove("/raft/x.wal")); err != nil {
			t.Error(err)
		}
	}}
	if err := s.spare.write(w.(*walFile), true, true); err != nil {
		t.Error(err)
	}
	if disk.Get(spareName) == nil {
		t.Error("there is no spare")
	}
}

// TestCrashAroundTheSpare lets the power fail in each operation of a log that goes
// through several segments and starts, and each fail once: what was stored is
// found, and the log goes on.
func TestCrashAroundTheSpare(t *testing.T) {
	// Of 12288, which are whole blocks, the segments are written past the cache.
	for _, size := range []int{2048, 3 * vfs.DirectBlock, 2*zeroPiece + 100} {
		whole := vfs.NewMem()
		stored, taken := spareStory(t, whole, size)
		if taken < 2 {
			t.Fatalf("%d segments were made of a spare", taken)
		}
		ops := whole.Ops()
		t.Logf("%d operations, %d entries, %d spares", ops, stored, taken)
		step := 1
		switch {
		case everyCrash():
		case size > zeroPiece:
			step = 37
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
				stored, _ := spareStory(t, disk, size)
				after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss))))
				if err := spareAfter(t, after, size, stored); err != nil {
					t.Fatalf("segments of %d, crash at operation %d, loss %d: %v", size, at, loss, err)
				}
			}
			disk := vfs.NewMem()
			disk.FailAt(at, errors.New("this one fails"))
			stored, _ := spareStory(t, disk, size)
			if err := spareAfter(t, disk.Clone(), size, stored); err != nil {
				t.Fatalf("segments of %d, failure at operation %d: %v", size, at, err)
			}
		}
	}
}

// spareStory returns the last entry that was stored.
func spareStory(t *testing.T, disk *vfs.Mem, size int) (stored, taken uint64) {
	for range 2 {
		s, err := logOn(t, disk, size, noFaults)
		if err != nil {
			return stored, taken
		}
		for range 40 {
			err := s.StoreLog(entry(stored+1, size/24))
			settle(s)
			if err != nil {
				break
			}
			stored++
		}
		taken += s.spare.taken.Load()
		_ = s.close()
	}
	return stored, taken
}

func spareAfter(t *testing.T, disk *vfs.Mem, size int, stored uint64) error {
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
