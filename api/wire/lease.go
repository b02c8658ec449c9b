package wire

import "github.com/go-json-experiment/json/jsontext"

// LeaseRequest is the body of POST /v1/queues/{queue}/lease and, with Queues,
// of POST /v1/lease.
type LeaseRequest struct {
	Queues      []string `json:"queues,omitzero"`       // tried in this order
	MaxMessages *int64   `json:"max_messages,omitzero"` // 1 to 1000, 10 if left out
	WaitMS      int64    `json:"wait_ms,omitzero"`      // how long to wait while there is nothing
	LeaseMS     int64    `json:"lease_ms,omitzero"`     // 0: the queue's policy
	Worker      string   `json:"worker,omitzero"`
	Kinds       []string `json:"kinds,omitzero"` // empty: all
}

// LeaseResponse answers a lease; it is empty when nothing came in time.
type LeaseResponse struct {
	Messages []LeasedMessage `json:"messages"`
}

// LeasedMessage is a message and the right to process it. Exactly one of
// Payload and PayloadBytes is there.
type LeasedMessage struct {
	ID             string            `json:"id"`
	LeaseID        string            `json:"lease_id"` // grows with time: a fencing token
	Queue          string            `json:"queue"`
	Key            string            `json:"key"`
	Attempt        int64             `json:"attempt"`
	MaxAttempts    int64             `json:"max_attempts"` // 0: no limit
	Priority       int64             `json:"priority"`
	Kind           string            `json:"kind"`
	Headers        map[string]string `json:"headers"`
	Payload        jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes   Bytes             `json:"payload_base64,omitzero"`
	ContentType    string            `json:"content_type,omitzero"`
	Original       jsontext.Value    `json:"original,omitzero"` // the body that a webhook mapped the payload from
	Erased         bool              `json:"erased,omitzero"`   // what users wrote in it was erased: the payload is null
	EnqueuedAt     Time              `json:"enqueued_at"`
	LeaseExpiresAt Time              `json:"lease_expires_at"`
	CorrelationID  string            `json:"correlation_id"`
	Dead           *Dead             `json:"dead"`
}

// Dead tells where a dead message came from and why.
type Dead struct {
	Queue           string `json:"queue"`
	MessageID       string `json:"message_id"`
	Reason          string `json:"reason"` // max_attempts, expired, rejected, key_dead
	Error           string `json:"error"`
	Attempts        int64  `json:"attempts"`
	FailedAt        Time   `json:"failed_at"`
	FirstEnqueuedAt Time   `json:"first_enqueued_at"`
	ReplayCount     int64  `json:"replay_count"`
}
