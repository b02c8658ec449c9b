package wire

// Problem is every error's body (RFC 9457, application/problem+json).
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	Code      string `json:"code"` // stable, snake_case
	Retryable bool   `json:"retryable"`

	Field        string `json:"field,omitzero"`          // the field, parameter or header that is wrong
	Index        *int   `json:"index,omitzero"`          // its position in the batch, from 0
	RetryAfterMS int64  `json:"retry_after_ms,omitzero"` // also in Retry-After, in seconds
	Outcome      string `json:"outcome,omitzero"`        // of a failed write: not_applied or unknown
	QueueDepth   *int64 `json:"queue_depth,omitzero"`    // overloaded: writes that wait at the node
	RequestID    string `json:"request_id,omitzero"`

	Errors []Wrong `json:"errors,omitzero"` // of definitions: all that is wrong with them
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
