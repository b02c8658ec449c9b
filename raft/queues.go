package raft

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/raft/peer"
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
	queued bool // in a queue, may still be dropped
	gone   bool // its caller left while it was in flight
}

// foreign reports whether only the node that leads now may propose it.
func (d *pending) foreign() bool { return d.from != nil || d.local }

func newPending(c *event.Command) *pending {
	d := &pending{
		data: event.EncodeCommand(c), class: c.Class(), weight: c.Weight(),
		local: c.Upgrade != nil || c.Mark != nil,
		since: time.Now(), done: make(chan event.Answer, 1),
	}
	if c.Upgrade != nil {
		d.rules = c.Upgrade.Rules
	}
	return d
}

// answer answers the command, under the batcher's lock. It is called once.
func (d *pending) answer(a event.Answer) {
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

func (q *queues) push(d *pending) {
	d.queued = true
	q.class[d.class] = append(q.class[d.class], d)
	q.n++
	q.bytes += len(d.data)
}

// remove takes out the commands that match.
func (q *queues) remove(match func(*pending) bool) (g []*pending) {
	for c := range q.class {
		q.class[c] = slices.DeleteFunc(q.class[c], func(d *pending) bool {
			if !match(d) {
				return false
			}
			d.queued = false
			q.n--
			q.bytes -= len(d.data)
			g = append(g, d)
			return true
		})
	}
	return g
}

// patience is the number of batches without room after which a class goes first, with
// an eighth of one batch: classes are ordered, but none starves.
const patience = 32

// batch takes the commands of the next batch: class by class, in the order of arrival,
// while they fit. The first command always fits.
func (q *queues) batch(l Limits) (g []*pending, bytes int) {
	weight := 0
	fill := func(c event.Class, share int) {
		n := 0
		for _, d := range q.class[c] {
			full := bytes+len(d.data) > l.GroupBytes/share || len(g) >= l.GroupCommands/share ||
				weight+d.weight > l.GroupWeight/share
			if full && len(g) > 0 {
				break
			}
			d.queued = false
			g = append(g, d)
			bytes += len(d.data)
			weight += d.weight
			n++
		}
		q.class[c] = slices.Delete(q.class[c], 0, n)
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
	q.n -= len(g)
	q.bytes -= bytes
	return g, bytes
}

// wait estimates how long a new command would wait: as long as those that have waited longest.
func (q *queues) wait(now time.Time) time.Duration {
	longest := 50 * time.Millisecond
	for _, waiting := range q.class {
		if len(waiting) > 0 {
			longest = max(longest, now.Sub(waiting[0].since))
		}
	}
	return min(longest, 10*time.Second)
}

// admitLocked queues a command, or returns why it is refused: the node is shutting down,
// the command is too large, the disk is nearly full, or its class has no room. Each class
// may fill a smaller part of the room: what empties the queues is still accepted when
// what fills them is refused.
func (b *batcher) admitLocked(d *pending, free uint64) *event.Problem {
	l := b.o.Limits
	n, bytes, size := b.queues.n, b.queues.bytes, len(d.data)
	switch {
	case b.lead.closing:
		return shuttingDown()
	case size > l.CommandBytes:
		detail := fmt.Sprintf("a request of %d bytes is over the limit of %d", size, l.CommandBytes)
		return refused(event.CodePayloadTooLarge, detail, 0)
	case n >= share(l.Waiting, d.class), n > 0 && bytes+size > share(l.WaitingBytes, d.class):
		return b.overloadedLocked("too many writes wait; this one was not proposed")
	}
	// The leader's disk decides, not that of a node that forwards: see Replica.makeRoom.
	if b.lead.leader || b.forward.to == (peer.Target{}) {
		if full := b.room.refuses(d.class, free); full != nil {
			return full
		}
	}
	b.queues.push(d)
	return nil
}

func (b *batcher) overloadedLocked(detail string) *event.Problem {
	p := refused(event.CodeOverloaded, detail, b.queues.wait(time.Now()).Milliseconds())
	p.QueueDepth = int64(b.queues.n)
	return p
}

// share is the part of a limit that a class may fill: all of it, 6/8, 4/8, 2/8.
func share(limit int, c event.Class) int { return max(1, limit/8*(8-2*int(c))+limit%8) }

// room refuses writes before the disk is full: a Raft log that cannot be written ends the process.
type room struct {
	o      *Options
	space  watchdog.Space
	warned rate.Sometimes
}

// reserveShare is by what the reserve is divided for a class: what makes room is refused last.
var reserveShare = [event.Classes]uint64{
	event.ClassProduce: 1, event.ClassLease: 2, event.ClassSettle: 4, event.ClassBackground: 4,
}

// refuses returns insufficient_storage for a class that must not write now.
func (r *room) refuses(c event.Class, free uint64) *event.Problem {
	if free >= r.o.ReserveBytes/reserveShare[c] {
		return nil
	}
	r.warned.Do(func() {
		r.o.Logger.Warn("disk is nearly full: refusing produce, then leases, then all writes",
			"free_bytes", free, "reserve_bytes", r.o.ReserveBytes)
	})
	detail := fmt.Sprintf("the disk of node %s is nearly full; the write was not proposed",
		r.o.NodeID)
	return refused(event.CodeInsufficientStorage, detail, 5000)
}
