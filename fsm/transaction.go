package fsm

import "github.com/qlogd/qlogd/event"

// transaction settles and produces, all or nothing: everything is checked before the
// first event.
func (d *decision) transaction(c *event.Transaction) event.Result {
	seen, back := map[event.ID]bool{}, map[event.ID]bool{} // back: what items will send back
	about := map[event.ID]event.ID{}                       // the messages of the leases
	var acked []event.ID
	for i := range c.Settle {
		it, lease := &c.Settle[i], c.Settle[i].Lease
		if seen[lease] {
			return problem(invalid(event.FieldSettle,
				"lease %s is named twice: a transaction settles or extends it once", lease).At(i))
		}
		seen[lease] = true
		m, ok := d.holder(lease)
		about[lease] = m.ID
		if it.Op == event.OpAck {
			acked = append(acked, m.ID)
		}
		switch {
		case !ok:
			return problem(event.Problemf(event.CodeLeaseLost, event.FieldSettle,
				"lease %s is not its message's current one", lease).At(i))
		case back[lease] && !givesUp(it.Op):
			return problem(event.Problemf(event.CodeLeaseLost, event.FieldSettle,
				"lease %s is returned by an earlier item of the transaction, which can therefore "+
					"neither ack nor extend it", lease).At(i))
		}
		if !back[lease] && stops(d.s.Policy(m.Queue), it, m.Attempt) {
			for _, o := range d.s.LeasedBehind(m.ID) {
				back[o.Lease] = true
			}
		}
	}
	loads := map[string]load{}
	known := make([][]event.ID, len(c.Produce))
	for i := range c.Produce {
		var p *event.Problem
		if known[i], p = d.plan(&c.Produce[i], loads); p != nil {
			p.Field = "produce"
			return problem(p.At(i))
		}
		for _, m := range c.Produce[i].Messages {
			if !m.Cause.IsZero() && !seen[m.Cause] {
				return problem(invalid("produce",
					"cause %s is no lease that the transaction settles", m.Cause).At(i))
			}
		}
	}
	cause := func(lease event.ID) ([]event.ID, bool) {
		if !lease.IsZero() {
			return []event.ID{about[lease]}, false
		}
		return acked[:min(len(acked), event.MaxCause)], len(acked) > event.MaxCause
	}
	var r event.Result
	for i := range c.Settle {
		s := d.sent[c.Settle[i].Lease]
		if m, ok := d.s.ByLease(c.Settle[i].Lease); ok {
			s = d.settleOne(&c.Settle[i], &m)
		}
		r.Settled = append(r.Settled, s)
	}
	for i := range c.Produce {
		r.Produced = append(r.Produced, d.enqueue(&c.Produce[i], known[i], cause)...)
	}
	return r
}
