package wire

import "github.com/go-json-experiment/json/jsontext"

// ResurrectRequest is the body of POST /v1/messages/{id}/resurrect; it may be
// empty.
type ResurrectRequest struct {
	Queue string      `json:"queue,omitzero"` // "": where it was, or had died
	Edit  *ReplayEdit `json:"edit,omitzero"`
}

// Resurrected answers it.
type Resurrected struct {
	MessageID    string `json:"message_id"` // under which it had left
	NewMessageID string `json:"new_message_id"`
	Queue        string `json:"queue"`
}

// Edits answers GET /v1/messages/{id}/edits, oldest first.
type Edits struct {
	Edits []MessageEdit `json:"edits"`
}

// MessageEdit is one change of a message's content, by a replay or a
// resurrection.
type MessageEdit struct {
	EventID      string   `json:"event_id"`
	Type         string   `json:"type"` // replayed, resurrected
	Time         Time     `json:"time"`
	Actor        string   `json:"actor"`
	MessageID    string   `json:"message_id"` // before
	NewMessageID string   `json:"new_message_id"`
	Before       *Written `json:"before"`        // null: erased, or gone with the history
	After        *Written `json:"after"`         // null: erased
	Changes      []Change `json:"changes"`       // from before to after; of objects payload and headers
	Note         string   `json:"note,omitzero"` // why there are no changes to tell
}

// Written is what a message's edit can change.
type Written struct {
	Payload      jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes Bytes             `json:"payload_base64,omitzero"`
	ContentType  string            `json:"content_type,omitzero"`
	Headers      map[string]string `json:"headers"`
}

// Change is an operation of JSON Patch (RFC 6902), and what was there before.
// Applied in their order to {"payload": …, "headers": …} they make the one of the
// other.
type Change struct {
	Op    string         `json:"op"` // add, remove, replace
	Path  string         `json:"path"`
	Value jsontext.Value `json:"value,omitzero"`
	Old   jsontext.Value `json:"old,omitzero"`
}
