package raft

import (
	"errors"
	"io"

	"github.com/qlogd/qlogd/internal/vfs"
)

// direct writes a segment past the page cache, each write durable when it returns.
// Where its blocks were written before, as zeros, that takes half of the time and of
// the CPU of a write and an fdatasync (measured on ext4); into holes it saves the
// page cache's part.
//
// Of a block that is begun, what is in it is written again with what follows. A
// power cut leaves each sector of it as it was or as it becomes, so bytes that
// were durable stay so: they are the same in both. It is no other with the page
// cache, which writes whole pages.
//
// It has a reader, the file as raft-wal reads it, through the page cache: the
// kernel takes out of that what is written past it. It is for one writer, as
// raft-wal is.
type direct struct {
	file   vfs.File
	cached io.ReaderAt // the same file through the page cache
	size   int64       // of the segment
	begun  bool        // something was written; of the rest nothing counts before
	end    int64       // behind it are only zeros
	buf    *[]byte     // kept from write to write, one for all segments
	last   []byte      // the block in which end lies, as it was written
	broken bool
}

// directMost bounds the bytes of one write, and of the memory kept for that. What
// is longer goes through the page cache, where its sync is a small part.
const directMost = 1 << 20

// openDirect returns nil where it can't be done: by the file system, or for want
// of a file handle, or the file is deleted. All goes through the page cache then,
// and it is no reason to fail.
func openDirect(of *walFile) *direct {
	fsys, ok := of.fsys.(vfs.Directs)
	if !ok || of.size%vfs.DirectBlock != 0 {
		return nil
	}
	f, err := fsys.OpenDirect(join(of.dir, of.name))
	if err != nil {
		return nil
	}
	return &direct{file: f, cached: of.File, size: of.size, buf: &of.life.scratch, last: make([]byte, vfs.DirectBlock)}
}

// write makes p durable at off, which is where the last write ended, with zeros
// behind it up to zeroed, if that is further. done is false, and nothing written,
// where it is to go the other way; where it is no append to what was zeros, or the
// file system can't, all does from then on.
func (d *direct) write(p []byte, off, zeroed int64) (done bool, err error) {
	const block = vfs.DirectBlock
	from, to := off/block*block, (off+int64(len(p))+block-1)/block*block
	if !d.begun {
		if _, err := d.cached.ReadAt(d.last[:off-from], from); err != nil {
			return false, err
		}
		d.begun, d.end = true, off
	}
	if d.broken || off != d.end || to > d.size {
		d.broken = true
		return false, nil
	}
	if to-from > directMost {
		d.end = off + int64(len(p))
		copy(d.last, p[len(p)-int(d.end%block):])
		return false, nil
	}
	last := int(to-from) - block
	n := int(max(to, (zeroed+block-1)/block*block) - from)
	if len(*d.buf) < n {
		*d.buf = vfs.Aligned(max(n, min(2*len(*d.buf), directMost+zerosAhead)))
	}
	b := (*d.buf)[:n]
	head := copy(b, d.last[:off-from])
	clear(b[head+copy(b[head:], p):])
	wrote, err := d.file.WriteAt(b, from)
	switch {
	case wrote == 0 && errors.Is(err, errors.ErrUnsupported):
		d.broken = true
		return false, nil
	case err == nil && wrote < n:
		err = io.ErrShortWrite
	}
	if err != nil {
		return false, err
	}
	d.end = off + int64(len(p))
	copy(d.last, b[last:])
	return true, nil
}

func (d *direct) close() error { return d.file.Close() }
