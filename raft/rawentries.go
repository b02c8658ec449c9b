package raft

import (
	"encoding/binary"
	"fmt"
	"sync"

	hraft "github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	waltypes "github.com/hashicorp/raft-wal/types"
)

// rawEntries encodes what raft-wal stores, in its stead and into the same bytes.
// raft-wal gathers each entry in a new buffer that grows as it goes, which
// allocates, clears and copies more than once what an entry has. So it is given
// entries that have nothing but an index, and what it has made of them is replaced
// on the way to the segment's writer (rawTail).
type rawEntries struct {
	metrics Metrics

	mu    sync.Mutex   // held while raft-wal stores logs
	logs  []*hraft.Log // without their sums
	bare  []hraft.Log  // what raft-wal is given in their place
	given []*hraft.Log // bare's
	buf   []byte       // kept from store to store
}

// rawMore is how many bytes an entry has beside its data at most: three numbers
// and two lengths, the sum and the time.
const rawMore = 5*binary.MaxVarintLen64 + 4 + 16

// store has raft-wal store logs with their sums.
func (r *rawEntries) store(w *wal.WAL, logs []*hraft.Log) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bare, r.given = r.bare[:0], r.given[:0]
	for _, l := range logs {
		r.bare = append(r.bare, hraft.Log{Index: l.Index})
	}
	for i := range r.bare {
		r.given = append(r.given, &r.bare[i])
	}
	r.logs = logs
	err := w.StoreLogs(r.given)
	r.logs = nil
	if cap(r.buf) > 2*storeAtOnce {
		r.buf = nil
	}
	return err
}

// fill puts what is stored in the place of what raft-wal has encoded.
func (r *rawEntries) fill(entries []waltypes.LogEntry) (err error) {
	if len(entries) != len(r.logs) {
		return fmt.Errorf("raft-wal stores %d entries where it was given %d", len(entries), len(r.logs))
	}
	size := 0
	for _, l := range r.logs {
		size += len(l.Data) + rawMore
	}
	if cap(r.buf) < size {
		r.buf = make([]byte, 0, max(size, min(2*cap(r.buf), storeAtOnce)))
	}
	b := r.buf[:0]
	for i, l := range r.logs {
		if entries[i].Index != l.Index {
			return fmt.Errorf("raft-wal stores entry %d where it was given %d", entries[i].Index, l.Index)
		}
		from := len(b)
		if b, err = appendRaw(b, l); err != nil {
			return err
		}
		entries[i].Data = b[from:len(b):len(b)]
	}
	r.metrics.Count("raft_wal_"+rawBytes, float64(len(b)))
	return nil
}

// rawBytes is the metric of raft-wal's that it can't know.
const rawBytes = "log_entry_bytes_written"

// appendRaw appends an entry as raft-wal's BinaryCodec encodes it, its sum in
// Extensions.
func appendRaw(b []byte, l *hraft.Log) ([]byte, error) {
	b = binary.AppendUvarint(b, l.Index)
	b = binary.AppendUvarint(b, l.Term)
	b = binary.AppendUvarint(b, uint64(l.Type))
	b = append(binary.AppendUvarint(b, uint64(len(l.Data))), l.Data...)
	b = binary.BigEndian.AppendUint32(append(b, 4), logSum(l))
	return l.AppendedAt.AppendBinary(b)
}

// rawFiler makes the tails of raft-wal's log, and has its files deleted.
type rawFiler struct {
	*segment.Filer
	raw   *rawEntries
	trash *deleter
}

var _ waltypes.SegmentFiler = rawFiler{}

// Create implements waltypes.SegmentFiler.
func (f rawFiler) Create(info waltypes.SegmentInfo) (waltypes.SegmentWriter, error) {
	return f.tail(f.Filer.Create(info))
}

// RecoverTail implements waltypes.SegmentFiler.
func (f rawFiler) RecoverTail(info waltypes.SegmentInfo) (waltypes.SegmentWriter, error) {
	return f.tail(f.Filer.RecoverTail(info))
}

func (f rawFiler) tail(w waltypes.SegmentWriter, err error) (waltypes.SegmentWriter, error) {
	if err != nil {
		return nil, err
	}
	return rawTail{w, f.raw}, nil
}

// Delete implements waltypes.SegmentFiler.
func (f rawFiler) Delete(base, id uint64) error {
	f.trash.put(segment.FileName(waltypes.SegmentInfo{BaseIndex: base, ID: id}))
	return nil
}

// rawTail is a segment's writer, for entries that rawEntries.store was given.
type rawTail struct {
	waltypes.SegmentWriter
	raw *rawEntries
}

// Append implements waltypes.SegmentWriter.
func (t rawTail) Append(entries []waltypes.LogEntry) error {
	if err := t.raw.fill(entries); err != nil {
		return err
	}
	return t.SegmentWriter.Append(entries)
}
