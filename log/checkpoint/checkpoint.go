// Package checkpoint keeps the whole live state at one point of the log on
// disk. A checkpoint is at the same time Raft's snapshot: there is one copy, in
// the data directory's checkpoints/. raft writes them, replay reads them.
//
// docs/reference/formats-checkpoint.md draws the bytes.
package checkpoint

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/log/vfs"
)

// State is the live state at one index, to be written while the node continues. It does not change
// until Release.
type State interface {
	io.WriterTo
	Digest() [16]byte
	Clock() int64
	Release()
}

// Meta says what a checkpoint is of: a point of the Raft log, the point of the
// event log that was reached there, and the digest of the state.
type Meta struct {
	Index uint64 // Raft's: the last entry that the state holds
	Term  uint64 // of that entry

	// Raft's configuration (who votes) at Index, in Raft's own encoding, and
	// the index of the entry that brought it.
	SnapshotVersion    uint16
	Configuration      []byte
	ConfigurationIndex uint64

	// The event log: its newest block and the chain there.
	//
	// Invariant: HeadIndex <= Index. Entries in between are Raft's own.
	HeadIndex uint64
	Chain     [32]byte
	Clock     int64    // the log's clock, Unix ms
	Digest    [16]byte // of the state

	ClusterID string
	CreatedAt int64 // Unix ms, by the clock of the node that wrote it

	// Size of the file; set by List, Open and Verify.
	Size int64 `msgpack:"-"`
}

// Name is the checkpoint's file name: by name they sort as by age.
func (m *Meta) Name() string { return fmt.Sprintf("%020d-%020d%s", m.Index, m.Term, suffix) }

const suffix = ".ckpt"

// IsName reports whether a file is named as Meta.Name does.
func IsName(name string) bool {
	m := Meta{}
	_, err := fmt.Sscanf(name, "%020d-%020d", &m.Index, &m.Term)
	// Other ways to write the numbers do not come back as they were.
	return err == nil && m.Name() == name
}

// Bad is a file that is no usable checkpoint, and why.
type Bad struct {
	Name string
	Err  error
}

// CorruptError names the place of the first byte that cannot be trusted.
type CorruptError struct {
	Name   string
	Offset int64 // of the part (head, chunk, trailer) that does not verify
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("checkpoint %s: offset %d: %s", e.Name, e.Offset, e.Reason)
}

// Write puts a checkpoint of body under meta's name, replacing one of the same
// name. When it returns nil the file and its name are durable: Raft truncates its
// log after that. After an error at most a temporary file is left, which Clean
// removes.
func Write(fsys vfs.FS, dir string, meta Meta, body io.WriterTo) error {
	err := vfs.Write(fsys, path.Join(dir, meta.Name()), func(f io.Writer) error {
		w, err := newWriter(f, meta)
		if err == nil {
			_, err = body.WriteTo(w)
		}
		if err == nil {
			err = w.close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write checkpoint %s: %w", meta.Name(), err)
	}
	return nil
}

// List returns the checkpoints in dir, newest first, and the files that are
// not usable. It reads only heads: Verify checks the bodies. A missing directory
// holds no checkpoints.
func List(fsys vfs.FS, dir string) ([]Meta, []Bad, error) {
	names, err := vfs.List(fsys, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list checkpoints: %w", err)
	}
	var metas []Meta
	var bad []Bad
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		meta, body, err := Open(fsys, dir, name)
		if err != nil {
			bad = append(bad, Bad{Name: name, Err: err})
			continue
		}
		body.Close()
		metas = append(metas, meta)
	}
	slices.SortFunc(metas, func(a, b Meta) int {
		return cmp.Or(cmp.Compare(b.Index, a.Index), cmp.Compare(b.Term, a.Term))
	})
	return metas, bad, nil
}

// Open reads a checkpoint's head and returns a reader of its body, which
// verifies each chunk before it returns a byte of it. Only a reader that came
// to io.EOF has read a whole checkpoint.
func Open(fsys vfs.FS, dir, name string) (Meta, io.ReadCloser, error) {
	f, err := fsys.OpenRead(path.Join(dir, name))
	if err != nil {
		return Meta{}, nil, fmt.Errorf("open checkpoint: %w", err)
	}
	var meta Meta
	var body io.Reader
	size, err := f.Size()
	if err == nil {
		meta, body, err = newReader(name, io.NewSectionReader(f, 0, size))
	}
	if err == nil && meta.Name() != name {
		err = &CorruptError{Name: name, Reason: "the head is that of " + meta.Name()}
	}
	if err != nil {
		f.Close()
		return Meta{}, nil, err
	}
	meta.Size = size
	return meta, struct {
		io.Reader
		io.Closer
	}{body, f}, nil
}

// Verify reads a whole checkpoint and checks every byte of it.
func Verify(fsys vfs.FS, dir, name string) (Meta, error) {
	meta, body, err := Open(fsys, dir, name)
	if err != nil {
		return Meta{}, err
	}
	_, err = io.Copy(io.Discard, body)
	body.Close()
	return meta, err
}

// Clean removes files that a crash left unfinished. No Write may be in progress.
func Clean(fsys vfs.FS, dir string) error {
	names, err := vfs.List(fsys, dir)
	if err != nil {
		return fmt.Errorf("list checkpoints: %w", err)
	}
	return vfs.Remove(fsys, dir, slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasSuffix(name, suffix+vfs.TempSuffix)
	})...)
}

// Keep is how many checkpoints are kept at most.
const Keep = 16

// Thin selects the checkpoints to remove so that at most keep are left: always the
// newest two (a start must survive the loss of one) and the oldest, and of the
// others those spread most evenly over the log, so that a fold of the past
// (replay --from, at=) starts near any instant. metas and both results are newest
// first, as List returns them.
//
// After each new checkpoint, the one whose removal leaves the smallest gap is
// removed. That keeps an even spread without a record of earlier choices.
func Thin(metas []Meta, keep int) (left, gone []Meta) {
	keep = max(keep, 2)
	left = slices.Clone(metas)
	for len(left) > keep {
		// The oldest is always kept while there is a middle to choose from.
		at, hole := len(left)-1, uint64(0)
		for i := 2; i < len(left)-1; i++ {
			if h := left[i-1].HeadIndex - left[i+1].HeadIndex; at == len(left)-1 || h < hole {
				at, hole = i, h
			}
		}
		gone = append(gone, left[at])
		left = slices.Delete(left, at, at+1)
	}
	return left, gone
}
