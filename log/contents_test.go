package log

import (
	"bytes"
	"errors"
	"testing"

	"github.com/qlogd/qlogd/log/vfs"
)

// TestContents: many at once are what each alone is, in any order, from the
// cache, the active segment and sealed ones, erased ones too; and so is the
// error for a place at which there is nothing.
func TestContents(t *testing.T) {
	for _, cached := range []int64{0, 2000, 1 << 20} {
		o := options(vfs.NewMem())
		o.CacheBytes = cached
		l := mustOpen(t, o)
		rng := testRand(7)
		var all []Ref
		for i := range 40 {
			b := story(i)
			if i%9 == 3 { // a long one, so that records stand far apart in a block
				for n := range 40 {
					b.Records = append(b.Records, rec("more", string(rune('a'+n%26))))
				}
				b = block(b.Index, b.Records...)
			}
			must(t, l.Append(b))
			for n := range b.Records {
				all = append(all, Ref{b.Index, uint32(n)})
			}
		}
		must(t, l.Erase([]Ref{all[1], all[len(all)/2], all[len(all)-1]}))
		for range 200 {
			refs := make([]Ref, 1+rng.IntN(30))
			at := rng.IntN(len(all))
			for i := range refs {
				refs[i] = all[at]
				if at += 1 + rng.IntN(3); at >= len(all) || rng.IntN(10) == 0 {
					at = rng.IntN(len(all))
				}
			}
			seen := 0
			must(t, l.Contents(refs, func(i int, content []byte, erased bool) error {
				want, gone, err := l.Content(refs[i])
				if err != nil || i != seen || erased != gone || !bytes.Equal(content, want) {
					t.Fatalf("cache %d, %v: %q %v, alone %q %v %v", cached, refs[i], content, erased, want, gone, err)
				}
				seen++
				return nil
			}))
			if seen != len(refs) {
				t.Fatalf("%d of %d", seen, len(refs))
			}
		}
		for _, ref := range []Ref{{all[0].Index, 99}, {l.Head().Index + 1, 0}} {
			if err := l.Contents([]Ref{all[0], ref}, func(int, []byte, bool) error { return nil }); !errors.Is(err, ErrNotFound) {
				t.Errorf("cache %d, %v: %v", cached, ref, err)
			}
		}
		stop := errors.New("stop")
		if err := l.Contents(all, func(int, []byte, bool) error { return stop }); err != stop {
			t.Errorf("cache %d: %v", cached, err)
		}
	}
}
