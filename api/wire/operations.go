package wire

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

// SystemHealth tells how busy the node is.
type SystemHealth struct {
	Utilization float64 `json:"utilization"` // share of the proposer's room that is taken, 0 to 1
	Waiting     int64   `json:"waiting"`     // writes in hand
	QueueDepth  int64   `json:"queue_depth"` // writes that wait at the proposer
}

// OperationStats answers GET /v1/operations/stats.
type OperationStats struct {
	Stats        []OperationStat `json:"stats"`
	SystemHealth SystemHealth    `json:"system_health"`
}

// Health answers /healthz and /readyz.
type Health struct {
	Status  string   `json:"status"` // ok, ready, not_ready
	Reasons []string `json:"reasons,omitzero"`
}
