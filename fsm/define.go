package fsm

import (
	"cmp"
	"fmt"

	"github.com/qlogd/qlogd/event"
)

// queuePlan has the queues that a command puts.
type queuePlan []plannedQueue

type plannedQueue struct {
	put    *event.PutQueue
	policy event.Policy
	auto   bool // its dead-letter queue is created with it
}

// define puts queues and webhooks, all or none. They are checked against the resulting
// definitions: one may name another that comes behind it or changes in the same command.
func (d *decision) define(c *event.Define) event.Result {
	plan, i, p := d.planQueues(c.Queues)
	if p != nil {
		return problem(within(p, "queues", i))
	}
	will := plan.policies()
	hasQueue := func(name string) bool { return will[name] != nil || d.hasQueue(name) }
	seen := map[string]bool{}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		p := d.checkWebhook(w, hasQueue)
		if p == nil && seen[w.Name] {
			p = invalid("name", "name '%s' is given twice", w.Name)
		}
		if p != nil {
			return problem(within(p, "webhooks", i))
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

// within prefixes a problem's field with the element of a list.
func within(p *event.Problem, list string, i int) *event.Problem {
	q := *p
	q.Field = fmt.Sprintf("%s[%d]", list, i)
	if p.Field != "" {
		q.Field += "." + p.Field
	}
	return &q
}

// planQueues checks queues, each on its own and the references between them as they will be.
// at is the one that has the problem.
func (d *decision) planQueues(puts []event.PutQueue) (plan queuePlan, at int, p *event.Problem) {
	plan = make(queuePlan, len(puts))
	named := map[string]bool{}
	for i := range puts {
		c := &puts[i]
		policy, p := d.checkQueue(c)
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
		plan[i] = plannedQueue{put: c, policy: policy}
	}
	for i := range plan {
		q := &plan[i]
		q.auto = q.put.DeadLetterAuto && !named[q.policy.DeadLetterQueue] &&
			!d.hasQueue(q.policy.DeadLetterQueue)
	}
	at, p = d.checkPlan(plan)
	return plan, at, p
}

// policies returns the policies that the plan sets, by the names of the queues.
func (plan queuePlan) policies() map[string]*event.Policy {
	will := map[string]*event.Policy{}
	for i := range plan {
		q := &plan[i]
		will[q.put.Name] = &q.policy
		if q.auto && will[q.policy.DeadLetterQueue] == nil {
			will[q.policy.DeadLetterQueue] = autoDLQ(&q.policy)
		}
	}
	return will
}

func (d *decision) checkPlan(plan queuePlan) (at int, p *event.Problem) {
	will := plan.policies()
	users := map[string]int{} // how many will name a queue, but for what the state counts and stays
	for i := range plan {
		if was := d.s.Policy(plan[i].put.Name); was != nil && was.DeadLetterQueue != "" {
			users[was.DeadLetterQueue]--
		}
		if dlq := plan[i].policy.DeadLetterQueue; dlq != "" {
			users[dlq]++
		}
	}
	for i := range plan {
		name, dlq := plan[i].put.Name, plan[i].policy.DeadLetterQueue
		p := d.checkOrdering(name, plan[i].policy.Ordering)
		if dlq != "" {
			target := cmp.Or(will[dlq], d.s.Policy(dlq))
			if wrong := checkDeadLetters(name, dlq, users[name]+d.s.UsedBy(name),
				target); wrong != nil {
				p = wrong
			}
		}
		if p != nil {
			return i, p
		}
	}
	return 0, nil
}

// setQueues carries a plan out and returns how many queues it created or changed. A
// dead-letter queue comes before those that name it.
func (d *decision) setQueues(plan queuePlan) (n int64) {
	for i := range plan {
		if q := &plan[i]; q.policy.DeadLetterQueue == "" && d.setQueue(q.put.Name, &q.policy) {
			n++
		}
	}
	for i := range plan {
		if q := &plan[i]; q.auto {
			d.createQueue(q.policy.DeadLetterQueue, autoDLQ(&q.policy))
			n++
		}
	}
	for i := range plan {
		if q := &plan[i]; q.policy.DeadLetterQueue != "" && d.setQueue(q.put.Name, &q.policy) {
			n++
		}
	}
	return n
}
