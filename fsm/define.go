package fsm

import (
	"fmt"

	"github.com/qlogd/qlogd/event"
)

// plannedQueue is the result for one queue of a Define.
type plannedQueue struct {
	put    *event.PutQueue
	policy event.Policy
	auto   bool // put names none, and its dead-letter queue is made with it
}

// define puts queues and webhooks, all or none. They are checked against the resulting
// definitions: one may name another that comes behind it or changes in the same command.
func (d *decision) define(c *event.Define) event.Result {
	plan, p := d.planQueues(c.Queues)
	if p != nil {
		return problem(p)
	}
	will := map[string]*event.Policy{}
	for i := range plan {
		will[plan[i].put.Name] = &plan[i].policy
		if plan[i].auto {
			if _, ok := will[plan[i].policy.DeadLetterQueue]; !ok {
				will[plan[i].policy.DeadLetterQueue] = autoDLQ(&plan[i].policy)
			}
		}
	}
	if p := d.checkPlan(plan, will); p != nil {
		return problem(p)
	}
	seen := map[string]bool{}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		p := d.checkWebhook(w, func(name string) bool {
			return will[name] != nil ||
				d.hasQueue(name)
		})
		if p == nil && seen[w.Name] {
			p = invalid("name", "name '%s' is given twice", w.Name)
		}
		if p != nil {
			return problem(within(p, "webhooks", i))
		}
		seen[w.Name] = true
	}
	return event.Result{Count: d.doDefine(c, plan)}
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

// planQueues checks each queue on its own.
func (d *decision) planQueues(puts []event.PutQueue) ([]plannedQueue, *event.Problem) {
	plan := make([]plannedQueue, len(puts))
	at := map[string]int{}
	for i := range puts {
		c := &puts[i]
		policy, p := d.checkQueue(c)
		if p == nil && !event.ValidName(c.Name) {
			p = invalid("name", "name must match %s", event.Names)
		}
		if _, twice := at[c.Name]; p == nil && twice {
			p = invalid("name", "name '%s' is given twice", c.Name)
		}
		if p != nil {
			return nil, within(p, "queues", i)
		}
		at[c.Name] = i
		plan[i] = plannedQueue{put: c, policy: policy}
	}
	for i := range plan {
		name := plan[i].policy.DeadLetterQueue
		if _, named := at[name]; plan[i].put.DeadLetterAuto && !named && !d.hasQueue(name) {
			plan[i].auto = true
		}
	}
	return plan, nil
}

// checkPlan checks the references between queues as they will be.
func (d *decision) checkPlan(plan []plannedQueue, will map[string]*event.Policy) *event.Problem {
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
			target := will[dlq]
			if target == nil {
				target = d.s.Policy(dlq)
			}
			if wrong := checkDeadLetters(name, dlq, users[name]+d.s.UsedBy(name),
				target); wrong != nil {
				p = wrong
			}
		}
		if p != nil {
			return within(p, "queues", i)
		}
	}
	return nil
}

// doDefine carries the plan out and returns how many queues and webhooks it created or
// changed. A dead-letter queue comes before those that name it.
func (d *decision) doDefine(c *event.Define, plan []plannedQueue) (n int64) {
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
	for i := range c.Webhooks {
		if d.setWebhook(&c.Webhooks[i]) {
			n++
		}
	}
	return n
}
