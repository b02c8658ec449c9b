package api

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// deadLetterAuto in dead_letter_queue creates <name>.dlq.
const deadLetterAuto = "auto"

// defaultPolicy is the policy of a queue that is created without any field: the deduplication
// window is at most the history retention.
func (s *Server) defaultPolicy() event.Policy { return defaultPolicy(s.maxWindow()) }

func defaultPolicy(maxWindow int64) event.Policy {
	p := event.DefaultPolicy()
	if maxWindow > 0 {
		p.DedupWindowSeconds = min(p.DedupWindowSeconds, maxWindow)
	}
	return p
}

// maxWindow is the longest deduplication window in seconds, 0 without a limit.
func (s *Server) maxWindow() int64 { return int64(s.opts.HistoryRetention.Seconds()) }

// updatePolicy applies an update to a queue's policy and checks whether its push can be
// carried out here.
func (s *Server) updatePolicy(name string, p *event.Policy, u *wire.PolicyUpdate) (auto bool, err error) {
	if u.Push.Set && !u.Push.Null && s.deps.Push != nil {
		if err := s.deps.Push.Check(&u.Push.Value); err != nil { // sets defaults
			return false, err
		}
	}
	return UpdatePolicy(name, p, u, s.maxWindow())
}

// UpdatePolicy applies an update to a queue's policy, as PATCH does. maxWindow is the longest
// deduplication window in seconds, 0 without a limit. auto reports whether the queue gets a
// dead-letter queue of its own. An error is an *event.Problem with the field.
func UpdatePolicy(name string, p *event.Policy, u *wire.PolicyUpdate, maxWindow int64) (auto bool, err error) {
	def := defaultPolicy(maxWindow)
	if u.Retention.Null {
		p.MaxAgeSeconds, p.MaxDepth, p.MaxBytes = def.MaxAgeSeconds, def.MaxDepth, def.MaxBytes
	}
	r := &u.Retention.Value
	set(r.MaxAgeSeconds, &p.MaxAgeSeconds, def.MaxAgeSeconds)
	set(r.MaxDepth, &p.MaxDepth, def.MaxDepth)
	set(r.MaxBytes, &p.MaxBytes, def.MaxBytes)
	if u.Deduplication.Null {
		p.DedupWindowSeconds, p.DedupBy = def.DedupWindowSeconds, def.DedupBy
	}
	dedup := &u.Deduplication.Value
	set(dedup.WindowSeconds, &p.DedupWindowSeconds, def.DedupWindowSeconds)
	set(u.Namespace, &p.Namespace, def.Namespace)
	set(u.Description, &p.Description, def.Description)
	err = cmp.Or(
		enum("ordering", u.Ordering, &p.Ordering, def.Ordering, event.ParseOrdering, "unordered, fifo or per_key"),
		updateDelivery(p, &def, &u.Delivery),
		enum("deduplication.by", dedup.By, &p.DedupBy, def.DedupBy, event.ParseDedupBy, "key or content"),
	)
	if err != nil {
		return false, err
	}
	if maxWindow > 0 && p.DedupWindowSeconds > maxWindow && u.Deduplication.Set {
		return false, bad("deduplication.window_seconds", "deduplication.window_seconds must be at most the history retention, %d", maxWindow)
	}
	if dlq := u.Delivery.Value.DeadLetterQueue; dlq.Set && p.DeadLetterQueue == deadLetterAuto {
		p.DeadLetterQueue, auto = name+".dlq", true
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
			if to := u.Push.Value.AnswerTo; to != "" && to == name {
				return false, bad("push.answer_to", "push.answer_to must be another queue: answers would be delivered, and answered, for ever")
			}
			if p.Push, err = wire.Marshal(&u.Push.Value); err != nil {
				return false, err
			}
		}
	}
	if p := p.Validate(name); p != nil {
		return false, p
	}
	return auto, nil
}

func updateDelivery(p, def *event.Policy, u *wire.Opt[wire.DeliveryUpdate]) error {
	if u.Null {
		p.LeaseMS, p.MaxAttempts, p.InitialBackoffMS, p.MaxBackoffMS = def.LeaseMS, def.MaxAttempts, def.InitialBackoffMS, def.MaxBackoffMS
		p.BackoffMultiplier, p.BackoffJitter, p.BackoffScheduleMS = def.BackoffMultiplier, def.BackoffJitter, nil
		p.OnRetry, p.OnDead, p.DeadLetterQueue = def.OnRetry, def.OnDead, ""
	}
	d := &u.Value
	set(d.LeaseMS, &p.LeaseMS, def.LeaseMS)
	set(d.InitialBackoffMS, &p.InitialBackoffMS, def.InitialBackoffMS)
	set(d.MaxBackoffMS, &p.MaxBackoffMS, def.MaxBackoffMS)
	set(d.BackoffScheduleMS, &p.BackoffScheduleMS, def.BackoffScheduleMS)
	if len(p.BackoffScheduleMS) == 0 {
		p.BackoffScheduleMS = nil
	}
	set(d.DeadLetterQueue, &p.DeadLetterQueue, "")
	attempts := d.MaxAttempts.Or(int64(def.MaxAttempts))
	if attempts < 0 || attempts > math.MaxUint32 {
		return bad("delivery.max_attempts", "delivery.max_attempts must be from 0 to 1000000")
	}
	if d.MaxAttempts.Set {
		p.MaxAttempts = uint32(attempts)
	}
	return cmp.Or(
		// The state machine knows no floats: millionths from here on.
		millionths("delivery.backoff_multiplier", d.BackoffMultiplier, &p.BackoffMultiplier, def.BackoffMultiplier, 1, 1000),
		millionths("delivery.backoff_jitter", d.BackoffJitter, &p.BackoffJitter, def.BackoffJitter, 0, 1),
		enum("delivery.on_retry", d.OnRetry, &p.OnRetry, def.OnRetry, event.ParseOnRetry, "block, head or tail"),
		enum("delivery.on_dead", d.OnDead, &p.OnDead, def.OnDead, event.ParseOnDead, "skip, hold_key or dead_letter_key"),
	)
}

// set sets a field that was given; null is the default.
func set[T any](o wire.Opt[T], v *T, def T) {
	if o.Set {
		*v = o.Or(def)
	}
}

func enum[T any](field string, o wire.Opt[string], v *T, def T, parse func(string) (T, bool), want string) error {
	switch got, ok := parse(o.Value); {
	case !o.Set:
	case o.Null:
		*v = def
	case !ok:
		return bad(field, "%s must be %s, not %s", field, want, echo(o.Value))
	default:
		*v = got
	}
	return nil
}

func millionths(field string, o wire.Opt[float64], v *int64, def int64, lo, hi float64) error {
	switch {
	case !o.Set:
	case o.Null:
		*v = def
	case !(o.Value >= lo && o.Value <= hi):
		return bad(field, "%s must be from %g to %g", field, lo, hi)
	default:
		*v = int64(math.Round(o.Value * event.Million))
	}
	return nil
}

// policyOf returns a policy's view.
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
