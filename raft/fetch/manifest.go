package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path"
	"strings"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
)

// Checkpoint is the one that a manifest leads up to.
type Checkpoint struct {
	Name      string           `json:"name"`
	Size      int64            `json:"size"`
	Index     uint64           `json:"index"` // Raft's
	Term      uint64           `json:"term"`
	HeadIndex uint64           `json:"head_index"`
	Chain     checkpoint.Chain `json:"chain"`
}

// Segment is one file of the log, the newest cut at the manifest's checkpoint.
type Segment struct {
	Name  string           `json:"name"`
	First uint64           `json:"first"`
	Last  uint64           `json:"last"`
	Size  int64            `json:"size"`
	Chain checkpoint.Chain `json:"chain"` // at Last
}

// Manifest is all that makes up a node's state at a checkpoint: the event log up
// to exactly there, and the checkpoint.
type Manifest struct {
	Cluster    string     `json:"cluster"`
	Checkpoint Checkpoint `json:"checkpoint"`
	// PrevIndex and PrevChain are of the block before the first segment; 0 = none.
	PrevIndex uint64           `json:"prev_index"`
	PrevChain checkpoint.Chain `json:"prev_chain"`
	Segments  []Segment        `json:"segments"`
	// Asked is, in an answer, the chain behind the index that was asked about;
	// nil where that is not held.
	Asked *checkpoint.Chain `json:"asked,omitempty"`
}

// Sizes of files beyond any that qlogd writes, and the smallest segment.
const (
	maxSegmentBytes    = 4 << 30
	maxCheckpointBytes = 1 << 40
	minSegmentBytes    = 88 + 68 // header, and a block without records
)

// check holds a manifest against itself: names are what their numbers say, and
// each thing continues the one before.
func (m *Manifest) check() error {
	c := &m.Checkpoint
	index, term, ok := checkpoint.ParseName(c.Name)
	switch {
	case m.Cluster == "":
		return errors.New("no cluster")
	case !ok || index != c.Index || term != c.Term:
		return fmt.Errorf("checkpoint %q is not of index %d, term %d", c.Name, c.Index, c.Term)
	case c.HeadIndex > c.Index:
		return fmt.Errorf("checkpoint %s: the log's head %d is behind it", c.Name, c.HeadIndex)
	case c.Size <= 0 || c.Size > maxCheckpointBytes:
		return fmt.Errorf("checkpoint %s: %d bytes", c.Name, c.Size)
	case len(m.Segments) == 0 && c.HeadIndex > 0:
		return errors.New("no segments")
	case m.PrevIndex == 0 && m.PrevChain != checkpoint.Chain{}:
		return errors.New("a chain before the first block")
	}
	last, chain := m.PrevIndex, m.PrevChain
	for i := range m.Segments {
		s := &m.Segments[i]
		first, ok := log.ParseSegmentName(s.Name)
		switch {
		case !ok || first != s.First:
			return fmt.Errorf("segment %q does not begin at index %d", s.Name, s.First)
		case s.First <= last || s.Last < s.First:
			return fmt.Errorf("segment %s: %d to %d, behind %d", s.Name, s.First, s.Last, last)
		case s.Size < minSegmentBytes || s.Size > maxSegmentBytes:
			return fmt.Errorf("segment %s: %d bytes", s.Name, s.Size)
		}
		last, chain = s.Last, s.Chain
	}
	if last != c.HeadIndex || chain != c.Chain {
		return fmt.Errorf("the segments end at index %d, chain %x; checkpoint %s is of index %d, chain %x", last, chain, c.Name, c.HeadIndex, c.Chain)
	}
	return nil
}

// The names in incoming/, besides the segments, side files and the checkpoint,
// which have the names that they get where they belong.
const (
	// readyFile is written last: all that it lists is there, whole, verified and
	// durable. An opening of the directory may put it in place, or leave it.
	readyFile = "READY"
	// installFile is readyFile under the name that it has once the first file is
	// about to be moved: from then on there is no way but forward.
	installFile = "INSTALL"
)

// ready is the content of READY and INSTALL: a line with the CRC-32C of the rest,
// in hex, and then this as JSON.
type ready struct {
	Format int `json:"format"`
	// Manifest lists the segments that are in incoming/, and no others; PrevIndex
	// and PrevChain are of the block before the first of them.
	Manifest
	// Replace: the local log ends before PrevIndex, and goes. Otherwise its
	// segments before the first one stay.
	Replace bool `json:"replace"`
}

const readyFormat = 1

// errNotReady is of a file that says nothing: not a READY, or a damaged one.
var errNotReady = errors.New("not a usable " + readyFile)

func checksum(body string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)))
}

func (r *ready) encode() []byte {
	r.Format = readyFormat
	b := encode(r)
	return []byte(checksum(string(b)) + "\n" + string(b))
}

// encode is the JSON of v, which are numbers and strings.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func decodeReady(b []byte) (*ready, error) {
	sum, body, ok := strings.Cut(string(b), "\n")
	if !ok || sum != checksum(body) {
		return nil, fmt.Errorf("%w: wrong checksum", errNotReady)
	}
	r := &ready{}
	if err := json.Unmarshal([]byte(body), r); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReady, err)
	}
	if r.Format > readyFormat {
		return nil, fmt.Errorf("incoming files: format version %d is newer than this program's %d", r.Format, readyFormat)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotReady, err)
	}
	return r, nil
}

// readReady returns the content of the file called name in dir; fs.ErrNotExist
// where there is none.
func readReady(fsys vfs.FS, dir, name string) (*ready, error) {
	b, err := vfs.ReadFile(fsys, path.Join(dir, name))
	if err != nil {
		return nil, err
	}
	return decodeReady(b)
}

// there reports whether all files are there with their full sizes.
func (r *ready) there(fsys vfs.FS, dir string) (bool, error) {
	for _, s := range r.Segments {
		if ok, err := hasSize(fsys, path.Join(dir, s.Name), s.Size); !ok {
			return false, err
		}
	}
	return hasSize(fsys, path.Join(dir, r.Checkpoint.Name), r.Checkpoint.Size)
}

func hasSize(fsys vfs.FS, name string, size int64) (bool, error) {
	info, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && info.Size == size, err
}
