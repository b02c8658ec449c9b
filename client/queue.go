package client

import (
	"cmp"
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Queue is the policy of a queue, as EnsureQueue takes it. The zero value of a field is its
// default, and a number less than 0 is none: no limit, no wait. Durations are rounded up to
// milliseconds, MaxAge and DeduplicationWindow to seconds.
type Queue struct {
	Description, Namespace string

	Ordering        string        // unordered, fifo (the whole queue), per_key
	Lease           time.Duration // after which a message of a dead worker returns; 30 s
	MaxAttempts     int           // 5
	DeadLetterQueue string        // where messages go after them; auto creates NAME.dlq

	Backoff           time.Duration   // the wait after the first failure; 1 s
	BackoffMultiplier float64         // of each further wait; 2
	MaxBackoff        time.Duration   // 1 min
	BackoffJitter     float64         // spreads waits by up to this share, 0 to 1
	BackoffSchedule   []time.Duration // all waits, the last of which repeats, in place of these
	OnRetry           string          // who waits in an ordered queue: block (its key), head, tail
	OnDead            string          // what follows in it: skip, hold_key, dead_letter_key

	LaneBatch         int           // messages of a key that one lease call gets; 1
	MaxInFlight       int           // leases at a time; no limit
	MaxInFlightPerKey int           // the same for each key
	RateLimit         int           // leases per RatePer; no limit
	RatePer           time.Duration // 1 s
	PriorityAging     time.Duration // waiting that is worth a step of priority; none
	DefaultDelay      time.Duration // of messages that have none

	MaxAge         time.Duration // after which a message is dead-lettered; no limit
	DiscardExpired bool          // it is discarded instead
	MaxDepth       int           // messages in the queue; no limit
	MaxBytes       int64         // the same for bytes of payload

	DeduplicationWindow time.Duration // 24 h
	DeduplicateContent  bool          // by payload, not by IdempotencyKey
	DeduplicateQueued   bool          // only while the first message is in the queue

	Schema []byte // a JSON Schema that payloads must match
	Push   *Push  // delivers the messages to a URL in place of workers
}

// EnsureQueue creates a queue, or gives an existing one the policy q. Programs declare with it, at
// their start, the queues that they need.
func (c *Client) EnsureQueue(ctx context.Context, name string, q Queue, opts ...CallOption) error {
	_, _, err := c.PutQueue(ctx, name, q.Policy(), opts...)
	return err
}

// Policy returns the update that sets all fields which are not zero.
func (q Queue) Policy() PolicyUpdate {
	d := DeliveryUpdate{
		LeaseMS: ms(q.Lease), MaxAttempts: opt(int64(q.MaxAttempts)),
		InitialBackoffMS: ms(q.Backoff), BackoffMultiplier: opt(q.BackoffMultiplier),
		MaxBackoffMS: ms(q.MaxBackoff), BackoffJitter: opt(q.BackoffJitter),
		OnRetry: opt(q.OnRetry), OnDead: opt(q.OnDead), DeadLetterQueue: opt(q.DeadLetterQueue),
		LaneBatch: opt(int64(q.LaneBatch)), MaxInFlight: opt(int64(q.MaxInFlight)),
		MaxInFlightPerKey: opt(int64(q.MaxInFlightPerKey)),
		PriorityAgingMS:   ms(q.PriorityAging), DefaultDelayMS: ms(q.DefaultDelay),
	}
	if q.BackoffSchedule != nil {
		waits := []int64{}
		for _, wait := range q.BackoffSchedule {
			waits = append(waits, ms(wait).Value)
		}
		d.BackoffScheduleMS = Some(waits)
	}
	if q.RateLimit != 0 || q.RatePer != 0 {
		d.RateLimit = Some(RateLimitUpdate{Count: opt(int64(q.RateLimit)), PerMS: ms(q.RatePer)})
	}
	r := RetentionUpdate{MaxAgeSeconds: rounded(q.MaxAge, time.Second),
		MaxDepth: opt(int64(q.MaxDepth)), MaxBytes: opt(q.MaxBytes)}
	if q.DiscardExpired {
		r.OnExpired = Some("discard")
	}
	u := DeduplicationUpdate{WindowSeconds: rounded(q.DeduplicationWindow, time.Second)}
	if q.DeduplicateContent {
		u.By = Some("content")
	}
	if q.DeduplicateQueued {
		u.Until = Some("left")
	}
	p := PolicyUpdate{
		Description: opt(q.Description), Namespace: opt(q.Namespace), Ordering: opt(q.Ordering),
		Delivery: Some(d), Retention: Some(r), Deduplication: Some(u),
	}
	if q.Schema != nil {
		p.MessageSchema = Some(jsontext.Value(q.Schema))
	}
	if q.Push != nil {
		p.Push = Some(*q.Push)
	}
	return p
}

// opt returns a field that is left out if it is zero, and zero if it is less.
func opt[T cmp.Ordered](v T) (o Opt[T]) {
	if zero := *new(T); v != zero {
		o = Some(max(v, zero))
	}
	return o
}

func ms(d time.Duration) Opt[int64] { return rounded(d, time.Millisecond) }

// rounded returns a duration in a unit, rounded up.
func rounded(d, unit time.Duration) Opt[int64] {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	if d < 0 {
		n = -1
	}
	return opt(n)
}
