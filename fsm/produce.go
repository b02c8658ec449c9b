package fsm

import "github.com/qlogd/qlogd/event"

// retryFullMS is what a producer should wait when a queue is full.
const retryFullMS = 1000

// produce enqueues messages, all of them or none.
func (d *decision) produce(c *event.Produce) event.Result {
	known, p := d.plan(c, nil)
	if p != nil {
		return problem(p)
	}
	return event.Result{Produced: d.enqueue(c, known, nil)}
}

// load has the messages and bytes that earlier parts of a transaction add to a queue.
type load struct{ count, bytes int64 }

// plan checks a produce without any effect. It returns, for each message, the earlier message that
// it duplicates, zero for none. loads, if not nil, accumulates the additions of a transaction.
func (d *decision) plan(c *event.Produce, loads map[string]load) ([]event.ID, *event.Problem) {
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
	known := make([]event.ID, len(c.Messages))
	var add load
	seen := map[event.Hash]bool{} // in this call
	for i := range c.Messages {
		m := &c.Messages[i]
		hash := c.DedupHash(m, &policy, number)
		id, p := d.accepted(c, m, hash)
		if p != nil {
			return nil, p.At(i)
		}
		if known[i] = id; !id.IsZero() || !hash.IsZero() && seen[hash] {
			continue
		}
		if !hash.IsZero() {
			seen[hash] = true
		}
		add.count++
		add.bytes += int64(m.Size)
	}
	if add.count == 0 {
		return known, nil
	}
	if l, ok := loads[c.Queue]; ok {
		add.count += l.count
		add.bytes += l.bytes
	}
	if loads != nil {
		loads[c.Queue] = add
	}
	q.Name = c.Queue // it may not be there yet
	return known, room(&q, &policy, add)
}

// accepted returns the earlier message that m duplicates, zero for none.
func (d *decision) accepted(c *event.Produce, m *event.NewMessage,
	hash event.Hash) (none event.ID, p *event.Problem) {
	if p := checkPriority(m.Priority); p != nil {
		return none, p
	}
	if c.Import {
		if m.SourceID == "" || m.DedupKey.IsZero() {
			return none, invalid("source_id", "source_id must be set")
		}
		// A message in the queue is a duplicate, whatever the window.
		if id, ok := d.s.Source(c.Queue, m.SourceID); ok {
			return id, nil
		}
	}
	if hash.IsZero() {
		return none, nil
	}
	if id, ok := d.s.Duplicate(hash); ok {
		return id, nil
	}
	if floor := d.s.DedupFloor(); c.Looked < floor {
		return none, stale("the log was asked for duplicates up to index %d, it must be to %d",
			c.Looked, floor)
	}
	if m.SeenUntil <= d.s.Clock() || d.s.Released(m.SeenAs, m.SeenUntil) {
		return none, nil
	}
	if _, live := d.s.Message(m.SeenAs); !live && !m.SeenAs.IsZero() {
		return none, stale("message %s has left its queue since the log was asked", m.SeenAs)
	}
	return m.Seen, nil
}

// checkPriority rejects a priority that would panic in the fold, regardless of where the
// command came from.
func checkPriority(p uint8) *event.Problem {
	if p < event.MinPriority || p > event.MaxPriority {
		return invalid("priority", "priority must be from %d to %d", event.MinPriority,
			event.MaxPriority)
	}
	return nil
}

// room checks that a queue has room for more messages and bytes.
func room(q *event.QueueView, policy *event.Policy, add load) *event.Problem {
	held := q.Stats.Messages()
	full := func(field string, limit, now, more int64) *event.Problem {
		p := event.Problemf(event.CodeQueueFull, field,
			"queue %q holds %d of at most %d, %s not fit",
			q.Name, now, limit, event.Plural(more, "more does", "more do"))
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

// enqueue carries out a plan; cause returns the causes of a message, nil for none. Duplicates of
// messages of the same call or transaction are found here, because those are in the state by now.
func (d *decision) enqueue(c *event.Produce, known []event.ID,
	cause func(lease event.ID) (of []event.ID, truncated bool)) []event.Produced {
	if d.s.Policy(c.Queue) == nil {
		policy := event.DefaultPolicy()
		d.createQueue(c.Queue, &policy)
	}
	q, _ := d.s.Look(c.Queue)
	out := make([]event.Produced, len(known))
	d.expect(len(known))
	now := d.s.Clock()
	for i := range c.Messages {
		m := &c.Messages[i]
		hash := c.DedupHash(m, &q.Policy, q.Number)
		if known[i].IsZero() && !hash.IsZero() {
			known[i], _ = d.s.Duplicate(hash)
		}
		if !known[i].IsZero() {
			out[i] = event.Produced{ID: known[i], Duplicate: true}
			continue
		}
		e := event.Event{
			Type: event.Enqueued, Queue: c.Queue, Key: m.Key, Kind: m.Kind, Priority: m.Priority,
			Size: m.Size, Content: m.Content, Alias: hash, CorrelationID: m.CorrelationID,
		}
		if !hash.IsZero() {
			e.Until = q.Policy.DedupEnd(c.Import, now)
		}
		if c.Import {
			e.SourceID = m.SourceID
		}
		if cause != nil {
			e.Cause, e.CauseTruncated = cause(m.Cause)
		}
		if wait := c.Delay(m, &q.Policy); wait > 0 {
			e.Due = now + wait
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
