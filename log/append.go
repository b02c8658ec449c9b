package log

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// syncEvery is how many bytes may be appended before a sync in the background. It
// bounds how long the rotation, which waits for the disk, takes.
const syncEvery = 8 << 20

// writer is the part of a Log that is open for writing.
type writer struct {
	inline bool

	// adminMu serialises retention, erasure and the writing of side files: what changes the
	// log other than at its end. Taken before writeMu.
	adminMu sync.Mutex

	// writeMu serialises Append. Taken before syncMu.
	writeMu  sync.Mutex
	lastID   [16]byte // newest record's ID; guarded by writeMu
	unsynced int64    // bytes appended since the last sync was requested; guarded by writeMu

	// syncMu serialises syncs and guards the file. Taken before Log.mu.
	syncMu sync.Mutex
	file   vfs.File // the active segment's; nil: there is none, or it is being sealed
	named  bool     // its name is durable

	wanted chan struct{} // has one element while tidy has something to do
	stop   chan struct{}
	done   sync.WaitGroup
}

func (w *writer) close() error {
	close(w.stop)
	w.done.Wait()
	// Wait for writes in progress before the file is closed.
	w.adminMu.Lock()
	defer w.adminMu.Unlock()
	w.writeMu.Lock()
	defer w.writeMu.Unlock()
	return w.setFile(nil)
}

// setFile replaces the active segment's file, which it closes.
func (w *writer) setFile(file vfs.File) (err error) {
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	if w.file != nil {
		err = w.file.Close()
	}
	w.file, w.named = file, false
	return err
}

// Append appends a block and sets b.Chain. Readers see it at once;
// it is durable only after Sync. It waits for the disk only where a segment is
// full. The caller may use b's slices again afterwards.
//
// An error of b itself leaves the log as it was; an error of the disk breaks it
// for good.
func (l *Log) Append(b *event.Block) error {
	buf := buffers.Get().(*buffer)
	raw := rawBlock{Index: b.Index, Time: b.Time,
		Records: slices.Grow(buf.records[:0], len(b.Events))[:len(b.Events)]}
	headers := buf.headers[:0]
	for i := range b.Events {
		raw.Records[i], headers = toRecord(&b.Events[i], headers)
	}
	err := l.append(&raw)
	b.Chain = raw.Chain
	clear(raw.Records) // they hold contents
	buf.records, buf.headers = raw.Records, headers
	buffers.Put(buf)
	return err
}

// buffer has the records of a block while it is appended, and their headers.
type buffer struct {
	records []record
	headers []byte
}

var buffers = sync.Pool{New: func() any { return &buffer{} }}

func (l *Log) append(b *rawBlock) (err error) {
	defer wrap(&err, "append block %d", b.Index)
	if l.w == nil {
		return ErrReadOnly
	}
	l.w.writeMu.Lock()
	tidy, err := l.write(b)
	l.w.writeMu.Unlock()
	if tidy {
		err = l.tidySoon()
	}
	return err
}

// write appends a block and reports whether tidy has something to do.
func (l *Log) write(b *rawBlock) (tidy bool, err error) {
	if err := l.usable(); err != nil {
		return false, err
	}
	size, err := l.check(b)
	if err != nil {
		return false, err
	}
	// Only Append changes these, so they can be read without l.mu.
	var seg *segment
	if n := len(l.segments); n > 0 {
		seg = l.segments[n-1]
	}
	fresh := seg == nil || seg.Size+size > l.segSize
	if fresh {
		tidy = seg != nil
		if seg, err = l.rotate(seg, b.Index); err != nil {
			l.fail(err)
			return false, err
		}
	}
	buf, offs := l.encode(b, seg, size, fresh)
	off := seg.Size
	if fresh {
		// Header and first block in one write: only a crash leaves a segment without a
		// block.
		off = 0
	}
	if _, err := l.w.file.WriteAt(buf, off); err != nil {
		err = fmt.Errorf("write segment %s: %w", seg.Name, err)
		l.fail(err)
		return false, err
	}
	l.publish(b, seg, buf[int64(len(buf))-size:], offs, fresh)
	if l.w.unsynced += int64(len(buf)); l.w.unsynced >= syncEvery {
		l.w.unsynced, tidy = 0, true
	}
	return tidy, nil
}

// check returns the size of b on disk, or an error if it is invalid.
func (l *Log) check(b *rawBlock) (int64, error) {
	if head := l.end().Last; b.Index <= head {
		return 0, fmt.Errorf("the log's head is at %d already", head)
	}
	size, last := int64(blockSize+trailerSize), l.w.lastID
	for i := range b.Records {
		r := &b.Records[i]
		switch {
		case !risesTo(last, r.ID):
			return 0, fmt.Errorf("record %d: id %x does not rise above %x", i, r.ID, last)
		case len(r.Header) > maxHeader:
			return 0, fmt.Errorf(
				"record %d: header of %d bytes, at most %d", i, len(r.Header), maxHeader)
		case r.Content == nil && r.Digest != [32]byte{}:
			return 0, fmt.Errorf("record %d: a digest without a content", i)
		case r.Content != nil && r.Digest == [32]byte{}:
			return 0, fmt.Errorf("record %d: a content without a digest", i)
		}
		last = r.ID
		size += layoutOf(r).size
		if size > maxBlock {
			return 0, fmt.Errorf("more than %d bytes", maxBlock)
		}
	}
	return size, nil
}

// rotate seals the active segment and creates the next one's file.
func (l *Log) rotate(active *segment, first uint64) (*segment, error) {
	if active != nil {
		// Everything before must be durable before a later segment can exist:
		// recovery takes a damaged segment with another one after it for
		// corruption, never for a torn tail.
		if err := l.Sync(); err != nil {
			return nil, err
		}
		if err := l.w.setFile(nil); err != nil {
			return nil, fmt.Errorf("close segment %s: %w", active.Name, err)
		}
	}
	seg := newSegment(first)
	seg.continues(l.end())
	seg.Last, seg.Chain, seg.Clock = seg.PrevIndex, seg.PrevChain, seg.PrevClock
	seg.SegmentSize, seg.Size, seg.index = l.segSize, headerSize, &memIndex{}
	file, err := l.fs.Create(l.path(seg.Name))
	if err != nil {
		return nil, fmt.Errorf("create segment %s: %w", seg.Name, err)
	}
	l.w.unsynced = 0
	return seg, l.w.setFile(file)
}

// encode returns the bytes to write and where in the block its records begin,
// and sets b.Chain.
func (l *Log) encode(b *rawBlock, seg *segment, size int64, fresh bool) (buf []byte,
	offs []uint32) {
	if fresh {
		buf = make([]byte, headerSize, headerSize+size)
		seg.putHeader(buf)
	} else {
		buf = make([]byte, 0, size)
	}
	start := len(buf)
	h := blockHeader{
		length: uint32(size - blockSize - trailerSize), count: uint32(len(b.Records)),
		index: b.Index, time: b.Time,
	}
	buf = buf[:start+blockSize]
	h.put(buf[start:], seg.salt)
	sha := sha256.New()
	sha.Write(seg.Chain[:])
	sha.Write(buf[start : start+28])
	offs = make([]uint32, len(b.Records))
	for i := range b.Records {
		at, end := len(buf), 0
		offs[i] = uint32(at - start)
		buf, end = appendRecord(buf, &b.Records[i])
		sha.Write(buf[at:end])
	}
	sha.Sum(b.Chain[:0])
	at := len(buf)
	buf = buf[:at+trailerSize]
	putTrailer(buf[at:], b.Chain, seg.salt)
	return buf, offs
}

// publish makes the block visible to readers.
func (l *Log) publish(b *rawBlock, seg *segment, raw []byte, offs []uint32, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	off, clock := seg.Size, max(seg.Clock, b.Time)
	seg.index.(*memIndex).add(b, seg.Clock, clock, off, offs)
	seg.Size += int64(len(raw))
	seg.Last, seg.Chain, seg.Clock = b.Index, b.Chain, clock
	if n := len(b.Records); n > 0 {
		seg.lastID = b.Records[n-1].ID
		l.w.lastID = seg.lastID
	}
	if fresh {
		l.segments = append(l.segments, seg)
	}
	l.cache.add(cached{b.Index, off, raw, offs})
	l.wake()
}

// Sync makes everything durable that was appended before it was called. After an error
// the state of the disk is unknown, and the log is broken.
func (l *Log) Sync() (err error) {
	defer wrap(&err, "sync event log")
	if l.w == nil {
		return ErrReadOnly
	}
	w := l.w
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if w.file == nil {
		return nil // there is none, or it was sealed meanwhile, after a sync
	}
	err = w.file.Sync()
	if err == nil && !w.named {
		// After the bytes: a durable name must not lead to missing bytes.
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil {
		l.fail(err)
		return err
	}
	w.named = true
	return nil
}

// tidy syncs what was appended and writes the side files that are missing.
func (l *Log) tidy() error {
	if err := l.Sync(); err != nil {
		return err
	}
	return l.writeSides()
}

// loop tidies on request, until Close. An error has broken the log; it is reported at once, because
// the next Append, which returns it too, may be far off.
func (l *Log) loop() {
	for {
		select {
		case <-l.w.stop:
			return
		case <-l.w.wanted:
			if err := l.tidy(); err != nil {
				if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrBroken) {
					l.logger.Error("event log is broken", "error", err)
				}
				return
			}
		}
	}
}

// begin begins the background work.
func (l *Log) begin() error {
	if !l.w.inline {
		l.w.done.Go(l.loop)
	}
	return l.tidySoon()
}

func (l *Log) tidySoon() error {
	if l.w.inline {
		return l.tidy()
	}
	l.wantTidy()
	return nil
}

func (l *Log) wantTidy() {
	select {
	case l.w.wanted <- struct{}{}:
	default: // it is wanted already
	}
}

// writeSides writes the side files that sealed segments lack.
func (l *Log) writeSides() error {
	l.w.adminMu.Lock()
	defer l.w.adminMu.Unlock()
	l.mu.RLock()
	sealed := l.segments[:max(len(l.segments)-1, 0)]
	l.mu.RUnlock()
	for _, seg := range sealed {
		if l.usable() != nil {
			return nil // after Close: the next opening goes on
		}
		mem, ok := l.indexOf(seg).(*memIndex)
		if !ok {
			continue
		}
		if err := l.writeSide(seg, mem); err != nil {
			err = fmt.Errorf("write side file of segment %s: %w", seg.Name, err)
			l.fail(err)
			return err
		}
	}
	return nil
}

func (l *Log) writeSide(seg *segment, mem *memIndex) error {
	// A sealed segment does not change any more.
	err := vfs.WriteFile(l.fs, l.path(seg.SideFile), encodeSide(seg, mem))
	l.files.forget(seg.SideFile)
	if err != nil {
		return err
	}
	as, err := l.openSide(seg, seg.Size)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.index = as.index
	return nil
}

// Replace puts a file in place of a sealed segment's, which is damaged. It must be a copy of the
// same segment, whole and durable, in which all that was erased here is erased. Readers continue in
// it. It returns ErrGone if retention has deleted the segment.
func (l *Log) Replace(sealed SegmentInfo, file string) (err error) {
	defer wrap(&err, "replace segment %s", sealed.Name)
	if err := l.usable(); err != nil {
		return err
	}
	l.w.adminMu.Lock()
	defer l.w.adminMu.Unlock()
	if !sealed.Sealed || !slices.Contains(l.Segments(), sealed) {
		return ErrGone
	}
	if err := l.fs.Rename(file, l.path(sealed.Name)); err != nil {
		return err
	}
	l.files.forget(sealed.Name)
	// Else a crash could restore the old file, which lacks erasures made in the new one.
	if err = l.fs.SyncDir(l.dir); err != nil {
		l.fail(err)
	}
	return err
}

// DeleteBefore deletes the segments in which every block has an index below index. The
// active segment stays, and the first one that stays has in its header the chain that the
// rest continues. A crash may leave only the oldest of them deleted; another call deletes
// the rest.
func (l *Log) DeleteBefore(index uint64) (err error) {
	defer wrap(&err, "delete blocks before %d", index)
	if err := l.usable(); err != nil {
		return err
	}
	l.w.adminMu.Lock()
	defer l.w.adminMu.Unlock()
	// One at a time: names may be lost in any order, and a gap in the middle would be
	// corruption.
	for {
		l.mu.RLock()
		more := len(l.segments) > 1 && l.segments[0].Last < index
		l.mu.RUnlock()
		if !more {
			return nil
		}
		if err := l.deleteFirst(); err != nil {
			return err
		}
	}
}

func (l *Log) deleteFirst() error {
	// First of all, the chain head that stays must be durable.
	if err := l.Sync(); err != nil {
		return err
	}
	l.w.writeMu.Lock()
	l.mu.Lock()
	seg := l.segments[0]
	// A new slice: readers hold the old one.
	l.segments = slices.Clone(l.segments[1:])
	l.cache.dropUpTo(seg.Last) // Erase skips what is gone
	l.mu.Unlock()
	l.w.writeMu.Unlock()
	// The side file first: without its segment it would be a leftover.
	err := l.remove(seg.SideFile, seg.Name)
	if err != nil {
		l.fail(err)
	}
	return err
}

// remove removes files of the log, durably.
func (l *Log) remove(names ...string) error {
	for _, name := range names {
		l.files.forget(name)
	}
	return vfs.Remove(l.fs, l.dir, names...)
}
