package fetch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
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

// Segment is one file of the log, cut where the manifest's checkpoint stands.
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

const (
	// maxManifest bounds a manifest's bytes before they are decoded: a hundred
	// thousand segments.
	maxManifest = 24 << 20
	// Sizes of files beyond any that qlogd writes.
	maxSegmentBytes    = 4 << 30
	maxCheckpointBytes = 1 << 40
	minSegmentBytes    = 88 + 68 // header, and a block without records
)

// decodeManifest reads what another node has sent. Fields that this program does
// not know are a newer one's.
func decodeManifest(b []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := decode(b, m, false); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

func decode(b []byte, v any, strict bool) error {
	if len(b) > maxManifest {
		return fmt.Errorf("%d bytes are too many", len(b))
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("bytes behind the end")
	}
	return nil
}

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
