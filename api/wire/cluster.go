package wire

// Cluster answers GET /v1/cluster: what the node that was asked knows.
type Cluster struct {
	ClusterID string `json:"cluster_id"`
	NodeID    string `json:"node_id"`   // of the node that answers
	LeaderID  string `json:"leader_id"` // "" where no leader is known
	Term      uint64 `json:"term"`
	Nodes     []Node `json:"nodes"` // by id
}

// Node is one member of the cluster. Of a node that is not reachable the
// indexes are the last that it told.
type Node struct {
	ID           string `json:"id"`
	RaftAddr     string `json:"raft_addr"`
	HTTPAddr     string `json:"http_addr"` // "" where it is not known
	Voter        bool   `json:"voter"`     // it has a vote now
	Leader       bool   `json:"leader"`
	Reachable    bool   `json:"reachable"` // it has answered within the last second
	AgeMS        *int64 `json:"age_ms"`    // age of what is known of it, 0 for the node that answers; null: never heard from
	AppliedIndex uint64 `json:"applied_index"`
	LogHead      uint64 `json:"log_head"`   // index of the event log's newest block
	ChainHash    string `json:"chain_hash"` // that block's chain, 64 hex digits; "" not known yet
}

// NewNode is a POST /v1/cluster/nodes.
type NewNode struct {
	ID       string `json:"id"`
	RaftAddr string `json:"raft_addr"`
	HTTPAddr string `json:"http_addr,omitzero"`
	Voter    *bool  `json:"voter,omitzero"` // left out: true
}

// TransferRequest is a POST /v1/cluster/transfer-leadership; its body may be
// left out.
type TransferRequest struct {
	To *string `json:"to,omitzero"` // left out: whichever voter is furthest
}

// Transferred answers it.
type Transferred struct {
	LeaderID string `json:"leader_id"` // as far as it is known by then, else ""
}

// ClusterSnapshot answers POST /v1/cluster/snapshot: each node's newest
// checkpoint, by node.
type ClusterSnapshot struct {
	Indexes map[string]uint64 `json:"indexes"`
}
