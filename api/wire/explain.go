package wire

// Explanation answers GET /v1/queues/{queue}/explain: why a message, or what
// waits under a key, is or is not being delivered.
type Explanation struct {
	Queue       string   `json:"queue"`
	Key         *string  `json:"key"`        // null: the message is not there, and nobody asked for a key
	MessageID   *string  `json:"message_id"` // the one that was asked for, or the first that waits; null: none does
	Deliverable bool     `json:"deliverable"`
	Reasons     []Reason `json:"reasons"` // what decides comes first
}

// Reason is one of them. Which fields are set depends on Code.
type Reason struct {
	Code       string   `json:"code"` // queue_paused, held_by_dead, behind_message, leased, scheduled, no_waiting_worker, not_in_queue, ready, …
	Text       string   `json:"text"` // for people
	MessageID  string   `json:"message_id,omitzero"`
	MessageIDs []string `json:"message_ids,omitzero"`
	State      string   `json:"state,omitzero"`
	Queue      string   `json:"queue,omitzero"`
	LeaseID    string   `json:"lease_id,omitzero"`
	Worker     string   `json:"worker,omitzero"`
	Until      Time     `json:"until,omitzero"`
	Ahead      *int64   `json:"ahead,omitzero"`   // messages that go before it
	Waiters    *int64   `json:"waiters,omitzero"` // leases that wait for work, on all nodes that answered
}
