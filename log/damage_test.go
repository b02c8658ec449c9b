package log

import (
	"bytes"
	"path"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestReadToDamage damages one place after another, in a sealed segment too, and in an index that
// must be made from the segment. What is before the damage can be read, whatever is behind it.
func TestReadToDamage(t *testing.T) {
	t.Parallel()
	disk, blocks := written(t, 40)
	whole, err := OpenReadOnly(options(disk))
	must(t, err)
	defer whole.Close()
	for i, seg := range whole.Segments() {
		for n, part := range extents(whole, i)[1:] {
			for _, off := range []int64{part.from, part.from + blockSize, part.to - 1} {
				damaged := disk.Clone()
				name := path.Join(dir, seg.Name)
				bad := bytes.Clone(disk.Get(name))
				bad[off] ^= 1
				damaged.Put(name, bad)
				if n%2 == 0 && seg.Sealed {
					must(t, damaged.Remove(path.Join(dir, seg.SideFile)))
				}
				if part.lastGood == 0 {
					continue // there is nothing before it
				}
				o := options(damaged)
				o.Durable, o.ToDamage = whole.Head(), true
				l, err := OpenReadOnly(o)
				must(t, err)
				good := 0
				for good < len(blocks) && blocks[good].Index <= part.lastGood {
					good++
				}
				got, _ := tryReadAll(l, 0)
				sameBlocks(t, got[:min(good, len(got))], blocks[:good])
				chain, err := l.ChainAt(part.lastGood)
				must(t, err)
				require.True(t, chain == blocks[good-1].Chain, "%s %d: chain", seg.Name, off)
				segments, err := l.SegmentsTo(part.lastGood)
				must(t, err)
				require.True(t, segments[len(segments)-1].Chain == event.Chain(chain), "the end's chain")
				if l.ended != nil {
					for _, at := range []event.Instant{{Kind: event.InstantNow},
						{Kind: event.InstantIndex, Index: part.lastGood + 5},
						{Kind: event.InstantTime, Time: l.Clock()}} {
						_, err = l.To(at)
						require.Equal(t, corruption(t, err).LastGood, part.lastGood, "%v", err)
					}
				}
				require.True(t, l.ended != nil || seg.Sealed, "the end is not known")
				must(t, l.Close())
				o.ToDamage = false
				if l, err = OpenReadOnly(o); err == nil {
					require.True(t, seg.Sealed, "damage is not refused")
					must(t, l.Close())
				}
			}
		}
	}
}

// TestEraseInADamagedSegment erases a record whose segment has a wrong index and a wrong content:
// the index is made again from the segment, whose wrong content could be one being erased.
func TestEraseInADamagedSegment(t *testing.T) {
	disk, blocks := written(t, 40)
	l := mustOpen(t, options(disk))
	seg := l.Segments()[0]
	must(t, l.Close())
	for name, at := range map[string]int{
		seg.Name:     bytes.Index(disk.Get(path.Join(dir, seg.Name)), blocks[0].Records[0].Content),
		seg.SideFile: sideHeaderSize + 1,
	} {
		b := disk.Get(path.Join(dir, name))
		b[at] ^= 1
		disk.Put(path.Join(dir, name), b)
	}
	l = mustOpen(t, options(disk))
	done := make(chan error)
	go func() { done <- l.Erase([]event.Ref{{Index: 1}}) }()
	corruption(t, <-done)
	must(t, l.Append(&event.Block{Index: 1000}))
}
