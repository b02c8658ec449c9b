package log

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// piece is an extent of a segment whose bytes are checked by one checksum.
type extent struct {
	from, to int64
	lastGood uint64 // the block before
}

// extents returns a segment's blocks as extents.
func extents(l *Log, i int) []extent {
	s := l.Segments()[i]
	out := []extent{{0, headerSize, s.PrevIndex}}
	seg := l.segments[i]
	scan := l.scan(seg, s.Size)
	for {
		from, prev := scan.off, scan.last
		err := scan.next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			panic(err)
		}
		out = append(out, extent{from, scan.off, prev})
	}
}

// TestEveryFlippedByte flips each byte of each file: one bit, the highest bit,
// or all of them.
func TestEveryFlippedByte(t *testing.T) {
	t.Parallel()
	disk, blocks := written(t, 13)
	l, err := OpenReadOnly(options(disk))
	must(t, err)
	defer l.Close()
	segments, tried := l.Segments(), 0
	defer func() { t.Logf("figures: %d bytes of an event log flipped, one at a time", tried) }()
	for _, name := range files(t, disk) {
		data := disk.Get(path.Join(dir, name))
		i := slices.IndexFunc(segments, func(s SegmentInfo) bool { return s.Name == name })
		var parts []extent
		if i >= 0 {
			parts = extents(l, i)
		}
		for off := 0; off < len(data); off += step(1, 47) {
			tried++
			flip := []byte{0x01, 0x80, 0xff}[off%3]
			damaged := flipped(disk, name, int64(off), flip)
			newest := i == len(segments)-1
			lastBlock := newest && int64(off) >= parts[len(parts)-1].from
			checkVerify(t, damaged, name, int64(off), parts, lastBlock)
			header := i >= 0 && off < headerSize
			checkOpen(t, damaged, name, blocks, i, lastBlock, newest, header)
			require.False(t, t.Failed(), "%s, byte %d, flipped by %#x", name, off, flip)
		}
	}
}

// checkVerify: Verify names the place.
func checkVerify(t *testing.T, disk *memdisk.Disk, name string, off int64, parts []extent,
	lastBlock bool) {
	report, err := Verify(context.Background(), options(disk), nil)
	if lastBlock {
		last := parts[len(parts)-1]
		assert.True(t, err == nil && report.Tail != nil && report.Tail.Offset == last.from &&
			report.Tail.LastGood == last.lastGood, "verify, last block: %+v, %v", report.Tail, err)
		opts := options(disk)
		opts.Durable = last.lastGood + 1
		_, err = Verify(context.Background(), opts, nil)
	}
	c := corruption(t, err)
	assert.True(t, c.Segment == name && c.Offset <= off, "verify: %v", c)
	for _, p := range parts {
		assert.True(t, off < p.from || off >= p.to || c.Offset >= p.from && c.LastGood == p.lastGood,
			"verify: %v; the block is at %d, after index %d", c, p.from, p.lastGood)
	}
}

// checkOpen: what is opened is never wrong, and what is refused is untouched. A wrong header is
// reported, and all can be read.
func checkOpen(t *testing.T, disk *memdisk.Disk, name string, blocks []*rawBlock, i int, lastBlock,
	newest, header bool) {
	before := disk.Clone()
	head := blocks[len(blocks)-1].Index
	for _, change := range []func(*Options){func(o *Options) { o.HeldFrom = 0 },
		func(o *Options) { o.Durable = head }} {
		opts := options(disk)
		change(&opts)
		if newest {
			// Not held by Raft, or known to be durable: never cut.
			l, err := Open(opts)
			if header {
				must(t, errors.Join(err, l.Close()))
			} else {
				corruption(t, err)
			}
			assert.Equal(t, sameFiles(before, disk), "", "a refused log was changed")
		}
	}
	opts, reported := options(disk), ""
	opts.Damaged = func(c *CorruptionError) { reported += c.Segment }
	l, err := Open(opts)
	if err != nil {
		if c := corruption(t, err); c.Segment != name || lastBlock || i < 0 || header {
			t.Errorf("open: %v", err)
		}
		assert.Equal(t, sameFiles(before, disk), "", "a refused log was changed")
		return
	}
	defer l.Close()
	assert.False(t, newest && !lastBlock && !header,
		"the newest segment is wrong in the middle, and open has not told")
	assert.Equal(t, lastBlock, l.Tail() != nil, "tail %+v", l.Tail())
	want := blocks
	if lastBlock {
		want = blocks[:len(blocks)-1]
	}
	got, err := tryReadAll(l, 0)
	assert.Equal(t, err != nil, i >= 0 && !newest && !header, "reading all: %v", err)
	assert.True(t, !header || reported == name, "reported: %s", reported)
	sameBlocks(t, got, want[:len(got)])
	if len(got) < len(want) {
		if c := corruption(t, err); c.Segment != name || len(got) > 0 &&
			c.LastGood != got[len(got)-1].Index {
			t.Errorf("read: %v", c)
		}
	}
	for _, b := range want {
		for n, w := range b.Records {
			r, err := l.record(event.Ref{Index: b.Index, Number: uint32(n)})
			if err == nil {
				assert.Equal(t, diffRecord(r, w), "")
			}
		}
	}
}

// tail appends blocks to a synced log without syncing, and returns the disk as
// a program sees it, and where each of them lies in the newest segment.
func unsynced(t *testing.T, records int) (*memdisk.Disk, []*rawBlock, []extent, string) {
	t.Helper()
	disk := memdisk.New()
	opts := options(disk)
	opts.SegmentSize = 1 << 20
	l := mustOpen(t, opts)
	var blocks []*rawBlock
	for i := range 6 {
		var rs []record
		for n := range records {
			rs = append(rs, rec("x", strings.Repeat(string(rune('a'+n)), 300)))
		}
		b := block(uint64(i+1), rs...)
		appendAll(t, l, b)
		blocks = append(blocks, b)
		if i == 1 {
			must(t, l.Sync())
		}
	}
	ext := extents(l, 0)
	must(t, l.Close())
	return disk, blocks, ext[1:], newestSegment(t, disk)
}

func TestLostSectors(t *testing.T) {
	disk, blocks, ext, name := unsynced(t, 4)
	data := disk.Get(name)
	open := func(data []byte, change func(*Options)) (*Log, error) {
		d := disk.Clone()
		d.Put(name, data)
		opts := options(d)
		opts.Durable = 2
		opts.HeldFrom = 3
		if change != nil {
			change(&opts)
		}
		return Open(opts)
	}
	zero := func(data []byte, sectors ...int64) []byte {
		data = bytes.Clone(data)
		for _, s := range sectors {
			from := max(s*diskSector, ext[2].from) // what was synced stays
			clear(data[from:min((s+1)*diskSector, int64(len(data)))])
		}
		return data
	}
	first, last := ext[2].from/diskSector, int64(len(data)-1)/diskSector
	// Any one of the sectors, and any two.
	for a := first; a <= last; a++ {
		for b := a; b <= last; b++ {
			bad := zero(data, a, b)
			l, err := open(bad, nil)
			require.NoError(t, err, "sectors %d and %d", a, b)
			n := 2
			for n < 5 && ext[n].to <= max(a*diskSector, ext[2].from) {
				n++
			}
			require.True(t, l.Head() == uint64(n) && l.Tail() != nil,
				"sectors %d and %d: head %d, want %d", a, b, l.Head(), n)
			sameBlocks(t, readAll(t, l, 0), blocks[:n])
			must(t, l.Close())
			if a < last-8 {
				// The same where it must not be: then nothing is cut.
				_, err = open(bad, func(o *Options) { o.Durable = 6 })
				corruption(t, err)
				_, err = open(bad, func(o *Options) { o.HeldFrom = 6 })
				corruption(t, err)
				// And with a flipped byte elsewhere, it is not only sectors.
				bad[ext[4].from+100] ^= 4
				if a != (ext[4].from+100)/diskSector && b != (ext[4].from+100)/diskSector &&
					(a+1)*diskSector < ext[4].from && (b+1)*diskSector < ext[4].from {
					_, err = open(bad, nil)
					corruption(t, err)
				}
			}
		}
	}
}

// TestContentThatLooksLikeALog: a user's payload that is a copy of a segment is
// not taken for blocks behind a torn one.
func TestContentThatLooksLikeALog(t *testing.T) {
	disk, _, _, name := unsynced(t, 4)
	copied := disk.Get(name)
	l := mustOpen(t, options(disk))
	appendAll(t, l, block(100, rec("copy", string(copied))))
	must(t, l.Close())
	other := memdisk.New()
	l = mustOpen(t, options(other))
	appendAll(t, l, block(1, rec("a", "a")), block(2, rec("copy", string(copied))))
	must(t, l.Close())
	for _, d := range []*memdisk.Disk{disk, other} {
		name := newestSegment(t, d)
		data := d.Get(name)
		at := bytes.LastIndex(data, []byte("header of copy")) - 100
		at = bytes.LastIndex(data[:at+60], []byte(blockMagic))
		for _, off := range []int{at + 5, at + blockSize + 30, len(data) - 3} {
			l, err := Open(options(flipped(d, path.Base(name), int64(off), 1)))
			if d == disk && off == at+5 {
				continue // a copy of this very segment, and the block's extent unknown
			}
			must(t, err)
			require.True(t, l.Tail() != nil, "not cut")
			must(t, l.Close())
		}
	}
}
