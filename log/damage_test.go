package log

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
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
				damaged := flipped(disk, seg.Name, off, 1)
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

// TestDamagedHeader damages headers, of a log whose beginning retention has deleted too: it is
// opened, reported and continued, and the segments are right once copies are put in their places.
func TestDamagedHeader(t *testing.T) {
	t.Parallel()
	disk, blocks := written(t, 40)
	l := mustOpen(t, options(disk))
	all := l.Segments()
	require.True(t, len(all) > 5, "segments")
	must(t, l.DeleteBefore(all[2].First))
	must(t, l.Close())
	for i, seg := range all[2:] {
		name := path.Join(dir, seg.Name)
		right := disk.Get(name)
		for at := 0; at <= headerSize; at += step(4, headerSize/2) {
			for _, side := range []bool{true, false} {
				damaged := disk.Clone()
				if !side && seg.Sealed {
					must(t, damaged.Remove(path.Join(dir, seg.SideFile)))
				}
				wrong := bytes.Clone(right)
				if at == headerSize {
					clear(wrong[:at])
				} else {
					wrong[at+i%4] ^= []byte{1, 0x80, 0xff}[at%3]
				}
				damaged.Put(name, wrong)
				what := fmt.Sprintf("%s, byte %d, side file %t", seg.Name, at, side)
				reported := ""
				o := options(damaged)
				o.HeldFrom, o.Durable = 0, seg.Last
				o.Damaged = func(c *CorruptionError) { reported += c.Segment }
				l, err := Open(o)
				if i == 0 && at == headerSize {
					require.Equal(t, corruption(t, err).Segment, seg.Name, what)
					continue
				}
				require.NoError(t, err, what)
				require.Equal(t, reported, seg.Name, what)
				sameBlocks(t, readAll(t, l, 0), blocks[slices.IndexFunc(blocks, func(b *rawBlock) bool {
					return b.Index == all[2].First
				}):])
				require.Equal(t, corruption(t, l.Check(t.Context(), seg.First, nil)).Segment, seg.Name)
				_, err = Verify(t.Context(), options(damaged), nil)
				c := corruption(t, err)
				require.True(t, c.Segment == seg.Name && c.LastGood == seg.PrevIndex, "%s: %v", what, c)
				for n := range 15 {
					appendAll(t, l, story(40+n))
				}
				must(t, l.Close())
				l, err = Open(o)
				require.NoError(t, err, what)
				seg := l.Segments()[i]
				must(t, vfs.WriteFile(damaged, "/copy",
					slices.Concat(right[:headerSize], damaged.Get(name)[headerSize:])))
				must(t, l.Replace(seg, "/copy"))
				must(t, l.Close())
				_, err = Verify(t.Context(), options(damaged), nil)
				require.NoError(t, err, what)
			}
		}
	}
}

// TestHeaderThatIsLost: what nothing says any more is refused.
func TestHeaderThatIsLost(t *testing.T) {
	disk, _ := written(t, 40)
	l := mustOpen(t, options(disk))
	segments := l.Segments()
	must(t, l.Close())
	for _, i := range []int{0, 1, len(segments) - 1} {
		seg := segments[i]
		damaged := disk.Clone()
		damaged.Put(path.Join(dir, seg.SideFile), nil)
		b := damaged.Get(path.Join(dir, seg.Name))
		clear(b[:headerSize+blockSize])
		damaged.Put(path.Join(dir, seg.Name), b)
		o := options(damaged)
		o.Durable = l.Head()
		before := damaged.Clone()
		_, err := Open(o)
		c := corruption(t, err)
		require.True(t, c.Segment == seg.Name && c.LastGood == seg.PrevIndex, "%v", c)
		require.Equal(t, sameFiles(before, damaged), "", "a refused log was changed")
		// The side file alone says it too.
		if seg.Sealed {
			damaged.Put(path.Join(dir, seg.SideFile), disk.Get(path.Join(dir, seg.SideFile)))
			l, err := Open(o)
			must(t, errors.Join(err, l.Close()))
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
