package wire

// The shapes of the first design, under /admin.

// AdminQueues answers GET /admin/queues.
type AdminQueues struct {
	Queues []AdminQueue `json:"queues"`
}

// AdminQueue is a queue there.
type AdminQueue struct {
	Name                    string  `json:"name"`
	Depth                   int64   `json:"depth"`
	InFlight                int64   `json:"in_flight"`
	OldestMessageAgeSeconds int64   `json:"oldest_message_age_seconds"`
	MessagesPerMinute       float64 `json:"messages_per_minute"`
	DLQSize                 int64   `json:"dlq_size"` // what died in it and is not resolved
}

// AdminDeadLetters answers GET /admin/queues/{queue}/dlq.
type AdminDeadLetters struct {
	DeadLetters []AdminDeadLetter `json:"dead_letters"`
}

// AdminDeadLetter is a dead message there.
type AdminDeadLetter struct {
	ID       string `json:"id"`
	FailedAt int64  `json:"failed_at"` // Unix seconds
	Error    string `json:"error"`
	Attempts int64  `json:"attempts"`
	Preview  string `json:"preview"` // the first 200 characters of the payload
}

// AdminDone answers POST /admin/queues/{queue}/dlq/{id}/replay, and DELETE.
type AdminDone struct {
	OK           bool   `json:"ok"`
	NewMessageID string `json:"new_message_id,omitzero"`
}
