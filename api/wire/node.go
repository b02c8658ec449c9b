package wire

// Cluster answers GET /v1/cluster: what the node that was asked knows.
type Cluster struct {
	ClusterID string `json:"cluster_id"`
	NodeID    string `json:"node_id"`   // of the node that answers
	LeaderID  string `json:"leader_id"` // "" where no leader is known
	Term      uint64 `json:"term"`
	Nodes     []Node `json:"nodes"` // by id
}

// Node is one member of the cluster. Of an unreachable node the indexes are the last ones known.
type Node struct {
	ID           string `json:"id"`
	RaftAddr     string `json:"raft_addr"`
	HTTPAddr     string `json:"http_addr"` // "" where it is not known
	Voter        bool   `json:"voter"`     // it has a vote now
	Leader       bool   `json:"leader"`
	Reachable    bool   `json:"reachable"` // it has answered within the last second
	AgeMS        *int64 `json:"age_ms"`    // age of what is known of it; null: never heard from
	AppliedIndex uint64 `json:"applied_index"`
	LogHead      uint64 `json:"log_head"`   // index of the event log's newest block
	ChainHash    string `json:"chain_hash"` // that block's chain, 64 hex digits; "" not known yet
	// UnconfirmedBy are voters that were silent when the node started and took part again, and have
	// not confirmed since that its directory is no old copy.
	UnconfirmedBy []string `json:"unconfirmed_by"`

	Damaged []DamagedFile `json:"damaged"` // the first 16 that were found
	Scrub   *Scrub        `json:"scrub"`   // null: no round has ended since the node's start

	Version string `json:"version"` // of its program; "" not known
	Disk    *Disk  `json:"disk"`    // null: not known
}

// Disk is where a node's data directory is.
type Disk struct {
	FreeBytes int64 `json:"free_bytes"` // for the node's user
	SizeBytes int64 `json:"size_bytes"`
}

// DamagedFile is a file of a node that failed its check and is not repaired.
type DamagedFile struct {
	File   string `json:"file"`  // in its data directory
	Kind   string `json:"kind"`  // segment, index, checkpoint
	Since  Time   `json:"since"` // when it was found
	Detail string `json:"detail"`
}

// Scrub is the last time that a node has read and checked all of its log and checkpoints.
type Scrub struct {
	EndedAt Time  `json:"ended_at"`
	TookMS  int64 `json:"took_ms"`
	Bytes   int64 `json:"bytes"`
}

// NewNode is a POST /v1/cluster/nodes.
type NewNode struct {
	ID       string `json:"id"`
	RaftAddr string `json:"raft_addr"`
	HTTPAddr string `json:"http_addr,omitzero"`
	Voter    *bool  `json:"voter,omitzero"` // left out: true, but not as the second of two
}

// TransferRequest is a POST /v1/cluster/transfer-leadership; its body may be left out.
type TransferRequest struct {
	To *string `json:"to,omitzero"` // left out: whichever voter is furthest
}

// Transferred answers it.
type Transferred struct {
	LeaderID string `json:"leader_id"` // as far as it is known by then, else ""
}

// ClusterSnapshot answers POST /v1/cluster/snapshot: each node's newest checkpoint, by node.
type ClusterSnapshot struct {
	Indexes map[string]uint64 `json:"indexes"`
}

// Operation is what became of a write that had an Idempotency-Key.
type Operation struct {
	Key             string  `json:"key"`
	Type            string  `json:"type"`     // produce, settle, transaction, put_queue, …
	Status          string  `json:"status"`   // pending, completed, failed
	Priority        string  `json:"priority"` // the class: settle, produce, lease, background
	CreatedAt       Time    `json:"created_at"`
	ProcessedAt     Time    `json:"processed_at"`
	LatencyMS       *int64  `json:"latency_ms"`
	Position        *int64  `json:"position"` // pending: how many go before it
	EstimatedWaitMS *int64  `json:"estimated_wait_ms"`
	Error           *string `json:"error"` // failed: the problem's code
	Index           *uint64 `json:"index"` // completed: the Raft index
}

// OperationList answers GET /v1/operations/{idempotency_key}.
type OperationList struct {
	Operations []Operation `json:"operations"`
}

// OperationStat counts writes of one type, priority and status.
type OperationStat struct {
	Type         string   `json:"type"`
	Priority     string   `json:"priority"`
	Status       string   `json:"status"`
	Count        int64    `json:"count"`
	Oldest       Time     `json:"oldest"`
	Newest       Time     `json:"newest"`
	AvgLatencyMS *float64 `json:"avg_latency_ms"`
}

// SystemHealth is how busy the node is.
type SystemHealth struct {
	Utilization float64 `json:"utilization"` // used share of the proposer, 0 to 1
	Waiting     int64   `json:"waiting"`     // writes in flight
	QueueDepth  int64   `json:"queue_depth"` // writes that wait at the proposer
}

// OperationStats answers GET /v1/operations/stats.
type OperationStats struct {
	Stats        []OperationStat `json:"stats"`
	SystemHealth SystemHealth    `json:"system_health"`
}

// Index answers GET /.
type Index struct {
	Service string            `json:"service"` // qlogd
	Version string            `json:"version"`
	Links   map[string]string `json:"links"` // relative URLs
}

// Health answers /healthz and /readyz.
type Health struct {
	Status  string   `json:"status"` // ok, ready, not_ready
	Reasons []string `json:"reasons,omitzero"`
}

// Problem is every error's body (RFC 9457, application/problem+json).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	Code      string `json:"code"` // stable, snake_case
	Retryable bool   `json:"retryable"`

	Field        string `json:"field,omitzero"`          // the wrong field, parameter or header
	Index        *int   `json:"index,omitzero"`          // its position in the batch, from 0
	RetryAfterMS int64  `json:"retry_after_ms,omitzero"` // also in Retry-After, in seconds
	Outcome      string `json:"outcome,omitzero"`        // of a failed write: not_applied, unknown
	QueueDepth   *int64 `json:"queue_depth,omitzero"`    // overloaded: writes that wait at the node
	RequestID    string `json:"request_id,omitzero"`

	Errors []Wrong `json:"errors,omitzero"` // of definitions: all that is wrong with them

	Fate // lease_lost: of the message
}

// Wrong is one of several things that are wrong with a request.
type Wrong struct {
	Field  string `json:"field"` // queues[1].delivery.max_attempts
	Detail string `json:"detail"`
}

// Outcomes of a failed write.
const (
	NotApplied = "not_applied"
	Unknown    = "unknown"
)

// Error makes a Problem an error for clients.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }
