package vfs

import "errors"

// Behind takes what one writer appends to a file, and the disk has, out of the
// operating system's cache. What is written once and hardly ever read has no
// business there: a control group counts it, and each page of it is a page of
// memory that was not in use before, which a virtual machine may have to ask its
// host for. Where hosts lend memory only as it is used, that cost four times as
// much as all else of a write and its sync (measured: 1.9 in place of 0.4 CPU
// seconds a gigabyte). Freed at once, the same few pages serve the next bytes.
//
// The zero value is at the beginning of a file.
type Behind struct {
	from, gone int64 // what was let go of last
	asked      int64 // up to where bytes are on their way to the disk, or there
}

// behindStep is how many bytes are let go of at once, at least.
const behindStep = 256 << 10

// Written is told up to where the file was written, and lets the system write that
// back now and not when it likes: the file's next Sync has little to do, and what it
// was told the last time can be let go of. It waits for that, which by now is on the
// disk or nearly. It makes nothing durable. It is an aid where it can't be done; but
// an error is as a Sync's: nothing is known of what the disk holds.
func (b *Behind) Written(f File, end int64) error {
	end = whole(end)
	c, ok := f.(Cached)
	if !ok || end-b.asked < behindStep {
		return nil
	}
	err := c.WriteBack(b.asked, end)
	if err == nil && b.asked > b.gone {
		err = c.WrittenBack(b.gone, b.asked)
	}
	switch {
	case errors.Is(err, ErrNotNow):
		return nil
	case err != nil:
		return err
	case b.asked > b.gone:
		b.letGo(c, b.asked)
	}
	b.asked = end
	return nil
}

// Synced is told up to where the file was synced. It is an aid: where it fails or
// can't be done, the bytes stay where they are.
func (b *Behind) Synced(f File, end int64) {
	end = whole(end)
	if end-b.gone < behindStep {
		return
	}
	if c, ok := f.(Cached); ok {
		b.letGo(c, end)
	}
	b.asked = max(b.asked, end)
}

// letGo takes all before end out of the cache. The last step once more: the cache
// keeps what is not wholly in a step.
func (b *Behind) letGo(c Cached, end int64) {
	c.Uncache(b.from, end)
	b.from, b.gone = b.gone, end
}

// whole is the end of the pages that are full: the next bytes go into the one behind.
func whole(end int64) int64 { return end / DirectBlock * DirectBlock }

// Cached is a File of which an operating system has a cache.
type Cached interface {
	File
	// Uncache takes bytes out of it that the disk has.
	Uncache(from, to int64)
	// WriteBack begins to write bytes to the disk.
	WriteBack(from, to int64) error
	// WrittenBack waits until that is done. What went wrong is told once, here or
	// by a Sync.
	WrittenBack(from, to int64) error
}

// ErrNotNow is what WriteBack and WrittenBack fail with where that can't be asked
// for, and has done nothing.
var ErrNotNow = errors.New("can't be written back")
