package vfs

import (
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestDrain(t *testing.T) {
	both(t, func(t *testing.T, fsys FS, dir string) {
		for size, want := range map[int64][]int64{
			0: nil, 9: nil, 10: nil, 11: {10}, 20: {10}, 35: {30, 20, 10},
		} {
			name := filepath.Join(dir, "f")
			f, err := fsys.Create(name)
			must(t, err)
			must(t, f.Truncate(size))
			var sizes []int64
			must(t, Drain(f, 10, func(time.Duration) {
				size, err := f.Size()
				must(t, err)
				sizes = append(sizes, size)
			}))
			if !slices.Equal(sizes, want) {
				t.Errorf("%d bytes go by %v, not %v", size, sizes, want)
			}
			must(t, f.Close())
			must(t, fsys.Remove(name))
		}
	})
}
