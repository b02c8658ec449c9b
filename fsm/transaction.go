package fsm

import "github.com/qlogd/qlogd/event"

// transaction settles and produces, all or nothing: everything is checked before the
// first event.
func (d *decision) transaction(c *event.Transaction) event.Result {
	seen := map[event.ID]bool{}
	for i := range c.Settle {
		lease := c.Settle[i].Lease
		if seen[lease] {
			return problem(invalid(event.FieldSettle,
				"lease %s is settled twice in one transaction", lease).At(i))
		}
		seen[lease] = true
		if _, ok := d.holder(lease); !ok {
			return problem(event.Problemf(event.CodeLeaseLost, event.FieldSettle,
				"lease %s is not its message's current one", lease).At(i))
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
	}
	var r event.Result
	for i := range c.Settle {
		m, _ := d.s.ByLease(c.Settle[i].Lease)
		r.Settled = append(r.Settled, d.settleOne(&c.Settle[i], &m))
	}
	for i := range c.Produce {
		r.Produced = append(r.Produced, d.enqueue(&c.Produce[i], known[i])...)
	}
	return r
}
