package dead

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/event"
)

// Spec is what a replay or a purge of dead letters is to do, as a task keeps it
// (Content.Spec). Either IDs or Filter is set.
type Spec struct {
	IDs    []event.ID `json:"message_ids,omitzero"` // in the dead-letter queue
	Filter *Filter    `json:"filter,omitzero"`

	// Of a replay.
	To         string             `json:"to,omitzero"` // "": the queue in which they died
	Order      string             `json:"order,omitzero"`
	Rate       int64              `json:"rate_per_second,omitzero"` // 0: as fast as it goes
	MaxReplays uint32             `json:"max_replays,omitzero"`
	Edit       map[event.ID]*Edit `json:"edit,omitzero"`
}

// Edit is what takes the place of a message's own. Headers is nil where these
// stay, Payload where that does.
type Edit struct {
	Payload     []byte         `json:"payload,omitzero"` // bytes, whatever they are
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
		return nil, fmt.Errorf("what the task is to do is not understood: %w", err)
	}
	return s, nil
}

// Apply returns a message's content with an edit in it. Its error text stays
// behind: that is of the message that died.
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

// Item makes an edited message's part of a Replay.
func Item(id event.ID, c *event.Content) event.ReplayItem {
	return event.ReplayItem{ID: id, Edited: true, Size: uint32(len(c.Payload)), Content: event.EncodeContent(c)}
}
