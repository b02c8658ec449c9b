package wire

import "github.com/go-json-experiment/json/jsontext"

// Message is a message as a reader sees it, without any effect on it. A
// message that has left its queue has its last state.
type Message struct {
	ID             string            `json:"id"`
	Queue          string            `json:"queue"`
	State          string            `json:"state"`           // scheduled, ready, leased; acked, dead_lettered, discarded, replayed
	Held           bool              `json:"held"`            // ready, but behind an earlier message of its lane
	Reason         string            `json:"reason,omitzero"` // dead_lettered, discarded
	Key            string            `json:"key"`
	Attempt        int64             `json:"attempt"` // 0 before the first lease
	Priority       int64             `json:"priority"`
	Kind           string            `json:"kind"`
	Headers        map[string]string `json:"headers"`
	Payload        jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes   Bytes             `json:"payload_base64,omitzero"`
	ContentType    string            `json:"content_type,omitzero"`
	Erased         bool              `json:"erased,omitzero"` // its content was erased, or retention took it
	Size           int64             `json:"size"`            // bytes of the payload
	CorrelationID  string            `json:"correlation_id"`
	EnqueuedAt     Time              `json:"enqueued_at"`
	AvailableAt    Time              `json:"available_at,omitzero"` // scheduled: when it comes due
	ExpiresAt      Time              `json:"expires_at,omitzero"`   // end of its ttl
	LeaseID        string            `json:"lease_id,omitzero"`
	LeaseExpiresAt Time              `json:"lease_expires_at,omitzero"`
	LeftAt         Time              `json:"left_at,omitzero"` // when it left its queue
	Result         jsontext.Value    `json:"result,omitzero"`  // acked with one
	MovedTo        *Moved            `json:"moved_to,omitzero"`
	Dead           *Dead             `json:"dead"`
	History        []Event           `json:"history,omitzero"` // of GET /v1/messages/{id}
}

// Moved tells where a dead-lettered or replayed message went.
type Moved struct {
	Queue     string `json:"queue"`
	MessageID string `json:"message_id"`
}

// MessageList answers GET /v1/queues/{queue}/messages.
type MessageList struct {
	Messages   []Message `json:"messages"`
	NextCursor string    `json:"next_cursor,omitzero"`
}
