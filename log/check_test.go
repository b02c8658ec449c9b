package log

import (
	"bytes"
	"errors"
	"path"
	"slices"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

// TestCheck: a flipped byte in any place of an open log is found and reported, a side file is
// written again, and a segment is right once a right copy is put in its place.
func TestCheck(t *testing.T) {
	disk, _ := written(t, 60)
	var reported []string
	o := options(disk)
	o.Damaged = func(c *CorruptionError) { reported = append(reported, c.Segment) }
	l := mustOpen(t, o)
	segments := l.Segments()
	require.True(t, len(segments) > 3, "segments")
	for _, seg := range segments {
		names := []string{seg.Name}
		if seg.Sealed {
			names = append(names, seg.SideFile)
		}
		for _, name := range names {
			right := disk.Get(path.Join(dir, name))
			for at := 0; at < len(right); at += step(7, 101) {
				reported = nil
				require.NoError(t, l.Check(t.Context(), seg.First, nil))
				require.Equal(t, len(reported), 0, "%s: reported before byte %d", name, at)
				disk.Flip(path.Join(dir, name), at, 4)
				err := l.Check(t.Context(), seg.First, nil)
				require.True(t, IsDamage(err), "%s, byte %d: %v", name, at, err)
				require.True(t, slices.Equal(reported, []string{name}),
					"%s, byte %d: reported %v", name, at, reported)
				switch {
				case name == seg.SideFile:
					require.True(t, bytes.Equal(disk.Get(path.Join(dir, name)), right),
						"byte %d of %s is still wrong", at, name)
				case seg.Sealed:
					must(t, vfs.WriteFile(disk, "/copy", right))
					must(t, l.Replace(seg, "/copy"))
				default:
					disk.Flip(path.Join(dir, name), at, 4)
					require.True(t, errors.Is(l.Replace(seg, "/copy"), ErrGone),
						"the newest segment is replaced")
				}
			}
		}
	}
	must(t, l.DeleteBefore(segments[1].First))
	for _, err := range []error{
		l.Check(t.Context(), segments[0].First, nil), l.Replace(segments[0], "/copy"),
	} {
		assert.True(t, errors.Is(err, ErrGone), "deleted by retention: %v", err)
	}
}

// badSector is a disk that cannot read a file.
type badSector struct {
	vfs.FS
	name string
}

type badFile struct{ vfs.File }

func (badFile) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

func (d *badSector) OpenRead(name string) (vfs.File, error) {
	f, err := d.FS.OpenRead(name)
	if err == nil && path.Base(name) == d.name {
		f = badFile{f}
	}
	return f, err
}

// TestUnreadableIsDamage: what a disk cannot read is damage, in every way to read a segment, and is
// readable again once it is replaced.
func TestUnreadableIsDamage(t *testing.T) {
	disk, _ := written(t, 60)
	bad := &badSector{FS: disk}
	reports := 0
	o := options(bad)
	o.Damaged = func(*CorruptionError) { reports++ }
	l := mustOpen(t, o)
	seg := l.Segments()[1]
	ways := map[string]func() error{
		"check":  func() error { return l.Check(t.Context(), seg.First, nil) },
		"record": func() error { _, err := l.record(event.Ref{Index: seg.First}); return err },
		"events": func() error {
			for _, err := range l.Events(t.Context(), seg.First, seg.Last) {
				return err
			}
			return nil
		},
		"block": func() error { _, err := l.Block(seg.First); return err },
		"chain": func() error { _, err := l.ChainAt(seg.First); return err },
		"time":  func() error { _, _, err := l.SeekTime(seg.PrevClock + 1); return err },
	}
	for name, read := range ways {
		bad.name = ""
		l.files.forget(seg.Name)
		err := read()
		require.False(t, IsDamage(err), "%s: %v", name, err)
		bad.name, reports = seg.Name, 0
		l.files.forget(seg.Name)
		err = read()
		require.True(t, IsDamage(err) && reports > 0, "%s: %d reports, %v", name, reports, err)
	}
	must(t, vfs.WriteFile(disk, "/copy", disk.Get(path.Join(dir, seg.Name))))
	bad.name = ""
	must(t, l.Replace(seg, "/copy"))
	must(t, l.Check(t.Context(), seg.First, nil))
}
