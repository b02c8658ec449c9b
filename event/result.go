package event

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Problem is a user's mistake or a refusal: an answer, not an error. Code is one that
// docs/reference/http-api.md lists.
type Problem struct {
	Code         string
	Detail       string
	Field        string
	Index        int // position in the batch; -1 none
	RetryAfterMS int64

	// Unknown: the entry may still be committed (outcome unknown). Where it is
	// false, the write was not applied.
	Unknown    bool
	QueueDepth int64 // overloaded: commands that wait at the proposer
}

func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// Problemf returns a problem about a field.
func Problemf(code, field, format string, args ...any) *Problem {
	return &Problem{Code: code, Field: field, Index: -1, Detail: fmt.Sprintf(format, args...)}
}

// Clip returns at most n bytes of s, and no half of a character.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Line returns a foreign text as one line of printable UTF-8, of at most n bytes.
func Line(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(s, "�"))
	return Clip(strings.Join(strings.Fields(s), " "), n)
}

// Temporary reports whether the same command may succeed later, or may have succeeded.
func (p *Problem) Temporary() bool {
	switch p.Code {
	case CodeQueueFull, CodeStaleRevision, CodeNoLeader, CodeOverloaded, CodeShuttingDown,
		CodeInsufficientStorage:
		return true
	}
	return p.Unknown
}

// At returns the problem at position i of a batch.
func (p *Problem) At(i int) *Problem { q := *p; q.Index = i; return &q }

// In returns the problem of an element of a list: queues[2].ordering.
func (p *Problem) In(list string, i int) *Problem {
	q := *p
	q.Field = strings.TrimSuffix(fmt.Sprintf("%s[%d].%s", list, i, p.Field), ".")
	return &q
}

// The codes that deciding can answer with.
const (
	CodeInvalidArgument = "invalid_argument"
	CodeQueueNotFound   = "queue_not_found"
	CodeMessageNotFound = "message_not_found"
	CodeLeaseLost       = "lease_lost"
	CodeWrongQueue      = "wrong_queue"
	CodeQueueInUse      = "queue_in_use"
	CodeConflict        = "conflict"
	CodeKeyReused       = "idempotency_key_reused"
	CodeQueueFull       = "queue_full"
	CodeHistoryExpired  = "history_expired"
	CodeTaskNotFound    = "task_not_found"
	CodeWebhookNotFound = "webhook_not_found"
	// internal: check against the policy again and propose again
	CodeStaleRevision = "stale_revision"
)

// The codes with which a replica refuses a request.
const (
	CodeNoLeader            = "no_leader"
	CodeOverloaded          = "overloaded"
	CodeShuttingDown        = "shutting_down"
	CodeInsufficientStorage = "insufficient_storage"
	CodePayloadTooLarge     = "payload_too_large"
	CodeNodeNotFound        = "node_not_found"
)

// Settle statuses.
const (
	StatusAcked        = "acked"
	StatusRetried      = "retried"
	StatusDeadLettered = "dead_lettered"
	StatusDiscarded    = "discarded"
	StatusExtended     = "extended"
	StatusReleased     = "released"
	StatusRejected     = "rejected"
)

// Result answers one command. Index is the entry's Raft index.
type Result struct {
	Index   uint64
	Problem *Problem // nil: done

	// Kept is set where the request was executed before: the answer_kept
	// event that holds the first Result.
	Kept Ref

	Created bool // PutQueue
	// PurgeQueue; Define: how many queues and webhooks it made or changed; Erase: how many messages
	// it named; Lease: how many died instead of being leased, and of how many queues the next entry
	// may find more: messages of paused keys are in front
	Count    int64
	Produced []Produced
	Leased   []LeasedMessage
	Settled  []Settled
	Moved    []Moved // Replay, PurgeDead, Resurrect: as they were asked for
	ID       ID      // CreateTask: the task's

	// Digest is the state's after the entry: Mark.
	Digest [16]byte
}

// Complete reports whether the result is the whole answer: enqueued messages, or settled
// leases. The rest is read from the log and the state: leased payloads, what a duplicate
// or a repeated settle became, what a queue is now.
func (r *Result) Complete() bool {
	return r.Problem == nil && r.Kept.IsZero() && len(r.Produced)+len(r.Settled) > 0 &&
		len(r.Leased) == 0 &&
		!slices.ContainsFunc(r.Produced, func(p Produced) bool { return p.Duplicate }) &&
		!slices.ContainsFunc(r.Settled, func(s Settled) bool { return s.Status == StatusRejected })
}

// Produced answers one NewMessage.
type Produced struct {
	ID        ID
	Duplicate bool // ID is the first one's
}

// Moved answers one message of a Replay, a PurgeDead or a Resurrect.
type Moved struct {
	ID   ID     // in the dead-letter queue, or under which it had left
	To   ID     // its new id; zero: purged, or passed over
	Code string // why it was passed over: one of the Skip constants
}

// Why a message is passed over.
const (
	SkipGone       = "message_not_found" // not dead in that queue (any more)
	SkipLeased     = "leased"            // a worker has leased it from the dead-letter queue
	SkipMaxReplays = "max_replays"
	SkipTask       = "task_not_running"
	SkipKeyTaken   = "key_taken" // another message has its idempotency_key or source_id
	// These the proposing node finds in the log.
	SkipResurrected = "resurrected" // once before, whatever became of that
	SkipErased      = "erased"
	SkipDamaged     = "damaged"
	SkipHistory     = "history_expired"
)

// Settled answers one SettleItem.
type Settled struct {
	Lease     ID
	Status    string
	Code      string // of a rejected one
	NextAt    int64  // retried; released, if it waits
	ExpiresAt int64  // extended
	Message   ID     // none of a rejected one
	Queue     string // the message's; none of a lost lease
}

// LeasedMessage is what a lease hands out; payload and headers lie in the log at Content.
type LeasedMessage struct {
	MessageView
	MaxAttempts uint32
	Behind      ID // the lease directly ahead in its batch, zero if it is the first
}
