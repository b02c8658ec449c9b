package log

import (
	"bytes"
	"errors"
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
}

// header returns the size and salt of the block whose good header is at off; size 0: none is.
func (j *judge) header(off int64) (size int64, salt uint32, err error) {
	b, err := j.win.at(off, blockSize)
	if errors.Is(err, errShort) {
		return 0, 0, nil
	} else if err != nil {
		return 0, 0, err
	}
	for _, salt := range j.salts {
		if h, reason := parseBlockHeader(b, salt); reason == "" && h.index > j.after {
			return h.size(), salt, nil
		}
	}
	return 0, 0, nil
}

// find returns the first offset >= off that looks like the beginning of a block and for
// which is returns true.
func (j *judge) find(off int64, is func(off int64) (bool, error)) (int64, bool, error) {
	const step = 16 << 10 // well below the window's: a hit must not cost a read
	for off+blockSize+trailerSize <= j.win.limit {
		b, err := j.win.at(off, min(step, j.win.limit-off))
		if err != nil {
			return 0, false, err
		}
		i := bytes.Index(b, []byte(blockMagic))
		if i < 0 {
			if off+int64(len(b)) == j.win.limit {
				return 0, false, nil
			}
			off += int64(len(b) - len(blockMagic) + 1)
			continue
		}
		off += int64(i)
		ok, err := is(off)
		if ok || err != nil {
			return off, ok, err
		}
		off++
	}
	return 0, false, nil
}

// begins reports whether a good block header is at off.
func (j *judge) begins(off int64) (bool, error) {
	size, _, err := j.header(off)
	return size > 0, err
}

// whole reports whether a block at off passes all its checksums. (Its chain cannot be
// checked: the block before is missing.)
func (j *judge) whole(off int64) (bool, error) {
	size, salt, err := j.header(off)
	if size == 0 || err != nil {
		return false, err
	}
	raw, h, err := readBlock(&j.win, off, salt)
	if isDamage(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	_, d := (&scan{off: off, salt: salt}).walk(raw, h, nil)
	return d == nil, nil
}

// behind reports whether a whole block follows the damaged one at off.
func (j *judge) behind(off int64) (bool, error) {
	// With a good header the block's end is known, and what is inside it (a user's bytes) is
	// not looked at.
	size, _, err := j.header(off)
	if err != nil {
		return false, err
	}
	_, ok, err := j.find(off+max(size, 1), j.whole)
	return ok, err
}

// lost reports whether a piece is wrong because of a lost sector: whether it
// reaches into one that is zeros, from where the block begins on. Where the block
// begins with a sector's last byte, or the file ends after its first, that is
// one zero byte; it could have flipped to zero, too, but then as well nothing is
// cut that Raft does not hold.
func (j *judge) lost(d *damage, block int64) (bool, error) {
	for s := d.from / diskSector * diskSector; s < min(d.to, j.win.limit); s += diskSector {
		from, to := max(s, block), min(s+diskSector, j.win.limit)
		b, err := j.win.at(from, to-from)
		if err != nil {
			return false, err
		}
		if len(b) > 0 && len(bytes.TrimLeft(b, "\x00")) == 0 {
			return true, nil
		}
	}
	return false, nil
}

// onlyLost reports whether everything that is wrong from the block at off to the
// end of the file is lost sectors.
func (j *judge) onlyLost(off int64) (bool, error) {
	for off < j.win.limit {
		size, salt, err := j.header(off)
		if err != nil {
			return false, err
		}
		if size == 0 {
			if lost, err := j.lost(&damage{from: off, to: off + blockSize}, off); !lost ||
				err != nil {
				return false, err
			}
			// Its end is not known. The next header, be its block whole or not.
			next, found, err := j.find(off+1, j.begins)
			if err != nil || !found {
				return err == nil, err
			}
			off = next
			continue
		}
		raw, h, err := readBlock(&j.win, off, salt)
		if isDamage(err) {
			return true, nil // the file ends in this block
		} else if err != nil {
			return false, err
		}
		raw = bytes.Clone(raw) // lost reads elsewhere
		all := true
		(&scan{off: off, salt: salt}).walk(raw, h, func(d *damage) bool {
			var lost bool
			lost, err = j.lost(d, off)
			all = lost && !d.final && err == nil
			return all
		})
		if !all || err != nil {
			return false, err
		}
		off += size
	}
	return true, nil
}
