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
	Original       jsontext.Value    `json:"original,omitzero"` // the body that a webhook mapped the payload from
	Erased         bool              `json:"erased,omitzero"`   // its content was erased, or retention took it
	Size           int64             `json:"size"`              // bytes of the payload
	CorrelationID  string            `json:"correlation_id"`
	EnqueuedAt     Time              `json:"enqueued_at"`
	AvailableAt    Time              `json:"available_at,omitzero"` // scheduled: when it comes due
	ExpiresAt      Time              `json:"expires_at,omitzero"`   // end of its ttl
	LeaseID        string            `json:"lease_id,omitzero"`
	LeaseExpiresAt Time              `json:"lease_expires_at,omitzero"`
	LeftAt         Time              `json:"left_at,omitzero"` // when it left its queue
	Result         jsontext.Value    `json:"result,omitzero"`  // acked with one
	MovedTo        *Moved            `json:"moved_to,omitzero"`
	ResurrectedAs  []Moved           `json:"resurrected_as,omitzero"` // oldest first
	Origin         *Origin           `json:"origin,omitzero"`         // of one that was brought back
	SourceID       string            `json:"source_id,omitzero"`      // of an imported one
	Dead           *Dead             `json:"dead"`
	ReplayedAt     Time              `json:"replayed_at,omitzero"`    // of dead/?state=replayed
	NewMessageID   string            `json:"new_message_id,omitzero"` // what it became by that
	ReplayResult   string            `json:"replay_result,omitzero"`  // the state of that
	Attempts       []Attempt         `json:"attempts,omitzero"`       // of GET /v1/messages/{id}, as history
	History        []Event           `json:"history,omitzero"`
}

// Origin tells of a message that was replayed or resurrected where it comes
// from.
type Origin struct {
	FirstMessageID string `json:"first_message_id"` // under which it was first enqueued
	FromMessageID  string `json:"from_message_id"`  // that it had before
	Replays        int64  `json:"replays"`          // how often it was replayed
}

// Attempt is one lease in a message's life and how it ended. One that has not
// ended has the outcome leased, and neither end nor duration.
type Attempt struct {
	Attempt    int64  `json:"attempt"`
	MessageID  string `json:"message_id"` // the id that it had then
	Queue      string `json:"queue"`
	LeaseID    string `json:"lease_id"`
	Worker     string `json:"worker"`
	LeasedAt   Time   `json:"leased_at"`
	EndedAt    Time   `json:"ended_at,omitzero"`
	DurationMS *int64 `json:"duration_ms,omitzero"`
	Outcome    string `json:"outcome"` // acked, retried, released, lease_expired, dead_lettered, discarded, leased
	Reason     string `json:"reason,omitzero"`
	Error      string `json:"error"`
	Erased     bool   `json:"erased,omitzero"` // what the worker said was erased
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
