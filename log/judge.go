package log

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/qlogd/qlogd/log/vfs"
)

// Judging the bytes after the last whole block: a torn tail, or corruption.
//
// A power cut leaves any prefix of the unsynced blocks, and on most file systems also any
// choice of sectors, the lost ones reading as zeros. A failing disk changes bytes
// anywhere. So:
//
//   - Nothing whole follows the damage: it is the last block that was written,
//     and if Raft can feed it again, it is cut.
//   - Whole blocks follow, but all that is wrong is lost sectors: nothing from
//     the first of them on was ever synced. It is cut too, if nothing of it was
//     promised (Options.Durable) and Raft can feed it all again.
//   - Else it is corruption, and nothing is changed.

const diskSector = 512

// judge examines a file from the first damage on.
type judge struct {
	win   window
	salts []uint32 // any of them marks a block as one of this segment
	after uint64   // a block after the damage has a higher index
	err   error    // the file could not be read: no answer counts
}

// failed reports whether there is an error, and notes one of reading.
func (j *judge) failed(err error) bool {
	if _, damaged := errors.AsType[*damage](err); err != nil && !damaged &&
		!errors.Is(err, errShort) {
		j.err = err
	}
	return err != nil
}

// header returns the size and salt of the block whose good header is at off; size 0: none is.
func (j *judge) header(off int64) (size int64, salt uint32) {
	b, err := j.win.at(off, blockSize)
	if j.failed(err) {
		return 0, 0
	}
	for _, salt := range j.salts {
		if h, reason := parseBlockHeader(b, salt); reason == "" && h.index > j.after {
			return h.size(), salt
		}
	}
	return 0, 0
}

// find returns the first offset >= off that looks like the beginning of a block and for
// which is returns true.
func (j *judge) find(off int64, is func(off int64) bool) (int64, bool) {
	const step = 16 << 10 // well below the window's: a hit must not cost a read
	for off+blockSize+trailerSize <= j.win.limit {
		b, err := j.win.at(off, min(step, j.win.limit-off))
		if j.failed(err) {
			return 0, false
		}
		i := bytes.Index(b, []byte(blockMagic))
		switch {
		case i >= 0:
			if off += int64(i); is(off) {
				return off, true
			}
			off++
		case off+int64(len(b)) == j.win.limit:
			return 0, false
		default:
			off += int64(len(b) - len(blockMagic) + 1)
		}
	}
	return 0, false
}

// begins reports whether a good block header is at off.
func (j *judge) begins(off int64) bool {
	size, _ := j.header(off)
	return size > 0
}

// whole reports whether a block at off passes all its checksums. (Its chain cannot be
// checked: the block before is missing.)
func (j *judge) whole(off int64) bool {
	size, salt := j.header(off)
	if size == 0 {
		return false
	}
	raw, h, err := readBlock(&j.win, off, salt)
	if j.failed(err) {
		return false
	}
	_, d := (&scan{off: off, salt: salt}).walk(raw, h, nil)
	return d == nil
}

// behind reports whether a whole block follows the damaged one at off.
func (j *judge) behind(off int64) bool {
	// With a good header the block's end is known, and what is inside it (a user's bytes) is
	// not looked at.
	size, _ := j.header(off)
	_, ok := j.find(off+max(size, 1), j.whole)
	return ok
}

// lost reports whether a piece is wrong because of a lost sector: whether it
// reaches into one that is zeros, from where the block begins on. Where the block
// begins with a sector's last byte, or the file ends after its first, that is
// one zero byte; it could have flipped to zero, too, but then as well nothing is
// cut that Raft does not hold.
func (j *judge) lost(d *damage, block int64) bool {
	for s := d.from / diskSector * diskSector; s < min(d.to, j.win.limit); s += diskSector {
		from, to := max(s, block), min(s+diskSector, j.win.limit)
		b, err := j.win.at(from, to-from)
		if j.failed(err) {
			return false
		}
		if len(b) > 0 && len(bytes.TrimLeft(b, "\x00")) == 0 {
			return true
		}
	}
	return false
}

// onlyLost reports whether everything that is wrong from the block at off to the
// end of the file is lost sectors.
func (j *judge) onlyLost(off int64) bool {
	for off < j.win.limit {
		size, salt := j.header(off)
		if size == 0 {
			if !j.lost(&damage{from: off, to: off + blockSize}, off) {
				return false
			}
			// Its end is not known. The next header, be its block whole or not.
			next, found := j.find(off+1, j.begins)
			if !found {
				return true
			}
			off = next
			continue
		}
		raw, h, err := readBlock(&j.win, off, salt)
		if j.failed(err) {
			return true // the file ends in this block
		}
		raw = bytes.Clone(raw) // lost reads elsewhere
		all := true
		(&scan{off: off, salt: salt}).walk(raw, h, func(d *damage) bool {
			all = !d.final && j.lost(d, off)
			return all
		})
		if !all {
			return false
		}
		off += size
	}
	return true
}

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
