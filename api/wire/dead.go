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
	Pattern       string   `json:"pattern"`     // the error without its variable parts
	Reason        string   `json:"reason"`
	Count         int64    `json:"count"`
	FirstFailedAt Time     `json:"first_failed_at"`
	LastFailedAt  Time     `json:"last_failed_at"`
	MessageIDs    []string `json:"message_ids"` // of up to five, the newest first
	// Counts by steps of time, those in which something died; with step only.
	Counts []DeadCount `json:"counts,omitzero"`
}

// DeadCount is how many messages died in a step of time.
type DeadCount struct {
	Start Time  `json:"start"`
	Count int64 `json:"count"`
}

// DeadGroups answers GET /v1/queues/{queue}/dead/groups, the largest first.
type DeadGroups struct {
	Groups []DeadGroup `json:"groups"`
	Total  int64       `json:"total"` // how many groups there are
	// NextCursor is set if there are more dead messages than were to be read at most.
	NextCursor string `json:"next_cursor,omitzero"`
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

// ReplayRequest is the body of POST /v1/queues/{queue}/dead/replay, with MessageIDs or Filter.
type ReplayRequest struct {
	MessageIDs    []string              `json:"message_ids,omitzero"` // any id a message ever had
	Filter        *DeadFilter           `json:"filter,omitzero"`
	Order         string                `json:"order,omitzero"`           // original, append, head
	To            string                `json:"to,omitzero"`              // "": where they died
	RatePerSecond *int64                `json:"rate_per_second,omitzero"` // nil: no limit
	DryRun        bool                  `json:"dry_run,omitzero"`
	Edit          map[string]ReplayEdit `json:"edit,omitzero"`        // by message id
	MaxReplays    *int64                `json:"max_replays,omitzero"` // 0: no limit; nil: 100
	Reason        string                `json:"reason,omitzero"`      // why the operator does it
}

// ReplayEdit takes the place of a message's own payload or headers.
type ReplayEdit struct {
	Payload      jsontext.Value         `json:"payload,omitzero"`
	PayloadBytes Bytes                  `json:"payload_base64,omitzero"`
	ContentType  string                 `json:"content_type,omitzero"` // of PayloadBytes
	Headers      Opt[map[string]string] `json:"headers,omitzero"`
}

// DeadMoved answers a replay or a purge; that of a dry run has what would be moved.
type DeadMoved struct {
	DryRun   bool              `json:"dry_run,omitzero"`
	Replayed *int64            `json:"replayed,omitzero"` // of a replay
	Purged   *int64            `json:"purged,omitzero"`   // of a purge
	Count    *int64            `json:"count,omitzero"`    // of a dry run: the same number
	Messages []ReplayedMessage `json:"messages"`          // of a dry run: some of them
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
	Reason     string      `json:"reason,omitzero"`
}

// ResurrectRequest is the body of POST /v1/messages/{id}/resurrect; it may be empty.
type ResurrectRequest struct {
	Queue string      `json:"queue,omitzero"` // "": where it was, or had died
	Edit  *ReplayEdit `json:"edit,omitzero"`

	Reason string `json:"reason,omitzero"`
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

// UndoRequest is the body of POST /v1/queues/{queue}/resurrect.
type UndoRequest struct {
	Filter        *UndoFilter `json:"filter,omitzero"`
	Order         string      `json:"order,omitzero"` // original, append
	To            string      `json:"to,omitzero"`    // "": the queue that they left
	DryRun        bool        `json:"dry_run,omitzero"`
	RatePerSecond int64       `json:"rate_per_second,omitzero"` // 0: no limit
	Reason        string      `json:"reason,omitzero"`          // why the operator does it
}

// UndoFilter selects messages that left a queue. State and From are needed.
type UndoFilter struct {
	State  string  `json:"state,omitzero"` // acked, discarded
	From   string  `json:"from,omitzero"`  // instants, inclusive
	To     string  `json:"to,omitzero"`
	Worker *string `json:"worker,omitzero"` // that acked it
	Reason string  `json:"reason,omitzero"` // it was discarded for
	Key    *string `json:"key,omitzero"`
	Kind   *string `json:"kind,omitzero"`
}

// Undone answers it, and is the result of a task.
type Undone struct {
	DryRun      bool  `json:"dry_run,omitzero"` // how many it would be
	Matched     int64 `json:"matched"`
	BroughtBack int64 `json:"brought_back"`
	// by reason: resurrected, key_taken, erased, damaged, history_expired, schema_mismatch
	Skipped map[string]int64 `json:"skipped"`
	// where history begins, if the filter's from is before that, or a label that it asks for
	HistoryBeginsAt *Time `json:"history_begins_at,omitzero"`
}

// MessageEdit is one change of a message's content, by a replay or a resurrection.
type MessageEdit struct {
	EventID      string   `json:"event_id"`
	Type         string   `json:"type"` // replayed, resurrected
	Time         Time     `json:"time"`
	Actor        string   `json:"actor"`
	MessageID    string   `json:"message_id"` // before
	NewMessageID string   `json:"new_message_id"`
	Before       *Written `json:"before"`        // null: erased, or gone with the history
	After        *Written `json:"after"`         // null: erased
	Changes      []Change `json:"changes"`       // from before to after
	Note         string   `json:"note,omitzero"` // why there are no changes
}

// Written is what a message's edit can change.
type Written struct {
	Payload      jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes Bytes             `json:"payload_base64,omitzero"`
	ContentType  string            `json:"content_type,omitzero"`
	Headers      map[string]string `json:"headers"`
}

// Change is an operation of JSON Patch (RFC 6902), and what was there before. Applied in their
// order to {"payload": …, "headers": …} they make the one of the other.
type Change struct {
	Op    string         `json:"op"` // add, remove, replace
	Path  string         `json:"path"`
	Value jsontext.Value `json:"value,omitzero"`
	Old   jsontext.Value `json:"old,omitzero"`
}

// EraseRequest asks that what users wrote in a message is erased everywhere.
type EraseRequest struct {
	Reason string `json:"reason"` // kept; needed unless DryRun is set
	DryRun bool   `json:"dry_run"`
}

// EraseKeyRequest asks that of all messages of a key that were in a queue.
type EraseKeyRequest struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run"`
}

// Erasable answers a dry run: what an erasure would be about.
type Erasable struct {
	DryRun   bool  `json:"dry_run"`
	Messages int64 `json:"messages"` // each with all ids that it had
	Live     int64 `json:"live"`     // ids that are in a queue now, and would be discarded
	Contents int64 `json:"contents"` // of events, that would be overwritten
	// MessageIDs are the first of their ids, one for each message.
	MessageIDs []string `json:"message_ids"`
	NotErased  []string `json:"not_erased"` // see NotErased
}

// NotErased are the labels of messages and leases: they are in the headers of events, which stay.
var NotErased = []string{"key", "kind", "source_id", "worker", "actor", "correlation_id"}

// Task is what takes many entries: a large replay or purge, an erasure.
type Task struct {
	ID            string    `json:"id"`
	TaskID        string    `json:"task_id"` // the same
	Type          string    `json:"type"`    // replay, purge, erase, undo, verify
	Queue         string    `json:"queue"`   // "" none
	Status        string    `json:"status"`  // running, cancelled, completed, failed
	Total         int64     `json:"total"`   // about how many messages, or of verify bytes
	Done          int64     `json:"done"`
	Skipped       int64     `json:"skipped"`
	RatePerSecond *int64    `json:"rate_per_second"` // null: as fast as it goes
	Actor         string    `json:"actor"`
	CreatedAt     Time      `json:"created_at"`
	UpdatedAt     Time      `json:"updated_at"`
	EndedAt       Time      `json:"ended_at"`
	Error         string    `json:"error"`             // of a failed one
	Waiting       string    `json:"waiting,omitzero"`  // what a running one waits for
	Result        *Undone   `json:"result,omitzero"`   // of an undo
	Verified      *Verified `json:"verified,omitzero"` // of a verification: what it found
	// of an erasure: the members, and who is done; of a verification: the node that it is of
	Nodes     []TaskNode `json:"nodes"`
	NotErased []string   `json:"not_erased,omitzero"`
}

// Verified is what a verification has read, and the first thing that is wrong.
type Verified struct {
	OK          bool   `json:"ok"`
	Index       uint64 `json:"index"`      // of the last block that was read
	ChainHash   string `json:"chain_hash"` // there
	FirstIndex  uint64 `json:"first_index"`
	Time        Time   `json:"time"` // the log's clock at the last block that was folded
	Segments    int    `json:"segments"`
	Blocks      int64  `json:"blocks"`
	Events      int64  `json:"events"`
	Erased      int64  `json:"erased"`           // contents
	Damaged     int64  `json:"damaged,omitzero"` // contents that a salvage has marked
	Bytes       int64  `json:"bytes"`
	Checkpoints int    `json:"checkpoints"`         // equal to the fold
	TornBytes   int64  `json:"torn_bytes,omitzero"` // behind the last block: no difference

	// Of a difference: what it is, the first block that is wrong, and where, if that is known.
	Difference string `json:"difference,omitzero"`
	WrongIndex uint64 `json:"wrong_index,omitzero"`
	Segment    string `json:"segment,omitzero"` // file name
	Offset     *int64 `json:"offset,omitzero"`  // in it
}

// TaskNode is a node that has carried a task out, or is to.
type TaskNode struct {
	Node     string `json:"node"`
	Complete bool   `json:"complete"`
	At       Time   `json:"at"` // null: not yet
}

// TaskList answers GET /v1/tasks, the newest first.
type TaskList struct {
	Tasks      []Task `json:"tasks"`
	NextCursor string `json:"next_cursor,omitzero"`
}

// Statuses of a task.
const (
	TaskRunning   = "running"
	TaskCancelled = "cancelled"
	TaskCompleted = "completed"
	TaskFailed    = "failed"
)

// The shapes of the first design, under /admin.

// AdminQueues answers GET /admin/queues.
type AdminQueues struct {
	Queues []AdminQueue `json:"queues"`
}

// AdminQueue is a queue there.
type AdminQueue struct {
	Name                    string  `json:"name"`
	Depth                   int64   `json:"depth"`
	InFlight                int64   `json:"in_flight"`
	OldestMessageAgeSeconds int64   `json:"oldest_message_age_seconds"`
	MessagesPerMinute       float64 `json:"messages_per_minute"`
	DLQSize                 int64   `json:"dlq_size"` // what died in it and is not resolved
}

// AdminDeadLetters answers GET /admin/queues/{queue}/dlq.
type AdminDeadLetters struct {
	DeadLetters []AdminDeadLetter `json:"dead_letters"`
}

// AdminDeadLetter is a dead message there.
type AdminDeadLetter struct {
	ID       string       `json:"id"`
	FailedAt int64        `json:"failed_at"` // Unix seconds
	Error    string       `json:"error"`
	Attempts int64        `json:"attempts"`
	Preview  AdminPreview `json:"preview"`
}

// AdminPreview is a payload there. Of one over 1 KiB it is the beginning, as a string.
type AdminPreview struct {
	Payload   jsontext.Value `json:"payload"`
	Truncated bool           `json:"truncated,omitzero"`
}

// AdminDone answers POST /admin/queues/{queue}/dlq/{id}/replay, and DELETE.
type AdminDone struct {
	OK           bool   `json:"ok"`
	NewMessageID string `json:"new_message_id,omitzero"`
}
