package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/vfs"
)

// Refresh brings the archive's copies of a log's segments up to date in which
// some records lie whose contents were erased there, and returns how many it wrote
// anew. What the archive does not have yet, and what the log does not have any
// more, is left alone.
func (a *Archive) Refresh(ctx context.Context, src Source, erased []log.Ref) (int, error) {
	cards, err := a.segments(ctx)
	if err != nil {
		return 0, err
	}
	if src.Logger == nil {
		src.Logger = slog.New(slog.DiscardHandler)
	}
	n := 0
	for _, c := range touched(cards, erased) {
		i := slices.IndexFunc(src.Segments, func(s log.SegmentInfo) bool { return s.First == c.First && s.Sealed })
		if i < 0 {
			continue
		}
		s := &src.Segments[i]
		if hexOf(s.Chain) != c.Chain || s.Last != c.Last {
			return n, fmt.Errorf("%w: its segment %s is another one than the log's", ErrOther, s.Name)
		}
		fresh, err := a.refresh(ctx, &src, s, c)
		if err != nil {
			return n, err
		}
		if fresh != nil {
			n++
		}
	}
	return n, nil
}

// Erase overwrites contents in segments that only the archive has, since the log
// begins with what src has, and returns how many segments it wrote anew. One at a
// time is read into memory.
func (a *Archive) Erase(ctx context.Context, src Source, erased []log.Ref) (int, error) {
	cards, err := a.segments(ctx)
	if err != nil {
		return 0, err
	}
	if src.Logger == nil {
		src.Logger = slog.New(slog.DiscardHandler)
	}
	n := 0
	for _, c := range touched(cards, erased) {
		if len(src.Segments) > 0 && c.First >= src.Segments[0].First {
			break
		}
		fresh, err := a.eraseIn(ctx, &src, c, erased)
		if err != nil {
			return n, fmt.Errorf("archive %s: erase in segment %s: %w", a.store, c.Name, err)
		}
		if fresh {
			n++
		}
	}
	return n, nil
}

// touched returns the segments in which some records lie, the oldest first.
func touched(cards []*card, refs []log.Ref) []*card {
	indexes := make([]uint64, len(refs))
	for i, r := range refs {
		indexes[i] = r.Index
	}
	slices.Sort(indexes)
	return slices.DeleteFunc(slices.Clone(cards), func(c *card) bool {
		i, _ := slices.BinarySearch(indexes, c.First)
		return i == len(indexes) || indexes[i] > c.Last
	})
}

// eraseIn makes a log of one archived segment, erases in it, and archives that.
func (a *Archive) eraseIn(ctx context.Context, src *Source, c *card, refs []log.Ref) (bool, error) {
	r, err := a.store.Get(ctx, c.Object, 0, -1)
	if err != nil {
		return false, err
	}
	b, err := io.ReadAll(&cancelled{ctx, r})
	if err = errors.Join(err, r.Close()); err != nil {
		return false, err
	}
	// In memory: the bytes must not lie anywhere else meanwhile.
	const dir = "/log"
	disk := vfs.NewMem()
	if err := disk.MkdirAll(dir); err != nil {
		return false, err
	}
	disk.Put(path.Join(dir, c.Name), b)
	l, err := log.Open(log.Options{FS: disk, Dir: dir, SegmentSize: a.about.SegmentBytes, Durable: c.Last})
	if err != nil {
		return false, err
	}
	refs = slices.DeleteFunc(slices.Clone(refs), func(r log.Ref) bool { return r.Index < c.First || r.Index > c.Last })
	err = l.Erase(refs)
	segments := l.Segments()
	if err = errors.Join(err, l.Close()); err != nil {
		return false, err
	}
	if len(segments) != 1 || hexOf(segments[0].Chain) != c.Chain {
		return false, &CorruptError{a.store.String(), c.Object, "it is not what its card says"}
	}
	own := Source{FS: disk, LogDir: dir, Logger: src.Logger}
	s := &segments[0]
	s.Name, s.SideFile, s.Sealed = c.Name, log.SideFileName(c.First), true
	fresh, err := a.refresh(ctx, &own, s, c)
	return fresh != nil, err
}
