package raft

import (
	"slices"
	"time"

	"github.com/qlogd/qlogd/event"
)

// pending is one command between Propose and its answer.
type pending struct {
	data   []byte
	class  event.Class
	weight int    // messages, leases or settles that it asks for
	rules  uint16 // that it brings into force: Upgrade
	local  bool   // proposed by the leader for itself, never forwarded
	since  time.Time

	// The answer goes to the caller waiting on done or, if another node forwarded
	// the command, to position pos of its batch.
	done chan event.Answer // of capacity one
	from *served
	pos  int

	// Guarded by the batcher's lock.
	state pendingState
	gone  bool // its caller left while it was in flight
}

type pendingState uint8

const (
	waiting  pendingState = iota // in a queue, may still be dropped
	inFlight                     // part of an entry, or on its way to the leader
	settled
)

func newPending(c *event.Command) *pending {
	d := &pending{
		data: event.EncodeCommand(c), class: c.Class(), weight: c.Weight(),
		local: c.Upgrade != nil || c.Mark != nil, since: time.Now(), done: make(chan event.Answer, 1),
	}
	if c.Upgrade != nil {
		d.rules = c.Upgrade.Rules
	}
	return d
}

// answer answers the command, under the batcher's lock. It is called once.
func (d *pending) answer(a event.Answer) {
	d.state = settled
	if d.from != nil {
		d.from.answer(d.pos, a)
		return
	}
	a.Back = false
	d.done <- a
}

// sendBack answers a command that this node has not proposed and never will: with the
// problem to its own client, with Back to the node that forwarded it.
func (d *pending) sendBack(p *event.Problem) { d.answer(event.Answer{Refusal: p, Back: true}) }

// queues hold the waiting commands, one queue for each class, in the order of arrival.
type queues struct {
	class  [event.Classes][]*pending
	n      int
	bytes  int
	passed [event.Classes]int // batches in a row that had no room for a waiting class
}

// push appends the command to the queue of its class.
func (q *queues) push(d *pending) {
	d.state = waiting
	q.class[d.class] = append(q.class[d.class], d)
	q.n++
	q.bytes += len(d.data)
}

// top returns the first class that has a waiting command.
func (q *queues) top() event.Class {
	for c := range event.Classes {
		if len(q.class[c]) > 0 {
			return c
		}
	}
	return 0
}

// take moves the first n commands of a class to g.
func (q *queues) take(g []*pending, c event.Class, n int, state pendingState) []*pending {
	for _, d := range q.class[c][:n] {
		d.state = state
		q.n--
		q.bytes -= len(d.data)
		g = append(g, d)
	}
	q.class[c] = slices.Delete(q.class[c], 0, n)
	return g
}

// remove takes out the commands that match.
func (q *queues) remove(match func(*pending) bool) (g []*pending) {
	for c := range q.class {
		q.class[c] = slices.DeleteFunc(q.class[c], func(d *pending) bool {
			if !match(d) {
				return false
			}
			d.state = settled
			q.n--
			q.bytes -= len(d.data)
			g = append(g, d)
			return true
		})
	}
	return g
}

// expire takes out the commands that arrived by an instant, and returns for how long
// after it there are no others.
func (q *queues) expire(limit time.Time) (g []*pending, next time.Duration) {
	next = never
	for c := range event.Classes {
		n := 0
		for n < len(q.class[c]) && !q.class[c][n].since.After(limit) {
			n++
		}
		g = q.take(g, c, n, settled)
		if len(q.class[c]) > 0 {
			next = min(next, q.class[c][0].since.Sub(limit))
		}
	}
	return g, next
}

// restore puts commands of a batch back in the order of their arrival.
func (q *queues) restore(batch []*pending) {
	for _, d := range batch {
		q.push(d)
	}
	if len(batch) > 0 {
		for c := range q.class {
			slices.SortStableFunc(q.class[c], func(a, b *pending) int { return a.since.Compare(b.since) })
		}
	}
}

// patience is the number of batches without room after which a class goes first, with
// an eighth of one batch: classes are ordered, but none starves.
const patience = 32

// batch takes the commands of the next batch: class by class, in the order of arrival,
// while they fit. The first command always fits.
func (q *queues) batch(l Limits) (g []*pending, bytes int) {
	weight := 0
	fill := func(c event.Class, share int) {
		n, g0 := 0, len(g)
		for _, d := range q.class[c] {
			full := bytes+len(d.data) > l.GroupBytes/share || g0+n >= l.GroupCommands/share ||
				weight+d.weight > l.GroupWeight/share
			if full && g0+n > 0 {
				break
			}
			bytes += len(d.data)
			weight += d.weight
			n++
		}
		g = q.take(g, c, n, inFlight)
		if q.passed[c]++; n > 0 || len(q.class[c]) == 0 {
			q.passed[c] = 0
		}
	}
	for c := range event.Classes {
		if q.passed[c] >= patience {
			fill(c, 8)
		}
	}
	for c := range event.Classes {
		fill(c, 1)
	}
	return g, bytes
}

// rate estimates how many commands are executed a second.
type rate struct {
	perSecond float64
	at        time.Time
	n         int
}

func (r *rate) add(n int, now time.Time) {
	r.n += n
	d := now.Sub(r.at).Seconds()
	switch {
	case r.at.IsZero() || d > 10:
		// After a pause the count says nothing about the speed.
		r.at, r.n = now, 0
	case d >= 0.1:
		r.perSecond = 0.7*r.perSecond + 0.3*float64(r.n)/d
		r.at, r.n = now, 0
	}
}

// wait estimates how many milliseconds n commands take.
func (r *rate) wait(n int) int64 {
	if r.perSecond < 1 {
		return 1000
	}
	return min(max(int64(float64(n)/r.perSecond*1000), 50), 10_000)
}
