package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// withoutAsync is the kernel that has no asynchronous I/O.
func withoutAsync(t *testing.T) {
	asyncs.mu.Lock()
	defer asyncs.mu.Unlock()
	free, none := asyncs.free, asyncs.none
	asyncs.free, asyncs.none = nil, time.Now().Add(time.Hour)
	t.Cleanup(func() {
		asyncs.mu.Lock()
		defer asyncs.mu.Unlock()
		asyncs.free, asyncs.none = free, none
	})
}

// TestAsync writes several files at once, with and without the kernel's
// asynchronous I/O, and reads back what was written.
func TestAsync(t *testing.T) {
	for _, without := range []bool{false, true} {
		t.Run(fmt.Sprintf("without=%t", without), func(t *testing.T) {
			if without {
				withoutAsync(t)
			} else if a := takeAsync(); a == nil {
				t.Skip("this kernel has none")
			} else {
				a.put()
			}
			dir := t.TempDir()
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					if err := writeAndSync(filepath.Join(dir, fmt.Sprint(g)), byte(g)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
	}
}

func writeAndSync(name string, seed byte) error {
	const n = 16
	f, err := OS{}.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, n*DirectBlock), 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	d, err := OS{}.OpenDirect(name)
	if errors.Is(err, errors.ErrUnsupported) {
		d = f
	} else if err != nil {
		return err
	} else {
		defer d.Close()
	}
	var want []byte
	for i := range n {
		b := Aligned(DirectBlock)
		for k := range b {
			b[k] = seed ^ byte(i*k)
		}
		if wrote, err := d.WriteAt(b, int64(i*DirectBlock)); err != nil || wrote != len(b) {
			return fmt.Errorf("wrote %d: %w", wrote, err)
		}
		if err := f.Sync(); err != nil {
			return err
		}
		want = append(want, b...)
	}
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("not what was written")
	}
	return nil
}

// TestAsyncFails: errors are as those of the usual calls.
func TestAsyncFails(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS{}.Create(name)
	must(t, err)
	must(t, f.Close())
	if err := f.Sync(); err == nil {
		t.Fatal("synced what is closed")
	}
	r, err := OS{}.OpenRead(name)
	must(t, err)
	defer r.Close()
	if _, err := (directFile{r.(osFile), true}).writeDirect(Aligned(DirectBlock), 0); !errors.Is(err, syscall.EBADF) {
		t.Fatalf("wrote what is open for reading: %v", err)
	}
	null, err := OS{}.OpenReadWrite("/dev/null")
	must(t, err)
	defer null.Close()
	if err := null.Sync(); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("synced what can't be: %v", err)
	}
	// After failures it works as before.
	must(t, writeAndSync(filepath.Join(t.TempDir(), "g"), 1))
}
