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
)

// Format is the newest version of a data directory that this program knows,
// and the one that it makes.
const Format = 1

// Node is node.json: who this data directory is.
type Node struct {
	Format    int       `json:"format"`
	NodeID    string    `json:"node_id"`
	ClusterID string    `json:"cluster_id"`
	CreatedAt time.Time `json:"created_at"`
	// LogSegmentBytes is the segment size that a new log is made with.
	LogSegmentBytes int64 `json:"log_segment_bytes"`
	// ClockOffsetMS goes onto this machine's wall time: a directory made of an
	// old state lives on from that instant, so that its leases run on as if
	// nothing had passed.
	ClockOffsetMS int64 `json:"clock_offset_ms,omitempty"`
	// Fork, if set, tells what this directory was made of by replay --into.
	Fork *Fork `json:"fork,omitempty"`
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

// NewNode returns the card of a new node in a new cluster.
func NewNode(nodeID string, segmentBytes int64) *Node {
	return &Node{
		Format: Format, NodeID: nodeID, ClusterID: NewClusterID(),
		CreatedAt: time.Now().UTC().Truncate(time.Millisecond), LogSegmentBytes: segmentBytes,
	}
}

// NewClusterID returns a random id. Unlike the log's ids it must differ between
// clusters that are otherwise the same.
func NewClusterID() string {
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
	if n.Format < 1 || n.NodeID == "" || n.ClusterID == "" {
		return nil, fmt.Errorf("%s: format, node_id and cluster_id must be set", path)
	}
	return n, nil
}

// Write replaces dir's node.json atomically: written beside, synced, renamed.
func (n *Node) Write(dir string) error {
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	path := Path(dir, NodeFile)
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
