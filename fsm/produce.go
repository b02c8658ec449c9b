package fsm

import "github.com/qlogd/qlogd/event"

// retryFullMS is what a producer should wait when a queue is full.
const retryFullMS = 1000

// produce enqueues messages, all of them or none.
func (d *decision) produce(c *event.Produce) event.Result {
	plan, p := d.plan(c, nil)
	if p != nil {
		return problem(p)
	}
	return event.Result{Produced: d.enqueue(c, plan)}
}

// planned says whether a message of a produce is a duplicate: of a message accepted
// before (id) or of an earlier one of the same call (of).
type planned struct {
	hash event.Hash
	id   event.ID
	dup  bool
	of   int // -1 none
}

// load is the messages and bytes that earlier parts of a transaction add to a queue.
type load struct{ count, bytes int64 }

// plan checks a produce without any effect. loads, if not nil, sums up the additions of a
// transaction.
func (d *decision) plan(c *event.Produce, loads map[string]load) ([]planned, *event.Problem) {
	q, ok := d.s.Look(c.Queue)
	policy := q.Policy
	if !ok {
		if !c.AutoCreate {
			return nil, queueNotFound(c.Queue, "queue")
		}
		policy = event.DefaultPolicy()
	} else if c.Revision != q.Revision &&
		(len(policy.MessageSchema) > 0 || policy.DedupBy == event.DedupByContent && !c.Import) {
		return nil, stale("checked against revision %d of the policy, now it is %d", c.Revision,
			q.Revision)
	}
	number := q.Number
	if !ok {
		number = d.s.NextNumber()
	}
	plan := make([]planned, len(c.Messages))
	var add load
	first := map[event.Hash]int{}
	for i := range c.Messages {
		p, problem := d.planOne(c, i, number, &policy)
		if problem != nil {
			return nil, problem
		}
		if of, ok := first[p.hash]; ok && !p.dup {
			p.of, p.dup = of, true
		} else if !p.dup && !p.hash.IsZero() {
			first[p.hash] = i
		}
		if plan[i] = p; !p.dup {
			add.count++
			add.bytes += int64(c.Messages[i].Size)
		}
	}
	if add.count == 0 {
		return plan, nil
	}
	if l, ok := loads[c.Queue]; ok {
		add.count += l.count
		add.bytes += l.bytes
	}
	if loads != nil {
		loads[c.Queue] = add
	}
	q.Name = c.Queue // it may not be there yet
	return plan, room(&q, &policy, add)
}

// planOne plans the message at i of a produce to the queue of this number, independently
// of the others.
func (d *decision) planOne(c *event.Produce, i int, number uint32, policy *event.Policy) (planned,
	*event.Problem) {
	m, p := &c.Messages[i], planned{of: -1}
	if wrong := checkPriority(m.Priority); wrong != nil {
		return p, wrong.At(i)
	}
	hash := m.DedupKey
	switch {
	case c.Import && (m.SourceID == "" || hash.IsZero()):
		return p, invalid("source_id", "source_id must be set").At(i)
	case c.Import:
		// A message in the queue is a duplicate, whatever the window.
		if p.id, p.dup = d.s.Source(c.Queue, m.SourceID); p.dup {
			return p, nil
		}
	case policy.DedupBy == event.DedupByContent:
		hash = m.PayloadHash
	}
	if dedupWindow(c, policy) <= 0 || hash.IsZero() {
		return p, nil
	}
	p.hash = hash.Of(number)
	if p.id, p.dup = d.s.Duplicate(p.hash); p.dup {
		return p, nil
	}
	if floor := d.s.DedupFloor(); c.Looked < floor {
		return p, stale("the log was asked for duplicates up to index %d, it must be to %d",
			c.Looked, floor)
	}
	if m.Seen != (event.ID{}) && m.SeenUntil > d.s.Clock() {
		p.id, p.dup = m.Seen, true
	}
	return p, nil
}

// checkPriority refuses a priority that would panic in the fold, wherever the command
// came from.
func checkPriority(p uint8) *event.Problem {
	if p < event.MinPriority || p > event.MaxPriority {
		return invalid("priority", "priority must be from %d to %d", event.MinPriority,
			event.MaxPriority)
	}
	return nil
}

// room checks that more fits into a queue.
func room(q *event.QueueView, policy *event.Policy, add load) *event.Problem {
	held := q.Stats.Messages()
	full := func(field string, limit, now, more int64) *event.Problem {
		p := event.Problemf(event.CodeQueueFull, field,
			"queue %q holds %d of at most %d, %d more do not fit", q.Name, now, limit, more)
		p.RetryAfterMS = retryFullMS
		return p
	}
	if policy.MaxDepth > 0 && add.count > 0 && held+add.count > policy.MaxDepth {
		return full("retention.max_depth", policy.MaxDepth, held, add.count)
	}
	if policy.MaxBytes > 0 && add.bytes > 0 && q.Stats.Bytes+add.bytes > policy.MaxBytes {
		return full("retention.max_bytes", policy.MaxBytes, q.Stats.Bytes, add.bytes)
	}
	return nil
}

// importWindowSeconds is how long a source id is remembered at least.
const importWindowSeconds = 24 * 3600

// dedupWindow returns how many seconds the messages of a produce are remembered.
func dedupWindow(c *event.Produce, p *event.Policy) int64 {
	if c.Import {
		return max(p.DedupWindowSeconds, importWindowSeconds)
	}
	return p.DedupWindowSeconds
}

// enqueue carries a plan out.
func (d *decision) enqueue(c *event.Produce, plan []planned) []event.Produced {
	if d.s.Policy(c.Queue) == nil {
		policy := event.DefaultPolicy()
		d.createQueue(c.Queue, &policy)
	}
	policy := d.s.Policy(c.Queue)
	out := make([]event.Produced, len(plan))
	d.expect(len(plan))
	now := d.s.Clock()
	for i := range c.Messages {
		m, p := &c.Messages[i], plan[i]
		switch {
		case p.dup && p.of >= 0:
			out[i] = event.Produced{ID: out[p.of].ID, Duplicate: true}
			continue
		case p.dup:
			out[i] = event.Produced{ID: p.id, Duplicate: true}
			continue
		}
		e := event.Event{
			Type: event.Enqueued, Queue: c.Queue, Key: m.Key, Kind: m.Kind, Priority: m.Priority,
			Size: m.Size, Content: m.Content, Alias: p.hash,
		}
		if !p.hash.IsZero() {
			e.Until = now + dedupWindow(c, policy)*1000
		}
		if c.Import {
			e.SourceID = m.SourceID
		}
		if m.DelayMS > 0 {
			e.Due = now + m.DelayMS
		} else if m.DeliverAt > now {
			e.Due = m.DeliverAt
		}
		if m.TTLMS > 0 {
			e.Expires = now + m.TTLMS
		}
		e.Subject = event.NewID(now, d.block.Index, uint32(len(d.block.Events)))
		out[i] = event.Produced{ID: d.emit(e)}
	}
	return out
}
