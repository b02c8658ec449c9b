package fsm

import (
	"cmp"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// lease leases up to Max messages of the queues, tried in order. Messages that may not be delivered
// any more die instead, a bounded number per entry.
func (d *decision) lease(c *event.Lease) event.Result {
	for i, name := range c.Queues {
		if d.s.Policy(name) == nil {
			return problem(queueNotFound(name, "queues").At(i))
		}
	}
	var out []event.LeasedMessage
	passed := int64(0)
	for _, name := range c.Queues {
		policy := d.s.Policy(name)
		ms := cmp.Or(c.LeaseMS, policy.LeaseMS)
		out = slices.Grow(out, max(0, min(c.Max-len(out), d.s.Leasable(name, c.Kinds))))
		batch := policy.Batch()
		if c.Single {
			batch = 1
		}
		var ahead event.MessageView // of the batch that is being leased; left is what it may still get
		for left := int64(0); len(out) < c.Max; {
			m, ok := event.MessageView{}, false
			if left > 0 {
				m, ok = d.s.NextBehind(ahead.ID, c.Kinds)
			}
			if !ok {
				ahead, left = event.MessageView{}, batch
				m, ok = d.s.Next(name, c.Kinds)
			}
			if !ok {
				break
			}
			if reason := d.undeliverable(&m, policy); reason != event.ReasonNone {
				if d.passed == duePerEntry {
					break
				}
				d.passed, passed = d.passed+1, passed+1
				d.die(&m, reason, event.ID{}, undelivered(reason))
				continue
			}
			expires := d.s.Clock() + ms
			id := d.emit(event.Event{
				Type: event.Leased, Subject: m.ID, Prev: m.Last, Queue: name,
				Attempt: m.Attempt + 1, LeaseExpires: expires, Worker: c.Worker,
			})
			m.State, m.Attempt, m.Lease, m.LeaseExpiresAt, m.Last = event.StateLeased, m.Attempt+1,
				id, expires, event.RefOf(id)
			out = append(out, event.LeasedMessage{
				MessageView: m, MaxAttempts: policy.MaxAttempts, Behind: ahead.Lease,
			})
			ahead = m
			left--
		}
		if len(out) == 0 && d.s.Separating(name) {
			passed++ // the next entry gets further
		}
	}
	return event.Result{Leased: out, Count: passed}
}

// undeliverable returns why a message dies instead of being delivered: it has expired, or
// max_attempts was lowered to attempts that it has spent. ReasonNone: it can be delivered.
func (d *decision) undeliverable(m *event.MessageView, p *event.Policy) event.Reason {
	switch {
	case d.s.Expired(m):
		return event.ReasonExpired
	case last(p, m.Attempt):
		return event.ReasonMaxAttempts
	}
	return event.ReasonNone
}

// undelivered returns the content of the death of a message that is not delivered: an error, as no
// worker reports one.
func undelivered(reason event.Reason) event.Blob {
	if reason != event.ReasonMaxAttempts {
		return event.Blob{}
	}
	return event.EncodeContent(&event.Content{Error: event.AttemptsLoweredError})
}
