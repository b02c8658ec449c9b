package api

import (
	"bytes"
	"cmp"
	"math"
	"slices"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// defaultPolicy is the policy of a new queue. Its deduplication window is at most the history
// retention.
func (s *Server) defaultPolicy() event.Policy { return defaultPolicy(s.maxWindow()) }

func defaultPolicy(maxWindow int64) event.Policy {
	p := event.DefaultPolicy()
	if maxWindow > 0 {
		p.DedupWindowSeconds = min(p.DedupWindowSeconds, maxWindow)
	}
	return p
}

// maxWindow returns the longest deduplication window in seconds, 0 for no limit.
func (s *Server) maxWindow() int64 { return int64(s.opts.HistoryRetention.Seconds()) }

// updatePolicy is UpdatePolicy with this node's limits. It also checks push, and sets its defaults.
func (s *Server) updatePolicy(
	name string, p *event.Policy, u *wire.PolicyUpdate,
) (auto bool, err error) {
	if u.Push.Set && !u.Push.Null {
		if err := s.deps.Push.Check(&u.Push.Value); err != nil { // sets defaults
			return false, err
		}
	}
	return UpdatePolicy(name, p, u, s.maxWindow())
}

// UpdatePolicy applies an update to a queue's policy, as PATCH does. maxWindow is the longest
// deduplication window in seconds, 0 without a limit. auto reports whether the queue gets a
// dead-letter queue of its own. An error is an *event.Problem with the field.
func UpdatePolicy(
	name string, p *event.Policy, u *wire.PolicyUpdate, maxWindow int64,
) (auto bool, err error) {
	def, r, d, dedup := defaultPolicy(maxWindow), u.Retention, u.Delivery, u.Deduplication
	set(of(r, r.Value.MaxAgeSeconds), &p.MaxAgeSeconds, def.MaxAgeSeconds)
	set(of(r, r.Value.MaxDepth), &p.MaxDepth, def.MaxDepth)
	set(of(r, r.Value.MaxBytes), &p.MaxBytes, def.MaxBytes)
	set(of(d, d.Value.LeaseMS), &p.LeaseMS, def.LeaseMS)
	set(of(d, d.Value.InitialBackoffMS), &p.InitialBackoffMS, def.InitialBackoffMS)
	set(of(d, d.Value.MaxBackoffMS), &p.MaxBackoffMS, def.MaxBackoffMS)
	set(of(d, d.Value.DeadLetterQueue), &p.DeadLetterQueue, "")
	set(of(d, d.Value.DefaultDelayMS), &p.DefaultDelayMS, def.DefaultDelayMS)
	set(of(d, d.Value.MaxInFlight), &p.MaxInFlight, def.MaxInFlight)
	rate := of(d, d.Value.RateLimit)
	set(of(rate, rate.Value.Count), &p.RateLimit, def.RateLimit)
	set(of(d, d.Value.MaxInFlightPerKey), &p.MaxInFlightPerKey, def.MaxInFlightPerKey)
	set(of(d, d.Value.PriorityAgingMS), &p.PriorityAgingMS, def.PriorityAgingMS)
	set(of(d, d.Value.BackoffScheduleMS), &p.BackoffScheduleMS, nil)
	if len(p.BackoffScheduleMS) == 0 {
		p.BackoffScheduleMS = nil
	}
	set(of(dedup, dedup.Value.WindowSeconds), &p.DedupWindowSeconds, def.DedupWindowSeconds)
	set(u.Namespace, &p.Namespace, def.Namespace)
	set(u.Description, &p.Description, def.Description)
	err = cmp.Or(
		parse("retention.on_expired", of(r, r.Value.OnExpired), &p.OnExpired, def.OnExpired,
			"must be dead_letter or discard", event.Parse[event.OnExpired]),
		parse("ordering", u.Ordering, &p.Ordering, def.Ordering,
			"must be unordered, fifo or per_key", event.Parse[event.Ordering]),
		parse("delivery.max_attempts", of(d, d.Value.MaxAttempts), &p.MaxAttempts, def.MaxAttempts,
			"must be from 0 to 1000000",
			func(n int64) (uint32, bool) { return uint32(n), n == int64(uint32(n)) }),
		parse("delivery.backoff_multiplier", of(d, d.Value.BackoffMultiplier), &p.BackoffMultiplier,
			def.BackoffMultiplier, "must be from 1 to 1000", millionths(1, 1000)),
		parse("delivery.backoff_jitter", of(d, d.Value.BackoffJitter), &p.BackoffJitter,
			def.BackoffJitter, "must be from 0 to 1", millionths(0, 1)),
		parse("delivery.on_retry", of(d, d.Value.OnRetry), &p.OnRetry, def.OnRetry,
			"must be block, head or tail", event.Parse[event.OnRetry]),
		parse("delivery.on_dead", of(d, d.Value.OnDead), &p.OnDead, def.OnDead,
			"must be skip, hold_key or dead_letter_key", event.Parse[event.OnDead]),
		parse("delivery.lane_batch", of(d, d.Value.LaneBatch), &p.LaneBatch, def.LaneBatch,
			"must be from 1 to 1000", laneBatch),
		parse("delivery.rate_limit.per_ms", of(rate, rate.Value.PerMS), &p.RatePerMS, def.RatePerMS,
			"must be from 1 to 86400000", ratePer),
		parse("deduplication.by", of(dedup, dedup.Value.By), &p.DedupBy, def.DedupBy,
			"must be key or content", event.Parse[event.DedupBy]),
		parse("deduplication.until", of(dedup, dedup.Value.Until), &p.DedupUntil, def.DedupUntil,
			"must be window or left", event.Parse[event.DedupUntil]),
	)
	if err != nil {
		return false, err
	}
	if maxWindow > 0 && p.DedupWindowSeconds > maxWindow && dedup.Set {
		return false, bad("deduplication.window_seconds",
			"deduplication.window_seconds must be at most the history retention, %d", maxWindow)
	}
	if d.Value.DeadLetterQueue.Set && p.DeadLetterQueue == "auto" {
		p.DeadLetterQueue, auto = event.AutoDeadLetterQueue(name), true
	}
	if u.MessageSchema.Set {
		p.MessageSchema = bytes.TrimSpace(u.MessageSchema.Or(nil))
		if p.AssertFormat = p.MessageSchema != nil; p.AssertFormat {
			err = checkSchema("message_schema", p.MessageSchema)
		}
	}
	if u.Push.Set && err == nil {
		p.Push = nil
		if to := u.Push.Value.AnswerTo; to != "" && to == name {
			err = bad("push.answer_to", "push.answer_to must be another queue: "+
				"answers would be delivered, and answered, for ever")
		} else if !u.Push.Null {
			p.Push, err = wire.Marshal(&u.Push.Value)
		}
	}
	if err != nil {
		return false, err
	}
	if p := p.Validate(name); p != nil {
		return false, p
	}
	return auto, nil
}

// of returns a member of a group; if the group is null, so is each member.
func of[G, T any](group wire.Opt[G], member wire.Opt[T]) wire.Opt[T] {
	if group.Null {
		return wire.Null[T]()
	}
	return member
}

// set sets a field that is in the update; null sets the default.
func set[T any](o wire.Opt[T], v *T, def T) {
	if o.Set {
		*v = o.Or(def)
	}
}

// parse is set for a field with another representation; want describes valid values.
func parse[From, To any](
	field string, o wire.Opt[From], v *To, def To, want string, to func(From) (To, bool),
) error {
	switch got, ok := to(o.Value); {
	case !o.Set:
	case o.Null:
		*v = def
	case !ok:
		if text, is := any(o.Value).(string); is {
			want += ", not " + echo(text)
		}
		return bad(field, "%s %s", field, want)
	default:
		*v = got
	}
	return nil
}

// millionths converts a number from lo to hi to millionths: the state machine uses no floats.
func millionths(lo, hi float64) func(float64) (int64, bool) {
	return func(v float64) (int64, bool) {
		return int64(math.Round(v * event.Million)), v >= lo && v <= hi
	}
}

// laneBatch converts a lane_batch; a policy stores the default, 1, as 0.
func laneBatch(n int64) (uint32, bool) {
	ok := n >= 1 && n <= event.MaxBatch
	if n == 1 {
		n = 0
	}
	return uint32(n), ok
}

// ratePer converts a rate_limit's per_ms; a policy stores the default, 1000, as 0.
func ratePer(ms int64) (int64, bool) {
	ok := ms >= 1 && ms <= event.MaxRatePerMS
	if ms == 1000 {
		ms = 0
	}
	return ms, ok
}

// policyOf returns a policy's view.
func policyOf(p *event.Policy) wire.Policy {
	return wire.Policy{
		Ordering: p.Ordering.String(),
		Retention: wire.Retention{
			MaxAgeSeconds: p.MaxAgeSeconds, MaxDepth: p.MaxDepth, MaxBytes: p.MaxBytes,
			OnExpired: p.OnExpired.String(),
		},
		Delivery: wire.Delivery{
			LeaseMS: p.LeaseMS, MaxAttempts: int64(p.MaxAttempts),
			InitialBackoffMS: p.InitialBackoffMS, MaxBackoffMS: p.MaxBackoffMS,
			BackoffMultiplier: float64(p.BackoffMultiplier) / event.Million,
			BackoffJitter:     float64(p.BackoffJitter) / event.Million,
			BackoffScheduleMS: slices.Clone(p.BackoffScheduleMS),
			OnRetry:           p.OnRetry.String(), OnDead: p.OnDead.String(),
			DeadLetterQueue: nilIfZero(p.DeadLetterQueue), LaneBatch: p.Batch(),
			MaxInFlight: p.MaxInFlight, DefaultDelayMS: p.DefaultDelayMS,
			RateLimit:         wire.RateLimit{Count: p.RateLimit, PerMS: p.RatePer()},
			MaxInFlightPerKey: p.MaxInFlightPerKey,
			PriorityAgingMS:   p.PriorityAgingMS,
		},
		Deduplication: wire.Deduplication{
			WindowSeconds: p.DedupWindowSeconds, By: p.DedupBy.String(),
			Until: p.DedupUntil.String(),
		},
		MessageSchema: p.MessageSchema, Push: pushOf(p),
		Namespace: p.Namespace, Description: p.Description,
	}
}

// answerToExists is checkAnswerTo against the live state.
func (s *Server) answerToExists(q *request, name string, p *event.Policy) error {
	live := func(name string) *event.Policy { return policyIn(s.deps.State, name) }
	if to := answerTo(p); to != "" && live(to) == nil { // this node may be behind
		if err := s.barrier(q.Context()); err != nil {
			return err
		}
	}
	return checkAnswerTo(name, p, live)
}

// policyIn returns a queue's policy, nil if the queue does not exist.
func policyIn(st State, name string) *event.Policy {
	if v, ok := st.Queue(name); ok {
		return &v.Policy
	}
	return nil
}

// checkAnswerTo rejects the policy of a queue if push.answer_to names a queue that does not exist,
// or if following push.answer_to from queue to queue leads back to it. policy returns the policies
// of the other queues, nil for none. Two concurrent updates may still form a cycle, because they
// are checked before they are proposed.
func checkAnswerTo(name string, p *event.Policy, policy func(string) *event.Policy) error {
	const field = "push.answer_to"
	first, seen := answerTo(p), map[string]bool{}
	for to := first; to != "" && to != name && !seen[to]; {
		seen[to] = true
		switch p = policy(to); {
		case p == nil && to == first:
			return bad(field, "push.answer_to '%s' does not exist; create it first", to)
		case p == nil:
			return nil
		}
		if to = answerTo(p); to == name {
			return bad(field, "push.answer_to %s has its answers delivered, and those come back "+
				"to %s: that would go on for ever", echo(first), echo(name))
		}
	}
	return nil
}

// answerTo returns the queue that the answers of a policy's push go to, "" for none.
func answerTo(p *event.Policy) string {
	if push := pushOf(p); push != nil {
		return push.AnswerTo
	}
	return ""
}

// pushOf returns a policy's push as the API shows it, nil for none.
func pushOf(p *event.Policy) *wire.Push {
	push := &wire.Push{}
	// A push that cannot be decoded is a newer version's; this node does not deliver it either.
	if len(p.Push) == 0 || wire.Decode(p.Push, push) != nil {
		return nil
	}
	return push
}
