package log

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var update = flag.Bool("update", false,
	"write the golden files anew (only for a new format version)")

// goldenDisk is a log of two segments with everything that the format has: a
// sealed segment with its side file, an empty block, records with and without
// each part, an erased content, and a list of contents to be erased.
func goldenDisk(t testing.TB) *memdisk.Disk {
	disk := memdisk.New()
	l := mustOpen(t, Options{FS: disk, Dir: dir, SegmentSize: 900, inline: true})
	first := rec("first", "content")
	alias := rec("second", "-")
	alias.Alias = key("an alias")
	prev := rec("first", "")
	prev.Prev = event.Ref{Index: 1, Number: 0}
	gone := rec("third", "to be erased")
	bare := record{}
	appendAll(t, l, block(1, first, alias), block(2), block(5, prev, gone, bare),
		block(6, rec("fourth", strings.Repeat("x", 300))))
	e, _, err := l.erasureOf(event.Ref{Index: 5, Number: 1})
	must(t, err)
	must(t, l.Erase([]event.Ref{{Index: 5, Number: 1}}))
	must(t, l.Close())
	// As if the crash had come before the list was removed.
	disk.Put(dir+"/"+eraseList, encodeErasures([]erasure{e}))
	return disk
}

// goldens are the files of goldenDisk: in the log, in testdata.
var goldens = map[string]string{
	SegmentName(1): "v1.seg", SideFileName(1): "v1.idx", SegmentName(6): "v1-second.seg",
	eraseList: "v1.list",
}

// TestGoldenFiles: the bytes of each format are frozen. If this fails, it has
// changed: then its version must change too.
func TestGoldenFiles(t *testing.T) {
	disk := goldenDisk(t)
	require.Equal(t, len(files(t, disk)), len(goldens))
	for name, file := range goldens {
		got := disk.Get(dir + "/" + name)
		if *update {
			must(t, os.WriteFile(filepath.Join("testdata", file), got, 0o644))
		}
		assert.True(t, bytes.Equal(got, golden(t, file)), "%s is not %s any more", name, file)
	}
}

// TestGoldenLogIsRead: a log can be read from the frozen bytes.
func TestGoldenLogIsRead(t *testing.T) {
	files := map[string][]byte{}
	for name, file := range goldens {
		files[name] = golden(t, file)
	}
	delete(files, eraseList)
	disk := fuzzDisk(t, files)
	report, err := Verify(t.Context(), Options{FS: disk, Dir: dir}, nil)
	must(t, err)
	require.True(t, report.Blocks == 4 && report.Records == 6 && report.Erased == 1 &&
		report.Last == 6, "%+v", report)
	l, err := OpenReadOnly(Options{FS: disk, Dir: dir})
	must(t, err)
	defer l.Close()
	content, erased, err := contentOf(l, event.Ref{Index: 5, Number: 1})
	must(t, err)
	require.True(t, string(content) == "[erased][era" && erased, "%q, %v", content, erased)
	ref, _, err := l.newest(tableSubjects, key("first"), 0)
	must(t, err)
	require.Equal(t, ref, event.Ref{Index: 5})
}

// TestNewerVersionIsRefused: tomorrow's file is refused in the right words, by
// everyone, and left alone.
func TestNewerVersionIsRefused(t *testing.T) {
	for name := range goldens {
		if name == SideFileName(1) {
			continue // it is derived, and made again
		}
		disk := goldenDisk(t)
		b := disk.Get(dir + "/" + name)
		if name != eraseList {
			must(t, disk.Remove(dir+"/"+eraseList)) // finishing it is another story
		}
		known := uint32(formatVersion)
		le.PutUint32(b[8:], known+1)
		le.PutUint32(b[12:], crc(b[:12]))
		// All else may look different then.
		for i := preambleSize; i < len(b); i++ {
			b[i] ^= 0x55
		}
		disk.Put(dir+"/"+name, b)
		before := disk.Clone()
		opts := options(disk)
		want := fmt.Sprintf("%s: log format version %d is newer than this program's %d", name,
			known+1, known)
		_, err := Open(opts)
		assert.ErrorContains(t, err, want, "open")
		if name != eraseList {
			_, err = OpenReadOnly(opts)
			assert.ErrorContains(t, err, want, "read-only")
		}
		_, err = Verify(t.Context(), opts, nil)
		assert.ErrorContains(t, err, want, "verify")
		assert.Equal(t, sameFiles(before, disk), "")
	}
}
