package event

// Command is a request of a client, or of the leader itself. Exactly one of the pointers is set.
type Command struct {
	Actor   string
	Why     Blob     // Content.Why, where an operator gave a reason
	Request *Request // set where the client sent an Idempotency-Key

	PutQueue    *PutQueue
	DeleteQueue *DeleteQueue
	PauseQueue  *PauseQueue
	PurgeQueue  *PurgeQueue
	Produce     *Produce
	Lease       *Lease
	Settle      *Settle
	Transaction *Transaction
	Delete      *DeleteMessage
	Reschedule  *Reschedule
	Carry       *Carry
	Retain      *Retain
	Mark        *Mark
	Upgrade     *Upgrade

	Replay        *Replay
	PurgeDead     *PurgeDead
	Resurrect     *Resurrect
	CreateTask    *CreateTask
	UpdateTask    *UpdateTask
	Erase         *Erase
	PutWebhook    *PutWebhook
	DeleteWebhook *DeleteWebhook
	Define        *Define
}

// Class ranks commands under load: settles go before produce, produce before leases, background
// work last.
type Class uint8

const (
	ClassSettle Class = iota
	ClassProduce
	ClassLease
	ClassBackground
	Classes // how many there are
)

// Class returns the command's class. Operators' calls go with the settles:
// they are few, and what relieves a queue must not wait behind what fills it.
// So do marks and upgrades: nodes must be compared under load too.
func (c *Command) Class() Class {
	switch {
	case c.Produce != nil:
		return ClassProduce
	case c.Lease != nil:
		return ClassLease
	case c.Carry != nil, c.Retain != nil, c.Erase != nil,
		c.Replay != nil && !c.Replay.Task.IsZero(),
		c.Resurrect != nil && !c.Resurrect.Task.IsZero(),
		c.PurgeDead != nil && !c.PurgeDead.Task.IsZero():
		return ClassBackground
	}
	return ClassSettle
}

// Weight returns how many messages, leases or settles the command asks for.
func (c *Command) Weight() int {
	switch {
	case c.Produce != nil:
		return len(c.Produce.Messages)
	case c.Lease != nil:
		return c.Lease.Max
	case c.Settle != nil:
		return len(c.Settle.Items)
	case c.Transaction != nil:
		n := len(c.Transaction.Settle)
		for i := range c.Transaction.Produce {
			n += len(c.Transaction.Produce[i].Messages)
		}
		return n
	case c.Carry != nil:
		return len(c.Carry.Items)
	case c.Replay != nil:
		return len(c.Replay.Items)
	case c.PurgeDead != nil:
		return len(c.PurgeDead.IDs)
	case c.Resurrect != nil:
		return len(c.Resurrect.Items)
	case c.Erase != nil:
		return len(c.Erase.Items)
	case c.Define != nil:
		return len(c.Define.Queues) + len(c.Define.Webhooks)
	}
	return 1
}

// KeepAnswersMS is how long a write with an Idempotency-Key can be repeated.
const KeepAnswersMS = 24 * 3600 * 1000

// Request makes a write safe to repeat (docs/reference/http-api.md).
type Request struct {
	Key Hash // of principal, method, path and Idempotency-Key
	// Body is a hash of query and body, and the body's length.
	Body Hash
	// Looked is the index up to which the log was searched for an earlier answer, without result.
	Looked uint64
}

// PutQueue creates a queue or replaces its policy.
type PutQueue struct {
	Name   string
	Policy Policy
	// IfRevision, if set, is the revision that a merge was computed from:
	// another one there is answered with CodeStaleRevision.
	IfRevision uint64
	// DeadLetterAuto: create <name>.dlq if it is missing, and use it as the dead-letter queue.
	DeadLetterAuto bool
}

// DeleteQueue deletes a queue; with Force, with all that it holds.
type DeleteQueue struct {
	Name  string
	Force bool
}

// PauseQueue stops (Paused) or resumes leasing from a queue, or of one of its keys.
type PauseQueue struct {
	Name   string
	Key    string // "": the whole queue
	Paused bool
}

// PurgeQueue discards all but leased messages.
type PurgeQueue struct{ Name string }

// Produce enqueues messages into one queue, all or none.
type Produce struct {
	Queue string
	// Revision of the policy against which schema and content hashes were
	// checked; 0 where the queue was not there to check against.
	Revision   uint64
	AutoCreate bool
	// Looked is the index up to which the log was searched for messages with the
	// same hash; the result is in Seen of each message.
	Looked   uint64
	Messages []NewMessage
	// Import: the messages have a SourceID, of which DedupKey is the hash; one
	// whose source id is in the queue, or came within the window, is ignored.
	Import bool
}

// importWindowSeconds is how long a source id is remembered at least.
const importWindowSeconds = 24 * 3600

// DedupEnd returns until when a queue with this policy remembers a message that arrives now: 0 for
// not at all, or UntilLeft.
func (p *Policy) DedupEnd(imported bool, now int64) int64 {
	switch seconds := p.DedupWindowSeconds; {
	case imported:
		return now + max(seconds, importWindowSeconds)*1000
	case p.DedupUntil == DedupUntilLeft:
		return UntilLeft
	case seconds > 0:
		return now + seconds*1000
	}
	return 0
}

// Delay returns how long a message waits in a queue of this policy, 0 not at all.
func (p *Produce) Delay(m *NewMessage, policy *Policy) int64 {
	if m.DelayMS == 0 && m.DeliverAt == 0 && !p.Import {
		return policy.DefaultDelayMS
	}
	return max(m.DelayMS, 0)
}

// DedupHash returns the deduplication hash of m in the queue with this policy and number, zero for
// none.
func (p *Produce) DedupHash(m *NewMessage, policy *Policy, number uint32) Hash {
	hash := m.DedupKey
	if policy.DedupBy == DedupByContent && !p.Import {
		hash = m.PayloadHash
	}
	if hash.IsZero() || policy.DedupEnd(p.Import, 0) == 0 {
		return Hash{}
	}
	return hash.Of(number)
}

// NewMessage is one message to enqueue. Durations are milliseconds.
type NewMessage struct {
	Key         string
	Kind        string
	Priority    uint8 // 1 to 10
	DelayMS     int64 // 0: the queue's default_delay_ms, unless DeliverAt is set; -1: none
	DeliverAt   int64 // Unix ms; 0 none
	TTLMS       int64
	DedupKey    Hash // of idempotency_key; zero none
	PayloadHash Hash // of the payload, set where the queue deduplicates by content
	Size        uint32
	Content     Blob
	Seen        ID    // a message of the same hash in the log; zero none
	SeenUntil   int64 // end of its window, Unix ms, or UntilLeft
	SeenAs      ID    // its id now; zero: it has left, and keeps its hash
	SourceID    string
	// CorrelationID is the content's, for the event's header.
	CorrelationID string
	// Cause is the lease of the message that it follows from, one that its transaction settles;
	// zero: all that the transaction acks.
	Cause ID
}

// Lease takes up to Max messages from queues, tried in their order.
type Lease struct {
	Queues  []string
	Max     int
	LeaseMS int64 // 0: the queue's policy
	Worker  string
	Kinds   []string // empty: all
	Single  bool     // no batches: at most one message of each partition
}

// SettleOp is one way to settle a lease.
type SettleOp uint8

const (
	OpAck SettleOp = iota + 1
	OpRetry
	OpDeadLetter
	OpExtend
	OpRelease
)

// SettleItem settles one lease.
type SettleItem struct {
	Op      SettleOp
	Lease   ID
	DelayMS int64 // OpRetry: -1 the policy's backoff; OpRelease: how long it waits
	At      int64 // OpRetry: the next try (Unix ms), in place of DelayMS; 0 none
	LeaseMS int64 // OpExtend: 0 the policy's
	Content Blob  // Error of a retry or dead-letter, Result of an ack
}

// Settle settles leases, each on its own.
type Settle struct {
	Queue string // the leases must be of this queue; "" any
	Items []SettleItem
}

// Transaction is all of it or nothing, over any queues.
type Transaction struct {
	Settle  []SettleItem
	Produce []Produce
}

// FieldSettle is the Field of a problem with the item of Transaction.Settle that Index says.
const FieldSettle = "settle"

// DeleteMessage removes a message, whatever its state.
type DeleteMessage struct{ ID ID }

// Reschedule changes the time or the priority of a waiting message, or both.
type Reschedule struct {
	ID       ID
	Priority uint8 // 0: as it is
	DelayMS  int64 // -1: as it is, unless At is set
	At       int64 // Unix ms, in place of DelayMS; 0 none
}

// Carry writes the contents and labels of live messages again, so that retention can delete where
// they were.
type Carry struct{ Items []CarryItem }

// CarryItem is one message's content, and those of its labels that the state does not have; From is
// where the content was read.
type CarryItem struct {
	ID      ID
	From    Ref
	Content Blob

	First         ID // under which it was first enqueued; zero: written without labels, in old entries
	Replays       uint32
	CorrelationID string
	DedupKey      Hash   // what makes it a duplicate, in whatever queue
	Lease         ID     // zero none
	Worker        string // that has it
}

// Retain deletes history below an index. It is refused while a live message's content lies there.
type Retain struct{ Before uint64 }

// Mark changes nothing. It is an entry at which nodes compare: its answer has
// the state's digest after the whole entry (Result.Digest).
type Mark struct{}

// Upgrade brings rules of deciding into force. It travels in an entry that
// wants these rules itself, so that a node that does not know them stops there.
type Upgrade struct{ Rules uint16 }

// Replay moves dead messages back to work.
type Replay struct {
	Queue string // in which they died
	To    string // "": the same
	Order Order
	// MaxReplays: messages replayed this many times are skipped; 0 no limit.
	MaxReplays uint32
	// Revision of To's policy against which payloads were checked.
	Revision uint64
	// Strict: a message that is not dead in Queue fails the whole command. Otherwise it is
	// skipped, as are leased messages and those that were replayed too often.
	Strict bool
	Task   ID // that does it, zero none: a task that is not running does nothing
	Items  []ReplayItem
}

// ReplayItem is one dead message, by its id in the dead-letter queue.
type ReplayItem struct {
	ID      ID
	Edited  bool // Content and Size take the place of its own
	Size    uint32
	Content Blob
}

// PurgeDead discards dead messages; Strict and Task as in Replay.
type PurgeDead struct {
	Queue  string // in which they died
	Strict bool
	Task   ID
	IDs    []ID // in the dead-letter queue
}

// Resurrect enqueues messages again that have left their queues (acked or discarded), each at most
// once. The proposing node reads their contents from the log.
type Resurrect struct {
	To       string // the queue
	Order    Order
	Revision uint64 // of To's policy against which the payloads were checked
	// Looked is the index up to which the log was searched for their resurrection or erasure, and
	// for other messages that have taken their deduplication hashes.
	Looked uint64
	Strict bool // a message that cannot be resurrected fails the whole command
	Task   ID   // that does it, zero none: a task that is not running does nothing
	Items  []ResurrectItem
}

// ResurrectItem is one message, by the id under which it left.
type ResurrectItem struct {
	ID       ID
	Skip     string // why the proposing node found that it must be passed over; else:
	Last     Ref    // its newest event
	First    ID     // under which it was first enqueued
	Replays  uint32
	Key      string
	Kind     string
	SourceID string
	// CorrelationID is the content's.
	CorrelationID string
	Alias         Hash // its deduplication hash in To, and the id under which it took that
	Holder        ID
	Priority      uint8
	Size          uint32
	Edited        bool
	Content       Blob
}

// CreateTask creates a task, which takes many entries. Spec (Content.Spec) is JSON for
// the node that carries it out.
type CreateTask struct {
	Kind    TaskKind
	Queue   string // "" none
	Node    string // TaskVerify: the member that carries it out
	Total   int64  // about how many messages
	Content Blob
}

// TaskOp changes a task.
type TaskOp uint8

const (
	TaskOpCancel TaskOp = iota + 1
	TaskOpResume
	TaskOpSeal
	TaskOpReport
	TaskOpComplete
	TaskOpFail
)

// UpdateTask changes a task. An update that would change nothing succeeds.
type UpdateTask struct {
	ID      ID
	Op      TaskOp
	Node    string // TaskOpReport
	Skipped int64  // TaskOpComplete: messages passed over
	Content Blob   // TaskOpFail: Error; TaskOpComplete: Result
}

// Erase removes the user content of messages: live ones are discarded,
// and every node overwrites the contents of the named events.
type Erase struct {
	Task  ID
	Items []EraseItem
	Why   Blob // Content.Why
}

// EraseItem is one message id.
type EraseItem struct {
	ID   ID
	Last Ref   // its newest event, where it is not live any more
	Refs []Ref // its events that have content
}

// PutWebhook creates a webhook or replaces its definition.
type PutWebhook struct {
	Name       string
	Queue      string // where its messages go; "" none
	Definition []byte // JSON, checked by the node that took the request
}

// DeleteWebhook deletes a webhook.
type DeleteWebhook struct{ Name string }

// Define creates or updates queues and webhooks, all or none; they may refer to each other in any
// order.
type Define struct {
	Queues   []PutQueue
	Webhooks []PutWebhook
}
