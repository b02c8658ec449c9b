package projections

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/event"
)

// coder writes a state as a sequence of MessagePack values, or reads one: the same calls
// list the fields for both directions. After an error it does nothing more.
type coder struct {
	enc *msgpack.Encoder // nil: it reads
	dec *msgpack.Decoder
	buf []byte // of packed numbers
	err error
}

func newEncoder(w io.Writer) *coder {
	c := &coder{enc: msgpack.NewEncoder(w)}
	c.enc.UseCompactInts(true)
	return c
}

func (c *coder) reads() bool { return c.enc == nil }

func (c *coder) do(fields ...any) {
	for _, f := range fields {
		if c.err != nil {
			return
		}
		switch v := f.(type) {
		case *uint8:
			number(c, v)
		case *uint16:
			number(c, v)
		case *uint32:
			number(c, v)
		case *uint64:
			number(c, v)
		case *int64:
			number(c, v)
		case *handle:
			number(c, v)
		case *event.ID:
			c.raw(v[:])
		case *event.Hash:
			c.raw(v[:])
		case *event.Ref:
			number(c, &v.Index)
			number(c, &v.Number)
		case *bool:
			c.flag(v)
		case *link:
			number(c, &v.prev)
			number(c, &v.next)
		case *list:
			number(c, &v.head)
			number(c, &v.tail)
			number(c, &v.n)
		default:
			if c.reads() {
				c.err = c.dec.Decode(v)
			} else {
				c.err = c.enc.Encode(v)
			}
		}
	}
}

func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64](c *coder, v *T) {
	if c.err != nil {
		return
	}
	if !c.reads() {
		c.err = c.enc.EncodeUint(uint64(*v))
		return
	}
	n, err := c.dec.DecodeUint64()
	if *v = T(n); err == nil && uint64(*v) != n {
		err = fmt.Errorf("the number %d is too large", n)
	}
	c.err = err
}

func (c *coder) flag(v *bool) {
	if c.reads() {
		*v, c.err = c.dec.DecodeBool()
	} else {
		c.err = c.enc.EncodeBool(*v)
	}
}

// raw codes 16 bytes.
func (c *coder) raw(b []byte) {
	if !c.reads() {
		c.err = c.enc.EncodeBytes(b)
		return
	}
	n, err := c.dec.DecodeBytesLen()
	if err == nil && n != len(b) {
		err = fmt.Errorf("%d bytes instead of %d", n, len(b))
	}
	if err == nil {
		err = c.dec.ReadFull(b)
	}
	c.err = err
}

// several codes a list.
func several[T any](c *coder, l *[]T, one func(*T)) {
	n := uint32(len(*l))
	c.do(&n)
	for i := range int(n) {
		if c.err != nil {
			return
		}
		if c.reads() {
			*l = append(*l, *new(T))
		}
		one(&(*l)[i])
	}
}

// elements codes a slab: one that is frozen, or an empty one.
func elements[T any](c *coder, s *slab[T], used func(*T) bool, one func(*T)) {
	n := s.used
	c.do(&n)
	for h := handle(1); h <= n && h != 0 && c.err == nil; h++ {
		if c.reads() {
			if int(h>>chunkBits) >= len(s.chunks) {
				s.grow()
			}
			s.used = h
		}
		x := s.get(h)
		there := used(x)
		if c.flag(&there); there {
			one(x)
		}
	}
}

// queue codes a queue. Its backlog is filled in by backlog.
func (c *coder) queue(s *State, q *queue) {
	usable := !c.reads() && s.queues[q.Name] == q
	if c.reads() {
		q.held, q.backlog = map[string]hold{}, &backlog{}
	}
	c.do(&q.Name, &q.Number, &q.backlog.number, &usable, &q.Revision, &q.CreatedAt, &q.UpdatedAt,
		&q.LeasedAt, &q.Paused)
	var policy []byte
	if !c.reads() {
		policy = event.EncodePolicy(q.policy)
	}
	c.do(&policy)
	if c.reads() && c.err == nil {
		if q.policy, c.err = event.DecodePolicy(policy); c.err != nil {
			c.err = fmt.Errorf("queue %q: %w", q.Name, c.err)
		}
	}
	for _, n := range q.counters() {
		c.do(n)
	}
	keys := slices.Sorted(maps.Keys(q.held))
	several(c, &keys, func(key *string) {
		h := q.held[*key]
		if c.do(key, &h.since, &h.dead); c.reads() {
			q.held[*key] = h
		}
	})
	several(c, &q.PausedKeys, func(key *string) { c.do(key) })
	if c.err == nil && q.policy.RateLimit > 0 {
		c.tokens(s, q)
	}
	if c.reads() {
		q.orderHeld()
		s.numbers[q.Number], s.backlogs[q.backlog.number] = q, q.backlog
		if usable {
			s.queues[q.Name] = q
		}
	}
}

func (c *coder) tokens(s *State, q *queue) {
	if c.reads() {
		s.fill(q)
	}
	full, b := q.policy.RateLimit*q.policy.RatePer(), q.tokens
	if c.do(&b.level, &b.at); c.err == nil && (b.level < 0 || b.level > full || b.at > s.clock) {
		c.err = fmt.Errorf("queue %q: level %d of %d at %d", q.Name, b.level, full, b.at)
	}
}

func (c *coder) backlog(s *State, number *uint32) {
	c.do(number)
	b, owner := s.backlogs[*number], uint32(0)
	if !c.reads() {
		owner = b.queue.Number
	} else if b == nil {
		b = &backlog{number: *number}
		s.backlogs[*number] = b
	}
	c.do(&owner, (*uint8)(&b.ordering), &b.deleted, &b.all, &b.inFlight)
	if c.reads() {
		b.index()
		if b.queue = s.numbers[owner]; b.queue == nil && c.err == nil {
			c.err = fmt.Errorf("backlog %d: queue %d is not there", *number, owner)
		}
	}
	for i := range b.byPrio {
		c.do(&b.byPrio[i])
	}
	kinds := slices.Sorted(maps.Keys(b.byKind))
	several(c, &kinds, func(k *handle) {
		c.do(k)
		lists := b.kindLists(*k)
		for i := range lists {
			c.do(&lists[i])
		}
	})
	attempts := slices.Sorted(maps.Keys(b.tried))
	several(c, &attempts, func(n *uint32) {
		t := b.tried[*n]
		if c.do(n, &t.n, &t.since); c.reads() && c.err == nil {
			b.tried[*n] = t
		}
	})
	c.do(&b.ready, &b.scheduled, &b.bytes, &b.separate)
}

// message packs the numbers of a message into one value, since there may be millions of them.
func (c *coder) message(m *message) {
	c.do(&m.id, &m.returned)
	b := c.buf[:0]
	if c.reads() {
		b = c.packed(b)
	}
	b = pack(c, b, &m.due)
	b = pack(c, b, &m.lastIndex)
	b = pack(c, b, &m.lastNum, &m.size, &m.attempt, &m.backlog)
	b = pack(c, b, &m.partition, &m.kind, &m.lease, &m.extra, &m.order.prev, &m.order.next,
		&m.kindOrder.prev, &m.kindOrder.next, &m.all.prev, &m.all.next)
	b = pack(c, b, (*uint8)(&m.state), &m.priority, (*uint8)(&m.place))
	switch {
	case c.err != nil:
	case !c.reads():
		c.buf, c.err = b, c.enc.EncodeBytes(b)
	case len(b) > 0:
		c.err = fmt.Errorf("%d bytes after the numbers of a message", len(b))
	}
}

// maxPacked is more than the numbers of a message take.
const maxPacked = 256

// packed reads the bytes that message wrote, into b if they fit.
func (c *coder) packed(b []byte) []byte {
	n := 0
	if c.err == nil {
		n, c.err = c.dec.DecodeBytesLen()
	}
	if c.err == nil && (n < 0 || n > maxPacked) {
		c.err = fmt.Errorf("the numbers of a message in %d bytes", n)
	}
	if c.err != nil {
		return nil
	}
	c.buf = slices.Grow(b, n)[:n]
	c.err = c.dec.ReadFull(c.buf)
	return c.buf
}

// pack appends numbers to b as varints, or takes them from its beginning.
func pack[T ~uint8 | ~uint32 | ~uint64 | ~int64](c *coder, b []byte, vs ...*T) []byte {
	for _, v := range vs {
		if !c.reads() {
			b = binary.AppendUvarint(b, uint64(*v))
			continue
		}
		n, size := binary.Uvarint(b)
		if *v = T(n); c.err == nil && (size <= 0 || uint64(*v) != n) {
			c.err = errors.New("the numbers of a message are wrong")
		}
		b = b[max(size, 0):]
	}
	return b
}

func (c *coder) extra(x *extra) {
	dead, back, follows := x.dead != nil, x.origin != nil, x.follows != event.ID{}
	c.do(&x.expires, &x.content, &x.holds, &x.holdsIn, &x.key, &x.sourceID, &dead, &back,
		&follows)
	if c.reads() {
		x.used = true
	}
	if dead {
		if c.reads() {
			x.dead = &event.DeadView{}
		}
		d := x.dead
		c.do(&d.Queue, &d.MessageID, (*uint8)(&d.Reason), &d.Attempts, &d.ReplayCount, &d.FailedAt,
			&d.FirstEnqueuedAt, &d.First)
	}
	if back {
		if c.reads() {
			x.origin = &origin{}
		}
		o := x.origin
		c.do(&o.First, &o.From, &o.Replays, &o.behind)
	}
	if follows {
		c.do(&x.follows)
	}
}

func (c *coder) partition(l *partition) {
	c.do(&l.key, &l.backlog, &l.refs, &l.waiting, &l.ready, &l.bytes, &l.leased, &l.order,
		&l.kindOrder, &l.listed, &l.kind, &l.deleted, &l.inFlight, &l.since)
}

func (c *coder) table(t *table) {
	c.do(&t.head, &t.tail, &t.floor)
	elements(c, &t.slab, func(r *remembered) bool { return !r.id.IsZero() },
		func(r *remembered) { c.do(&r.key, &r.id, &r.body, &r.until, &r.next) })
}

func (c *coder) task(t *task) {
	c.do(&t.ID, (*uint8)(&t.Kind), (*uint8)(&t.Status), &t.Sealed, &t.Queue, &t.Actor, &t.CreatedAt,
		&t.UpdatedAt, &t.EndedAt, &t.Total, &t.Done, &t.Skipped, &t.KeepFrom, &t.End, &t.last)
	several(c, &t.Nodes, func(n *event.TaskNode) { c.do(&n.Node, &n.At) })
}

// head codes the part of a state before its slabs.
func (c *coder) head(s *State, written *event.Hash, sum *digest) {
	version := uint8(stateVersion)
	c.do(&version, &s.rules)
	switch {
	case c.err != nil:
		return
	case version != stateVersion:
		c.err = fmt.Errorf("format version %d, this binary supports %d", version, stateVersion)
		return
	case s.rules == 0:
		c.err = fmt.Errorf("rules version %d", s.rules)
		return
	}
	c.do(&s.index, &s.clock, &s.next, &s.history, &sum.lo, &sum.hi, written)
	queues, backlogs := slices.Sorted(maps.Keys(s.numbers)), slices.Sorted(maps.Keys(s.backlogs))
	several(c, &queues, func(n *uint32) {
		q := s.numbers[*n]
		if c.reads() {
			q = &queue{}
		}
		c.queue(s, q)
	})
	several(c, &backlogs, func(n *uint32) { c.backlog(s, n) })
	several(c, &s.tombstones, func(p **tombstone) {
		if c.reads() {
			*p = &tombstone{}
		}
		g, deleted := *p, uint32(0)
		if g.owner != nil {
			deleted = g.owner.Number
		}
		c.do((*uint8)(&g.reason), &g.queue, &g.backlog, &g.partition, &g.to, &deleted)
		g.owner = s.numbers[deleted]
	})
}

// slabs codes the slabs, frozen ones or empty ones.
func (c *coder) slabs(s *State) {
	elements(c, &s.messages, func(m *message) bool { return m.state != event.StateNone }, c.message)
	elements(c, &s.leases, func(l *lease) bool { return l.id != event.ID{} },
		func(l *lease) { c.do(&l.id, &l.expires) })
	elements(c, &s.extras, func(x *extra) bool { return x.used }, c.extra)
	elements(c, &s.partitions, func(l *partition) bool { return l.refs > 0 }, c.partition)
	elements(c, &s.kinds.slab, func(k *kind) bool { return k.refs > 0 },
		func(k *kind) { c.do(&k.name, &k.refs) })
	c.table(&s.dedup)
	c.table(&s.answers)
	c.table(&s.raised)
}

// tail codes the part of a state behind its slabs.
func (c *coder) tail(s *State) {
	webhooks, tasks := s.Webhooks(), s.sortedTasks()
	several(c, &webhooks, func(w *event.WebhookView) {
		c.do(&w.Name, &w.Queue, &w.Definition, &w.Revision, &w.CreatedAt, &w.UpdatedAt)
		if c.reads() {
			w.Sum = sha256.Sum256(w.Definition)
			s.webhooks[w.Name] = *w
		}
	})
	several(c, &tasks, func(t **task) {
		if c.reads() {
			*t = &task{}
		}
		if c.task(*t); c.reads() {
			s.tasks[(*t).ID] = *t
		}
	})
}

// counter counts the bytes written to w.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
