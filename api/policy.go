package api

import (
	"bytes"
	"math"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// deadLetterAuto in dead_letter_queue makes <name>.dlq.
const deadLetterAuto = "auto"

// defaultPolicy is the policy of a queue made without any field on this
// server: the deduplication window is at most the history retention.
func (s *Server) defaultPolicy() event.Policy {
	p := event.DefaultPolicy()
	if most := s.maxWindow(); most > 0 {
		p.DedupWindowSeconds = min(p.DedupWindowSeconds, most)
	}
	return p
}

// maxWindow is the longest deduplication window in seconds, 0 without a limit.
func (s *Server) maxWindow() int64 { return int64(s.opts.HistoryRetention.Seconds()) }

// updatePolicy puts an update onto a policy. auto is true where the queue is to
// get a dead-letter queue of its own.
func (s *Server) updatePolicy(name string, p *event.Policy, u *wire.PolicyUpdate) (auto bool, err error) {
	def := s.defaultPolicy()
	if err := enum("ordering", u.Ordering, &p.Ordering, def.Ordering, event.ParseOrdering, "unordered, fifo or per_key"); err != nil {
		return false, err
	}
	if r, ok := group(u.Retention); ok {
		set(r.MaxAgeSeconds, &p.MaxAgeSeconds, def.MaxAgeSeconds)
		set(r.MaxDepth, &p.MaxDepth, def.MaxDepth)
		set(r.MaxBytes, &p.MaxBytes, def.MaxBytes)
	}
	if d, ok := group(u.Delivery); ok {
		if auto, err = s.updateDelivery(name, p, &def, &d); err != nil {
			return false, err
		}
	}
	if d, ok := group(u.Deduplication); ok {
		set(d.WindowSeconds, &p.DedupWindowSeconds, def.DedupWindowSeconds)
		if most := s.maxWindow(); most > 0 && p.DedupWindowSeconds > most {
			return false, bad("deduplication.window_seconds", "deduplication.window_seconds must be at most the history retention, %d", most)
		}
		if err := enum("deduplication.by", d.By, &p.DedupBy, def.DedupBy, event.ParseDedupBy, "key or content"); err != nil {
			return false, err
		}
	}
	if u.MessageSchema.Set {
		p.MessageSchema = nil
		if !u.MessageSchema.Null {
			p.MessageSchema = bytes.TrimSpace(u.MessageSchema.Value)
			if err := checkSchema("message_schema", p.MessageSchema); err != nil {
				return false, err
			}
		}
	}
	if u.Push.Set {
		p.Push = nil
		if !u.Push.Null {
			if p.Push, err = s.checkPush(name, &u.Push.Value); err != nil {
				return false, err
			}
		}
	}
	set(u.Namespace, &p.Namespace, def.Namespace)
	set(u.Description, &p.Description, def.Description)
	if p := p.Validate(name); p != nil {
		return false, p
	}
	return auto, nil
}

func (s *Server) updateDelivery(name string, p, def *event.Policy, d *wire.DeliveryUpdate) (auto bool, err error) {
	set(d.LeaseMS, &p.LeaseMS, def.LeaseMS)
	set(d.InitialBackoffMS, &p.InitialBackoffMS, def.InitialBackoffMS)
	set(d.MaxBackoffMS, &p.MaxBackoffMS, def.MaxBackoffMS)
	set(d.BackoffScheduleMS, &p.BackoffScheduleMS, def.BackoffScheduleMS)
	if len(p.BackoffScheduleMS) == 0 {
		p.BackoffScheduleMS = nil
	}
	if d.MaxAttempts.Set {
		n := d.MaxAttempts.Or(int64(def.MaxAttempts))
		if n < 0 || n > math.MaxUint32 {
			return false, bad("delivery.max_attempts", "delivery.max_attempts must be from 0 to 1000000")
		}
		p.MaxAttempts = uint32(n)
	}
	// Deciding and folding know no floats: millionths from here on.
	if err := millionths("delivery.backoff_multiplier", d.BackoffMultiplier, &p.BackoffMultiplier, def.BackoffMultiplier, 1, 1000); err != nil {
		return false, err
	}
	if err := millionths("delivery.backoff_jitter", d.BackoffJitter, &p.BackoffJitter, def.BackoffJitter, 0, 1); err != nil {
		return false, err
	}
	if err := enum("delivery.on_retry", d.OnRetry, &p.OnRetry, def.OnRetry, event.ParseOnRetry, "block, head or tail"); err != nil {
		return false, err
	}
	if err := enum("delivery.on_dead", d.OnDead, &p.OnDead, def.OnDead, event.ParseOnDead, "skip, hold_key or dead_letter_key"); err != nil {
		return false, err
	}
	set(d.DeadLetterQueue, &p.DeadLetterQueue, "")
	if p.DeadLetterQueue == deadLetterAuto && d.DeadLetterQueue.Set {
		p.DeadLetterQueue, auto = name+".dlq", true
	}
	return auto, nil
}

// set puts a field that was given; null is the default.
func set[T any](o wire.Opt[T], v *T, def T) {
	if o.Set {
		*v = o.Or(def)
	}
}

// group returns an object's update; null sets all of it to the defaults.
func group[T wire.RetentionUpdate | wire.DeliveryUpdate | wire.DeduplicationUpdate](o wire.Opt[T]) (T, bool) {
	if !o.Null {
		return o.Value, o.Set
	}
	var v any
	var zero T
	switch any(zero).(type) {
	case wire.RetentionUpdate:
		n := wire.Null[int64]()
		v = wire.RetentionUpdate{MaxAgeSeconds: n, MaxDepth: n, MaxBytes: n}
	case wire.DeliveryUpdate:
		n, f, t := wire.Null[int64](), wire.Null[float64](), wire.Null[string]()
		v = wire.DeliveryUpdate{
			LeaseMS: n, MaxAttempts: n, InitialBackoffMS: n, BackoffMultiplier: f, MaxBackoffMS: n, BackoffJitter: f,
			BackoffScheduleMS: wire.Null[[]int64](), OnRetry: t, OnDead: t, DeadLetterQueue: t,
		}
	case wire.DeduplicationUpdate:
		v = wire.DeduplicationUpdate{WindowSeconds: wire.Null[int64](), By: wire.Null[string]()}
	}
	return v.(T), true
}

func enum[T any](field string, o wire.Opt[string], v *T, def T, parse func(string) (T, bool), want string) error {
	if !o.Set {
		return nil
	}
	if o.Null {
		*v = def
		return nil
	}
	got, ok := parse(o.Value)
	if !ok {
		return bad(field, "%s must be %s, not %s", field, want, echo(o.Value))
	}
	*v = got
	return nil
}

func millionths(field string, o wire.Opt[float64], v *int64, def int64, lo, hi float64) error {
	if !o.Set {
		return nil
	}
	if o.Null {
		*v = def
		return nil
	}
	if !(o.Value >= lo && o.Value <= hi) {
		return bad(field, "%s must be from %g to %g", field, lo, hi)
	}
	*v = int64(math.Round(o.Value * event.Million))
	return nil
}

// policyOf returns a policy as it is told.
func policyOf(p *event.Policy) wire.Policy {
	out := wire.Policy{
		Ordering:  p.Ordering.String(),
		Retention: wire.Retention{MaxAgeSeconds: p.MaxAgeSeconds, MaxDepth: p.MaxDepth, MaxBytes: p.MaxBytes},
		Delivery: wire.Delivery{
			LeaseMS: p.LeaseMS, MaxAttempts: int64(p.MaxAttempts), InitialBackoffMS: p.InitialBackoffMS,
			BackoffMultiplier: float64(p.BackoffMultiplier) / event.Million, MaxBackoffMS: p.MaxBackoffMS,
			BackoffJitter: float64(p.BackoffJitter) / event.Million, OnRetry: p.OnRetry.String(), OnDead: p.OnDead.String(),
		},
		Deduplication: wire.Deduplication{WindowSeconds: p.DedupWindowSeconds, By: p.DedupBy.String()},
		Push:          pushOf(p),
		Namespace:     p.Namespace, Description: p.Description,
	}
	if len(p.BackoffScheduleMS) > 0 {
		out.Delivery.BackoffScheduleMS = slices.Clone(p.BackoffScheduleMS)
	}
	if p.DeadLetterQueue != "" {
		out.Delivery.DeadLetterQueue = &p.DeadLetterQueue
	}
	if len(p.MessageSchema) > 0 {
		out.MessageSchema = jsontext.Value(p.MessageSchema)
	}
	return out
}
