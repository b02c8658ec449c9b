package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/qlogd/qlogd/log/vfs"
)

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
		return nil, fmt.Errorf("write checkpoint: %w", err)
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
		w.err = fmt.Errorf("write checkpoint: %w", err)
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
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}

// syncEvery bounds what one fsync has to write: a checkpoint is written beside
// the logs, and theirs wait behind it, and with them whoever appends.
const syncEvery = 1 << 20

// Incoming is a checkpoint file on its way: it has a temporary name until it is
// whole.
type Incoming struct {
	fsys      vfs.FS
	dir, name string
	f         vfs.File // nil once committed or aborted
	size      int64
	synced    int64
}

// Receive opens a temporary file for the bytes of the checkpoint called name.
func Receive(fsys vfs.FS, dir, name string) (*Incoming, error) {
	temp := path.Join(dir, name+vfs.TempSuffix)
	if err := fsys.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	f, err := fsys.Create(temp)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", name, err)
	}
	return &Incoming{fsys: fsys, dir: dir, name: name, f: f}, nil
}

// Write adds to the file.
func (in *Incoming) Write(p []byte) (int, error) {
	n, err := in.f.WriteAt(p, in.size)
	in.size += int64(n)
	if err == nil && in.size-in.synced >= syncEvery {
		in.synced = in.size
		err = in.f.Sync()
	}
	return n, err
}

// Commit verifies what was received and puts it in place, durably. What does
// not verify is removed.
func (in *Incoming) Commit() error {
	meta, r, err := NewReader(in.name, io.NewSectionReader(in.f, 0, in.size))
	if err == nil && meta.Name() != in.name {
		err = &CorruptError{Name: in.name, Reason: "the head is that of " + meta.Name()}
	}
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		in.Abort()
		return err
	}
	return in.commit()
}

func (in *Incoming) commit() error {
	f := in.f
	in.f = nil
	err := f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	temp := path.Join(in.dir, in.name+vfs.TempSuffix)
	if err == nil {
		// After the fsync: the name must never lead to bytes that are not there.
		err = in.fsys.Rename(temp, path.Join(in.dir, in.name))
	}
	if err == nil {
		// Before anyone is told: Raft truncates its log on the strength of it.
		err = in.fsys.SyncDir(in.dir)
	}
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", in.name, err)
	}
	return nil
}

// Abort drops the file. After Commit it does nothing.
func (in *Incoming) Abort() {
	if in.f == nil {
		return
	}
	in.f.Close()
	in.f = nil
	// Best effort: Clean removes what is left.
	_ = in.fsys.Remove(path.Join(in.dir, in.name+vfs.TempSuffix))
}
