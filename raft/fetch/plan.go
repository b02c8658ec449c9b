package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// Checkpoint is the file that the fetched segments lead up to.
type Checkpoint struct {
	Name      string      `json:"name"`
	Size      int64       `json:"size"`
	Index     uint64      `json:"index"` // Raft's
	Term      uint64      `json:"term"`
	HeadIndex uint64      `json:"head_index"`
	Chain     event.Chain `json:"chain"`
}

// same reports whether two segments have the same blocks, in as many bytes.
func same(a, b log.SegmentInfo) bool {
	return a.First == b.First && a.Last == b.Last && a.Size == b.Size && a.Chain == b.Chain
}

// extent is a part of the event log, the newest segment cut at the checkpoint. PrevIndex and
// PrevChain are of the block before its first segment; 0 = none.
type extent struct {
	PrevIndex uint64            `json:"prev_index"`
	PrevChain event.Chain       `json:"prev_chain"`
	Segments  []log.SegmentInfo `json:"segments"`
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
	extent                // of what is in incoming/
	// Replace: the local log does not lead up to PrevIndex, and is removed. Otherwise its
	// segments before the first one stay.
	Replace bool `json:"replace"`

	head uint64 // of the local log, when the plan was made
}

const planFormat = 1

// maxFileBytes is beyond any file that qlogd writes.
const maxFileBytes = 1 << 40

// check verifies that names match their numbers, and that each part continues the one before.
func (p *Plan) check() error {
	c := &p.Checkpoint
	if !checkpoint.IsName(c.Name) || c.Size <= 0 || c.Size > maxFileBytes {
		return fmt.Errorf("checkpoint %q: %d bytes", c.Name, c.Size)
	}
	last, chain := p.PrevIndex, p.PrevChain
	for _, s := range p.Segments {
		if s.Name != log.SegmentName(s.First) || s.First <= last || s.Last < s.First ||
			s.Size <= 0 || s.Size > maxFileBytes {
			return fmt.Errorf("segment %q: index %d to %d, after %d, in %d bytes",
				s.Name, s.First, s.Last, last, s.Size)
		}
		last, chain = s.Last, s.Chain
	}
	if last != c.HeadIndex || chain != c.Chain {
		return fmt.Errorf("the segments end at index %d, chain %s; checkpoint %s is of %d, %s",
			last, chain, c.Name, c.HeadIndex, c.Chain)
	}
	return nil
}

// files returns the files that must be in incoming/ and their sizes.
func (p *Plan) files() map[string]int64 {
	files := map[string]int64{p.Checkpoint.Name: p.Checkpoint.Size}
	for _, s := range p.Segments {
		files[s.Name] = s.Size
	}
	return files
}

func checksum(body []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}

func (p *Plan) encode() []byte {
	p.Format = planFormat
	b, _ := json.Marshal(p) // numbers and names: it never fails
	return append([]byte(checksum(b)+"\n"), b...)
}

func decodePlan(b []byte) (*Plan, error) {
	sum, body, ok := strings.Cut(string(b), "\n")
	if !ok || sum != checksum([]byte(body)) {
		return nil, errors.New("wrong checksum of " + installFile)
	}
	p := &Plan{}
	err := json.Unmarshal([]byte(body), p)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", installFile, err)
	case p.Format > planFormat:
		return nil, fmt.Errorf("incoming files: format version %d is newer than this program's %d",
			p.Format, planFormat)
	}
	return p, p.check()
}
