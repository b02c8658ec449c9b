package event

import (
	"encoding/hex"
	"fmt"
)

// Type says what happened. The numbers are frozen in the log.
type Type uint8

// The event types. Their numbers are in the log (docs/reference/formats.md).
const (
	TypeNone Type = iota
	QueueCreated
	QueueUpdated
	QueueDeleted
	QueuePaused
	QueueResumed
	QueuePurged
	Enqueued
	Leased
	LeaseExtended
	LeaseExpired
	Acked
	Retried
	Released
	DeadLettered
	Discarded
	Replayed
	AnswerKept     // the answer to a request with an Idempotency-Key
	ContentCarried // a live message's content and labels, rewritten before its segment is deleted
	HistoryDeleted // retention: blocks below Before may go
	RulesChanged   // other rules of deciding are in force from here on (I19)
	Resurrected    // a message that had left its queue is in one again, under a new id
	TaskCreated
	TaskCancelled
	TaskResumed
	TaskSealed   // an erasure: every content to erase is named
	TaskReported // an erasure: a node has carried it out
	TaskEnded    // completed or failed
	Erased       // contents of earlier events are to be overwritten, on every node
	WebhookCreated
	WebhookUpdated
	WebhookDeleted
	Returned    // a message of a batch went back to its place, as one ahead of it did or died
	Rescheduled // a message that waits has another time, priority or both

	// NumTypes bounds the types.
	NumTypes
)

var typeNames = [...]string{
	"", "queue_created", "queue_updated", "queue_deleted", "queue_paused", "queue_resumed",
	"queue_purged",
	"enqueued", "leased", "lease_extended", "lease_expired", "acked", "retried", "released",
	"dead_lettered", "discarded", "replayed", "answer_kept", "content_carried", "history_deleted",
	"rules_changed", "resurrected", "task_created", "task_cancelled", "task_resumed", "task_sealed",
	"task_reported",
	"task_ended", "erased", "webhook_created", "webhook_updated", "webhook_deleted", "returned",
	"rescheduled",
}

// String returns the name that users see.
func (t Type) String() string { return nameOf(typeNames[:], t) }

const unknown = "unknown"

func nameOf[T ~uint8](names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return unknown
}

// Parse is the inverse of String. The zero value of a type in which it is none is "".
func Parse[T interface {
	~uint8
	String() string
}](s string) (v T, ok bool) {
	for ; v.String() != unknown; v++ {
		if v.String() == s {
			return v, true
		}
	}
	return 0, false
}

// State is where a message is.
type State uint8

const (
	StateNone State = iota
	StateScheduled
	StateReady
	StateLeased
	StateAcked
	StateDeadLettered
	StateDiscarded
	StateReplayed
)

var stateNames = [...]string{"", "scheduled", "ready", "leased", "acked", "dead_lettered",
	"discarded", "replayed"}

func (s State) String() string { return nameOf(stateNames[:], s) }

// Live reports whether a message in this state is in a queue.
func (s State) Live() bool { return s == StateReady || s == StateScheduled || s == StateLeased }

// Reason says why a message was dead-lettered or discarded.
type Reason uint8

const (
	ReasonNone Reason = iota
	ReasonMaxAttempts
	ReasonExpired
	ReasonRejected
	ReasonKeyDead
	ReasonPurged
	ReasonDeleted
	ReasonQueueDeleted
)

var reasonNames = [...]string{"", "max_attempts", "expired", "rejected", "key_dead", "purged",
	"deleted", "queue_deleted"}

func (r Reason) String() string { return nameOf(reasonNames[:], r) }

// Releases reports whether a message that left for this reason gives up its idempotency_key and
// source_id: an operator removed it, so that it may be sent again.
func (r Reason) Releases() bool {
	return r == ReasonPurged || r == ReasonDeleted || r == ReasonQueueDeleted
}

// Place says where a message waits for its next try, or returns to.
type Place uint8

// The places of on_retry.
const (
	PlaceAny   Place = iota // unordered: by availability
	PlaceBlock              // at the head of its partition, which waits with it
	PlaceHead               // out of its partition until due, then before those that wait
	PlaceTail               // out of its partition until due, then behind them
)

// Order says where a replayed message takes its place.
type Order uint8

// The orders of a replay.
const (
	OrderDefault  Order = iota // original in fifo and per_key, append in unordered
	OrderOriginal              // its place by its first enqueue
	OrderAppend                // behind those that wait
	OrderHead                  // before those that wait, in the order of their first enqueue
)

var orderNames = [...]string{"", "original", "append", "head"}

func (o Order) String() string { return nameOf(orderNames[:], o) }

// In returns the order in a queue of this ordering: what the default is there.
func (o Order) In(queue Ordering) Order {
	switch {
	case o != OrderDefault:
		return o
	case queue == Unordered:
		return OrderAppend
	}
	return OrderOriginal
}

// TaskKind says what a task does.
type TaskKind uint8

const (
	TaskNone TaskKind = iota
	TaskReplay
	TaskPurge
	TaskErase
	TaskUndo
	TaskVerify
)

var taskKindNames = [...]string{"", "replay", "purge", "erase", "undo", "verify"}

func (k TaskKind) String() string { return nameOf(taskKindNames[:], k) }

// TaskStatus is the status of a task.
type TaskStatus uint8

const (
	TaskRunning TaskStatus = iota
	TaskIsCancelled
	TaskCompleted
	TaskFailed
)

var taskStatusNames = [...]string{"running", "cancelled", "completed", "failed"}

func (s TaskStatus) String() string { return nameOf(taskStatusNames[:], s) }

// Final reports whether a task has ended for good.
func (s TaskStatus) Final() bool { return s == TaskCompleted || s == TaskFailed }

// Blob is user content, in Content's encoding, with its SHA-256. The zero Blob is no
// content. The node that received the request computes the digest, once.
type Blob struct {
	Digest [32]byte
	Bytes  []byte
	// Damaged is set by the log: the bytes were lost to damage, and are as if erased.
	Damaged bool
}

// IsZero reports whether there is no content.
func (b Blob) IsZero() bool { return len(b.Bytes) == 0 }

// Event is an immutable fact. Which fields are set depends on Type; a field
// that a type does not use is zero. User content is in Content; the rest is the
// record's header. Times are Unix milliseconds.
type Event struct {
	ID      ID
	Type    Type
	Subject ID     // the message it is about; zero for queues and answers
	Prev    Ref    // the subject's event before this one
	Alias   Hash   // deduplication hash; answer_kept: of the Idempotency-Key
	Queue   string // the queue's name
	Actor   string // who asked, where it is known

	// Messages: enqueued and what follows from it.
	Key      string
	Kind     string
	Priority uint8
	// enqueued, retried, released, lease_expired, rescheduled: when it can be leased; 0 at once (of
	// lease_expired: never again; of rescheduled: as before)
	Due      int64
	Expires  int64 // enqueued: when its ttl ends; 0 never
	Size     uint32
	Until    int64 // when its deduplication window ends; answer_kept: how long it is kept
	SourceID string
	// enqueued, resurrected, content_carried: a label, as in the content, with which it is delivered
	CorrelationID string
	// content_carried: what makes the message a duplicate, in whatever queue (Hash.Of)
	DedupKey Hash
	// enqueued: the messages that its producer acked with it, or the one that it named
	Cause          []ID
	CauseTruncated bool // there were more than MaxCause

	// Leases and how they end. lease_extended, lease_expired, acked, retried, released, returned,
	// dead_lettered, discarded: the lease that ended or was extended; leased: its own id
	Lease        ID
	LeaseExpires int64 // leased, lease_extended
	Attempt      uint32
	Worker       string // leased; content_carried: who had the lease
	Place        Place  // retried, lease_expired, released, returned

	// Leaving.
	Reason Reason
	// dead_lettered, replayed, resurrected: where it went; its id there is the event's
	ToQueue  string
	HoldsKey bool // dead_lettered: its partition stops until the dead message is resolved
	TakesKey bool // dead_lettered: all that waits in its partition follows
	// replayed; discarded from a dead-letter queue by its purge: the queue that it had died in
	DiedIn string
	Order  Order // replayed, resurrected: where it takes its place
	Edited bool  // replayed, resurrected: Content and Size are the message's from now on
	// resurrected, content_carried: under which it was first enqueued; Count says how often it was
	// replayed
	First ID

	// Queues.
	Policy *Policy
	Number uint32 // queue_created: the queue's number, never used again
	// queue_purged, queue_deleted: messages concerned; resurrected, content_carried: replays before;
	// task_created: about how many; task_ended: passed over
	Count int64

	// Tasks. Task is also set in what a task did: replayed, resurrected, discarded, erased.
	Task     ID
	TaskKind TaskKind // task_created
	Failed   bool     // task_ended
	Node     string   // task_reported; task_created of a verification: whose files
	Refs     []Ref    // erased: the events whose content is to be overwritten

	// Webhooks.
	Webhook    string // its name
	Definition []byte // JSON, without secrets; Queue is where its messages go

	Body   Hash   // answer_kept: hash of the request's query and body
	Before uint64 // history_deleted
	Rules  uint16 // rules_changed

	Content Blob
}

// IsMove reports whether an event took its message to another queue, or brought
// it back into one, where the event's id is the message's.
func (e *Event) IsMove() bool {
	return (e.Type == DeadLettered || e.Type == Replayed || e.Type == Resurrected) &&
		e.ToQueue != ""
}

// HasLabels reports whether an event has its message's labels.
func (e *Event) HasLabels() bool {
	return e.Type == Enqueued || e.Type == Resurrected ||
		e.Type == ContentCarried && !e.First.IsZero() // an earlier program did not write them
}

// Erased reports whether what users wrote in an event was erased.
func (e *Event) Erased() bool { return e.Content.IsZero() && e.Content.Digest != [32]byte{} }

// The errors of messages that died of max_attempts without a worker's report.
const (
	LeaseExpiredError    = "lease expired"            // the last lease expired
	AttemptsLoweredError = "max_attempts was lowered" // to attempts already spent
)

// MaxCause bounds the causes of a message.
const MaxCause = 10

// Block is what one entry produced.
type Block struct {
	Index  uint64
	Time   int64 // the entry's stamp; the log's clock is the maximum of these so far
	Events []Event
	Chain  [32]byte // set by the log
}

// Chain is the log's hash chain up to a block. As text it is 64 hex digits.
type Chain [32]byte

func (c Chain) String() string { return hex.EncodeToString(c[:]) }

// MarshalText implements encoding.TextMarshaler.
func (c Chain) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Chain) UnmarshalText(b []byte) error {
	if len(b) != 2*len(c) {
		return fmt.Errorf("a chain of %d digits, not %d", len(b), 2*len(c))
	}
	_, err := hex.Decode(c[:], b)
	return err
}

// Content is the user content of one event.
type Content struct {
	Payload       []byte // JSON, or bytes if Binary
	Binary        bool
	ContentType   string // of a binary payload
	Headers       []Header
	CorrelationID string
	Error         string
	Result        []byte // JSON, of an ack or of a task_ended
	Answer        []byte // an encoded Result, of answer_kept
	Spec          []byte // JSON, what a task is to do, of task_created
	Original      []byte // JSON, the body as it came, where a webhook mapped the payload from it
	Why           string // an operator's reason
}

// Header is one of a message's headers.
type Header struct {
	Name  string
	Value string
}
