package vfs

// Behind takes what one writer appends to a file, and has synced, out of the
// operating system's cache. What is written once and hardly ever read has no
// business there: a control group counts it, and each page of it is a page of
// memory that was not in use before, which a virtual machine may have to ask its
// host for. Where hosts lend memory only as it is used, that cost four times as
// much as all else of a write and its sync (measured: 1.9 in place of 0.4 CPU
// seconds a gigabyte). Freed at once, the same few pages serve the next bytes.
//
// The zero value is at the beginning of a file.
type Behind struct {
	from, to int64 // what was let go of last
}

// behindStep is how many bytes are let go of at once, at least.
const behindStep = 256 << 10

// Synced is told up to where the file was synced. It is an aid: where it fails or
// can't be done, the bytes stay where they are.
func (b *Behind) Synced(f File, end int64) {
	end = end / DirectBlock * DirectBlock // the page in which the next bytes go stays
	if end-b.to < behindStep {
		return
	}
	// The last step once more: the cache keeps what is not wholly in a step.
	if c, ok := f.(cached); ok {
		c.uncache(b.from, end)
	}
	b.from, b.to = b.to, end
}

// cached is a File of which an operating system has a cache.
type cached interface {
	// uncache takes bytes out of it that were synced.
	uncache(from, to int64)
}
