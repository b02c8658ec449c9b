package event

import (
	"cmp"
	"fmt"
	"math"
)

// Ordering of a queue.
type Ordering uint8

const (
	Unordered Ordering = iota
	FIFO
	PerKey
)

var orderingNames = [...]string{"unordered", "fifo", "per_key"}

func (o Ordering) String() string { return nameOf(orderingNames[:], o) }

// PartitionKey returns the key of the partition in which a message with a key waits.
func (o Ordering) PartitionKey(key string) string {
	if o == FIFO {
		return ""
	}
	return key
}

// OnRetry says what a partition does while its head waits for another try.
type OnRetry uint8

const (
	RetryBlock OnRetry = iota
	RetryHead
	RetryTail
)

var onRetryNames = [...]string{"block", "head", "tail"}

func (o OnRetry) String() string { return nameOf(onRetryNames[:], o) }

// OnDead says what a partition does when its head dies.
type OnDead uint8

const (
	DeadSkip OnDead = iota
	DeadHoldKey
	DeadLetterKey
)

var onDeadNames = [...]string{"skip", "hold_key", "dead_letter_key"}

func (o OnDead) String() string { return nameOf(onDeadNames[:], o) }

// OnExpired says what becomes of a message that is too old.
type OnExpired uint8

const (
	ExpiredDeadLetter OnExpired = iota // it dies
	ExpiredDiscard
)

var onExpiredNames = [...]string{"dead_letter", "discard"}

func (o OnExpired) String() string { return nameOf(onExpiredNames[:], o) }

// DedupBy says what makes two messages the same.
type DedupBy uint8

const (
	DedupByKey DedupBy = iota
	DedupByContent
)

var dedupByNames = [...]string{"key", "content"}

func (d DedupBy) String() string { return nameOf(dedupByNames[:], d) }

// DedupUntil says how long a message is remembered.
type DedupUntil uint8

const (
	DedupUntilWindow DedupUntil = iota // its window ends
	DedupUntilLeft                     // it has left its queue
)

var dedupUntilNames = [...]string{"window", "left"}

func (d DedupUntil) String() string { return nameOf(dedupUntilNames[:], d) }

// UntilLeft in place of the end of a window: until the message has left its queue.
const UntilLeft = math.MaxInt64

// Million is the fixed-point unit of multipliers and shares: deciding and folding know no floats
// (I5).
const Million = 1_000_000

// Policy is a queue's. Durations are milliseconds unless the name says seconds.
type Policy struct {
	Ordering Ordering

	MaxAgeSeconds int64
	MaxDepth      int64
	MaxBytes      int64
	OnExpired     OnExpired

	LeaseMS           int64
	MaxAttempts       uint32
	InitialBackoffMS  int64
	BackoffMultiplier int64 // millionths
	MaxBackoffMS      int64
	BackoffJitter     int64 // millionths, 0 to Million
	BackoffScheduleMS []int64
	OnRetry           OnRetry
	OnDead            OnDead
	DeadLetterQueue   string
	LaneBatch         uint32 // consecutive messages of a partition per lease call; 0 is 1
	DefaultDelayMS    int64  // of what is produced without a delay of its own
	MaxInFlight       int64  // leases in the whole queue; 0 no limit
	RateLimit         int64  // leases per RatePer on average, and in a burst; 0 no limit
	RatePerMS         int64  // 0 is 1000
	MaxInFlightPerKey int64  // leases of each key but ""; 0 no limit
	PriorityAgingMS   int64  // a message gains a priority step for each that it waits; 0 never

	DedupWindowSeconds int64
	DedupBy            DedupBy
	DedupUntil         DedupUntil

	MessageSchema []byte // JSON, nil none
	// AssertFormat: the schema's format is a condition, as it is of every schema that is set now.
	AssertFormat bool
	// JSON of the push target, nil none; checked by the node that took the request
	Push        []byte
	Namespace   string
	Description string
}

// DefaultPolicy returns the policy of a queue that is created without any field.
func DefaultPolicy() Policy {
	return Policy{
		LeaseMS: 30_000, MaxAttempts: 5,
		InitialBackoffMS: 1000, BackoffMultiplier: 2 * Million, MaxBackoffMS: 60_000,
		DedupWindowSeconds: 86_400,
	}
}

// Limits.
const (
	MaxDelayMS     = 10 * 365 * 24 * 3600 * 1000
	MinLeaseMS     = 100
	MaxLeaseMS     = 12 * 3600 * 1000
	MaxWaitMS      = 60_000
	MaxBatch       = 1000
	MaxKeyBytes    = 256
	MaxHeaders     = 64
	MaxHeaderName  = 64
	MaxHeaderValue = 4096
	MaxPriority    = 10
	MinPriority    = 1
	NormalPriority = 5
	MaxLimit       = 1_000_000 // of leases, in a delivery limit
	MaxPausedKeys  = 1000      // of a queue
	maxAgingMS     = 30 * 24 * 3600 * 1000
	MaxRatePerMS   = 24 * 3600 * 1000
	MaxSchema      = 256 << 10
	MaxDefinition  = 256 << 10 // of a webhook, and of a queue's push
)

// Names is the pattern of names of queues and webhooks, as error messages show it.
const Names = `^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`

// ValidName reports whether s can name a queue or a webhook.
func ValidName(s string) bool { return isName(s, 128) }

// isName is the patterns' match; every request is checked, and regexp takes a microsecond.
func isName(s string, most int) bool {
	for i, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || r != '.' && r != '_' && r != '-') {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// NodeNames is the pattern of names of nodes, as error messages show it.
const NodeNames = `^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`

// ValidNode reports whether s can name a node: by --node-id, in node.json, in
// Raft's configuration, and over the API.
func ValidNode(s string) bool { return isName(s, 64) }

// Validate checks a policy as far as possible without the other queues. name is
// the name of its queue.
func (p *Policy) Validate(name string) *Problem {
	bad := func(wrong bool, field, format string, args ...any) *Problem {
		if !wrong {
			return nil
		}
		return Problemf(CodeInvalidArgument, field, field+" "+format, args...)
	}
	within := func(field string, v, lo, hi int64) *Problem {
		return bad(v < lo || v > hi, field, "must be from %d to %d", lo, hi)
	}
	bytes := func(field string, n, most int) *Problem {
		return bad(n > most, field, "must be at most %d bytes", most)
	}
	const maxSeconds = MaxDelayMS / 1000
	dlq := p.DeadLetterQueue
	var schedule, itself *Problem
	for i, v := range p.BackoffScheduleMS {
		field := fmt.Sprintf("delivery.backoff_schedule_ms[%d]", i)
		schedule = cmp.Or(schedule, within(field, v, 0, MaxDelayMS))
	}
	if dlq != "" && dlq == name {
		itself = Problemf(CodeInvalidArgument, "delivery.dead_letter_queue",
			"dead_letter_queue cannot reference itself")
	}
	return cmp.Or(
		within("retention.max_age_seconds", p.MaxAgeSeconds, 0, maxSeconds),
		within("retention.max_depth", p.MaxDepth, 0, 1<<53),
		within("retention.max_bytes", p.MaxBytes, 0, 1<<53),
		within("delivery.lease_ms", p.LeaseMS, MinLeaseMS, MaxLeaseMS),
		within("delivery.max_attempts", int64(p.MaxAttempts), 0, 1_000_000),
		within("delivery.initial_backoff_ms", p.InitialBackoffMS, 0, MaxDelayMS),
		within("delivery.max_backoff_ms", p.MaxBackoffMS, 0, MaxDelayMS),
		within("delivery.default_delay_ms", p.DefaultDelayMS, 0, MaxDelayMS),
		within("delivery.max_in_flight", p.MaxInFlight, 0, MaxLimit),
		within("delivery.rate_limit.count", p.RateLimit, 0, MaxLimit),
		within("delivery.rate_limit.per_ms", p.RatePer(), 1, MaxRatePerMS),
		within("delivery.max_in_flight_per_key", p.MaxInFlightPerKey, 0, MaxLimit),
		within("delivery.priority_aging_ms", p.PriorityAgingMS, 0, maxAgingMS),
		bad(p.PriorityAgingMS > 0 && p.Ordering == FIFO, "delivery.priority_aging_ms",
			"must be 0 in a fifo queue, whose order no priority affects"),
		bad(p.MaxInFlightPerKey > 0 && p.Ordering != Unordered, "delivery.max_in_flight_per_key",
			"must be 0 in a queue with lanes: lane_batch is what limits a key there"),
		within("deduplication.window_seconds", p.DedupWindowSeconds, 0, maxSeconds),
		bad(p.BackoffMultiplier < Million || p.BackoffMultiplier > 1000*Million,
			"delivery.backoff_multiplier", "must be from 1 to 1000"),
		bad(p.BackoffJitter < 0 || p.BackoffJitter > Million,
			"delivery.backoff_jitter", "must be from 0 to 1"),
		bad(len(p.BackoffScheduleMS) > 100,
			"delivery.backoff_schedule_ms", "must have at most 100 values"),
		schedule,
		bad(dlq != "" && !ValidName(dlq), "delivery.dead_letter_queue", "must match %s", Names),
		itself,
		bad(p.OnDead == DeadHoldKey && dlq == "",
			"delivery.on_dead", "hold_key needs a dead_letter_queue"),
		within("delivery.lane_batch", p.Batch(), 1, MaxBatch),
		bad(p.Batch() > 1 && p.Ordering == Unordered, "delivery.lane_batch",
			"must be 1 in an unordered queue, whose messages are not in lanes"),
		bytes("message_schema", len(p.MessageSchema), MaxSchema),
		bytes("push", len(p.Push), MaxDefinition),
		bytes("namespace", len(p.Namespace), 128),
		bytes("description", len(p.Description), 4096),
	)
}

// Batch returns how many consecutive messages of a partition one lease call may receive.
func (p *Policy) Batch() int64 { return max(int64(p.LaneBatch), 1) }

// RatePer returns the period of the rate limit, in milliseconds.
func (p *Policy) RatePer() int64 { return cmp.Or(p.RatePerMS, 1000) }

// Fixed returns the field of a policy that can't be changed to next's while the queue holds
// messages, "" if there is none.
func (p *Policy) Fixed(next *Policy) (field string) {
	switch {
	case p.Ordering != next.Ordering:
		return "ordering"
	case (p.MaxInFlightPerKey > 0) != (next.MaxInFlightPerKey > 0): // one limit by another can
		return "delivery.max_in_flight_per_key"
	case p.PriorityAgingMS != next.PriorityAgingMS:
		return "delivery.priority_aging_ms"
	}
	return ""
}

// Clone returns a copy that shares nothing.
func (p Policy) Clone() Policy {
	p.BackoffScheduleMS = append([]int64(nil), p.BackoffScheduleMS...)
	p.MessageSchema = append([]byte(nil), p.MessageSchema...)
	p.Push = append([]byte(nil), p.Push...)
	return p
}

// AutoDeadLetterQueue is the dead-letter queue of a queue whose policy says "auto".
func AutoDeadLetterQueue(queue string) string { return queue + ".dlq" }
