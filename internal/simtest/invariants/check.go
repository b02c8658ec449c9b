// Package invariants checks a state of the queues for what its readers rely on: leases are
// exclusive (I7), messages are conserved (I8), lanes keep their order (I9), what is due wakes the
// leader (I10), and a state that was written and loaded gives the same answers (I12).
package invariants

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
)

// Check returns the first contradiction in a state between two entries, or between the state and
// the one that Load builds from its bytes.
func Check(s *projections.State) error {
	c := &checker{State: s}
	views := c.state()
	f := s.Freeze()
	defer f.Release()
	var written bytes.Buffer
	if _, err := f.WriteTo(&written); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	loaded, err := projections.Load(&written) // compares the digests
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	l := &checker{State: loaded}
	for i, v := range l.state() {
		c.want(reflect.DeepEqual(v, views[i]), "loaded as\n%+v\nit was\n%+v", v, views[i])
	}
	if c.err == nil && l.err != nil {
		return fmt.Errorf("loaded state: %w", l.err)
	}
	return c.err
}

// checker finds the first contradiction in a state.
type checker struct {
	*projections.State
	views []any // what readers see
	dead  map[string][]event.ID
	err   error
}

// want records what is wrong if ok is false.
func (c *checker) want(ok bool, wrong string, args ...any) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf("check: %s", fmt.Sprintf(wrong, args...))
	}
}

func (c *checker) see(v ...any) { c.views = append(c.views, v) }

// state checks a state and returns what readers see of it, in a fixed order.
func (c *checker) state() []any {
	c.dead = map[string][]event.ID{}
	for m := range c.All {
		if m.Dead != nil {
			c.dead[m.Dead.Queue] = append(c.dead[m.Dead.Queue], m.ID)
		}
		c.message(&m)
	}
	for _, q := range c.Queues() {
		if len(q.PausedKeys) == 0 {
			q.PausedKeys = nil
		}
		c.queue(&q)
		if _, ok := c.dead[q.Name]; !ok {
			c.dead[q.Name] = nil // it is also compared where nothing died
		}
	}
	for queue, ids := range c.dead { // order does not matter: any contradiction will do
		var listed []event.ID
		ms, _ := c.Dead(queue, event.DeadFilter{})
		for i := range ms {
			listed = append(listed, ms[i].ID)
		}
		slices.SortFunc(ids, event.ID.Compare)
		c.want(slices.Equal(listed, ids) && c.DeadCount(queue) == int64(len(ids)),
			"%d messages died in queue %q, %d are listed, %d counted", len(ids), queue, len(listed),
			c.DeadCount(queue))
	}
	c.see(c.Tasks(), c.Webhooks(), c.Needed(), c.DedupFloor(), c.AnswerFloor(), c.RaisedFloor())
	return c.views
}

// due checks that the leader wakes for what comes due at an instant, 0 never.
func (c *checker) due(at int64, what string, args ...any) {
	next, ok := c.NextDue()
	c.want(at == 0 || ok && next <= max(at, c.Clock()), "nothing wakes the leader at %d for %s",
		at, fmt.Sprintf(what, args...))
}

// message checks a live message wherever it is found, and what is to happen to it by itself.
func (c *checker) message(m *event.MessageView) {
	found, _ := c.Message(m.ID)
	c.want(reflect.DeepEqual(found, *m), "message %s is found as %+v", m.ID, found)
	c.want(m.State.Live(), "message %s is %s", m.ID, m.State)
	c.want(c.Needed() <= m.Content.Index, "message %s needs index %d, history only from %d on",
		m.ID, m.Content.Index, c.Needed())
	leased, _ := c.ByLease(m.Lease)
	switch m.State {
	case event.StateLeased:
		c.want(leased.ID == m.ID, "the lease of message %s is found at message %q", m.ID, leased.ID)
		c.due(m.LeaseExpiresAt, "the end of the lease of message %s", m.ID)
		return
	case event.StateScheduled:
		c.due(m.Due, "scheduled message %s", m.ID)
	}
	c.want(m.Lease.IsZero(), "message %s is %s and leased", m.ID, m.State)
	c.due(m.Expires, "the end of message %s", m.ID)
}

// queue checks a queue's counts against its messages.
func (c *checker) queue(q *event.QueueView) {
	ms, _ := c.Messages(q.Name, event.MessageFilter{})
	n := event.Stats{Partitions: q.Stats.Partitions}
	lanes := map[string]*lane{}
	lastAttempt := int64(0)
	var previous event.ID
	for i := range ms {
		m := &ms[i]
		c.want(m.Queue == q.Name && m.ID.Compare(previous) > 0,
			"message %s of queue %q is in queue %q, behind %s", m.ID, m.Queue, q.Name, previous)
		previous = m.ID
		n.Bytes += int64(m.Size)
		key := q.Policy.Ordering.PartitionKey(m.Key)
		if lanes[key] == nil {
			lanes[key] = &lane{}
		}
		l := lanes[key]
		switch {
		case m.State == event.StateLeased:
			n.InFlight++
			l.leased = append(l.leased, m)
		case m.State == event.StateScheduled:
			n.Scheduled++
		case m.Held:
			n.Held++
			fallthrough
		default:
			n.Ready++
			l.ready = append(l.ready, m)
		}
		if m.State != event.StateLeased && m.Attempt > 0 && m.Attempt+1 == q.Policy.MaxAttempts {
			lastAttempt++
		}
		if m.SourceID != "" {
			first, _ := c.Source(q.Name, m.SourceID)
			o, _ := c.Message(first)
			c.want(o.Queue == q.Name && o.SourceID == m.SourceID && first.Compare(m.ID) <= 0,
				"message %s has source id %q, found is %s", m.ID, m.SourceID, first)
		}
	}
	s := q.Stats
	now := event.Stats{Ready: s.Ready, Scheduled: s.Scheduled, InFlight: s.InFlight, Held: s.Held,
		Bytes: s.Bytes, Partitions: s.Partitions}
	c.want(now == n, "queue %q counts %+v, its messages are %+v", q.Name, now, n)
	in := s.Enqueued + s.DeadIn + s.ReplayedIn + s.Imported + s.Resurrected
	out := s.Acked + s.DeadLettered + s.Discarded + s.Replayed
	c.want(in == out+s.Messages(), "queue %q took in %d, released %d and holds %d", q.Name, in,
		out, s.Messages())
	a, _ := c.Attention(q.Name)
	c.want(a.LastAttempt == lastAttempt || a.LastAttempt > lastAttempt && c.Deleting(q.Name),
		"queue %q counts %d messages with one attempt left, there are %d", q.Name, a.LastAttempt,
		lastAttempt) // those that follow a dead message count until their events
	c.due(q.RefillsAt, "the next token of queue %q", q.Name)
	a.PausedKeys = nil // in q
	c.see(q, ms, a)
	c.leasable(q, lanes)
}

// lane has the messages of a key, or of a whole fifo queue.
type lane struct{ ready, leased []*event.MessageView }

// leasable checks what a queue offers.
func (c *checker) leasable(q *event.QueueView, lanes map[string]*lane) {
	if c.Separating(q.Name) {
		return // messages of paused keys are among the others for some entries
	}
	n, best := 0, uint8(event.MaxPriority+1)
	offered, kinds := map[event.ID]bool{}, map[string]bool{} // of kinds: whether it is offered
	for _, key := range slices.Sorted(maps.Keys(lanes)) {
		l := lanes[key]
		for _, m := range l.ready {
			if !kinds[m.Kind] {
				kinds[m.Kind] = false
			}
		}
		free, of := c.lane(q, key, l)
		n += free
		for _, m := range of {
			offered[m.ID], kinds[m.Kind], best = true, true, min(best, m.Priority)
		}
	}
	got := c.Leasable(q.Name, nil)
	c.want(got == min(n, q.MayLease), "queue %q offers %d messages, %d can be leased, and %d may",
		q.Name, got, n, q.MayLease)
	next, ok := c.Next(q.Name, nil)
	c.want(ok == (got > 0) && (!ok || offered[next.ID]), "of queue %q message %s is next, which "+
		"cannot be leased", q.Name, next.ID)
	c.want(!ok || q.Policy.PriorityAgingMS > 0 || next.Priority == best,
		"of queue %q a message of priority %d is next, there is one of %d", q.Name, next.Priority,
		best)
	c.see(got, next)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		next, ok := c.Next(q.Name, []string{kind})
		c.want(kind == "" || ok == (kinds[kind] && got > 0) && (!ok || next.Kind == kind),
			"of queue %q and kind %q message %s of kind %q is next", q.Name, kind, next.ID,
			next.Kind)
		c.see(c.Leasable(q.Name, []string{kind}), next)
	}
}

// lane checks the messages of a key (I9), and returns how many can be leased, and of which.
func (c *checker) lane(q *event.QueueView, key string, l *lane) (int, []*event.MessageView) {
	p, _ := c.Partition(q.Name, key)
	c.see(p)
	free, paused := len(l.ready), slices.Contains(q.PausedKeys, key)
	if q.Policy.Ordering == event.Unordered {
		if most := int(q.Policy.MaxInFlightPerKey); most > 0 && key != "" {
			c.want(p.Batch == int64(len(l.leased)),
				"queue %q counts %d leases of key %q, there are %d", q.Name, p.Batch, key,
				len(l.leased))
			free = min(free, max(most-len(l.leased), 0))
		}
		if free == 0 || paused {
			return 0, nil
		}
		return free, l.ready
	}
	slices.SortFunc(l.leased, func(a, b *event.MessageView) int {
		return a.Lease.Compare(b.Lease)
	})
	c.want(p.Batch == int64(len(l.leased)), "lane %q of queue %q has %d leases, %d in its batch",
		key, q.Name, len(l.leased), p.Batch)
	if len(l.leased) > 0 {
		first := l.leased[0]
		for i, m := range c.LeasedBehind(first.ID) {
			one := event.RefOf(m.Lease).Index == event.RefOf(first.Lease).Index
			c.want(one && m.ID == l.leased[i+1].ID, "lane %q of queue %q: message %s is leased "+
				"behind %s, by another call or out of order", key, q.Name, m.ID, first.ID)
		}
		return 0, nil
	}
	if p.Head == nil || p.Head.State != event.StateReady || p.HeldBy > 0 || paused {
		return 0, nil
	}
	return 1, []*event.MessageView{p.Head}
}
