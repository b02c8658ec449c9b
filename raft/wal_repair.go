package raft

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	waltypes "github.com/hashicorp/raft-wal/types"
)

// repairLog puts the Raft log's files right before raft-wal opens them, because
// raft-wal v0.4.1 does not come back from every crash (found by walking one
// through each of its writes, TestCrashAnywhere):
//
//   - A segment is sealed in its file first and in the metadata after. A crash
//     in between leaves a tail that refuses every append ("segment is sealed").
//   - A torn seal does the same: its batch is rolled back, its mark is not.
//   - What a torn batch left behind the end is kept. The next batch overwrites a
//     part of it, and if that one is torn too, the rest of the first passes for
//     its end.
//
// So a sealed tail is entered as such, and any other is copied into a fresh file
// that has nothing behind its end. It is at most one segment, once a start.
//
// The metadata is then written again in any case: after a kill the page cache
// may show a transaction that is not on disk yet, and raft-wal would build on it.
func repairLog(dir string, meta waltypes.MetaStore, filer *segment.Filer) error {
	state, err := meta.Load(dir)
	if err != nil || len(state.Segments) == 0 {
		return err // a new log
	}
	// Of an earlier attempt; raft-wal deletes such files too, but only later.
	known := map[uint64]bool{}
	for _, s := range state.Segments {
		known[s.ID] = true
	}
	files, err := filer.List()
	if err != nil {
		return err
	}
	for id, base := range files {
		if !known[id] {
			if err := filer.Delete(base, id); err != nil {
				return err
			}
		}
	}
	last := len(state.Segments) - 1
	if tail := state.Segments[last]; tail.SealTime.IsZero() {
		mended, err := repairTail(tail, &state.NextSegmentID, filer)
		if err != nil {
			return fmt.Errorf("repair segment %s: %w", segment.FileName(tail), err)
		}
		state.Segments = append(state.Segments[:last:last], mended...)
	}
	return meta.CommitState(state)
}

// repairTail returns what takes the unsealed tail's place.
func repairTail(tail waltypes.SegmentInfo, nextID *uint64, filer *segment.Filer) ([]waltypes.SegmentInfo, error) {
	old, err := filer.RecoverTail(tail)
	if errors.Is(err, fs.ErrNotExist) {
		return []waltypes.SegmentInfo{tail}, nil // raft-wal makes it
	}
	if err != nil {
		return nil, err
	}
	defer old.Close()
	fresh := tail
	fresh.ID = *nextID
	fresh.CreateTime = time.Now()
	*nextID++

	if sealed, start, err := old.Sealed(); err != nil {
		return nil, err
	} else if sealed {
		tail.SealTime, tail.IndexStart, tail.MaxIndex = time.Now(), start, old.LastIndex()
		if sealHolds(tail, old, filer) {
			fresh.BaseIndex, fresh.MinIndex = tail.MaxIndex+1, tail.MaxIndex+1
			return []waltypes.SegmentInfo{tail, fresh}, nil
		}
	}
	// The file's first entries may be deleted already (MinIndex).
	fresh.BaseIndex = fresh.MinIndex
	if old.LastIndex() < fresh.BaseIndex {
		return []waltypes.SegmentInfo{fresh}, nil // empty: raft-wal makes the file
	}
	return []waltypes.SegmentInfo{fresh}, copyTail(fresh, old, filer)
}

// sealHolds tells whether all entries of the tail are found by way of its seal:
// a torn one may lead anywhere.
func sealHolds(tail waltypes.SegmentInfo, old waltypes.SegmentWriter, filer *segment.Filer) bool {
	if tail.MaxIndex < tail.MinIndex {
		return false
	}
	r, err := filer.Open(tail)
	if err != nil {
		return false
	}
	defer r.Close()
	for i := tail.MinIndex; i <= tail.MaxIndex; i++ {
		a, err := r.GetLog(i)
		if err != nil {
			return false
		}
		b, err := old.GetLog(i)
		same := err == nil && bytes.Equal(a.Bs, b.Bs)
		a.Close()
		if err == nil {
			b.Close()
		}
		if !same {
			return false
		}
	}
	return true
}

// copyStep is how much of a segment is copied with one fsync.
const copyStep = 4 << 20

func copyTail(fresh waltypes.SegmentInfo, old waltypes.SegmentWriter, filer *segment.Filer) (err error) {
	w, err := filer.Create(fresh)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var batch []waltypes.LogEntry
	size := 0
	for i := fresh.BaseIndex; i <= old.LastIndex(); i++ {
		raw, err := old.GetLog(i)
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		data := bytes.Clone(raw.Bs)
		raw.Close()
		if err := checkRaw(i, data); err != nil {
			return err
		}
		batch = append(batch, waltypes.LogEntry{Index: i, Data: data})
		size += len(data)
		if size >= copyStep || i == old.LastIndex() {
			if err := w.Append(batch); err != nil { // syncs
				return err
			}
			batch, size = batch[:0], 0
		}
	}
	if sealed, _, err := w.Sealed(); err != nil || sealed {
		// It fitted into the old file with more around it.
		return errors.Join(err, errors.New("the copy is larger than the original"))
	}
	return nil
}

// checkRaw checks an entry as raft-wal stores it.
func checkRaw(index uint64, data []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("entry %d cannot be decoded: %v", index, p)
		}
	}()
	var l hraft.Log
	if err := (&wal.BinaryCodec{}).Decode(data, &l); err != nil {
		return fmt.Errorf("entry %d: %w", index, err)
	}
	return unseallog(index, &l)
}
