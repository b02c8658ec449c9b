package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/vmihailenco/msgpack/v5"
)

// A checkpoint file, all numbers big-endian, all sums CRC-32C:
//
//	head     magic "qlogchkp" · version u16 · meta length u32 · meta · sum u32
//	         (the sum is over all of the head before it)
//	chunk    length u32 (1 to 1 MiB) · sum u32 · bytes
//	…        (a chunk's sum goes on from the sum of the part before it, over its
//	         length and its bytes: a chunk that is lost, repeated or out of
//	         place does not verify, and neither does one from another file)
//	trailer  length u32 = 0 · sum u32 · chunks u64 · body length u64 · "pkhcgolq"
//	         (the sum goes on as a chunk's does, over the zero length, chunks
//	         and body length; nothing may follow)
//
// meta is a Meta in MessagePack.
const (
	magic    = "qlogchkp"
	endMagic = "pkhcgolq"

	// Version of the format.
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
	meta, err := msgpack.Marshal(m)
	if err != nil || len(meta) > maxMeta {
		return nil, fmt.Errorf("checkpoint: a head of %d bytes: %w", len(meta), err)
	}
	head := append([]byte(magic), 0, Version)
	head = binary.BigEndian.AppendUint32(head, uint32(len(meta)))
	head = append(head, meta...)
	return binary.BigEndian.AppendUint32(head, sum(0, head)), nil
}

func parseMeta(b []byte) (m Meta, err error) {
	r := bytes.NewReader(b)
	dec := msgpack.NewDecoder(r)
	dec.DisallowUnknownFields(true)
	if err := dec.Decode(&m); err != nil {
		return Meta{}, fmt.Errorf("the head cannot be decoded: %w", err)
	}
	if r.Len() > 0 {
		return Meta{}, fmt.Errorf("%d bytes too many in the head", r.Len())
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
	if v := binary.BigEndian.Uint16(head[len(magic):]); v != Version {
		return Meta{}, nil, fmt.Errorf(
			"checkpoint %s: format version %d, this program reads only %d",
			name, v, Version)
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
	be := binary.BigEndian
	crc := sum(b.crc, head[:4], t[:16])
	switch {
	case be.Uint32(head[4:]) != crc:
		return b.corrupt("the trailer does not match its checksum")
	case be.Uint64(t) != b.chunks || be.Uint64(t[8:]) != b.length:
		return b.corrupt("the trailer counts other chunks")
	case string(t[16:]) != endMagic:
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

// Writer writes a checkpoint's bytes: the head at once, then the body in
// chunks, the trailer at Close. It does not close what it writes to.
type Writer struct {
	w      io.Writer
	buf    []byte // a chunk's head and what is gathered for it
	crc    uint32
	chunks uint64
	length uint64
	err    error
}

// NewWriter writes meta's head to w.
func NewWriter(w io.Writer, meta Meta) (*Writer, error) {
	head, err := appendHead(&meta)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	crc := binary.BigEndian.Uint32(head[len(head)-4:])
	return &Writer{w: w, crc: crc, buf: make([]byte, 8, 4096)}, nil
}

// Write adds to the body.
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		k := min(len(p), 8+chunkLen-len(w.buf))
		w.buf = append(w.buf, p[:k]...)
		p, n = p[k:], n+k
		if len(w.buf) == 8+chunkLen {
			w.flush()
		}
	}
	return n, w.err
}

func (w *Writer) flush() {
	data := w.buf[8:]
	if len(data) == 0 || w.err != nil {
		return
	}
	binary.BigEndian.PutUint32(w.buf, uint32(len(data)))
	w.crc = sum(w.crc, w.buf[:4], data)
	binary.BigEndian.PutUint32(w.buf[4:], w.crc)
	if _, err := w.w.Write(w.buf); err != nil {
		w.err = err
	}
	w.chunks++
	w.length += uint64(len(data))
	w.buf = w.buf[:8]
}

// Close writes the last chunk and the trailer: without it there is no whole
// checkpoint.
func (w *Writer) Close() error {
	w.flush()
	if w.err != nil {
		return w.err
	}
	t := make([]byte, 8, 8+trailerLen)
	t = binary.BigEndian.AppendUint64(t, w.chunks)
	t = binary.BigEndian.AppendUint64(t, w.length)
	binary.BigEndian.PutUint32(t[4:], sum(w.crc, t[:4], t[8:]))
	t = append(t, endMagic...)
	_, err := w.w.Write(t)
	w.err = errors.New("checkpoint: closed")
	if err != nil {
		return err
	}
	return nil
}
