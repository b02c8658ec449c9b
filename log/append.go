package log

import (
	"fmt"
	"path"

	"github.com/qlogd/qlogd/log/vfs"
)

// syncEvery is how many bytes may be appended before a sync in the background. It
// bounds how long the rotation, which waits for the disk, takes.
const syncEvery = 8 << 20

// chainStride is how many bytes of headers are hashed at once, at least.
const chainStride = 4 << 10

// Append adds a block behind the head and sets b.Chain. Readers see it at once;
// it is durable only after Sync. It waits for the disk only where a segment is
// full. The caller may use b's slices again afterwards.
//
// An error of b itself leaves the log as it was; an error of the disk breaks it
// for good.
func (l *Log) Append(b *Block) error {
	l.writeMu.Lock()
	sealed, err := l.append(b)
	l.writeMu.Unlock()
	if err == nil && sealed {
		err = l.buildSoon()
	}
	if err != nil {
		return fmt.Errorf("append block %d: %w", b.Index, err)
	}
	return nil
}

// append tells whether it has sealed a segment.
func (l *Log) append(b *Block) (sealed bool, err error) {
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
	fresh := seg == nil || seg.size+size > l.segSize
	if fresh {
		if seg, err = l.rotate(seg, b.Index); err != nil {
			l.fail(err)
			return false, err
		}
	}
	buf, own := l.encode(b, seg, size, fresh)
	file, done, err := l.files.borrow(seg.name)
	if err != nil {
		return false, err
	}
	defer done()
	off := seg.size
	if fresh {
		// Header and first block in one write: a segment without a block is
		// only ever left by a crash.
		off = 0
	}
	if _, err := file.WriteAt(buf, off); err != nil {
		err = fmt.Errorf("write segment %s: %w", seg.name, err)
		l.fail(err)
		return false, err
	}
	raw := buf[int64(len(buf))-size:]
	if len(b.Records) > 0 {
		l.lastID = b.Records[len(b.Records)-1].ID
	}
	l.publish(b, seg, raw, fresh, own)
	l.unsynced += int64(len(buf))
	if l.unsynced >= syncEvery {
		l.unsynced = 0
		err = l.syncSoon()
	}
	return fresh && len(l.segments) > 1, err
}

// check returns the size of b on disk, or what is wrong with it.
func (l *Log) check(b *Block) (int64, error) {
	if b.Index <= l.head.Index {
		return 0, fmt.Errorf("the log's head is at %d already", l.head.Index)
	}
	size, last := int64(blockSize+trailerSize), l.lastID
	for i := range b.Records {
		r := &b.Records[i]
		switch {
		case !risesTo(last, r.ID):
			return 0, fmt.Errorf("record %d: id %x does not rise above %x", i, r.ID, last)
		case len(r.Header) > maxHeader:
			return 0, fmt.Errorf("record %d: header of %d bytes, at most %d", i, len(r.Header), maxHeader)
		case r.Content == nil && r.Digest != [32]byte{}:
			return 0, fmt.Errorf("record %d: a digest without a content", i)
		case r.Content != nil && r.Digest == [32]byte{}:
			return 0, fmt.Errorf("record %d: a content without a digest", i)
		case r.Erased:
			return 0, fmt.Errorf("record %d: erased before it was written", i)
		}
		last = r.ID
		size += recordSize(r)
		if size > maxBlock {
			return 0, fmt.Errorf("more than %d bytes", maxBlock)
		}
	}
	return size, nil
}

// rotate seals the active segment and creates the next one's file.
func (l *Log) rotate(active *segment, first uint64) (*segment, error) {
	header := segmentHeader{
		segSize: l.segSize, first: first,
		prevIndex: l.head.Index, prevChain: l.head.Chain, clock: l.clock,
	}
	if active != nil {
		// Everything before must be durable before a later segment can exist:
		// recovery takes a damaged segment with another behind it for
		// corruption, never for a torn tail.
		if err := l.Sync(); err != nil {
			return nil, err
		}
		// The handle is open for writing; readers open their own.
		if err := l.files.drop(active.name); err != nil {
			return nil, fmt.Errorf("close segment %s: %w", active.name, err)
		}
	}
	seg := &segment{header: header, name: segmentName(first), size: headerSize, mem: newMemIndex()}
	if active != nil {
		seg.mem = active.mem.like()
	}
	file, err := l.fs.Create(path.Join(l.dir, seg.name))
	if err != nil {
		return nil, fmt.Errorf("create segment %s: %w", seg.name, err)
	}
	l.files.pin(seg.name, file)
	l.unsynced = 0
	return seg, nil
}

// encode returns the bytes to write and sets b.Chain. Where they are to be
// cached they are a slice of their own, otherwise l.buf.
func (l *Log) encode(b *Block, seg *segment, size int64, fresh bool) (buf []byte, own bool) {
	total := size
	if fresh {
		total += headerSize
	}
	own = l.cache.wants(total) && len(b.Records) > 0
	if own {
		buf = make([]byte, 0, total)
	} else {
		if int64(cap(l.buf)) < total {
			l.buf = make([]byte, 0, total+total/4)
		}
		buf = l.buf[:0]
	}
	if fresh {
		buf = buf[:headerSize]
		seg.salt = seg.header.put(buf)
	}
	start := len(buf)
	h := blockHeader{
		length: uint32(size - blockSize - trailerSize), count: uint32(len(b.Records)),
		index: b.Index, time: b.Time,
	}
	buf = buf[:start+blockSize]
	h.put(buf[start:], seg.salt)
	l.sha.Reset()
	l.sha.Write(l.head.Chain[:])
	l.sha.Write(buf[start : start+28])
	l.offs = l.offs[:0]
	chained := l.chained[:0]
	for i := range b.Records {
		at, end := len(buf), 0
		l.offs = append(l.offs, uint32(at-start))
		buf, end = appendRecord(buf, &b.Records[i])
		// Many headers at a time: a hash takes long strides.
		if chained = append(chained, buf[at:end]...); len(chained) > chainStride {
			l.sha.Write(chained)
			chained = chained[:0]
		}
	}
	l.sha.Write(chained)
	l.chained = chained
	at := len(buf)
	buf = buf[:at+trailerSize]
	l.sha.Sum(b.Chain[:0])
	putTrailer(buf[at:], b.Chain, seg.salt)
	return buf, own
}

// publish lets readers see the block. Its bytes are kept for them where they
// are a slice of their own.
func (l *Log) publish(b *Block, seg *segment, raw []byte, fresh, own bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	off := seg.size
	seg.size += int64(len(raw))
	seg.last, seg.chain = b.Index, b.Chain
	l.clock = max(l.clock, b.Time)
	seg.clock = l.clock
	seg.mem.add(b, l.clock, off, int64(len(raw)), l.offs)
	if fresh {
		l.segments = append(l.segments, seg)
	}
	l.head = Head{b.Index, b.Chain}
	if own {
		l.cache.add(b.Index, seg, off, raw, l.offs)
	}
	l.wake()
}

// Sync makes everything durable that was appended before it was called. After
// an error nothing is known of what the disk holds, and the log is broken.
func (l *Log) Sync() error {
	if err := l.syncActive(); err != nil {
		return fmt.Errorf("sync event log: %w", err)
	}
	return nil
}

// syncActive syncs the active segment under syncMu. An error breaks the log.
func (l *Log) syncActive() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.mu.RLock()
	var seg *segment
	if n := len(l.segments); n > 0 {
		seg = l.segments[n-1]
	}
	l.mu.RUnlock()
	if seg == nil {
		return nil
	}
	file, done, err := l.files.borrowPinned(seg.name)
	if err != nil {
		return err
	}
	if file == nil {
		return nil // the segment was sealed meanwhile, and synced by that
	}
	defer done()
	if err := l.syncSegment(seg, file.File); err != nil {
		err = fmt.Errorf("segment %s: %w", seg.name, err)
		l.fail(err)
		return err
	}
	return nil
}

// syncSegment is called with l.syncMu held.
func (l *Log) syncSegment(seg *segment, file vfs.File) error {
	if err := file.Sync(); err != nil {
		return err
	}
	if l.named == seg {
		return nil
	}
	// After the bytes: a name must not lead to bytes that are not there.
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	l.named = seg
	return nil
}
