package fsm

import (
	"cmp"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// define creates or updates queues and webhooks, all or none. They are checked against the
// resulting definitions: one may refer to another that follows it in the same command.
func (d *decision) define(c *event.Define) event.Result {
	plan, i, p := d.planQueues(c.Queues)
	if p != nil {
		return problem(p.In("queues", i))
	}
	will := policies(plan)
	hasQueue := func(name string) bool { return will[name] != nil || d.hasQueue(name) }
	seen := map[string]bool{}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		p := d.checkWebhook(w, hasQueue)
		if p == nil && seen[w.Name] {
			p = invalid("name", "name '%s' is given twice", w.Name)
		}
		if p != nil {
			return problem(p.In("webhooks", i))
		}
		seen[w.Name] = true
	}
	n := d.setQueues(plan)
	for i := range c.Webhooks {
		if d.setWebhook(&c.Webhooks[i]) {
			n++
		}
	}
	return event.Result{Count: n}
}

// planQueues checks queues, each on its own and their references as they will be, and returns them
// with complete policies, followed by the dead-letter queues that are created with them. at is the
// position of the queue that has the problem.
func (d *decision) planQueues(puts []event.PutQueue) (
	plan []event.PutQueue, at int, p *event.Problem) {
	plan = slices.Clone(puts)
	named := map[string]bool{}
	for i := range plan {
		c := &plan[i]
		p := d.checkQueue(c)
		if p == nil && !event.ValidName(c.Name) {
			p = invalid("name", "name must match %s", event.Names)
		}
		if p == nil && named[c.Name] {
			p = invalid("name", "name '%s' is given twice", c.Name)
		}
		if p != nil {
			return nil, i, p
		}
		named[c.Name] = true
	}
	for i := range puts {
		policy := &plan[i].Policy
		dlq := policy.DeadLetterQueue
		if puts[i].DeadLetterAuto && !named[dlq] && !d.hasQueue(dlq) {
			plan = append(plan, event.PutQueue{Name: dlq, Policy: autoDLQ(policy)})
		}
	}
	at, p = d.checkPlan(plan)
	return plan, at, p
}

// policies returns the policies that a plan sets, by the names of the queues.
func policies(plan []event.PutQueue) map[string]*event.Policy {
	will := map[string]*event.Policy{}
	for i := range plan {
		will[plan[i].Name] = &plan[i].Policy
	}
	return will
}

func (d *decision) checkPlan(plan []event.PutQueue) (at int, p *event.Problem) {
	will := policies(plan)
	var gain []string // a dead-letter queue: others may name them, as none names one that has its own
	for i := range plan {
		was := d.s.Policy(plan[i].Name)
		if was != nil && was.DeadLetterQueue == "" && plan[i].Policy.DeadLetterQueue != "" {
			gain = append(gain, plan[i].Name)
		}
	}
	users := d.s.Users(gain...) // as they will be
	for i := range plan {
		if was := d.s.Policy(plan[i].Name); was != nil {
			users[was.DeadLetterQueue]--
		}
		users[plan[i].Policy.DeadLetterQueue]++
	}
	for i := range plan {
		name, dlq := plan[i].Name, plan[i].Policy.DeadLetterQueue
		p := d.checkFixed(name, &plan[i].Policy)
		if dlq != "" {
			target := cmp.Or(will[dlq], d.s.Policy(dlq))
			wrong := checkDeadLetters(name, dlq, users[name], target)
			p = cmp.Or(wrong, p)
		}
		if p != nil {
			return i, p
		}
	}
	return 0, nil
}

// setQueues carries out a plan and returns how many queues it created or changed. A
// dead-letter queue precedes the queues that name it.
func (d *decision) setQueues(plan []event.PutQueue) (n int64) {
	for _, withDLQ := range []bool{false, true} {
		for i := range plan {
			c := &plan[i]
			if withDLQ == (c.Policy.DeadLetterQueue != "") && d.setQueue(c.Name, &c.Policy) {
				n++
			}
		}
	}
	return n
}
