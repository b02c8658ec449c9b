package wire

import "github.com/go-json-experiment/json/jsontext"

// ProduceRequest is the body of POST /v1/queues/{queue}/messages.
type ProduceRequest struct {
	Messages []NewMessage `json:"messages"`
}

// NewMessage is a message to enqueue: either Payload (any JSON) or
// PayloadBytes, with their ContentType.
type NewMessage struct {
	Payload        jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes   Bytes             `json:"payload_base64,omitzero"`
	ContentType    string            `json:"content_type,omitzero"` // of PayloadBytes
	Key            string            `json:"key,omitzero"`
	Priority       *int64            `json:"priority,omitzero"` // 1 to 10, 5 if left out
	Headers        map[string]string `json:"headers,omitzero"`
	IdempotencyKey string            `json:"idempotency_key,omitzero"`
	DelayMS        int64             `json:"delay_ms,omitzero"`
	DeliverAt      Time              `json:"deliver_at,omitzero"` // in place of delay_ms
	TTLMS          int64             `json:"ttl_ms,omitzero"`
	Kind           string            `json:"kind,omitzero"`
	CorrelationID  string            `json:"correlation_id,omitzero"`
}

// ProduceResponse answers produce, in the order of the request.
type ProduceResponse struct {
	Messages []Produced `json:"messages"`
}

// Produced answers one message. State and Result are set for a duplicate: what
// became of the first one.
type Produced struct {
	ID     string         `json:"id"`
	Status string         `json:"status"` // enqueued, duplicate
	Queue  string         `json:"queue,omitzero"`
	State  string         `json:"state,omitzero"`
	Result jsontext.Value `json:"result,omitzero"`
}

// Statuses of a produced message.
const (
	Enqueued  = "enqueued"
	Duplicate = "duplicate"
)
