package fsm

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// stops reports whether ending an attempt by it stops the partition, so that the messages leased
// behind it in its batch return to their places. An expired lease counts as a retry, and so does a
// release with a delay, except that a release never dies.
func stops(p *event.Policy, it *event.SettleItem, attempt uint32) bool {
	dies := it.Op == event.OpDeadLetter || it.Op == event.OpRetry && last(p, attempt)
	switch {
	case p.Ordering == event.Unordered:
		return false
	case dies:
		return p.OnDead != event.DeadSkip
	case it.Op == event.OpRetry, it.Op == event.OpRelease && it.DelayMS > 0:
		return p.OnRetry == event.RetryBlock
	}
	return it.Op == event.OpRelease
}

// sendBack returns the messages leased behind m in its batch to their places, without counting an
// attempt: the last one first, so that at any time what is leased is ahead of what waits (I9).
func (d *decision) sendBack(m *event.MessageView) {
	behind := d.s.LeasedBehind(m.ID)
	d.expect(len(behind))
	for i := range slices.Backward(behind) {
		o := &behind[i]
		e := about(event.Returned, o)
		e.Lease, e.Attempt, e.Place = o.Lease, o.Attempt-1, event.PlaceBlock
		d.emit(e)
		if d.sent == nil {
			d.sent = map[event.ID]event.Settled{}
		}
		d.sent[o.Lease] = event.Settled{
			Lease: o.Lease, Status: event.StatusReleased, Message: o.ID, Queue: o.Queue,
		}
	}
}

// givesUp reports whether a settle operation gives up its message. If an earlier item of the same
// command has sent the message back, such an operation is done; an ack or an extension is too late.
func givesUp(op event.SettleOp) bool { return op != event.OpAck && op != event.OpExtend }

// extended is a part of a batch, from one lease to another, that was just extended to an instant. A
// worker extends its whole batch in one call, so each item need not visit all leases behind it.
type extended struct {
	from, to event.ID
	until    int64
}

// extendBehind extends the leases behind m in its batch to at least an instant.
func (d *decision) extendBehind(m *event.MessageView, until int64) {
	if x := &d.extended; until == x.until && m.Lease.Compare(x.from) >= 0 &&
		m.Lease.Compare(x.to) <= 0 {
		return
	}
	behind := d.s.LeasedBehind(m.ID)
	d.extended = extended{from: m.Lease, to: m.Lease, until: until}
	for i := range behind {
		o := &behind[i]
		if d.extended.to = o.Lease; o.LeaseExpiresAt < until {
			e := about(event.LeaseExtended, o)
			e.Lease, e.LeaseExpires = o.Lease, until
			d.emit(e)
		}
	}
}
