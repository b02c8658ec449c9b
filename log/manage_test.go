package log

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

func TestAppendRefuses(t *testing.T) {
	l := mustOpen(t, options(memdisk.New()))
	appendAll(t, l, block(5, rec("a", "x"), rec("b", "-")))
	head := l.Head()
	noDigest := rec("a", "x")
	noDigest.Digest = [32]byte{}
	noContent := rec("a", "x")
	noContent.Content = nil
	sameID := block(6, rec("a", "-"), rec("b", "-"))
	sameID.Records[1].ID = sameID.Records[0].ID
	oldID := block(6, rec("a", "-"))
	le16(oldID.Records[0].ID[:], 5, 1)
	for want, b := range map[string]*rawBlock{
		"append block 5: the log's head is at 5 already": block(5),
		"append block 4: the log's head is at 5 already": block(4),
		"append block 6: record 1: id":                   sameID,
		"append block 6: record 0: id":                   oldID,
		"a content without a digest":                     block(6, noDigest),
		"a digest without a content":                     block(6, noContent),
		"header of 16777216 bytes, at most 16777215": block(6,
			record{Header: make([]byte, 1<<24)}),
	} {
		assert.ErrorContains(t, l.append(b), want)
	}
	require.Equal(t, l.Head(), head, "a refused block has moved the head")
	appendAll(t, l, block(6, rec("a", "-")))
}

func TestEmptyLog(t *testing.T) {
	disk := memdisk.New()
	_, err := OpenReadOnly(options(disk))
	require.ErrorIs(t, err, fs.ErrNotExist)
	for range 2 {
		l := mustOpen(t, options(disk))
		require.True(t, l.Head() == 0 && l.First() == 0 && len(l.Segments()) == 0 &&
			l.Tail() == nil, "head %v", l.Head())
		require.Equal(t, len(readAll(t, l, 0)), 0)
		_, err := l.record(event.Ref{Index: 1, Number: 0})
		require.ErrorIs(t, err, ErrNotFound)
		must(t, l.Sync())
		must(t, l.DeleteBefore(10))
		must(t, l.Close())
		must(t, l.Close())
		require.ErrorIs(t, l.append(block(1)), ErrClosed)
	}
	_, err = Open(Options{FS: disk, Dir: dir, Durable: 7})
	assert.ErrorContains(t, err, "was durable up to 7")
	_, err = Open(Options{FS: disk, Dir: dir, SegmentSize: -1})
	assert.ErrorContains(t, err, "segment size -1")
}

// Deleted history is not read from the cache either: an erasure skips it, so its contents would be
// served for as long as little is appended.
func TestDeletedHistoryIsNotCached(t *testing.T) {
	o := options(memdisk.New())
	o.CacheBytes = 1 << 20
	l := mustOpen(t, o)
	for i := range uint64(40) {
		must(t, l.append(block(i+1, rec("message", "a secret content of some bytes"))))
	}
	segments := l.Segments()
	must(t, l.DeleteBefore(segments[len(segments)-1].First))
	first := l.First()
	require.True(t, first >= 3, "the log begins at %d", first)
	for index := uint64(1); index < first; index++ {
		_, err := l.record(event.Ref{Index: index})
		require.ErrorIs(t, err, ErrGone, "block %d was deleted", index)
	}
	_, err := l.record(event.Ref{Index: first})
	must(t, err)
}

func TestReadOnlyRefusesToWrite(t *testing.T) {
	disk, _ := written(t, 5)
	l, err := OpenReadOnly(options(disk))
	must(t, err)
	defer l.Close()
	for name, err := range map[string]error{
		"append": l.append(block(99)), "sync": l.Sync(), "delete": l.DeleteBefore(9),
		"erase": l.Erase([]event.Ref{{Index: 1, Number: 0}}),
	} {
		assert.ErrorIs(t, err, ErrReadOnly, "%s:", name)
	}
}

// TestMissingSegment: a gap in the middle, and a log that ends too early.
func TestMissingSegment(t *testing.T) {
	disk, blocks := written(t, 60)
	l := mustOpen(t, options(disk))
	segments := l.Segments()
	must(t, l.Close())
	for i := 1; i < len(segments)-1; i++ {
		d := disk.Clone()
		must(t, d.Remove(path.Join(dir, segments[i].Name)))
		for _, open := range []func(Options) (*Log, error){Open, OpenReadOnly} {
			_, err := open(options(d))
			c := corruption(t, err)
			require.True(t, c.Segment == segments[i+1].Name && c.LastGood == segments[i-1].Last, "%v", c)
		}
		_, err := Verify(context.Background(), options(d), nil)
		corruption(t, err)
		_, err = ScanSegment(t.Context(), disk, dir, segments[i+1].Name, -1, &segments[i-1])
		corruption(t, err)
	}
	_, err := ScanSegment(t.Context(), disk, dir, "../"+segments[1].Name, -1, nil)
	require.True(t, err != nil && strings.Contains(err.Error(), "no segment's name"), "%v", err)
	d := disk.Clone()
	must(t, d.Remove(path.Join(dir, segments[len(segments)-1].Name)))
	opts := options(d)
	opts.Durable = blocks[59].Index
	_, err = Open(opts)
	corruption(t, err)
	opts.Durable = segments[len(segments)-2].Last
	sameBlocks(t, readAll(t, mustOpen(t, opts), 0), blocks[:slices.IndexFunc(blocks,
		func(b *rawBlock) bool { return b.Index == opts.Durable })+1])
}

func TestWait(t *testing.T) {
	l := mustOpen(t, options(memdisk.New()))
	appendAll(t, l, block(5))
	must(t, l.Wait(context.Background(), 4))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, l.Wait(ctx, 5), context.Canceled)
	done := make(chan error)
	go func() { done <- l.Wait(context.Background(), 6) }()
	appendAll(t, l, block(6))
	appendAll(t, l, block(7))
	must(t, <-done)
	go func() { done <- l.Wait(context.Background(), 99) }()
	must(t, l.Close())
	require.ErrorIs(t, <-done, ErrClosed)
}

func TestErase(t *testing.T) {
	disk, blocks := written(t, 40)
	opts := options(disk)
	opts.CacheBytes = 1 << 20
	l := mustOpen(t, opts)
	b := block(100, rec("short", "x"), rec("none", "-"), rec("empty", ""), rec("mark", "[erased]"))
	appendAll(t, l, b)
	blocks = append(blocks, b)
	refs := []event.Ref{{Index: 1, Number: 0}, {Index: 6, Number: 0}, {Index: 100, Number: 0},
		{Index: 100, Number: 1}, {Index: 100, Number: 2}}
	must(t, l.Erase(refs))
	must(t, l.Erase(refs))
	erased := map[event.Ref]bool{refs[0]: true, refs[1]: true, refs[2]: true, refs[4]: true}
	check := func(l *Log) {
		t.Helper()
		everyLookup(t, l, blocks, erased)
		for ref := range erased {
			content, _, err := contentOf(l, ref)
			must(t, err)
			require.True(t, strings.HasPrefix(strings.Repeat(erasureMark, 12), string(content)),
				"record %s: %q", ref, content)
		}
	}
	check(l)
	must(t, l.Erase([]event.Ref{{Index: 3, Number: 77}})) // of a log that was salvaged
	must(t, l.Close())
	report, err := Verify(context.Background(), opts, nil)
	must(t, err)
	require.Equal(t, report.Erased, 4)
	check(mustOpen(t, opts))
}

// TestSideFilesAreDerived: where side files are missing, wrong or left over, a reader finds
// everything and writes nothing, and a writer leaves them as they were.
func TestSideFilesAreDerived(t *testing.T) {
	disk, blocks := written(t, 60)
	all := disk.Clone()
	for _, name := range files(t, disk) {
		if strings.HasSuffix(name, ".idx") {
			must(t, disk.Remove(path.Join(dir, name)))
		}
	}
	newest := strings.TrimSuffix(path.Base(newestSegment(t, disk)), ".seg") + ".idx"
	for _, name := range []string{
		SideFileName(1), SideFileName(1) + vfs.TempSuffix, SideFileName(77777), newest,
	} {
		disk.Put(path.Join(dir, name), []byte("bad"))
	}
	before := disk.Clone()
	l, err := OpenReadOnly(options(disk))
	must(t, err)
	everyLookup(t, l, blocks, nil)
	must(t, l.Close())
	require.Equal(t, sameFiles(before, disk), "", "a reader has written")
	o := options(disk)
	o.SegmentSize = 5000 // of a log that exists, its own counts
	w := mustOpen(t, o)
	require.Equal(t, w.SegmentSize(), 1000)
	everyLookup(t, w, blocks, nil)
	must(t, w.Close())
	require.Equal(t, sameFiles(all, disk), "")
}

// TestManyKeys fills tables of several pages, and finds every key.
func TestManyKeys(t *testing.T) {
	opts := options(memdisk.New())
	opts.SegmentSize = 400 << 10
	l := mustOpen(t, opts)
	var blocks []*rawBlock
	for i := range 60 {
		var rs []record
		for n := range 100 {
			r := rec(fmt.Sprintf("subject %d", (i*31+n*7)%3000), strings.Repeat("z", n))
			r.Alias = key("alias %d", i*100+n)
			rs = append(rs, r)
		}
		if i == 30 {
			rs[50] = rec("large", strings.Repeat("big", 20<<10))
		}
		blocks = append(blocks, block(uint64(i+1), rs...))
	}
	appendAll(t, l, blocks...)
	side, ok := l.segments[0].index.(*sideFile)
	if len(l.Segments()) < 3 || !ok || side.tables[tableSubjects].count() < 3 {
		t.Fatalf("%d segments, %+v", len(l.Segments()), side)
	}
	everyLookup(t, l, blocks, nil)
}
