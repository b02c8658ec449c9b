package fsm

import "github.com/qlogd/qlogd/event"

// transaction settles and produces, all of it or nothing: everything is
// checked before the first event.
func (d *decision) transaction(c *event.Transaction) event.Result {
	seen := map[event.ID]bool{}
	for i := range c.Settle {
		it := &c.Settle[i]
		field := transactionField(it.Op)
		at := position(c.Settle, i)
		if seen[it.Lease] {
			return problem(invalid(field, "lease %s is settled twice in one transaction",
				it.Lease).At(at))
		}
		seen[it.Lease] = true
		if _, ok := d.holder(it.Lease); !ok {
			return problem(event.Problemf(event.CodeLeaseLost, field,
				"lease %s is not its message's current one", it.Lease).At(at))
		}
	}
	loads := map[string]load{}
	plans := make([][]planned, len(c.Produce))
	for i := range c.Produce {
		var p *event.Problem
		if plans[i], p = d.plan(&c.Produce[i], loads); p != nil {
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
		// Two parts may name the same queue: the second one's duplicates are
		// seen only now.
		plan, _ := d.plan(&c.Produce[i], nil)
		if plan == nil {
			plan = plans[i]
		}
		r.Produced = append(r.Produced, d.enqueue(&c.Produce[i], plan)...)
	}
	return r
}

// transactionField is the field of the request that an item came in.
func transactionField(op event.SettleOp) string {
	switch op {
	case event.OpRetry:
		return "retry"
	case event.OpDeadLetter:
		return "dead_letter"
	case event.OpExtend:
		return "extend"
	case event.OpRelease:
		return "release"
	}
	return "ack"
}

// position is an item's place among those of its kind.
func position(items []event.SettleItem, i int) int {
	n := 0
	for j := range i {
		if items[j].Op == items[i].Op {
			n++
		}
	}
	return n
}
