package datadir

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// Format is the version of a data directory.
const Format = 1

// Node is the content of node.json: the identity of a data directory.
type Node struct {
	Format int    `json:"format"`
	NodeID string `json:"node_id"`
	// Incarnation distinguishes this directory from others of the same node: a wiped or
	// restored one has another. It is created with the directory, before the node
	// contacts others.
	Incarnation string `json:"incarnation"`
	// ClusterID is "" until a new directory's cluster is formed or found.
	ClusterID string    `json:"cluster_id"`
	CreatedAt time.Time `json:"created_at"`
	// Initial is the cluster's first configuration, the same on all its nodes,
	// if this directory was there when it was formed; else empty.
	// Invariant: if it is not empty, this node in this incarnation is in it.
	Initial []Member `json:"initial,omitempty"`
	// Joined is set once the cluster's configuration has had this incarnation
	// in it: who is in none after that was removed, or went back in time.
	Joined bool `json:"joined,omitempty"`
	// LogSegmentBytes is the segment size that a new log is made with.
	LogSegmentBytes int64 `json:"log_segment_bytes"`
	// ClockOffsetMS goes onto this machine's wall time: a directory made of an
	// old state lives on from that instant, so that its leases run on as if
	// nothing had passed.
	ClockOffsetMS int64 `json:"clock_offset_ms,omitempty"`
	// Fork, if set, says what this directory was made of by replay --into.
	Fork *Fork `json:"fork,omitempty"`
}

// Member is one node of a cluster's first configuration.
type Member struct {
	ID          string `json:"id"`
	Incarnation string `json:"incarnation"`
	// host:port at which the others reach it; "" of one that was made alone
	RaftAddr string `json:"raft_addr"`
	HTTPAddr string `json:"http_addr"` // host:port; "" unknown
}

// Fork says which past a data directory continues.
type Fork struct {
	ClusterID string    `json:"cluster_id"`
	Index     uint64    `json:"index"`
	ChainHash string    `json:"chain_hash"`
	At        time.Time `json:"at"` // the log's clock at Index
	MadeAt    time.Time `json:"made_at"`
	// Started is set at the first start, which fixes ClockOffsetMS.
	Started bool `json:"started"`
	// PushOff: nothing is pushed to anyone from this copy.
	PushOff bool `json:"push_off"`
	// Lost are the indexes that are missing in the log of a copy that was salvaged.
	Lost []Lost `json:"lost,omitempty"`
}

// Lost is a range of indexes in which blocks are missing.
type Lost struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// NewNode returns the metadata of a new node in a new cluster of its own.
func NewNode(nodeID string, segmentBytes int64) *Node {
	n := NewBlank(nodeID, segmentBytes)
	n.ClusterID = newID()
	n.Initial = []Member{{ID: n.NodeID, Incarnation: n.Incarnation}}
	return n
}

// NewBlank returns the metadata of a new node that does not belong to a cluster yet. It
// must be written before the node contacts others: they may record this incarnation, so a
// crash must not change it.
func NewBlank(nodeID string, segmentBytes int64) *Node {
	return &Node{
		Format: Format, NodeID: nodeID, Incarnation: newID(),
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond), LogSegmentBytes: segmentBytes,
	}
}

// Blank reports whether the node belongs to no cluster yet.
func (n *Node) Blank() bool { return n.ClusterID == "" }

// HasOthers reports whether the node's cluster was formed with others, or was
// there when it came.
func (n *Node) HasOthers() bool {
	return len(n.Initial) > 1 || len(n.Initial) == 0 && !n.Blank()
}

// PushOff reports whether nothing may be pushed to anyone from this directory:
// it is a copy of the past, whose messages were delivered by whom it was copied
// from. An operator who wants it otherwise writes push_off false into node.json.
func (n *Node) PushOff() bool { return n.Fork != nil && n.Fork.PushOff }

// NewIncarnation makes the directory another member of the same cluster, one
// that has promised nothing: for one whose Raft log is older than what it once
// promised the others. The first configuration goes, since this incarnation was not
// in it and must never begin the cluster with it.
func (n *Node) NewIncarnation() {
	n.Incarnation, n.Initial, n.Joined = newID(), nil, false
}

// newID returns a random id, of a cluster or an incarnation. Unlike the log's
// ids it must differ between directories that are otherwise the same.
func newID() string {
	return ulid.MustNew(ulid.Now(), rand.Reader).String()
}

// ErrNoNode is returned by ReadNode for a directory without node.json.
var ErrNoNode = errors.New("no node.json")

// ReadNode reads dir's node.json and refuses a format that it does not know.
func ReadNode(dir string) (*Node, error) {
	path := Path(dir, NodeFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoNode)
	}
	if err != nil {
		return nil, err
	}
	// The version alone first: a file of another one may have anything else in it.
	n := &Node{}
	err = json.Unmarshal(b, &struct {
		Format *int `json:"format"`
	}{&n.Format})
	if n.Format > Format {
		return nil, fmt.Errorf("data directory %s has format %d, which this program (format %d) "+
			"does not read: another version of qlogd has written it", dir, n.Format, Format)
	}
	if err == nil {
		is := card{n, ""}
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.DisallowUnknownFields()
		err = cmp.Or(dec.Decode(&is), n.check())
		switch sum := n.checksum(); {
		case err == nil && is.Checksum == "":
			err = errors.New("it has no checksum " +
				"(the directory of an older, unreleased qlogd cannot be read)")
		case err == nil && is.Checksum != sum:
			err = fmt.Errorf("wrong checksum of its fields: %.16q, not %q", is.Checksum, sum)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; put the file back from a backup: without one, a member "+
			"of a cluster starts with an empty directory, and the log of a single node is "+
			"continued elsewhere (move the file away, then qlogd replay --data-dir %s --into NEW)",
			path, err, dir)
	}
	return n, nil
}

// card is the file's content.
type card struct {
	*Node
	Checksum string `json:"checksum"`
}

// checksum covers all fields but push_off, which an operator may change.
func (n *Node) checksum() string {
	fixed := *n
	if n.Fork != nil {
		f := *n.Fork
		f.PushOff, fixed.Fork = false, &f
	}
	return Checksum(&fixed)
}

// Checksum is the CRC-32C of v's JSON, in hex: of the values, not of how they are written.
func Checksum(v any) string {
	b, _ := json.Marshal(v) // of plain fields: it never fails
	return fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// check refuses what no version of this program writes.
func (n *Node) check() error {
	switch {
	case n.Format != Format || n.NodeID == "" || n.Incarnation == "":
		return errors.New("format, node_id and incarnation must be set " +
			"(the directory of an older, unreleased qlogd cannot be read)")
	case !event.ValidNode(n.NodeID):
		return fmt.Errorf("node_id %.80q must match %s", n.NodeID, event.NodeNames)
	case n.Blank() && (len(n.Initial) > 0 || n.Joined || n.Fork != nil):
		return errors.New("initial, joined and fork need a cluster_id")
	}
	if _, err := ulid.ParseStrict(n.Incarnation); err != nil {
		return fmt.Errorf("incarnation %.64q: %w", n.Incarnation, err)
	}
	seen, self := map[string]bool{}, false
	for i, m := range n.Initial {
		if !event.ValidNode(m.ID) || seen[m.ID] {
			return fmt.Errorf("initial[%d]: id %.80q is there twice, or none: it must match %s", i,
				m.ID, event.NodeNames)
		}
		seen[m.ID] = true
		self = self || m.ID == n.NodeID && m.Incarnation == n.Incarnation
	}
	if len(n.Initial) > 0 && !self {
		return errors.New("initial does not have this node in this incarnation")
	}
	return nil
}

// Write replaces dir's node.json atomically, and durably. When it fails the old
// one is there, or the new one: read it again before going on.
func (n *Node) Write(dir string) error {
	err := n.check()
	var b []byte
	if err == nil {
		b, err = json.MarshalIndent(card{n, n.checksum()}, "", "  ")
	}
	if err == nil {
		err = vfs.WriteFile(vfs.OS{}, Path(dir, NodeFile), append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", Path(dir, NodeFile), err)
	}
	return nil
}
