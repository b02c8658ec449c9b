package wire

import "github.com/go-json-experiment/json/jsontext"

// DeadList answers GET /v1/queues/{queue}/dead.
type DeadList struct {
	Dead       []Message `json:"dead"`
	NextCursor string    `json:"next_cursor,omitzero"`
}

// DeadGroup is dead messages that failed in the same way.
type DeadGroup struct {
	Fingerprint   string   `json:"fingerprint"` // of reason and pattern
	Error         string   `json:"error"`       // of the newest
	Pattern       string   `json:"pattern"`     // the error without what differs from one to the next
	Reason        string   `json:"reason"`
	Count         int64    `json:"count"`
	FirstFailedAt Time     `json:"first_failed_at"`
	LastFailedAt  Time     `json:"last_failed_at"`
	MessageIDs    []string `json:"message_ids"` // of up to five, the newest first
}

// DeadGroups answers GET /v1/queues/{queue}/dead/groups, the largest first.
type DeadGroups struct {
	Groups []DeadGroup `json:"groups"`
	Total  int64       `json:"total"` // how many groups there are
}

// DeadFilter selects dead messages. What is left out selects all.
type DeadFilter struct {
	Reason      string  `json:"reason,omitzero"` // max_attempts, expired, rejected, key_dead
	Error       string  `json:"error,omitzero"`  // part of the error text, in any case
	Key         *string `json:"key,omitzero"`
	Kind        *string `json:"kind,omitzero"`
	From        string  `json:"from,omitzero"` // instants, inclusive
	To          string  `json:"to,omitzero"`
	Fingerprint string  `json:"fingerprint,omitzero"`
}

// ReplayRequest is the body of POST /v1/queues/{queue}/dead/replay. Either
// MessageIDs or Filter is there.
type ReplayRequest struct {
	MessageIDs    []string              `json:"message_ids,omitzero"` // any id that a message ever had
	Filter        *DeadFilter           `json:"filter,omitzero"`
	Order         string                `json:"order,omitzero"`           // original, append, head; "" by the queue's ordering
	To            string                `json:"to,omitzero"`              // "": where they died
	RatePerSecond *int64                `json:"rate_per_second,omitzero"` // 1 to 10000; none: as fast as it goes
	DryRun        bool                  `json:"dry_run,omitzero"`
	Edit          map[string]ReplayEdit `json:"edit,omitzero"`        // by message id
	MaxReplays    *int64                `json:"max_replays,omitzero"` // 0: no limit; 100 if left out
}

// ReplayEdit takes the place of a message's own payload or headers.
type ReplayEdit struct {
	Payload      jsontext.Value         `json:"payload,omitzero"`
	PayloadBytes Bytes                  `json:"payload_base64,omitzero"`
	ContentType  string                 `json:"content_type,omitzero"` // of PayloadBytes
	Headers      Opt[map[string]string] `json:"headers,omitzero"`
}

// Replayed answers a replay, and tells of a dry run what would be.
type Replayed struct {
	DryRun   bool              `json:"dry_run,omitzero"`
	Replayed int64             `json:"replayed"`
	Count    *int64            `json:"count,omitzero"` // of a dry run: Replayed
	Messages []ReplayedMessage `json:"messages"`       // of a dry run: some of them
	Sample   []Message         `json:"sample,omitzero"`
	Skipped  []Skipped         `json:"skipped"`
}

// ReplayedMessage is one that was replayed.
type ReplayedMessage struct {
	MessageID    string `json:"message_id"`              // in the dead-letter queue
	NewMessageID string `json:"new_message_id,omitzero"` // none in a dry run
}

// Skipped is a dead message that was passed over.
type Skipped struct {
	MessageID string `json:"message_id"`
	Code      string `json:"code"` // message_not_found, leased, max_replays, schema_mismatch
}

// PurgeRequest is the body of POST /v1/queues/{queue}/dead/purge.
type PurgeRequest struct {
	MessageIDs []string    `json:"message_ids,omitzero"`
	Filter     *DeadFilter `json:"filter,omitzero"`
	DryRun     bool        `json:"dry_run,omitzero"`
}

// DeadPurged answers it.
type DeadPurged struct {
	DryRun   bool              `json:"dry_run,omitzero"`
	Purged   int64             `json:"purged"`
	Count    *int64            `json:"count,omitzero"`
	Messages []ReplayedMessage `json:"messages"`
	Sample   []Message         `json:"sample,omitzero"`
	Skipped  []Skipped         `json:"skipped"`
}
