package log

import (
	"fmt"
	"strings"

	"github.com/qlogd/qlogd/log/vfs"
)

// torn judges the damage that a scan of the newest segment has found: nil if it is to be cut.
func (r *recovery) torn(s *scan, wrong *CorruptionError) error {
	if wrong.damage.final {
		return wrong
	}
	win := window{r: s.win.r, limit: s.win.limit, chunk: 1 << 20}
	j := judge{win: win, salts: []uint32{s.salt}, after: s.last}
	return r.cut(&j, wrong, j.behind(s.off), s.off)
}

// cut records the tail of a file from off on for cutting, or returns why it must not be
// cut. behind says that whole blocks follow the damage.
func (r *recovery) cut(j *judge, e *CorruptionError, behind bool, off int64) error {
	held := r.opts.HeldFrom != 0 && r.opts.HeldFrom <= e.LastGood+1
	lost := behind && held && j.onlyLost(off)
	switch {
	case j.err != nil:
		return fmt.Errorf("read segment %s: %w", e.Segment, j.err)
	case e.LastGood < r.opts.Durable:
		return e.and(fmt.Sprintf("the log was durable up to index %d", r.opts.Durable))
	case behind && !lost:
		return e.and("whole blocks follow")
	case !behind && !held && r.w != nil:
		return e.and("the Raft log does not hold the entry any more")
	}
	r.tail = &Tail{Segment: e.Segment, Offset: off, Bytes: j.win.limit - off,
		LastGood: e.LastGood, Reason: e.Reason}
	return nil
}

// headless judges the newest segment when its header is wrong.
func (r *recovery) headless(seg *segment, size int64, wrong *CorruptionError) error {
	f := r.file(seg)
	b := make([]byte, min(size, headerSize))
	if err := readFull(f, b, 0); err != nil {
		return err
	}
	j := judge{win: window{r: f, limit: size, chunk: 1 << 20}, after: wrong.LastGood}
	if len(b) == headerSize {
		// The salt is the header's checksum: as it is there, as it would be,
		// and as what we know says.
		known := r.expected(len(r.segments) - 1)
		j.salts = []uint32{le.Uint32(b[84:]), crc(b[16:84]), known.salt}
	}
	_, behind := j.find(0, j.whole)
	// The header and the beginning of the first block share a sector.
	if behind && !j.lost(&damage{from: 0, to: headerSize}, 0) && j.err == nil {
		return wrong.and("whole blocks follow")
	}
	if err := r.cut(&j, wrong, behind, headerSize); err != nil {
		return err
	}
	r.tail.Offset, r.tail.Bytes = 0, size
	return r.drop()
}

// drop removes the newest segment, which has no whole block; the one before it becomes
// active again.
func (r *recovery) drop() error {
	n := len(r.segments) - 1
	r.dropped = r.segments[n]
	r.segments = r.segments[:n]
	if n == 0 {
		if d := r.dropped; d.PrevIndex != 0 {
			// Retention deletes nothing before this segment is durable.
			return &CorruptionError{Segment: d.Name, Offset: headerSize, LastGood: d.PrevIndex,
				Reason: "the only segment has no whole block"}
		}
		return nil
	}
	seg := r.segments[n-1]
	if _, ok := seg.index.(*memIndex); ok {
		return nil
	}
	// It was sealed, so it was synced: any damage in it is corruption.
	return r.whole(seg, seg.Size, false)
}

// apply changes the disk: it cuts the tail and removes leftovers. It is idempotent, in
// case of a crash.
func (r *recovery) apply() error {
	if r.tail != nil {
		r.logger.Warn("cut event log after the last whole block",
			"segment", r.tail.Segment, "offset", r.tail.Offset, "bytes", r.tail.Bytes,
			"last_good", r.tail.LastGood, "reason", r.tail.Reason)
	}
	var leftovers []string
	if r.dropped != nil {
		leftovers = append(leftovers, r.dropped.Name)
	}
	sealed := map[string]bool{}
	for _, seg := range r.segments[:max(len(r.segments)-1, 0)] {
		sealed[seg.SideFile] = true
	}
	for _, name := range r.names {
		_, side := firstIndex(name, ".idx")
		// The side file of a segment that is not sealed belongs to one that was cut
		// or deleted.
		if side && !sealed[name] || strings.HasSuffix(name, vfs.TempSuffix) {
			leftovers = append(leftovers, name)
		}
	}
	err := r.remove(leftovers...)
	if n := len(r.segments); n > 0 && err == nil {
		err = r.reopen(r.segments[n-1])
	}
	return err
}

// reopen opens the active segment for writing and cuts it where it ends.
func (r *recovery) reopen(seg *segment) error {
	f, err := r.fs.OpenReadWrite(r.path(seg.Name))
	if err != nil {
		return err
	}
	if err := r.w.setFile(f); err != nil {
		return err
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	if size > seg.Size {
		if err := f.Truncate(seg.Size); err != nil {
			return fmt.Errorf("cut segment %s: %w", seg.Name, err)
		}
		// Before anything is appended: the old bytes must not reappear after the new
		// ones.
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync segment %s: %w", seg.Name, err)
		}
	}
	for i := len(r.segments) - 1; i >= 0 && r.w.lastID == [16]byte{}; i-- {
		r.w.lastID = r.segments[i].lastID
	}
	return nil
}
