package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A checkpoint file, all numbers big-endian, all sums CRC-32C:
//
//	head     magic "qlogckpt" · version u16 · meta length u32 · meta · sum u32
//	         (the sum is over all of the head before it)
//	chunk    length u32 (1 to 1 MiB) · sum u32 · bytes
//	…        (a chunk's sum goes on from the sum of the part before it, over its
//	         length and its bytes: a chunk that is lost, repeated or out of
//	         place does not verify, and neither does one from another file)
//	trailer  length u32 = 0 · sum u32 · chunks u64 · body length u64 · "tpkcgolq"
//	         (the sum goes on as a chunk's does, over the zero length, chunks
//	         and body length; nothing may follow)
//
// meta, version 1:
//
//	index u64 · term u64 · snapshot version u16 · configuration index u64 ·
//	event log's head u64 · chain 32 bytes · clock i64 · digest 16 bytes ·
//	created i64 · cluster id u16 + bytes · configuration u32 + bytes
const (
	magic    = "qlogckpt"
	endMagic = "tpkcgolq"

	// Version of the format that this program writes. It reads this and all
	// earlier ones.
	Version = 1

	headLen  = len(magic) + 2 + 4
	maxMeta  = 1 << 20
	maxChunk = 1 << 20
	// chunkLen is what the writer puts in one chunk: small enough that a
	// flipped byte is named within a quarter of a megabyte.
	chunkLen   = 256 << 10
	trailerLen = 8 + 8 + len(endMagic)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(crc uint32, parts ...[]byte) uint32 {
	for _, p := range parts {
		crc = crc32.Update(crc, castagnoli, p)
	}
	return crc
}

func appendHead(m *Meta) ([]byte, error) {
	if len(m.ClusterID) > 1<<16-1 || len(m.Configuration) > maxMeta/2 {
		return nil, errors.New("checkpoint: cluster id or configuration is too long")
	}
	be := binary.BigEndian
	var b []byte
	b = be.AppendUint64(b, m.Index)
	b = be.AppendUint64(b, m.Term)
	b = be.AppendUint16(b, m.SnapshotVersion)
	b = be.AppendUint64(b, m.ConfigurationIndex)
	b = be.AppendUint64(b, m.HeadIndex)
	b = append(b, m.Chain[:]...)
	b = be.AppendUint64(b, uint64(m.Clock))
	b = append(b, m.Digest[:]...)
	b = be.AppendUint64(b, uint64(m.CreatedAt))
	b = be.AppendUint16(b, uint16(len(m.ClusterID)))
	b = append(b, m.ClusterID...)
	b = be.AppendUint32(b, uint32(len(m.Configuration)))
	b = append(b, m.Configuration...)

	head := append([]byte(magic), 0, Version)
	head = be.AppendUint32(head, uint32(len(b)))
	head = append(head, b...)
	return be.AppendUint32(head, sum(0, head)), nil
}

// fields takes fixed-size fields from the front of a byte slice.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) take(n int) []byte {
	if n > len(f.b) {
		f.bad = true
		return make([]byte, n)
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

func (f *fields) u16() uint16 { return binary.BigEndian.Uint16(f.take(2)) }
func (f *fields) u32() uint32 { return binary.BigEndian.Uint32(f.take(4)) }
func (f *fields) u64() uint64 { return binary.BigEndian.Uint64(f.take(8)) }

func parseMeta(b []byte) (m Meta, err error) {
	f := fields{b: b}
	m.Index = f.u64()
	m.Term = f.u64()
	m.SnapshotVersion = f.u16()
	m.ConfigurationIndex = f.u64()
	m.HeadIndex = f.u64()
	copy(m.Chain[:], f.take(32))
	m.Clock = int64(f.u64())
	copy(m.Digest[:], f.take(16))
	m.CreatedAt = int64(f.u64())
	m.ClusterID = string(f.take(int(f.u16())))
	n := f.u32()
	if f.bad || int64(n) > int64(len(f.b)) {
		return Meta{}, errors.New("the head is cut")
	}
	if n > 0 {
		m.Configuration = append([]byte(nil), f.take(int(n))...)
	}
	if len(f.b) != 0 {
		return Meta{}, fmt.Errorf("%d bytes too many in the head", len(f.b))
	}
	return m, nil
}

// NewReader reads a checkpoint's head from r and returns a reader of its body.
// The reader hands out only bytes that verified, and io.EOF only after the
// trailer did. name is for errors.
func NewReader(name string, r io.Reader) (Meta, io.Reader, error) {
	b := &body{name: name, r: r}
	head := make([]byte, headLen)
	if err := b.full(head, "the head is cut"); err != nil {
		return Meta{}, nil, err
	}
	if string(head[:len(magic)]) != magic {
		return Meta{}, nil, b.corrupt("not a checkpoint")
	}
	if v := binary.BigEndian.Uint16(head[len(magic):]); v == 0 || v > Version {
		return Meta{}, nil, fmt.Errorf("checkpoint %s: format version %d is newer than this program's %d", name, v, Version)
	}
	n := binary.BigEndian.Uint32(head[len(magic)+2:])
	if n > maxMeta {
		return Meta{}, nil, b.corrupt(fmt.Sprintf("a head of %d bytes", n))
	}
	rest := make([]byte, n+4)
	if err := b.full(rest, "the head is cut"); err != nil {
		return Meta{}, nil, err
	}
	b.crc = sum(0, head, rest[:n])
	if binary.BigEndian.Uint32(rest[n:]) != b.crc {
		return Meta{}, nil, b.corrupt("the head does not match its checksum")
	}
	meta, err := parseMeta(rest[:n])
	if err != nil {
		return Meta{}, nil, b.corrupt(err.Error())
	}
	b.offset += int64(len(head) + len(rest))
	return meta, b, nil
}

// body reads chunks.
type body struct {
	name   string
	r      io.Reader
	offset int64 // of the part to read next
	crc    uint32
	chunks uint64
	length uint64
	buf    []byte
	left   []byte // verified bytes not yet handed out
	err    error
}

func (b *body) corrupt(reason string) error {
	return &CorruptError{Name: b.name, Offset: b.offset, Reason: reason}
}

// full reads exactly len(p) bytes. A file that ends early is a corrupt one.
func (b *body) full(p []byte, reason string) error {
	_, err := io.ReadFull(b.r, p)
	switch {
	case err == nil:
		return nil
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return b.corrupt(reason)
	}
	return fmt.Errorf("read checkpoint %s: %w", b.name, err)
}

func (b *body) Read(p []byte) (int, error) {
	for len(b.left) == 0 && b.err == nil {
		b.err = b.next()
	}
	if len(b.left) == 0 {
		return 0, b.err
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

func (b *body) next() error {
	var head [8]byte
	if err := b.full(head[:], "cut before the trailer"); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 {
		return b.trailer(head)
	}
	if n > maxChunk {
		return b.corrupt(fmt.Sprintf("a chunk of %d bytes", n))
	}
	if cap(b.buf) < int(n) {
		b.buf = make([]byte, n)
	}
	data := b.buf[:n]
	if err := b.full(data, "a chunk is cut"); err != nil {
		return err
	}
	b.crc = sum(b.crc, head[:4], data)
	if binary.BigEndian.Uint32(head[4:]) != b.crc {
		return b.corrupt("a chunk does not match its checksum")
	}
	b.offset += int64(8 + n)
	b.chunks++
	b.length += uint64(n)
	b.left = data
	return nil
}

func (b *body) trailer(head [8]byte) error {
	t := make([]byte, trailerLen)
	if err := b.full(t, "the trailer is cut"); err != nil {
		return err
	}
	f := fields{b: t}
	crc := sum(b.crc, head[:4], t[:16])
	switch {
	case binary.BigEndian.Uint32(head[4:]) != crc:
		return b.corrupt("the trailer does not match its checksum")
	case f.u64() != b.chunks || f.u64() != b.length:
		return b.corrupt("the trailer counts other chunks")
	case string(f.b) != endMagic:
		return b.corrupt("the end mark is wrong")
	}
	b.offset += int64(8 + trailerLen)
	var one [1]byte
	if n, err := io.ReadFull(b.r, one[:]); n != 0 {
		return b.corrupt("bytes behind the end")
	} else if err != io.EOF {
		return fmt.Errorf("read checkpoint %s: %w", b.name, err)
	}
	return io.EOF
}
