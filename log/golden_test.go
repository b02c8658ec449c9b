package log

import (
	"bytes"
	"context"
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
	if names := files(t, disk); len(names) != len(goldens) {
		t.Fatalf("files %v", names)
	}
	for name, golden := range goldens {
		got := disk.Get(dir + "/" + name)
		file := filepath.Join("testdata", golden)
		if *update {
			must(t, os.WriteFile(file, got, 0o644))
		}
		want, err := os.ReadFile(file)
		must(t, err)
		assert.True(t, bytes.Equal(got, want), "%s is not %s any more", name, file)
	}
}

// TestGoldenLogIsRead: a log can be read from the frozen bytes.
func TestGoldenLogIsRead(t *testing.T) {
	disk := memdisk.New()
	must(t, disk.MkdirAll(dir))
	for name, golden := range goldens {
		b, err := os.ReadFile(filepath.Join("testdata", golden))
		must(t, err)
		if name != eraseList {
			disk.Put(dir+"/"+name, b)
		}
	}
	report, err := Verify(context.Background(), Options{FS: disk, Dir: dir}, nil)
	must(t, err)
	require.True(t, report.Blocks == 4 && report.Records == 6 && report.Erased == 1 &&
		report.Contents == 3 && report.SideFiles == 1 && report.Last == 6, "%+v", report)
	l, err := OpenReadOnly(Options{FS: disk, Dir: dir})
	must(t, err)
	defer l.Close()
	content, erased, err := contentOf(l, event.Ref{Index: 5, Number: 1})
	must(t, err)
	require.True(t, string(content) == "[erased][era" && erased, "%q, %v", content, erased)
	if ref, ok, err := l.newest(tableSubjects, key("first"), 0); err != nil || !ok ||
		ref != (event.Ref{Index: 5, Number: 0}) {
		t.Fatalf("%v %v %v", ref, ok, err)
	}
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
		check := func(who string, err error) {
			assert.True(t, err != nil && strings.Contains(err.Error(), want),
				"%s: %v, want %q", who, err, want)
		}
		_, err := Open(opts)
		check("open", err)
		if name != eraseList {
			_, err = OpenReadOnly(opts)
			check("read-only", err)
		}
		_, err = Verify(context.Background(), opts, nil)
		check("verify", err)
		if msg := sameFiles(before, disk); msg != "" {
			t.Error(msg)
		}
	}
}
