package wire

import "github.com/go-json-experiment/json/jsontext"

// Event is a fact of the log for readers, without payloads and without fields that its type lacks.
type Event struct {
	EventID   string `json:"event_id"`
	Type      string `json:"type"`
	Time      Time   `json:"time"`
	Index     uint64 `json:"index"`
	Queue     string `json:"queue,omitzero"`
	MessageID string `json:"message_id,omitzero"`
	Actor     string `json:"actor,omitzero"`
	// Reason says why the actor did it, or why a message left its queue; Why then what the actor said.
	Reason string `json:"reason,omitzero"`
	Why    string `json:"why,omitzero"`

	// Of a message that comes in: enqueued.
	Key       string `json:"key,omitzero"`
	Kind      string `json:"kind,omitzero"`
	Priority  int64  `json:"priority,omitzero"`
	Size      int64  `json:"size,omitzero"`
	DeliverAt Time   `json:"deliver_at,omitzero"`
	ExpiresAt Time   `json:"expires_at,omitzero"`
	SourceID  string `json:"source_id,omitzero"`
	// A label, as in the message.
	CorrelationID string `json:"correlation_id,omitzero"`
	// The messages that its producer acked with it, at most ten, or the one that it named.
	Cause          []string `json:"cause,omitzero"`
	CauseTruncated bool     `json:"cause_truncated,omitzero"`

	// Of a lease.
	LeaseID        string `json:"lease_id,omitzero"`
	LeaseExpiresAt Time   `json:"lease_expires_at,omitzero"`
	Attempt        int64  `json:"attempt,omitzero"`
	Worker         string `json:"worker,omitzero"`
	NextAt         Time   `json:"next_at,omitzero"` // of retried, lease_expired: the next lease
	Error          string `json:"error,omitzero"`

	// Of a message that leaves.
	HasResult    bool   `json:"has_result,omitzero"`
	ToQueue      string `json:"to_queue,omitzero"`
	NewMessageID string `json:"new_message_id,omitzero"`
	HoldsKey     bool   `json:"holds_key,omitzero"`
	TakesKey     bool   `json:"takes_key,omitzero"`
	DiedIn       string `json:"died_in,omitzero"` // of replayed, purged: where it had died
	Order        string `json:"order,omitzero"`   // replayed: where it took its place
	Edited       bool   `json:"edited,omitzero"`  // replayed, resurrected: with another payload

	// Of a task, or done by one.
	TaskID   string `json:"task_id,omitzero"`
	TaskKind string `json:"task_kind,omitzero"` // task_created
	Failed   bool   `json:"failed,omitzero"`    // task_ended
	Node     string `json:"node,omitzero"`      // task_reported; task_created of a verification

	// Of a queue, and of the log itself.
	Policy      *Policy `json:"policy,omitzero"`
	Count       int64   `json:"count,omitzero"`        // of queue_purged, queue_deleted: messages
	BeforeIndex uint64  `json:"before_index,omitzero"` // history_deleted
	Rules       int64   `json:"rules,omitzero"`        // rules_changed

	Webhook    string         `json:"webhook,omitzero"`    // of webhook_…: its name
	Definition jsontext.Value `json:"definition,omitzero"` // of webhook_…: without its name
	Erased     bool           `json:"erased,omitzero"`     // what users wrote in it was erased
	Damaged    bool           `json:"damaged,omitzero"`    // it was lost to damage of the log
}

// EventList answers GET /v1/events. NextCursor is the next call's after.
type EventList struct {
	Events     []Event `json:"events"`
	NextCursor string  `json:"next_cursor"`
	Partial    bool    `json:"partial,omitzero"` // the time was up before the end

	HistoryBeginsAt *Time `json:"history_begins_at,omitzero"` // some are older, or have a label that is
}

// History answers GET /v1/messages/{id}/history, oldest first.
type History struct {
	Events []Event `json:"events"`

	HistoryBeginsAt *Time `json:"history_begins_at,omitzero"` // the message is older
}

// LogHead is the event log up to a block: what it takes to see later that it was neither cut nor
// rewritten. It answers GET /v1/log/head, and is a line of a file of heads.
type LogHead struct {
	ClusterID string `json:"cluster_id"`
	NodeID    string `json:"node_id"`    // of the node whose log it is
	Index     uint64 `json:"index"`      // of the block; 0 where the log is empty
	ChainHash string `json:"chain_hash"` // up to and with the block, 64 hex digits
	EventID   string `json:"event_id"`   // the newest event up to there; "" where none is near
	Time      Time   `json:"time"`       // the block's, null where the log is empty
}

// LogSegments answers GET /v1/log/segments: the node's own files, oldest first.
type LogSegments struct {
	ClusterID string       `json:"cluster_id"`
	NodeID    string       `json:"node_id"`
	Segments  []LogSegment `json:"segments"`
}

// LogSegment is one file of the event log. Its identity is its chain: two
// nodes' files of the same chain differ in erased contents at most.
type LogSegment struct {
	Name              string `json:"name"`
	FirstIndex        uint64 `json:"first_index"`
	LastIndex         uint64 `json:"last_index"`
	Bytes             int64  `json:"bytes"`
	PreviousIndex     uint64 `json:"previous_index"` // the block that it continues; 0 none
	PreviousChainHash string `json:"previous_chain_hash"`
	ChainHash         string `json:"chain_hash"` // at last_index
	LastTime          Time   `json:"last_time"`  // the log's clock there
	Sealed            bool   `json:"sealed"`     // full: it changes no more, but for erasures
	Archived          bool   `json:"archived"`   // it is in the archive, as far as this node knows
}
