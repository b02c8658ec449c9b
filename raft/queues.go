package raft

import (
	"container/list"
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
	done  chan answer // of capacity one
	batch *served
	pos   int

	// Guarded by the batcher's lock.
	seq   uint64 // the order of arrival
	state pendingState
	gone  bool // its caller left while it was in flight
	place *list.Element
}

type pendingState uint8

const (
	waiting  pendingState = iota // in a queue, may still be dropped
	inFlight                     // part of an entry, or on its way to the leader
	settled
)

type answer struct {
	result  event.Result
	problem *event.Problem
	back    bool // not proposed; only for commands of another node
}

func newPending(c *event.Command) *pending {
	d := &pending{
		data: event.EncodeCommand(c), class: c.Class(), weight: c.Weight(),
		local: c.Upgrade != nil || c.Mark != nil, since: time.Now(), done: make(chan answer, 1),
	}
	if c.Upgrade != nil {
		d.rules = c.Upgrade.Rules
	}
	return d
}

// deliver answers the command. It is called once.
func (d *pending) deliver(a answer) {
	if d.batch != nil {
		d.batch.deliver(d.pos, a)
		return
	}
	d.done <- a
}

// refuse answers a command that this node has not proposed and never will: with the
// problem to its own client, with "back" to the node that forwarded it.
func (d *pending) refuse(p *event.Problem) { d.deliver(answer{problem: p, back: d.batch != nil}) }

// queues hold the waiting commands, one queue for each class, in the order of arrival.
type queues struct {
	class  [event.Classes]list.List // of *pending
	n      int
	bytes  int
	passed [event.Classes]int // groups in a row that had no room for a waiting class
}

// push appends the command to the queue of its class.
func (q *queues) push(d *pending) {
	d.state = waiting
	d.place = q.class[d.class].PushBack(d)
	q.n++
	q.bytes += len(d.data)
}

// remove takes a waiting command out.
func (q *queues) remove(d *pending, state pendingState) {
	q.class[d.class].Remove(d.place)
	d.place, d.state = nil, state
	q.n--
	q.bytes -= len(d.data)
}

// first returns the oldest command of a class; nil if none waits.
func (q *queues) first(c event.Class) *pending {
	if e := q.class[c].Front(); e != nil {
		return e.Value.(*pending)
	}
	return nil
}

// top returns the first class that has a waiting command.
func (q *queues) top() event.Class {
	for c := range event.Classes {
		if q.class[c].Len() > 0 {
			return c
		}
	}
	return 0
}

// patience is the number of groups without room after which a class goes first, with
// an eighth of one group: classes are ordered, but none starves.
const patience = 32

// group takes the commands of the next entry: class by class, in the order of
// arrival, while they fit. The first command always fits.
func (q *queues) group(l Limits) (g []*pending, bytes int) {
	weight := 0
	var took [event.Classes]int
	take := func(c event.Class, share int) {
		for d := q.first(c); d != nil; d = q.first(c) {
			full := bytes+len(d.data) > l.GroupBytes/share || len(g) >= l.GroupCommands/share ||
				weight+d.weight > l.GroupWeight/share
			if full && len(g) > 0 {
				return
			}
			q.remove(d, inFlight)
			g = append(g, d)
			bytes += len(d.data)
			weight += d.weight
			took[c]++
		}
	}
	for c := range event.Classes {
		if q.passed[c] >= patience {
			take(c, 8)
		}
	}
	for c := range event.Classes {
		take(c, 1)
		q.passed[c]++
		if q.class[c].Len() == 0 || took[c] > 0 {
			q.passed[c] = 0
		}
	}
	return g, bytes
}

// restore puts commands of a group back to the places that they had.
func (q *queues) restore(group []*pending) {
	for _, d := range group {
		l := &q.class[d.class]
		at := l.Front()
		for at != nil && at.Value.(*pending).seq < d.seq {
			at = at.Next()
		}
		d.state = waiting
		if at == nil {
			d.place = l.PushBack(d)
		} else {
			d.place = l.InsertBefore(d, at)
		}
		q.n++
		q.bytes += len(d.data)
	}
}

// drain removes and returns the commands that match.
func (q *queues) drain(match func(*pending) bool) (g []*pending) {
	for c := range q.class {
		for e := q.class[c].Front(); e != nil; {
			d := e.Value.(*pending)
			e = e.Next()
			if match(d) {
				q.remove(d, settled)
				g = append(g, d)
			}
		}
	}
	return g
}

// expire removes and returns the commands that arrived before an instant, and when
// the oldest of the others arrived. It looks no further than the first newer command
// of each class: only commands of other nodes are out of order, and those never wait
// long at a node that does not lead.
func (q *queues) expire(before time.Time) (g []*pending, oldest time.Time) {
	for c := range event.Classes {
		for d := q.first(c); d != nil; d = q.first(c) {
			if d.since.After(before) {
				if oldest.IsZero() || d.since.Before(oldest) {
					oldest = d.since
				}
				break
			}
			q.remove(d, settled)
			g = append(g, d)
		}
	}
	return g, oldest
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
