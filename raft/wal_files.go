package raft

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/log/vfs"
)

// walFS gives raft-wal its files through vfs, so that a crash test can interrupt each write and
// sync.
type walFS struct{ fsys vfs.FS }

var _ waltypes.VFS = walFS{}

func (w walFS) ListDir(dir string) ([]string, error) { return w.fsys.List(dir) }

// Create implements waltypes.VFS. The file gets its full size at once, so that an append does
// not change it, and its name is durable before anything in it.
func (w walFS) Create(dir, name string, size uint64) (waltypes.WritableFile, error) {
	f, err := w.fsys.Create(path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(int64(size)), w.fsys.SyncDir(dir)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return vfs.Prewritten(f, int64(size)), nil
}

func (w walFS) Delete(dir, name string) error { return vfs.Remove(w.fsys, dir, name) }

func (w walFS) OpenReader(dir, name string) (waltypes.ReadableFile, error) {
	return w.fsys.OpenRead(path.Join(dir, name))
}

// OpenWriter implements waltypes.VFS. The file and its name are synced at once: after a kill the
// page cache shows what is not on disk, and raft-wal takes what it reads for durable.
func (w walFS) OpenWriter(dir, name string) (waltypes.WritableFile, error) {
	f, err := w.fsys.OpenReadWrite(path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err = errors.Join(err, f.Sync(), w.fsys.SyncDir(dir)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return vfs.Prewritten(f, size), nil
}

// repairLog repairs the Raft log's files before raft-wal opens them, because raft-wal v0.4.1
// does not recover from every crash (TestCrashAnywhere of server interrupts each write):
//
//   - A segment is sealed in its file first and in the metadata after. A crash in between
//     leaves a tail that refuses every append ("segment is sealed").
//   - A torn seal does the same: its batch is rolled back, its mark is not.
//   - What a torn batch left after the end is kept. The next batch overwrites a part of it, and
//     if that one is torn too, the rest of the first is taken for its end.
//
// So the tail is copied into a new file, which has nothing after its end. It is at most one
// segment, once a start.
//
// The metadata is then written again in any case: after a kill the page cache may show what is not
// on disk yet.
func repairLog(dir string, meta waltypes.MetaStore, filer *segment.Filer) error {
	state, err := meta.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return err // a new log
	}
	// From an earlier attempt; raft-wal deletes such files too, but only later.
	if err := keepSegments(filer, state.Segments); err != nil {
		return err
	}
	last := len(state.Segments) - 1
	if tail := state.Segments[last]; tail.SealTime.IsZero() {
		repaired, err := repairTail(tail, &state.NextSegmentID, filer)
		if err != nil {
			return fmt.Errorf("repair segment %s: %w", segment.FileName(tail), err)
		}
		state.Segments = append(state.Segments[:last:last], repaired...)
	}
	return meta.CommitState(state)
}

// keepSegments deletes the files of all other segments.
func keepSegments(filer *segment.Filer, keep []waltypes.SegmentInfo) error {
	files, err := filer.List()
	for id, base := range files {
		known := func(s waltypes.SegmentInfo) bool { return s.ID == id }
		if !slices.ContainsFunc(keep, known) && err == nil {
			err = filer.Delete(base, id)
		}
	}
	return err
}

// repairTail returns what replaces the unsealed tail: a copy of its entries and, where they fill a
// segment, an empty one after it. raft-wal creates the file of one that has no entry yet.
func repairTail(tail waltypes.SegmentInfo, nextID *uint64, filer *segment.Filer) (
	out []waltypes.SegmentInfo, err error) {
	old, err := filer.RecoverTail(tail)
	if errors.Is(err, fs.ErrNotExist) {
		return []waltypes.SegmentInfo{tail}, nil
	}
	if err != nil {
		return nil, err
	}
	defer old.Close()
	add := func(first uint64) *waltypes.SegmentInfo {
		out = append(out, tail)
		s := &out[len(out)-1]
		s.ID, s.CreateTime, s.BaseIndex, s.MinIndex = *nextID, time.Now(), first, first
		*nextID++
		return s
	}
	fresh, last := add(tail.MinIndex), old.LastIndex() // the first entries may be deleted already
	var entries []waltypes.LogEntry
	for i := fresh.MinIndex; i <= last; i++ {
		data, err := readRaw(old, i)
		if err != nil {
			return nil, err
		}
		entries = append(entries, waltypes.LogEntry{Index: i, Data: data})
	}
	if len(entries) == 0 {
		return out, nil
	}
	w, err := filer.Create(*fresh)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.Append(entries); err != nil { // syncs
		return nil, err
	}
	sealed, start, err := w.Sealed()
	if sealed {
		fresh.SealTime, fresh.IndexStart, fresh.MaxIndex = time.Now(), start, last
		add(last + 1)
	}
	return out, err
}

// readRaw reads an entry as raft-wal stores it, and checks it.
func readRaw(from waltypes.SegmentWriter, index uint64) (data []byte, err error) {
	defer undecodable(index, &err)
	raw, err := from.GetLog(index)
	if err != nil {
		return nil, fmt.Errorf("entry %d: %w", index, err)
	}
	defer raw.Close()
	data = bytes.Clone(raw.Bs)
	var l hraft.Log
	if err := (&wal.BinaryCodec{}).Decode(data, &l); err != nil {
		return nil, fmt.Errorf("entry %d: %w", index, err)
	}
	return data, unseallog(index, &l)
}
