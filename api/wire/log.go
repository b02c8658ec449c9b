package wire

// LogHead is the event log up to a block: what it takes to see later that it
// was neither cut nor rewritten. It answers GET /v1/log/head, and is a line of
// a file of heads.
type LogHead struct {
	ClusterID string `json:"cluster_id"`
	NodeID    string `json:"node_id"`    // of the node whose log it is
	Index     uint64 `json:"index"`      // of the block; 0 where the log is empty
	ChainHash string `json:"chain_hash"` // up to and with the block, 64 hex digits
	EventID   string `json:"event_id"`   // the newest event up to there; "" where none is near
	Time      Time   `json:"time"`       // the block's, null where the log is empty
}

// LogSegments answers GET /v1/log/segments: the node's own files, oldest first.
type LogSegments struct {
	ClusterID string       `json:"cluster_id"`
	NodeID    string       `json:"node_id"`
	Segments  []LogSegment `json:"segments"`
}

// LogSegment is one file of the event log. Its identity is its chain: two
// nodes' files of the same chain differ in erased contents at most.
type LogSegment struct {
	Name              string `json:"name"`
	FirstIndex        uint64 `json:"first_index"`
	LastIndex         uint64 `json:"last_index"`
	Bytes             int64  `json:"bytes"`
	PreviousIndex     uint64 `json:"previous_index"` // the block that it continues; 0 none
	PreviousChainHash string `json:"previous_chain_hash"`
	ChainHash         string `json:"chain_hash"` // at last_index
	LastTime          Time   `json:"last_time"`  // the log's clock there
	Sealed            bool   `json:"sealed"`     // full: it changes no more, but for erasures
	Archived          bool   `json:"archived"`   // it is in the archive, as far as this node knows
}
