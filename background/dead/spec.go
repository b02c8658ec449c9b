package dead

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/event"
)

// Spec says what a replay or a purge of dead letters does, as a task keeps it
// (Content.Spec). Either IDs or Filter is set.
type Spec struct {
	IDs    []event.ID `json:"message_ids,omitzero"` // in the dead-letter queue
	Filter *Filter    `json:"filter,omitzero"`

	// Of a replay.
	To         string             `json:"to,omitzero"` // "": the queue in which they died
	Order      string             `json:"order,omitzero"`
	Rate       int64              `json:"rate_per_second,omitzero"` // 0: no limit
	MaxReplays uint32             `json:"max_replays,omitzero"`
	Edit       map[event.ID]*Edit `json:"edit,omitzero"`
}

// Edit replaces parts of a message. Where HasHeaders is false its own headers stay,
// where HasPayload is false its payload.
type Edit struct {
	Payload     []byte         `json:"payload,omitzero"`
	HasPayload  bool           `json:"has_payload,omitzero"`
	Binary      bool           `json:"binary,omitzero"`
	ContentType string         `json:"content_type,omitzero"`
	HasHeaders  bool           `json:"has_headers,omitzero"`
	Headers     []event.Header `json:"headers,omitzero"`
}

// Encode returns the bytes of a spec.
func (s *Spec) Encode() ([]byte, error) { return json.Marshal(s, json.Deterministic(true)) }

// DecodeSpec reads what Encode wrote.
func DecodeSpec(b []byte) (*Spec, error) {
	s := &Spec{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("decode the task's spec: %w", err)
	}
	return s, nil
}

// Apply returns a message's content with the edit in it, and without its error text,
// which is of the message that died.
func (e *Edit) Apply(old *event.Content) *event.Content {
	c := *old
	c.Error = ""
	if e.HasPayload {
		c.Payload, c.Binary, c.ContentType = e.Payload, e.Binary, e.ContentType
	}
	if e.HasHeaders {
		c.Headers = e.Headers
	}
	return &c
}
