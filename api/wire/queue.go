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
	MessageSchema Opt[jsontext.Value]      `json:"message_schema,omitzero"` // replaced whole
	Push          Opt[Push]                `json:"push,omitzero"`           // replaced whole
	Namespace     Opt[string]              `json:"namespace,omitzero"`
	Description   Opt[string]              `json:"description,omitzero"`
}

// RetentionUpdate changes Retention.
type RetentionUpdate struct {
	MaxAgeSeconds Opt[int64] `json:"max_age_seconds,omitzero"`
	MaxDepth      Opt[int64] `json:"max_depth,omitzero"`
	MaxBytes      Opt[int64] `json:"max_bytes,omitzero"`
	// dead_letter, discard
	OnExpired Opt[string] `json:"on_expired,omitzero"`
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
	OnDead            Opt[string]  `json:"on_dead,omitzero"`           // skip, hold_key, …
	DeadLetterQueue   Opt[string]  `json:"dead_letter_queue,omitzero"` // "auto" creates <name>.dlq
	LaneBatch         Opt[int64]   `json:"lane_batch,omitzero"`
	MaxInFlight       Opt[int64]   `json:"max_in_flight,omitzero"`
	MaxInFlightPerKey Opt[int64]   `json:"max_in_flight_per_key,omitzero"`
	PriorityAgingMS   Opt[int64]   `json:"priority_aging_ms,omitzero"`
	DefaultDelayMS    Opt[int64]   `json:"default_delay_ms,omitzero"`

	RateLimit Opt[RateLimitUpdate] `json:"rate_limit,omitzero"`
}

// RateLimitUpdate changes RateLimit.
type RateLimitUpdate struct {
	Count Opt[int64] `json:"count,omitzero"`
	PerMS Opt[int64] `json:"per_ms,omitzero"`
}

// DeduplicationUpdate changes Deduplication.
type DeduplicationUpdate struct {
	WindowSeconds Opt[int64]  `json:"window_seconds,omitzero"`
	By            Opt[string] `json:"by,omitzero"`    // key, content
	Until         Opt[string] `json:"until,omitzero"` // window, left
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
	// OnExpired says what becomes of a message that is too old: dead_letter (discarded only where
	// there is no dead-letter queue) or discard.
	OnExpired string `json:"on_expired"`
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
	LaneBatch         int64   `json:"lane_batch"`            // consecutive messages of a key per lease call
	MaxInFlight       int64   `json:"max_in_flight"`         // leases in the whole queue; 0: no limit
	MaxInFlightPerKey int64   `json:"max_in_flight_per_key"` // unordered: of each key but ""; 0: no limit
	PriorityAgingMS   int64   `json:"priority_aging_ms"`     // waiting that is worth a priority step; 0: none
	DefaultDelayMS    int64   `json:"default_delay_ms"`      // of what is produced without a delay

	RateLimit RateLimit `json:"rate_limit"`
}

// RateLimit allows Count leases per PerMS on average, in bursts of at most Count; 0: no limit.
type RateLimit struct {
	Count int64 `json:"count"`
	PerMS int64 `json:"per_ms"`
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
	Until         string `json:"until"` // window, or left: while the first is in the queue
}

// Queue is a queue with its policy and what is in it.
type Queue struct {
	Name string `json:"name"`
	Policy
	Paused     bool     `json:"paused"`
	PausedKeys []string `json:"paused_keys"` // sorted
	CreatedAt  Time     `json:"created_at"`
	UpdatedAt  Time     `json:"updated_at"`
	Stats      Stats    `json:"stats"`
	Dead       int64    `json:"dead"` // died in it, and are neither replayed nor purged
}

// Stats counts what is in a queue and what passed through it.
type Stats struct {
	Depth                   int64    `json:"depth"` // all that is ready, held ones included
	Held                    int64    `json:"held"`  // part of depth, behind an earlier message or of a paused key
	Scheduled               int64    `json:"scheduled"`
	InFlight                int64    `json:"in_flight"`
	Bytes                   int64    `json:"bytes"`
	OldestMessageAgeSeconds int64    `json:"oldest_message_age_seconds"` // 0 in an empty queue
	MessagesPerMinute       *float64 `json:"messages_per_minute"`        // null: unknown
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

// PauseRequest pauses or resumes a key; without one, the whole queue.
type PauseRequest struct {
	Key    Opt[string] `json:"key,omitzero"`
	Reason string      `json:"reason,omitzero"`
}

// ReasonBody is the body of purge, and of a deletion: why an operator does it. It may be empty.
type ReasonBody struct {
	Reason string `json:"reason,omitzero"`
}

// Paused answers pause and resume.
type Paused struct {
	Paused bool `json:"paused"`
}

// Purged answers purge.
type Purged struct {
	Purged int64 `json:"purged"`
}

// Push lets the cluster itself lease a queue's messages and deliver each to URL by POST.
type Push struct {
	URL           string            `json:"url"`
	Headers       map[string]string `json:"headers,omitzero"`
	TimeoutMS     int64             `json:"timeout_ms"`           // until the answer; 0: 30 s
	MaxInFlight   int64             `json:"max_in_flight"`        // requests at a time; 0: 10
	RatePerSecond float64           `json:"rate_per_second"`      // 0: no limit
	Format        string            `json:"format"`               // payload, cloudevents, …
	Input         map[string]string `json:"input,omitzero"`       // the body's fields, in CEL
	SecretEnv     Strings           `json:"secret_env,omitzero"`  // signing secrets: variables
	SecretFile    Strings           `json:"secret_file,omitzero"` // files below --secrets-dir
	AnswerTo      string            `json:"answer_to,omitzero"`   // the queue for JSON answers
}

// PushReason says why a queue's push does not deliver.
type PushReason struct {
	// push_target_down, push_secret_missing, push_answer_queue_missing, push_off,
	// push_policy_unknown
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	LastError string `json:"last_error,omitzero"` // push_target_down
	Failures  int64  `json:"failures,omitzero"`   // in a row
	NextProbe Time   `json:"next_probe,omitzero"`
}

// QueueStats answers GET /v1/queues/{queue}/stats, about a second behind the node's log.
type QueueStats struct {
	Queue                   string            `json:"queue"`
	Index                   uint64            `json:"index"`               // up to which is counted
	MessagesPerMinute       *float64          `json:"messages_per_minute"` // null: not known
	OldestMessageAgeSeconds int64             `json:"oldest_message_age_seconds"`
	Totals                  map[string]uint64 `json:"totals"`         // events by type
	DeadByReason            map[string]uint64 `json:"dead_by_reason"` // messages that died in it
	Minutes                 []Minute          `json:"minutes"`        // oldest first
}

// Minute is what happened in a queue during one minute.
type Minute struct {
	Start        Time   `json:"start"`
	Enqueued     uint64 `json:"enqueued"`
	Leased       uint64 `json:"leased"`
	Acked        uint64 `json:"acked"`
	Retried      uint64 `json:"retried"`
	LeaseExpired uint64 `json:"lease_expired"`
	DeadLettered uint64 `json:"dead_lettered"`
	Discarded    uint64 `json:"discarded"`
	Replayed     uint64 `json:"replayed"` // out of it: it is a dead-letter queue
}

// Projections answers GET /v1/projections and a rebuild: how far the node's read models have come.
type Projections struct {
	Index   uint64 `json:"index"` // up to which is counted
	Time    Time   `json:"time"`  // the log's clock there; null at its start
	LogHead uint64 `json:"log_head"`
}

// Explanation answers GET /v1/queues/{queue}/explain: why a message is or is not being delivered.
type Explanation struct {
	Queue       string   `json:"queue"`
	Key         *string  `json:"key"`        // null: none was asked for, and none is known
	MessageID   *string  `json:"message_id"` // the requested or first one; null: none
	Deliverable bool     `json:"deliverable"`
	Reasons     []Reason `json:"reasons"` // what decides comes first
}

// Reason is one of them. Which fields are set depends on Code.
type Reason struct {
	// queue_paused, held_by_dead, behind_message, leased, scheduled, no_waiting_worker,
	// not_in_queue, ready, …
	Code       string   `json:"code"`
	Text       string   `json:"text"` // for people
	MessageID  string   `json:"message_id,omitzero"`
	MessageIDs []string `json:"message_ids,omitzero"`
	State      string   `json:"state,omitzero"`
	LeaseID    string   `json:"lease_id,omitzero"`
	Worker     string   `json:"worker,omitzero"`
	Until      Time     `json:"until,omitzero"`
	Waiters    *int64   `json:"waiters,omitzero"` // waiting leases on nodes that answered
}

// DefinitionsRequest is the body of PUT /v1/definitions, in any order: QueueDefinitions and
// DefinedWebhooks. They are decoded one by one, so that all mistakes can be reported.
type DefinitionsRequest struct {
	Queues   []jsontext.Value `json:"queues,omitzero"`
	Webhooks []jsontext.Value `json:"webhooks,omitzero"`
}

// QueueDefinition is a queue to create or update: a policy field that is left out has its default.
type QueueDefinition struct {
	Name            string      `json:"name"`
	DeadLetterQueue Opt[string] `json:"dead_letter_queue,omitzero"` // or delivery.dead_letter_queue
	PolicyUpdate
}

// DefinedQueue is a queue as GET /v1/definitions shows it.
type DefinedQueue struct {
	Name string `json:"name"`
	Policy
}

// Definitions answers GET /v1/definitions, sorted by name.
type Definitions struct {
	Queues   []DefinedQueue   `json:"queues"`
	Webhooks []DefinedWebhook `json:"webhooks"`
}

// DefinedWebhook is a webhook as PUT and GET /v1/definitions have it.
type DefinedWebhook struct {
	Name string `json:"name"`
	WebhookDefinition
}

// DefinitionChanges answers PUT /v1/definitions: what became of each or, with dry_run, would.
type DefinitionChanges struct {
	Changes []DefinitionChange `json:"changes"`
}

// DefinitionChange is what becomes of one queue or webhook.
type DefinitionChange struct {
	Kind   string       `json:"kind"` // queue, webhook
	Name   string       `json:"name"`
	Action string       `json:"action"` // create, update, unchanged
	Diff   []Difference `json:"diff"`   // create: of what has not its default
}

// What is defined, and what becomes of it.
const (
	KindQueue   = "queue"
	KindWebhook = "webhook"

	ActionCreate    = "create"
	ActionUpdate    = "update"
	ActionUnchanged = "unchanged"
)

// Difference is a field that changes. null is none.
type Difference struct {
	Path   string         `json:"path"` // delivery.max_attempts
	Before jsontext.Value `json:"before"`
	After  jsontext.Value `json:"after"`
}
