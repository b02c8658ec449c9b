package raft

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/vfs"
)

// heldFS is a disk on which a segment is removed when the gate is open.
type heldFS struct {
	vfs.FS
	began chan string // the names, when their removal began
	gate  chan struct{}
}

func (h *heldFS) Remove(name string) error {
	if strings.HasSuffix(name, ".wal") {
		h.began <- name
		<-h.gate
	}
	return h.FS.Remove(name)
}

// segmentsOn returns the names of the Raft log's files.
func segmentsOn(t testing.TB, disk vfs.FS) []string {
	t.Helper()
	names, err := disk.List("/raft")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".wal") })
}

func storeOn(s *logStore, from, to uint64) error {
	for i := from; i <= to; i++ {
		if err := s.StoreLogs([]*hraft.Log{entry(i, 500)}); err != nil {
			return err
		}
	}
	return nil
}

// Entries are stored while the files behind a checkpoint are being deleted, and
// whoever must not find these waits for it.
func TestStoreBesideDeletion(t *testing.T) {
	for name, waits := range map[string]func(*logStore) error{
		"anew":  (*logStore).anew,
		"close": (*logStore).close,
		"holding": func(s *logStore) error {
			h, err := s.holding(1)
			if h.files != 0 {
				return fmt.Errorf("%d files still have the first entry", h.files)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				held := &heldFS{FS: vfs.NewMem(), began: make(chan string, 100), gate: make(chan struct{})}
				s := openLogOn(t, held, 16<<10)
				if err := storeOn(s, 1, 300); err != nil {
					t.Fatal(err)
				}
				all := len(segmentsOn(t, held))
				if err := s.DeleteRange(1, 250); err != nil {
					t.Fatal(err)
				}
				<-held.began
				if err := storeOn(s, 301, 400); err != nil {
					t.Fatal(err)
				}
				if now := segmentsOn(t, held); len(now) < all || all < 5 {
					t.Errorf("%d files, then %v", all, now)
				}
				if first, err := s.FirstIndex(); err != nil || first != 251 {
					t.Errorf("the first is %d, %v", first, err)
				}
				done := make(chan error, 1)
				go func() { done <- waits(s) }()
				synctest.Wait()
				select {
				case err := <-done:
					t.Errorf("it did not wait: %v", err)
					done <- nil
				default:
				}
				close(held.gate)
				if err := <-done; err != nil {
					t.Error(err)
				}
				// The first that is left has entry 251.
				if left := segmentsOn(t, held); len(left) >= all || strings.HasPrefix(left[0], "00000000000000000001-") {
					t.Errorf("left are %v", left)
				}
				_ = s.close() // within the bubble
			})
		})
	}
}

// TestTruncateCrashAnywhere lets the power fail in each write, sync, truncation and
// removal while the log is stored, truncated at its front and stored on: what was
// stored is there, what was truncated is not, and no file is left of it.
func TestTruncateCrashAnywhere(t *testing.T) {
	const size, piece = 16 << 10, 4 << 10
	cuts := []uint64{100, 130, 260}
	// story returns up to where entries were stored, and truncated.
	story := func(disk *vfs.Mem) (stored, cut uint64) {
		s, err := logOn(t, disk, size, noFaults)
		if err != nil {
			return 0, 0
		}
		defer func() { _ = s.close() }()
		s.trash.piece = piece
		for i, to := range cuts {
			upTo := uint64(i+1) * 150
			if s.StoreLogs(entriesOn(stored+1, upTo)) != nil {
				return stored, cut
			}
			stored = upTo
			if s.DeleteRange(1, to) != nil {
				return stored, cut
			}
			cut = to
		}
		if storeOn(s, stored+1, stored+1) == nil {
			stored++
		}
		return stored, cut
	}
	whole := vfs.NewMem()
	if stored, cut := story(whole); stored != 451 || cut != 260 {
		t.Fatalf("stored up to %d, truncated up to %d", stored, cut)
	}
	t.Logf("%d operations", whole.Ops())
	for at := 1; at <= whole.Ops(); at++ {
		for loss := vfs.LoseAll; loss <= vfs.LoseRandom; loss++ {
			if !everyCrash() && int(loss) != at%4 {
				continue
			}
			disk := vfs.NewMem()
			disk.CrashAt(at)
			stored, cut := story(disk)
			after := disk.CrashWith(loss, rng(at))
			s, err := logOn(t, after, size, noFaults)
			if err != nil {
				t.Fatalf("crash at operation %d, loss %d: %v", at, loss, err)
			}
			first, _ := s.FirstIndex()
			last, _ := s.LastIndex()
			next := slices.Index(cuts, cut) + 1 // the truncation that was under way
			if ok := first == cut+1 || next < len(cuts) && first == cuts[next]+1 || first == 0 && stored == 0; !ok || last < stored {
				t.Fatalf("crash at operation %d, loss %d: %d to %d are there, not %d to %d", at, loss, first, last, cut+1, stored)
			}
			if h, err := s.holding(first); err != nil || first > 0 && h.files != 1 {
				t.Fatalf("crash at operation %d, loss %d: %d files begin at entry %d or before, %v", at, loss, h.files, first, err)
			}
			for i := max(first, 1); i <= last; i++ {
				if err := wantEntry(s, i, 500); err != nil {
					t.Fatalf("crash at operation %d, loss %d: entry %d: %v", at, loss, i, err)
				}
			}
			if err := storeOn(s, last+1, last+1); err != nil {
				t.Fatal(err)
			}
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func entriesOn(from, to uint64) (all []*hraft.Log) {
	for i := from; i <= to; i++ {
		all = append(all, entry(i, 500))
	}
	return all
}
