package fsm

import (
	"cmp"

	"github.com/qlogd/qlogd/event"
)

// settle settles leases, each with its own outcome.
func (d *decision) settle(c *event.Settle) event.Result {
	out := make([]event.Settled, len(c.Items))
	if c.Queue != "" && !d.hasQueue(c.Queue) {
		return problem(queueNotFound(c.Queue, "queue"))
	}
	for i := range c.Items {
		it := &c.Items[i]
		m, ok := d.holder(it.Lease)
		s, sent := d.sent[it.Lease]
		switch of := func(queue string) bool { return c.Queue == "" || c.Queue == queue }; {
		case sent && givesUp(it.Op) && of(s.Queue):
			out[i] = s
		case !ok:
			out[i] = event.Settled{Lease: it.Lease, Status: event.StatusRejected,
				Code: event.CodeLeaseLost}
		case !of(m.Queue):
			out[i] = event.Settled{Lease: it.Lease, Status: event.StatusRejected,
				Code: event.CodeWrongQueue, Queue: m.Queue}
		default:
			out[i] = d.settleOne(it, &m)
		}
	}
	return event.Result{Settled: out}
}

// holder returns the message whose current lease this is. A lease that has expired by the
// clock ends here and cannot be settled.
func (d *decision) holder(lease event.ID) (event.MessageView, bool) {
	m, ok := d.s.ByLease(lease)
	for ok && m.LeaseExpiresAt <= d.s.Clock() { // others may end before it
		d.expireLease(&m)
		m, ok = d.s.ByLease(lease)
	}
	return m, ok
}

// settleOne settles a current lease.
func (d *decision) settleOne(it *event.SettleItem, m *event.MessageView) event.Settled {
	policy := d.s.Policy(m.Queue)
	out := event.Settled{Lease: it.Lease, Message: m.ID, Queue: m.Queue}
	e := about(event.TypeNone, m) // set below
	e.Lease, e.Content = it.Lease, it.Content
	if stops(policy, it, m.Attempt) {
		d.sendBack(m)
	}
	switch it.Op {
	case event.OpAck:
		e.Type, out.Status = event.Acked, event.StatusAcked
	case event.OpExtend:
		e.Type, out.Status = event.LeaseExtended, event.StatusExtended
		e.LeaseExpires = d.s.Clock() + cmp.Or(it.LeaseMS, policy.LeaseMS)
		out.ExpiresAt = e.LeaseExpires
	case event.OpRelease:
		e.Type, out.Status = event.Released, event.StatusReleased
		e.Attempt = m.Attempt - 1
		e.Place = front(policy.Ordering)
		if it.DelayMS > 0 { // a snooze
			e.Due, e.Place = d.s.Clock()+it.DelayMS, place(policy)
			out.NextAt = e.Due
		}
	case event.OpRetry:
		if last(policy, m.Attempt) {
			return d.dead(out, m, event.ReasonMaxAttempts, it.Content)
		}
		e.Type, out.Status = event.Retried, event.StatusRetried
		e.Due, e.Place = d.nextTry(policy, it, m.Attempt), place(policy)
		out.NextAt = e.Due
	case event.OpDeadLetter:
		return d.dead(out, m, event.ReasonRejected, it.Content)
	default:
		return out
	}
	if it.Op != event.OpExtend || e.LeaseExpires != m.LeaseExpiresAt {
		d.emit(e)
	}
	if it.Op == event.OpExtend && policy.Ordering != event.Unordered {
		d.extendBehind(m, e.LeaseExpires)
	}
	return out
}

// nextTry returns when a message can be leased again after a retry.
func (d *decision) nextTry(p *event.Policy, it *event.SettleItem, attempt uint32) int64 {
	switch {
	case it.At != 0:
		return max(it.At, d.s.Clock())
	case it.DelayMS < 0:
		return d.s.Clock() + d.backoff(p, attempt)
	}
	return d.s.Clock() + it.DelayMS
}

func (d *decision) dead(out event.Settled, m *event.MessageView, reason event.Reason,
	content event.Blob) event.Settled {
	out.Status = event.StatusDiscarded
	if d.die(m, reason, m.Lease, content) != "" {
		out.Status = event.StatusDeadLettered
	}
	return out
}
