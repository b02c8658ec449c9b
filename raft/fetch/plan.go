package fetch

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// Checkpoint is the file that the fetched segments lead up to.
type Checkpoint struct {
	Name      string           `json:"name"`
	Size      int64            `json:"size"`
	Index     uint64           `json:"index"` // Raft's
	Term      uint64           `json:"term"`
	HeadIndex uint64           `json:"head_index"`
	Chain     checkpoint.Chain `json:"chain"`
}

// Segment is one file of the event log, the newest cut at the checkpoint.
type Segment struct {
	Name  string           `json:"name"`
	First uint64           `json:"first"`
	Last  uint64           `json:"last"`
	Size  int64            `json:"size"`
	Chain checkpoint.Chain `json:"chain"` // at Last
}

// installFile is in incoming/ from before the first file is moved until after the last: the
// installation must be completed. It has a line with the CRC-32C of the rest, in hex, and then
// the plan as JSON.
const installFile = "INSTALL"

// Plan is what Fetch has transferred to incoming/, whole, verified and durable.
type Plan struct {
	Format     int        `json:"format"`
	Cluster    string     `json:"cluster"`
	Checkpoint Checkpoint `json:"checkpoint"`
	// PrevIndex and PrevChain are of the block before the first segment; 0 = none. Segments
	// are those in incoming/.
	PrevIndex uint64           `json:"prev_index"`
	PrevChain checkpoint.Chain `json:"prev_chain"`
	Segments  []Segment        `json:"segments"`
	// Replace: the local log does not lead up to PrevIndex, and is removed. Otherwise its
	// segments before the first one stay.
	Replace bool `json:"replace"`

	head uint64 // of the local log, when the plan was made
}

const planFormat = 1

// Sizes of files beyond any that qlogd writes, and the smallest segment.
const (
	maxSegmentBytes    = 4 << 30
	maxCheckpointBytes = 1 << 40
	minSegmentBytes    = 88 + 68 // header, and a block without records
)

// check verifies that names match their numbers, and that each part continues the one before.
func (r *Plan) check() error {
	c := &r.Checkpoint
	if _, _, ok := checkpoint.ParseName(c.Name); !ok || c.Size <= 0 || c.Size > maxCheckpointBytes {
		return fmt.Errorf("checkpoint %q: %d bytes", c.Name, c.Size)
	}
	last, chain := r.PrevIndex, r.PrevChain
	for i := range r.Segments {
		s := &r.Segments[i]
		first, ok := log.ParseSegmentName(s.Name)
		switch {
		case !ok || first != s.First:
			return fmt.Errorf("segment %q does not begin at index %d", s.Name, s.First)
		case s.First <= last || s.Last < s.First:
			return fmt.Errorf("segment %s: %d to %d, after %d", s.Name, s.First, s.Last, last)
		case s.Size < minSegmentBytes || s.Size > maxSegmentBytes:
			return fmt.Errorf("segment %s: %d bytes", s.Name, s.Size)
		}
		last, chain = s.Last, s.Chain
	}
	if last != c.HeadIndex || chain != c.Chain {
		return fmt.Errorf("the segments end at index %d, chain %x; checkpoint %s is of %d, %x",
			last, chain, c.Name, c.HeadIndex, c.Chain)
	}
	return nil
}

func checksum(body string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)))
}

func (r *Plan) encode() []byte {
	r.Format = planFormat
	b := encode(r)
	return []byte(checksum(string(b)) + "\n" + string(b))
}

// encode returns v, which consists of numbers and strings, as JSON.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func decodePlan(b []byte) (*Plan, error) {
	sum, body, ok := strings.Cut(string(b), "\n")
	if !ok || sum != checksum(body) {
		return nil, fmt.Errorf("%s has a wrong checksum", installFile)
	}
	r := &Plan{}
	err := json.Unmarshal([]byte(body), r)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", installFile, err)
	case r.Format > planFormat:
		return nil, fmt.Errorf("incoming files: format version %d is newer than this program's %d",
			r.Format, planFormat)
	}
	return r, r.check()
}
