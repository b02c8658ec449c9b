package datadir

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/event"
)

// Format is the newest version of a data directory that this program knows,
// and the one that it makes. 2 has the incarnation; a directory of format 1 is
// read, and becomes one of format 2 when its card is written again.
const Format = 2

// Node is node.json: who this data directory is.
type Node struct {
	Format int    `json:"format"`
	NodeID string `json:"node_id"`
	// Incarnation tells this directory from another one of the same node: one
	// that was wiped, or put back from an old copy, has another. It is made with
	// the directory, before anybody is told of it. "" only where the directory
	// is older than incarnations.
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
	// Fork, if set, tells what this directory was made of by replay --into.
	Fork *Fork `json:"fork,omitempty"`
}

// Member is one node of a cluster's first configuration.
type Member struct {
	ID          string `json:"id"`
	Incarnation string `json:"incarnation"`
	RaftAddr    string `json:"raft_addr"` // host:port at which the others reach it; "" of one that was made alone
	HTTPAddr    string `json:"http_addr"` // host:port; "" unknown
}

// Fork tells which past a data directory continues.
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
}

// NewNode returns the card of a new node in a new cluster of its own.
func NewNode(nodeID string, segmentBytes int64) *Node {
	n := NewBlank(nodeID, segmentBytes)
	n.ClusterID = newID()
	n.Initial = []Member{{ID: n.NodeID, Incarnation: n.Incarnation}}
	return n
}

// NewBlank returns the card of a new node that is yet to form a cluster or to
// find one. It must be written before others are told of it: they may promise
// something to this incarnation, so a crash must not change it.
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
	return len(n.Initial) > 1 || len(n.Initial) == 0 && n.Incarnation != "" && !n.Blank()
}

// PushOff reports whether nothing may be pushed to anyone from this directory:
// it is a copy of the past, whose messages were delivered by whom it was copied
// from. An operator who wants it otherwise writes push_off false into node.json.
func (n *Node) PushOff() bool { return n.Fork != nil && n.Fork.PushOff }

// NewIncarnation makes the directory another member of the same cluster, one
// that has promised nothing: for one whose Raft log is older than what it once
// told the others. The first configuration goes, since this incarnation was not
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
	// The version alone first: a newer file may have anything else in it.
	var v struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if v.Format > Format {
		return nil, fmt.Errorf("data directory %s has format %d, newer than this program's %d: a newer qlogd has written it", dir, v.Format, Format)
	}
	n := &Node{}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(n); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := n.upgrade(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := n.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// upgrade makes of a card of format 1 what it means in this one: a cluster of
// one, whose configuration names the node without an incarnation.
func (n *Node) upgrade() error {
	if n.Format != 1 {
		return nil
	}
	if n.Incarnation != "" || n.Initial != nil || n.Joined {
		return errors.New("format 1 has no incarnation, initial or joined")
	}
	if n.ClusterID == "" {
		return errors.New("cluster_id must be set in format 1")
	}
	n.Initial = []Member{{ID: n.NodeID}}
	return nil
}

// check refuses what no version of this program writes.
func (n *Node) check() error {
	switch {
	case n.Format < 1 || n.NodeID == "":
		return errors.New("format and node_id must be set")
	case !event.ValidNode(n.NodeID):
		return fmt.Errorf("node_id %.80q must match %s", n.NodeID, event.NodeNames)
	case n.Blank() && n.Incarnation == "":
		return errors.New("cluster_id or incarnation must be set")
	case n.Blank() && (len(n.Initial) > 0 || n.Joined || n.Fork != nil):
		return errors.New("initial, joined and fork need a cluster_id")
	}
	if n.Incarnation != "" {
		if _, err := ulid.ParseStrict(n.Incarnation); err != nil {
			return fmt.Errorf("incarnation %.64q: %w", n.Incarnation, err)
		}
	}
	seen, self := map[string]bool{}, false
	for i, m := range n.Initial {
		if !event.ValidNode(m.ID) || seen[m.ID] {
			return fmt.Errorf("initial[%d]: id %.80q is there twice, or none: it must match %s", i, m.ID, event.NodeNames)
		}
		seen[m.ID] = true
		self = self || m.ID == n.NodeID && m.Incarnation == n.Incarnation
	}
	if len(n.Initial) > 0 && !self {
		return errors.New("initial does not have this node in this incarnation")
	}
	return nil
}

// Write replaces dir's node.json atomically, and durably, by one of the newest
// format: written beside, synced, renamed. When it fails the old one is there,
// or the new one: read it again before going on.
func (n *Node) Write(dir string) error {
	n.Format = Format
	path := Path(dir, NodeFile)
	if err := n.check(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	tmp := path + ".tmp"
	if err := writeSynced(tmp, append(b, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return SyncDir(dir)
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// SyncDir makes the names in dir durable.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
