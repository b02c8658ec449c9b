// Package witness detects that a data directory, or a part of it, is an old copy: by the high-water
// mark that a node keeps of its own log, and by what other nodes remember of it (promise.go).
package witness

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// FileName is the file in a data directory that holds its mark, unless that is on another disk.
const FileName = "witness.json"

const format = 1

// HighWater is a high-water mark: how far a node's Raft store reached. One that ends before it is
// older than it was.
//
// Invariant: when a mark is written, its entry and its term are durable in the store. So it may be
// older than the store, and is never newer.
type HighWater struct {
	Index uint64 `json:"index"` // of a committed entry: those are never cut off
	Term  uint64 `json:"term"`  // the newest that the node knew
}

// content is the file's; the checksum is over the rest.
type content struct {
	Format      int    `json:"format"`
	ClusterID   string `json:"cluster_id"`
	NodeID      string `json:"node_id"`
	Incarnation string `json:"incarnation"`
	HighWater
	Checksum string `json:"checksum"`
}

func (c content) sum() string {
	c.Checksum = ""
	return datadir.Checksum(c)
}

// File is a mark on disk. Without a file (nil) the mark is zero.
type File struct {
	// Accept: an older directory is accepted, and the mark lowered to its end.
	Accept bool

	fsys vfs.FS
	name string
	is   atomic.Pointer[content] // as on disk: read without waiting for a write
}

// Open reads the mark of the directory of n, or creates the file with the zero mark. It refuses a
// damaged file, and one of another directory.
func Open(fsys vfs.FS, name string, n *datadir.Node) (*File, error) {
	f := &File{fsys: fsys, name: name}
	own := content{
		Format: format, ClusterID: n.ClusterID, NodeID: n.NodeID, Incarnation: n.Incarnation,
	}
	b, err := vfs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return f, f.write(own)
	}
	if err != nil {
		return nil, fmt.Errorf("witness file: %w", err)
	}
	is, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("witness file %s: %w; put it back from a backup or, if the data "+
			"directory is known to be the newest, remove it", name, err)
	}
	for _, c := range []struct{ of, is, want string }{
		{"cluster", is.ClusterID, own.ClusterID}, {"node", is.NodeID, own.NodeID},
		{"incarnation", is.Incarnation, own.Incarnation},
	} {
		if c.is != c.want {
			return nil, fmt.Errorf("witness file %s is of %s %s, the data directory of %s %s: "+
				"use the directory that reached index %d, name another file (witness-file) or, "+
				"if that directory is gone for good, remove this one",
				name, c.of, c.is, c.of, c.want, is.Index)
		}
	}
	f.is.Store(&is)
	return f, nil
}

func parse(b []byte) (c content, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err = dec.Decode(&c)
	switch {
	case c.Format > format:
		err = fmt.Errorf("format %d is not known to this program (format %d)", c.Format, format)
	case err == nil && c.Checksum != c.sum():
		err = fmt.Errorf("wrong checksum of its fields: %.16q, not %q", c.Checksum, c.sum())
	}
	return c, err
}

// HighWater returns the mark.
func (f *File) HighWater() HighWater {
	if f == nil {
		return HighWater{}
	}
	return f.is.Load().HighWater
}

// Compare returns how a store that ends at end is older than the mark; "": it is not, or is
// accepted.
func (f *File) Compare(end HighWater, logger *slog.Logger) (older string, err error) {
	m := f.HighWater()
	if end.Index >= m.Index && end.Term >= m.Term {
		return "", nil
	}
	logger.Warn("data directory ends before its high-water mark", "last", end.Index,
		"term", end.Term, "mark", m.Index, "mark_term", m.Term, "accepted", f.Accept)
	if f.Accept {
		return "", f.Set(end)
	}
	return fmt.Sprintf("its log ends at index %d in term %d, its high-water mark is index %d "+
		"in term %d", end.Index, end.Term, m.Index, m.Term), nil
}

// Keep raises the mark once a second to what now returns, and a last time when stop is closed.
// While that is zero, it leaves the file to others, who may lower the mark. The errors are passed
// to failed: a mark that is not written protects less, and no write waits for it.
func (f *File) Keep(stop <-chan struct{}, now func() HighWater, failed func(error)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-tick.C:
		case <-stop:
			running = false
		}
		m := now()
		if m == (HighWater{}) {
			continue
		}
		is := f.HighWater()
		if err := f.Set(HighWater{max(m.Index, is.Index), max(m.Term, is.Term)}); err != nil {
			failed(err)
		}
	}
}

// Set makes m the mark, durably. When it fails, the old mark is on disk or the new one. It must not
// be called twice at the same time.
func (f *File) Set(m HighWater) error {
	if f == nil || f.HighWater() == m {
		return nil
	}
	to := *f.is.Load()
	to.HighWater = m
	return f.write(to)
}

// write replaces the file.
func (f *File) write(to content) error {
	to.Checksum = to.sum()
	b, _ := json.Marshal(to) // numbers and strings: it never fails
	if err := vfs.WriteFile(f.fsys, f.name, append(b, '\n')); err != nil {
		return fmt.Errorf("witness file: %w", err)
	}
	f.is.Store(&to)
	return nil
}

// Remove removes a file, durably: its directory becomes another member of the cluster, which has
// promised nothing.
func Remove(fsys vfs.FS, name string) error {
	return vfs.Remove(fsys, path.Dir(name), path.Base(name))
}
