package fsm

import (
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// duePerEntry bounds the due events of one entry; the leader proposes further entries
// while some are left.
const duePerEntry = 1024

// due emits, before the entry's commands, the events that are due by its time, ordered by
// (due, id) (I10), and those of deletions decided before.
func (d *decision) due() {
	for first := len(d.block.Events); len(d.block.Events)-first < duePerEntry; {
		switch it := d.s.Overdue(); it.Kind {
		case projections.DueNothing:
			return
		case projections.DueLease:
			d.expireLease(&it.Message)
		case projections.DueExpiry:
			d.die(&it.Message, event.ReasonExpired, event.ID{}, event.Blob{})
		case projections.DueDeleted:
			d.carryOut(it)
		}
	}
}

// expireLease ends an expired lease, like a retry that no worker asked for: that of the message, or
// of one ahead of it in its batch that ends at the same instant.
func (d *decision) expireLease(of *event.MessageView) {
	q, _ := d.s.Look(of.Queue)
	m := new(d.s.FirstToEnd(of))
	if stops(&q.Policy, &event.SettleItem{Op: event.OpRetry}, m.Attempt) {
		d.sendBack(m)
	}
	e := about(event.LeaseExpired, m)
	e.Lease = m.Lease
	if last(&q.Policy, m.Attempt) {
		// The last attempt: it returns to the front until it dies, in the same entry.
		e.Place = front(q.Policy.Ordering)
		d.emit(e)
		now, _ := d.s.Message(m.ID)
		d.die(&now, event.ReasonMaxAttempts, event.ID{}, event.EncodeContent(&event.Content{
			Error: event.LeaseExpiredError,
		}))
		return
	}
	e.Due = d.s.Clock() + d.backoff(&q.Policy, m.Attempt)
	e.Place = place(&q.Policy)
	d.emit(e)
}

// last reports whether an attempt is the last one that the policy allows.
func last(p *event.Policy, attempt uint32) bool {
	return p.MaxAttempts > 0 && attempt >= p.MaxAttempts
}

// place returns where a message waits for its next attempt.
func place(p *event.Policy) event.Place {
	switch {
	case p.Ordering == event.Unordered:
		return event.PlaceAny
	case p.OnRetry == event.RetryHead:
		return event.PlaceHead
	case p.OnRetry == event.RetryTail:
		return event.PlaceTail
	}
	return event.PlaceBlock
}

// front returns where a released message goes.
func front(o event.Ordering) event.Place {
	if o == event.Unordered {
		return event.PlaceHead
	}
	return event.PlaceBlock
}

// die removes a message from its queue: it moves it to the dead-letter queue, whose name it
// returns, or discards it if there is none. A message that is discarded because it is too old
// (on_expired) neither holds its key nor takes other messages with it.
func (d *decision) die(m *event.MessageView, reason event.Reason, lease event.ID,
	content event.Blob) (to string) {
	q, _ := d.s.Look(m.Queue)
	e := about(event.Discarded, m)
	e.Lease, e.Reason, e.Content = lease, reason, content
	if reason == event.ReasonExpired && q.Policy.OnExpired == event.ExpiredDiscard {
		d.emit(e)
		return ""
	}
	if q.Policy.Ordering != event.Unordered {
		e.TakesKey = q.Policy.OnDead == event.DeadLetterKey && d.s.WaitsBehind(m.ID)
	}
	if dlq := q.Policy.DeadLetterQueue; dlq != "" {
		if _, ok := d.s.Look(dlq); ok {
			e.Type, e.ToQueue = event.DeadLettered, dlq
			e.HoldsKey = q.Policy.Ordering != event.Unordered &&
				q.Policy.OnDead == event.DeadHoldKey
		}
	}
	d.emit(e)
	return e.ToQueue
}

// carryOut emits the pending event of a deleted message.
func (d *decision) carryOut(it projections.Due) {
	e := about(event.Discarded, &it.Message)
	e.Queue, e.Lease, e.Reason = it.Queue, it.Message.Lease, it.Reason
	if it.To != "" {
		if _, ok := d.s.Look(it.To); ok {
			e.Type, e.ToQueue = event.DeadLettered, it.To
		}
	}
	d.emit(e)
}
