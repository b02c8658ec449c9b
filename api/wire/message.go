package wire

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ProduceRequest is the body of POST /v1/queues/{queue}/messages: Messages, or one bare message.
type ProduceRequest struct {
	Messages []NewMessage `json:"messages,omitzero"`
	NewMessage
}

// NewMessage is a message to enqueue, with Payload (any JSON) or PayloadBytes and ContentType.
type NewMessage struct {
	Payload        jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes   Bytes             `json:"payload_base64,omitzero"`
	ContentType    string            `json:"content_type,omitzero"` // of PayloadBytes
	Key            string            `json:"key,omitzero"`
	Priority       *int64            `json:"priority,omitzero"` // 1 to 10, 5 if left out
	Headers        map[string]string `json:"headers,omitzero"`
	IdempotencyKey string            `json:"idempotency_key,omitzero"`
	DelayMS        *int64            `json:"delay_ms,omitzero"`   // null: the queue's default_delay_ms
	DeliverAt      Time              `json:"deliver_at,omitzero"` // in place of delay_ms
	TTLMS          int64             `json:"ttl_ms,omitzero"`
	Kind           string            `json:"kind,omitzero"`
	CorrelationID  string            `json:"correlation_id,omitzero"`
	// Cause is, of an ack or a transaction, the lease of the message that it follows from. Left
	// out: all that the call acks.
	Cause string `json:"cause,omitzero"`
}

// ProduceResponse answers produce, in the order of the request.
type ProduceResponse struct {
	Messages []Produced `json:"messages"`
}

// Produced answers one message; of a duplicate, State and Result say what became of the first.
type Produced struct {
	ID     string         `json:"id"`
	Status string         `json:"status"` // enqueued, duplicate
	State  string         `json:"state,omitzero"`
	Result jsontext.Value `json:"result,omitzero"`
}

// Statuses of a produced message.
const (
	Enqueued  = "enqueued"
	Duplicate = "duplicate"
)

// ImportRequest is the body of POST /v1/queues/{queue}/messages/import.
type ImportRequest struct {
	Messages []ImportMessage `json:"messages"`
}

// ImportMessage is another system's message, ignored if the queue already knows its SourceID.
type ImportMessage struct {
	NewMessage
	SourceID string `json:"source_id"`
}

// ImportResponse answers it, in the order of the request.
type ImportResponse struct {
	Imported int64      `json:"imported"`
	Ignored  int64      `json:"ignored"`
	Messages []Imported `json:"messages"`
}

// Imported answers one message. ID is of the one with this source id, imported now or before.
type Imported struct {
	SourceID string `json:"source_id"`
	ID       string `json:"id"`
	Status   string `json:"status"` // enqueued, duplicate
}

// LeaseRequest is the body of POST /v1/queues/{queue}/lease and, with Queues, of POST /v1/lease.
type LeaseRequest struct {
	Queues      []string `json:"queues,omitzero"`       // tried in this order
	MaxMessages *int64   `json:"max_messages,omitzero"` // 1 to 1000, 10 if left out
	WaitMS      int64    `json:"wait_ms,omitzero"`      // how long to wait while there is nothing
	LeaseMS     int64    `json:"lease_ms,omitzero"`     // 0: the queue's policy
	Worker      string   `json:"worker,omitzero"`
	Kinds       []string `json:"kinds,omitzero"` // empty: all
}

// LeaseResponse answers a lease; it is empty when nothing came in time.
type LeaseResponse struct {
	Messages []LeasedMessage `json:"messages"`
}

// LeasedMessage is a message and the right to process it, with Payload or PayloadBytes.
type LeasedMessage struct {
	ID             string            `json:"id"`
	LeaseID        string            `json:"lease_id"` // grows with time: a fencing token
	Queue          string            `json:"queue"`
	Key            string            `json:"key"`
	Attempt        int64             `json:"attempt"`
	MaxAttempts    int64             `json:"max_attempts"` // 0: no limit
	Priority       int64             `json:"priority"`
	Kind           string            `json:"kind"`
	Headers        map[string]string `json:"headers"`
	Payload        jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes   Bytes             `json:"payload_base64,omitzero"`
	ContentType    string            `json:"content_type,omitzero"`
	Original       jsontext.Value    `json:"original,omitzero"` // the body that a webhook mapped
	Erased         bool              `json:"erased,omitzero"`   // the payload is null
	Damaged        bool              `json:"damaged,omitzero"`  // it was lost to damage, and is null
	EnqueuedAt     Time              `json:"enqueued_at"`
	LeaseExpiresAt Time              `json:"lease_expires_at"`
	CorrelationID  string            `json:"correlation_id"`
	Dead           *Dead             `json:"dead"`
	Origin         *LeasedOrigin     `json:"origin,omitzero"` // if it was replayed or resurrected
	// Behind is the lease of the message of the same key that comes before this one in the answer:
	// in a queue with lane_batch, that one is to be processed and settled first.
	Behind string `json:"behind,omitzero"`
}

// Dead is where a dead message came from, and why.
type Dead struct {
	Queue           string `json:"queue"`
	MessageID       string `json:"message_id"`
	Reason          string `json:"reason"` // max_attempts, expired, rejected, key_dead
	Error           string `json:"error"`
	Attempts        int64  `json:"attempts"`
	FailedAt        Time   `json:"failed_at"`
	FirstEnqueuedAt Time   `json:"first_enqueued_at"`
	ReplayCount     int64  `json:"replay_count"`
	Worker          string `json:"worker,omitzero"` // whose lease expired, if it died of that
}

// AckRequest is the body of POST /v1/queues/{queue}/ack. Result is kept for duplicates of the
// messages. With Produce it is all or nothing, and answered by a TransactionResponse.
type AckRequest struct {
	LeaseIDs []string             `json:"lease_ids"`
	Result   jsontext.Value       `json:"result,omitzero"`
	Produce  []TransactionProduce `json:"produce,omitzero"`
}

// Reschedule is the body of PATCH /v1/messages/{id}.
type Reschedule struct {
	DeliverAt *Time  `json:"deliver_at,omitzero"`
	DelayMS   *int64 `json:"delay_ms,omitzero"` // in place of DeliverAt
	Priority  *int64 `json:"priority,omitzero"` // 1 to 10
}

// RetryRequest is the body of POST /v1/queues/{queue}/retry.
type RetryRequest struct {
	Items []RetryItem `json:"items"`
}

// RetryItem gives a message back for another try.
type RetryItem struct {
	LeaseID   string `json:"lease_id"`
	Error     string `json:"error,omitzero"`
	DelayMS   *int64 `json:"delay_ms,omitzero"`  // null: the policy's backoff
	RetryAt   *Time  `json:"retry_at,omitzero"`  // in place of delay_ms
	Retryable *bool  `json:"retryable,omitzero"` // false: as dead-letter
}

// DeadLetterRequest is the body of POST /v1/queues/{queue}/dead-letter.
type DeadLetterRequest struct {
	Items []DeadLetterItem `json:"items"`
}

// DeadLetterItem gives a message up.
type DeadLetterItem struct {
	LeaseID string `json:"lease_id"`
	Error   string `json:"error,omitzero"`
}

// ExtendRequest is the body of POST /v1/queues/{queue}/extend.
type ExtendRequest struct {
	Items []ExtendItem `json:"items"`
}

// ExtendItem lets a lease end later: LeaseMS from now.
type ExtendItem struct {
	LeaseID string `json:"lease_id"`
	LeaseMS int64  `json:"lease_ms,omitzero"` // 0: the policy's
}

// ReleaseRequest is the body of POST /v1/queues/{queue}/release: either lease ids or items.
type ReleaseRequest struct {
	LeaseIDs []string      `json:"lease_ids,omitzero"`
	Items    []ReleaseItem `json:"items,omitzero"`
}

// ReleaseItem gives a message back, as if it had not been leased, for after DelayMS.
type ReleaseItem struct {
	LeaseID string `json:"lease_id"`
	DelayMS int64  `json:"delay_ms,omitzero"`
}

// Bodies of POST /v1/leases/{lease_id}/…; all fields are optional, as is the body.
type (
	AckOne struct {
		Result  jsontext.Value       `json:"result,omitzero"`
		Produce []TransactionProduce `json:"produce,omitzero"` // answered by a TransactionResponse
	}
	RetryOne struct {
		Error     string `json:"error,omitzero"`
		DelayMS   *int64 `json:"delay_ms,omitzero"`
		RetryAt   *Time  `json:"retry_at,omitzero"`
		Retryable *bool  `json:"retryable,omitzero"`
	}
	DeadLetterOne struct {
		Error string `json:"error,omitzero"`
	}
	ExtendOne struct {
		LeaseMS int64 `json:"lease_ms,omitzero"`
	}
	ReleaseOne struct {
		DelayMS int64 `json:"delay_ms,omitzero"`
	}
)

// SettleResponse answers a settle, in the order of the request.
type SettleResponse struct {
	Results []SettleResult `json:"results"`
}

// SettleResult answers for one lease.
type SettleResult struct {
	LeaseID string `json:"lease_id"`
	// acked, retried, dead_lettered, discarded, extended, released, rejected
	Status         string `json:"status"`
	Code           string `json:"code,omitzero"`             // rejected: lease_lost, wrong_queue
	NextAt         Time   `json:"next_at,omitzero"`          // retried; released for later
	LeaseExpiresAt Time   `json:"lease_expires_at,omitzero"` // extended

	Fate // lease_lost: of the message
}

// Fate is what became of the message of a lost lease, as far as history has it and the token may
// consume its queue.
type Fate struct {
	State       string `json:"state,omitzero"`
	Worker      string `json:"worker,omitzero"`       // who has leased it, or has acked it
	LeasedUntil Time   `json:"leased_until,omitzero"` // leased
}

// TransactionRequest is the body of POST /v1/transactions: all of it or nothing.
type TransactionRequest struct {
	Ack        []AckItem            `json:"ack,omitzero"`
	Retry      []RetryItem          `json:"retry,omitzero"`
	DeadLetter []DeadLetterItem     `json:"dead_letter,omitzero"`
	Extend     []ExtendItem         `json:"extend,omitzero"`
	Produce    []TransactionProduce `json:"produce,omitzero"`
}

// AckItem acks a message. In JSON it is the lease id where it has no result.
type AckItem struct {
	LeaseID string         `json:"lease_id"`
	Result  jsontext.Value `json:"result,omitzero"` // kept for duplicates of the message
}

// MarshalJSONTo writes an object, or the lease id.
func (a AckItem) MarshalJSONTo(enc *jsontext.Encoder) error {
	if a.Result == nil {
		return enc.WriteToken(jsontext.String(a.LeaseID))
	}
	type object AckItem
	return json.MarshalEncode(enc, object(a))
}

// UnmarshalJSONFrom reads an object, or the lease id.
func (a *AckItem) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	*a = AckItem{}
	if dec.PeekKind() == '"' {
		return json.UnmarshalDecode(dec, &a.LeaseID)
	}
	type object AckItem
	return json.UnmarshalDecode(dec, (*object)(a))
}

// TransactionProduce enqueues messages into one queue.
type TransactionProduce struct {
	Queue    string       `json:"queue"`
	Messages []NewMessage `json:"messages"`
}

// TransactionResponse answers a transaction: results in the order ack, retry,
// dead_letter, extend; messages in the order of produce.
type TransactionResponse struct {
	Results  []SettleResult `json:"results"`
	Messages []Produced     `json:"messages"`
}

// Message is a message as a reader sees it; one that has left its queue has its last state.
type Message struct {
	ID    string `json:"id"`
	Queue string `json:"queue"`
	// scheduled, ready, leased; acked, dead_lettered, discarded, replayed
	State        string            `json:"state"`
	Held         bool              `json:"held"`            // ready, but not first in its partition
	Reason       string            `json:"reason,omitzero"` // dead_lettered, discarded
	Key          string            `json:"key"`
	Attempt      int64             `json:"attempt"`           // 0 before the first lease
	Priority     int64             `json:"priority,omitzero"` // 0: not known any more
	Kind         string            `json:"kind"`
	Headers      map[string]string `json:"headers"`
	Payload      jsontext.Value    `json:"payload,omitzero"`
	PayloadBytes Bytes             `json:"payload_base64,omitzero"`
	ContentType  string            `json:"content_type,omitzero"`
	Original     jsontext.Value    `json:"original,omitzero"` // the body that a webhook mapped
	Erased       bool              `json:"erased,omitzero"`   // the payload is null
	Damaged      bool              `json:"damaged,omitzero"`  // it was lost to damage, and is null
	// HistoryTruncated is true where retention has deleted the beginning of its history, and what
	// only that knew, such as Payload and Priority, is not there.
	HistoryTruncated bool           `json:"history_truncated,omitzero"`
	Size             int64          `json:"size"` // bytes of the payload
	CorrelationID    string         `json:"correlation_id"`
	EnqueuedAt       Time           `json:"enqueued_at"`
	AvailableAt      Time           `json:"available_at,omitzero"` // scheduled: when it comes due
	ExpiresAt        Time           `json:"expires_at,omitzero"`   // end of its ttl
	LeaseID          string         `json:"lease_id,omitzero"`
	LeaseExpiresAt   Time           `json:"lease_expires_at,omitzero"`
	LeftAt           Time           `json:"left_at,omitzero"` // when it left its queue
	Result           jsontext.Value `json:"result,omitzero"`  // acked with one
	MovedTo          *Moved         `json:"moved_to,omitzero"`
	ResurrectedAs    []Moved        `json:"resurrected_as,omitzero"` // oldest first
	Origin           *Origin        `json:"origin,omitzero"`         // if brought back
	SourceID         string         `json:"source_id,omitzero"`      // of an imported one
	Dead             *Dead          `json:"dead"`
	Cause            []string       `json:"cause,omitzero"` // GET /v1/messages/{id}: see Event
	CauseTruncated   bool           `json:"cause_truncated,omitzero"`
	ReplayedAt       Time           `json:"replayed_at,omitzero"`    // of dead/?state=replayed
	NewMessageID     string         `json:"new_message_id,omitzero"` // what it became by that
	ReplayResult     string         `json:"replay_result,omitzero"`  // the state of that
	Attempts         []Attempt      `json:"attempts,omitzero"`       // of GET /v1/messages/{id}
	History          []Event        `json:"history,omitzero"`
}

// LeasedOrigin is where a leased message came from that was replayed.
type LeasedOrigin struct {
	MessageID string `json:"message_id"` // under which it was first enqueued
	Replays   int64  `json:"replays"`
}

// Origin is where a message came from that was replayed or resurrected.
type Origin struct {
	FirstMessageID string `json:"first_message_id"` // under which it was first enqueued
	FromMessageID  string `json:"from_message_id"`  // that it had before
	Replays        int64  `json:"replays"`          // how often it was replayed
}

// Attempt is one lease of a message. Until it ends, its outcome is leased, and it has no end.
type Attempt struct {
	Attempt    int64  `json:"attempt"`
	MessageID  string `json:"message_id"` // the id that it had then
	Queue      string `json:"queue"`
	LeaseID    string `json:"lease_id"`
	Worker     string `json:"worker"`
	LeasedAt   Time   `json:"leased_at"`
	EndedAt    Time   `json:"ended_at,omitzero"`
	DurationMS *int64 `json:"duration_ms,omitzero"`
	// acked, retried, released, lease_expired, dead_lettered, discarded, leased
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitzero"`
	Error   string `json:"error"`
	Erased  bool   `json:"erased,omitzero"`  // what the worker said was erased
	Damaged bool   `json:"damaged,omitzero"` // it was lost to damage
}

// Moved is where a dead-lettered or replayed message went.
type Moved struct {
	Queue     string `json:"queue"`
	MessageID string `json:"message_id"`
}

// Lineage answers GET /v1/messages/{id}/lineage. Payloads over 1 KiB are left out.
type Lineage struct {
	Nodes     []Message     `json:"nodes"` // by id
	Edges     []LineageEdge `json:"edges"`
	Truncated bool          `json:"truncated,omitzero"` // there are more than 1000

	HistoryBeginsAt *Time `json:"history_begins_at,omitzero"` // one of them is older
}

// LineageEdge says that a message came from another one.
type LineageEdge struct {
	From string `json:"from"`
	To   string `json:"to"`
	By   string `json:"by"` // produce, dead_letter, replay, resurrect
}

// Kin is a message of a lineage as a tree.
type Kin struct {
	*Message
	By    string // how it came from the one above it: an edge's; "" from none
	Depth int    // below the first one
	Again bool   // it came from several, and is above with all that came from it
}

// Tree returns the messages of a lineage, each below what it came from.
func (l *Lineage) Tree() (out []Kin) {
	nodes, next := map[string]*Message{}, map[string][]LineageEdge{}
	for i := range l.Nodes {
		nodes[l.Nodes[i].ID] = &l.Nodes[i]
	}
	caused := map[string]bool{}
	for _, e := range l.Edges {
		if !slices.Contains(next[e.From], e) {
			next[e.From], caused[e.To] = append(next[e.From], e), true
		}
	}
	drawn := map[string]bool{}
	var draw func(id, by string, depth int)
	draw = func(id, by string, depth int) {
		out = append(out, Kin{nodes[id], by, depth, drawn[id]})
		if drawn[id] {
			return
		}
		drawn[id] = true
		for _, e := range next[id] {
			draw(e.To, e.By, depth+1)
		}
	}
	for i := range l.Nodes {
		if id := l.Nodes[i].ID; !caused[id] {
			draw(id, "", 0)
		}
	}
	return out
}

// MessageList answers GET /v1/queues/{queue}/messages.
type MessageList struct {
	Messages   []Message `json:"messages"`
	NextCursor string    `json:"next_cursor,omitzero"`
	Scanned    *int      `json:"scanned,omitzero"` // messages read, of a filtered page
}
