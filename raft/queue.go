package raft

import (
	"time"

	"github.com/qlogd/qlogd/event"
)

// pending is one command between Propose and its answer.
type pending struct {
	data   []byte
	class  event.Class
	weight int // messages, leases or settles that it asks for
	kind   string
	key    event.Hash // of its Idempotency-Key; zero none
	rules  uint16     // that it brings into force: Upgrade
	here   bool       // a leader's own business: never taken to another node
	since  time.Time
	// Where its answer goes: to the caller that waits here, or into the batch of
	// another node, at pos.
	done  chan answer // takes one
	batch *batch
	pos   int

	// Guarded by the proposer's lock.
	seq        uint64 // rises with the order in which commands came
	state      pendingState
	gone       bool // its caller left while it was under way
	prev, next *pending
}

type pendingState uint8

const (
	waiting  pendingState = iota // in a queue, may still be dropped
	inFlight                     // part of an entry, or on its way to the leader: its fate is not ours
	settled
)

type answer struct {
	result  event.Result
	problem *event.Problem
	back    bool // not proposed: only of commands of a batch
}

// deliver hands out the answer; a pending takes one.
func (d *pending) deliver(a answer) {
	if d.batch != nil {
		d.batch.deliver(d.pos, a)
		return
	}
	d.done <- a
}

// refuse answers a command that was not proposed and will not be by this node:
// its client is told p, another node takes it to the next leader.
func (d *pending) refuse(p *event.Problem) { d.deliver(answer{problem: p, back: d.batch != nil}) }

func newPending(c *event.Command) *pending {
	p := &pending{
		data: event.EncodeCommand(c), class: c.Class(), weight: c.Weight(), kind: c.Name(),
		since: time.Now(),
		done:  make(chan answer, 1),
	}
	if c.Request != nil {
		p.key = c.Request.Key
	}
	if c.Upgrade != nil {
		p.rules = c.Upgrade.Rules
	}
	p.here = c.Upgrade != nil || c.Mark != nil
	return p
}

// fifo is a list of pending commands: in order, and one can leave from anywhere,
// so that a caller that gave up costs no memory.
type fifo struct {
	first, last *pending
	n, bytes    int
}

func (q *fifo) push(p *pending) {
	p.prev = q.last
	if q.last != nil {
		q.last.next = p
	} else {
		q.first = p
	}
	q.last = p
	q.n++
	q.bytes += len(p.data)
}

// restore puts back what was taken out before, in its old order. group rises by
// seq.
func (q *fifo) restore(group []*pending) {
	at := q.first
	for _, p := range group {
		for at != nil && at.seq < p.seq {
			at = at.next
		}
		if at == nil {
			q.push(p)
			continue
		}
		p.prev, p.next = at.prev, at
		if at.prev != nil {
			at.prev.next = p
		} else {
			q.first = p
		}
		at.prev = p
		q.n++
		q.bytes += len(p.data)
	}
}

func (q *fifo) remove(p *pending) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		q.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		q.last = p.prev
	}
	p.prev, p.next = nil, nil
	q.n--
	q.bytes -= len(p.data)
}

// queues hold what waits, a queue for each class.
type queues struct {
	class [event.Classes]fifo
	// passed counts the groups in a row in which a class that waits got no room.
	passed [event.Classes]int
}

func (q *queues) len() (n, bytes int) {
	for i := range q.class {
		n += q.class[i].n
		bytes += q.class[i].bytes
	}
	return n, bytes
}

// top is the first class of which something waits.
func (q *queues) top() event.Class {
	for c := range event.Classes {
		if q.class[c].n > 0 {
			return c
		}
	}
	return 0
}

// patience is after how many groups without room a class is let in first, with
// an eighth of one group: order of classes, but nobody starves.
const patience = 32

// group takes the commands of the next entry: class by class, first come first
// served in each, while they fit. The first always fits.
func (q *queues) group(l Limits) (g []*pending, bytes int) {
	weight := 0
	var took [event.Classes]int
	take := func(c event.Class, share int) {
		f := &q.class[c]
		for p := f.first; p != nil; p = f.first {
			if len(g) > 0 && (bytes+len(p.data) > l.GroupBytes/share || len(g) >= l.GroupCommands/share || weight+p.weight > l.GroupWeight/share) {
				return
			}
			f.remove(p)
			p.state = inFlight
			g = append(g, p)
			bytes += len(p.data)
			weight += p.weight
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
		if q.class[c].n > 0 && took[c] == 0 {
			q.passed[c]++
		} else {
			q.passed[c] = 0
		}
	}
	return g, bytes
}

// restore puts a group back to where group took it from.
func (q *queues) restore(g []*pending) {
	var class [event.Classes][]*pending
	for _, p := range g {
		p.state = waiting
		class[p.class] = append(class[p.class], p)
	}
	for c := range class {
		q.class[c].restore(class[c])
	}
}

// drain takes out all that which says; nil: everything.
func (q *queues) drain(which func(*pending) bool) (g []*pending) {
	for c := range q.class {
		for p := q.class[c].first; p != nil; {
			next := p.next
			if which == nil || which(p) {
				q.class[c].remove(p)
				p.state = settled
				g = append(g, p)
			}
			p = next
		}
	}
	return g
}

// expire takes out what came before a moment. Each queue is in the order of
// arrival but for commands of other nodes, which are never long in one without
// a leader: so it looks no further than the first that is newer.
func (q *queues) expire(before time.Time) (g []*pending, oldest time.Time) {
	for c := range q.class {
		for p := q.class[c].first; p != nil; p = q.class[c].first {
			if p.since.After(before) {
				if oldest.IsZero() || p.since.Before(oldest) {
					oldest = p.since
				}
				break
			}
			q.class[c].remove(p)
			p.state = settled
			g = append(g, p)
		}
	}
	return g, oldest
}
