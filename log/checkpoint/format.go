package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/vmihailenco/msgpack/v5"
)

// A checkpoint file, as docs/reference/formats-checkpoint.md draws it: a head with a Meta in
// MessagePack, the body in chunks, and a trailer. Numbers are big-endian. Each part has a CRC-32C
// that goes on from the part before it: a chunk that is lost, repeated or out of place does not
// verify, and neither does one from another file.
const (
	magic    = "qlogchkp"
	endMagic = "pkhcgolq"

	version = 1 // of the format

	headLen  = len(magic) + 2 + 4
	maxMeta  = 1 << 20
	maxChunk = 1 << 20
	// chunkLen is what the writer puts in one chunk: small enough that a
	// flipped byte is named within a quarter of a megabyte.
	chunkLen   = 256 << 10
	trailerLen = 8 + 8 + 8 + len(endMagic)
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
	head := append([]byte(magic), 0, version)
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

// tally goes over the chunks: what the checksums go on from, and what the trailer counts.
type tally struct {
	crc            uint32
	chunks, length uint64
}

// chunk returns the head of the next chunk.
func (t *tally) chunk(data []byte) (head [8]byte) {
	binary.BigEndian.PutUint32(head[:], uint32(len(data)))
	t.crc = sum(t.crc, head[:4], data)
	binary.BigEndian.PutUint32(head[4:], t.crc)
	t.chunks++
	t.length += uint64(len(data))
	return head
}

// trailer returns what follows the last chunk.
func (t *tally) trailer() []byte {
	b := make([]byte, 8, trailerLen)
	b = binary.BigEndian.AppendUint64(b, t.chunks)
	b = binary.BigEndian.AppendUint64(b, t.length)
	binary.BigEndian.PutUint32(b[4:], sum(t.crc, b[:4], b[8:]))
	return append(b, endMagic...)
}

// newReader reads a checkpoint's head from r and returns a reader of its body.
// The reader returns only bytes that verified, and io.EOF only after the
// trailer did. name is for errors.
func newReader(name string, r io.Reader) (Meta, io.Reader, error) {
	b := &body{name: name, r: r}
	head := make([]byte, headLen)
	if err := b.full(head); err != nil {
		return Meta{}, nil, err
	}
	v, n := binary.BigEndian.Uint16(head[len(magic):]), binary.BigEndian.Uint32(head[len(magic)+2:])
	switch {
	case string(head[:len(magic)]) != magic:
		return Meta{}, nil, b.corrupt("not a checkpoint")
	case v != version:
		return Meta{}, nil, fmt.Errorf(
			"checkpoint %s: format version %d, this program reads only %d", name, v, version)
	case n > maxMeta:
		return Meta{}, nil, b.corrupt(fmt.Sprintf("a head of %d bytes", n))
	}
	rest := make([]byte, n+4)
	if err := b.full(rest); err != nil {
		return Meta{}, nil, err
	}
	b.crc = sum(0, head, rest[:n])
	if binary.BigEndian.Uint32(rest[n:]) != b.crc {
		return Meta{}, nil, b.corrupt("wrong checksum of the head")
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
	tally
	name   string
	r      io.Reader
	offset int64 // of the part to read next
	buf    []byte
	left   []byte // verified bytes not yet returned
	err    error
}

func (b *body) corrupt(reason string) error {
	return &CorruptError{Name: b.name, Offset: b.offset, Reason: reason}
}

// full reads exactly len(p) bytes. A file that ends early is a corrupt one.
func (b *body) full(p []byte) error {
	_, err := io.ReadFull(b.r, p)
	switch {
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return b.corrupt("the file ends here")
	case err != nil:
		return fmt.Errorf("read checkpoint %s: %w", b.name, err)
	}
	return nil
}

// Read implements io.Reader.
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

// next reads the next chunk, or the trailer and then returns io.EOF.
func (b *body) next() error {
	var head [8]byte
	if err := b.full(head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 {
		return b.end(head)
	}
	if n > maxChunk {
		return b.corrupt(fmt.Sprintf("a chunk of %d bytes", n))
	}
	if cap(b.buf) < int(n) {
		b.buf = make([]byte, n)
	}
	data := b.buf[:n]
	if err := b.full(data); err != nil {
		return err
	}
	if b.chunk(data) != head {
		return b.corrupt("wrong checksum of a chunk")
	}
	b.offset += int64(8 + n)
	b.left = data
	return nil
}

func (b *body) end(head [8]byte) error {
	t := make([]byte, trailerLen)
	copy(t, head[:])
	if err := b.full(t[8:]); err != nil {
		return err
	}
	if !bytes.Equal(t, b.trailer()) {
		return b.corrupt("wrong checksum of the trailer")
	}
	b.offset += int64(trailerLen)
	if n, err := io.ReadFull(b.r, t[:1]); n != 0 {
		return b.corrupt("bytes after the end")
	} else if err != io.EOF {
		return fmt.Errorf("read checkpoint %s: %w", b.name, err)
	}
	return io.EOF
}

// writer writes a checkpoint's bytes: the head at once, then the body in
// chunks, the trailer at close.
type writer struct {
	tally
	w   io.Writer
	buf []byte // a chunk's head and what is gathered for it
	err error  // the first one of w: nothing is written after it
}

// newWriter writes meta's head to w.
func newWriter(w io.Writer, meta Meta) (*writer, error) {
	head, err := appendHead(&meta)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	crc := binary.BigEndian.Uint32(head[len(head)-4:])
	return &writer{tally: tally{crc: crc}, w: w, buf: make([]byte, 8, 4096)}, nil
}

// Write adds to the body.
func (w *writer) Write(p []byte) (n int, err error) {
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

func (w *writer) flush() {
	if len(w.buf) > 8 && w.err == nil {
		head := w.chunk(w.buf[8:])
		copy(w.buf, head[:])
		_, w.err = w.w.Write(w.buf)
		w.buf = w.buf[:8]
	}
}

// close writes the last chunk and the trailer: without it there is no whole
// checkpoint.
func (w *writer) close() error {
	if w.flush(); w.err == nil {
		_, w.err = w.w.Write(w.trailer())
	}
	return w.err
}
