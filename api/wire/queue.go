package wire

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// PolicyUpdate is the body of PUT and PATCH /v1/queues/{queue}. A field that
// is left out has its default (PUT) or stays (PATCH); null is the default.
type PolicyUpdate struct {
	Ordering      Opt[string]              `json:"ordering,omitzero"` // unordered, fifo, per_key
	Retention     Opt[RetentionUpdate]     `json:"retention,omitzero"`
	Delivery      Opt[DeliveryUpdate]      `json:"delivery,omitzero"`
	Deduplication Opt[DeduplicationUpdate] `json:"deduplication,omitzero"`
	MessageSchema Opt[jsontext.Value]      `json:"message_schema,omitzero"` // JSON Schema 2020-12; replaced whole
	Push          Opt[Push]                `json:"push,omitzero"`           // replaced whole
	Namespace     Opt[string]              `json:"namespace,omitzero"`
	Description   Opt[string]              `json:"description,omitzero"`
}

// RetentionUpdate changes Retention.
type RetentionUpdate struct {
	MaxAgeSeconds Opt[int64] `json:"max_age_seconds,omitzero"`
	MaxDepth      Opt[int64] `json:"max_depth,omitzero"`
	MaxBytes      Opt[int64] `json:"max_bytes,omitzero"`
}

// DeliveryUpdate changes Delivery.
type DeliveryUpdate struct {
	LeaseMS           Opt[int64]   `json:"lease_ms,omitzero"`
	MaxAttempts       Opt[int64]   `json:"max_attempts,omitzero"`
	InitialBackoffMS  Opt[int64]   `json:"initial_backoff_ms,omitzero"`
	BackoffMultiplier Opt[float64] `json:"backoff_multiplier,omitzero"`
	MaxBackoffMS      Opt[int64]   `json:"max_backoff_ms,omitzero"`
	BackoffJitter     Opt[float64] `json:"backoff_jitter,omitzero"`
	BackoffScheduleMS Opt[[]int64] `json:"backoff_schedule_ms,omitzero"`
	OnRetry           Opt[string]  `json:"on_retry,omitzero"`          // block, head, tail
	OnDead            Opt[string]  `json:"on_dead,omitzero"`           // skip, hold_key, dead_letter_key
	DeadLetterQueue   Opt[string]  `json:"dead_letter_queue,omitzero"` // "auto" makes <name>.dlq
}

// DeduplicationUpdate changes Deduplication.
type DeduplicationUpdate struct {
	WindowSeconds Opt[int64]  `json:"window_seconds,omitzero"`
	By            Opt[string] `json:"by,omitzero"` // key, content
}

// Policy is how a queue treats its messages.
type Policy struct {
	Ordering      string         `json:"ordering"`
	Retention     Retention      `json:"retention"`
	Delivery      Delivery       `json:"delivery"`
	Deduplication Deduplication  `json:"deduplication"`
	MessageSchema jsontext.Value `json:"message_schema"` // null: none
	Push          *Push          `json:"push"`           // null: workers lease
	Namespace     string         `json:"namespace"`
	Description   string         `json:"description"`
}

// Retention limits what a queue holds; 0 is no limit.
type Retention struct {
	MaxAgeSeconds int64 `json:"max_age_seconds"`
	MaxDepth      int64 `json:"max_depth"`
	MaxBytes      int64 `json:"max_bytes"`
}

// Delivery says how often and when a message is tried.
type Delivery struct {
	LeaseMS           int64   `json:"lease_ms"`
	MaxAttempts       int64   `json:"max_attempts"` // 0: no limit
	InitialBackoffMS  int64   `json:"initial_backoff_ms"`
	BackoffMultiplier float64 `json:"backoff_multiplier"`
	MaxBackoffMS      int64   `json:"max_backoff_ms"`
	BackoffJitter     float64 `json:"backoff_jitter"`      // share, 0 to 1
	BackoffScheduleMS Ints    `json:"backoff_schedule_ms"` // null: computed
	OnRetry           string  `json:"on_retry"`
	OnDead            string  `json:"on_dead"`
	DeadLetterQueue   *string `json:"dead_letter_queue"`
}

// Ints is a list that is null in JSON when there is none.
type Ints []int64

// MarshalJSONTo writes the list, or null.
func (v Ints) MarshalJSONTo(enc *jsontext.Encoder) error {
	if v == nil {
		return enc.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(enc, []int64(v))
}

// Deduplication says what is the same message, and for how long.
type Deduplication struct {
	WindowSeconds int64  `json:"window_seconds"`
	By            string `json:"by"`
}

// Queue is a queue with its policy and what is in it.
type Queue struct {
	Name string `json:"name"`
	Policy
	Paused    bool  `json:"paused"`
	CreatedAt Time  `json:"created_at"`
	UpdatedAt Time  `json:"updated_at"`
	Stats     Stats `json:"stats"`
}

// Stats counts what is in a queue and what passed through it.
type Stats struct {
	Depth                   int64    `json:"depth"` // all that is ready, held ones included
	Held                    int64    `json:"held"`  // the part of depth that an earlier message of its lane blocks
	Scheduled               int64    `json:"scheduled"`
	InFlight                int64    `json:"in_flight"`
	Bytes                   int64    `json:"bytes"`
	OldestMessageAgeSeconds int64    `json:"oldest_message_age_seconds"` // 0 in an empty queue
	MessagesPerMinute       *float64 `json:"messages_per_minute"`        // null where it is not known: in the past
	EnqueuedTotal           int64    `json:"enqueued_total"`
	AckedTotal              int64    `json:"acked_total"`
	DeadLetteredTotal       int64    `json:"dead_lettered_total"`
	Partitions              int64    `json:"partitions"`
}

// QueueList answers GET /v1/queues.
type QueueList struct {
	Queues     []Queue `json:"queues"`
	NextCursor string  `json:"next_cursor,omitzero"`
}

// Paused answers pause and resume.
type Paused struct {
	Paused bool `json:"paused"`
}

// Purged answers purge.
type Purged struct {
	Purged int64 `json:"purged"`
}
