package projections

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// encoder writes a state: little-endian fixed-size integers, byte strings with
// a u32 length. After an error it writes nothing more.
type encoder struct {
	out io.Writer
	buf []byte
	n   int64
	err error
}

const flushAt = 64 << 10

func (w *encoder) flush() {
	if w.err == nil && len(w.buf) > 0 {
		n, err := w.out.Write(w.buf)
		w.n += int64(n)
		w.err = err
	}
	w.buf = w.buf[:0]
}

func (w *encoder) room() {
	if len(w.buf) >= flushAt {
		w.flush()
	}
}

// next returns the next n bytes of the buffer: the caller fills in all of them.
func (w *encoder) next(n int) []byte {
	l := len(w.buf)
	w.buf = slices.Grow(w.buf, n)[:l+n]
	return w.buf[l:]
}

// put… set the front of a piece and return the rest of it.
func put16(b []byte, v [16]byte) []byte { copy(b, v[:]); return b[16:] }
func put32(b []byte, v uint32) []byte   { binary.LittleEndian.PutUint32(b, v); return b[4:] }
func put64(b []byte, v uint64) []byte   { binary.LittleEndian.PutUint64(b, v); return b[8:] }
func putLink(b []byte, l link) []byte   { return put32(put32(b, uint32(l.prev)), uint32(l.next)) }

func (w *encoder) u8(v uint8) { w.buf = append(w.buf, v) }

func (w *encoder) bool(v bool) {
	if v {
		w.u8(1)
	} else {
		w.u8(0)
	}
}

func (w *encoder) u32(vs ...uint32) {
	for _, v := range vs {
		w.buf = binary.LittleEndian.AppendUint32(w.buf, v)
	}
}

func (w *encoder) u64(vs ...uint64) {
	for _, v := range vs {
		w.buf = binary.LittleEndian.AppendUint64(w.buf, v)
	}
}

func (w *encoder) raw16(id [16]byte) { w.buf = append(w.buf, id[:]...) }

func (w *encoder) bytes(b []byte) { w.u32(uint32(len(b))); w.buf = append(w.buf, b...) }
func (w *encoder) str(s string)   { w.u32(uint32(len(s))); w.buf = append(w.buf, s...) }
func (w *encoder) link(l link)    { w.u32(uint32(l.prev), uint32(l.next)) }
func (w *encoder) list(l list)    { w.u32(uint32(l.head), uint32(l.tail), l.n) }
func (w *encoder) ref(r event.Ref) {
	w.u64(r.Index)
	w.u32(r.Number)
}

func (w *encoder) queue(q *queue, usable bool, held []heldBy) {
	w.str(q.name)
	w.u32(q.number, q.backlog.number)
	w.bytes(event.EncodePolicy(q.policy))
	w.u64(q.revision, uint64(q.created), uint64(q.updated))
	w.bool(q.paused)
	w.bool(usable)
	for _, c := range q.counters() {
		w.u64(uint64(*c))
	}
	w.u32(uint32(len(held)))
	for _, h := range held {
		w.str(h.key)
		w.raw16(h.since)
		w.u32(h.dead)
	}
	w.room()
}

func (w *encoder) backlog(b *backlog, kinds []kindLists) {
	w.u32(b.number, b.queue.number)
	w.u8(uint8(b.ordering))
	w.bool(b.grave)
	w.list(b.all)
	w.list(b.inFlight)
	for _, l := range b.byPrio {
		w.list(l)
	}
	w.u32(uint32(len(kinds)))
	for _, k := range kinds {
		w.u32(uint32(k.kind))
		for _, l := range k.lists {
			w.list(l)
		}
	}
	w.u64(uint64(b.ready), uint64(b.scheduled), uint64(b.bytes))
	w.room()
}

const messageLen = 16 + 2*8 + 8*4 + 3*8 + 4

// message fills one piece of the buffer: a state is messages for the most part,
// and to append them field by field costs three times as much.
func (w *encoder) message(m *message) {
	b := (*[messageLen]byte)(w.next(messageLen))[:]
	b = put16(b, m.id)
	b = put64(b, uint64(m.due))
	b = put64(b, m.lastIndex)
	b = put32(b, m.lastNum)
	b = put32(b, m.size)
	b = put32(b, m.attempt)
	b = put32(b, m.backlog)
	b = put32(b, uint32(m.lane))
	b = put32(b, uint32(m.kind))
	b = put32(b, uint32(m.lease))
	b = put32(b, uint32(m.extra))
	b = putLink(b, m.order)
	b = putLink(b, m.kindOrder)
	b = putLink(b, m.all)
	b[0], b[1], b[2], b[3] = uint8(m.state), m.priority, uint8(m.place), 0
	if m.returned {
		b[3] = 1
	}
}

func (w *encoder) lease(l *lease) {
	w.raw16(l.id)
	w.u64(uint64(l.expires))
}

func (w *encoder) extra(x *extra) {
	w.u64(uint64(x.expires))
	w.ref(x.content)
	w.bool(x.dead != nil)
	if d := x.dead; d != nil {
		w.str(d.Queue)
		w.raw16(d.MessageID)
		w.u8(uint8(d.Reason))
		w.u32(d.Attempts, d.ReplayCount)
		w.u64(uint64(d.FailedAt), uint64(d.FirstEnqueuedAt))
		w.raw16(d.First)
	}
	w.str(x.holds)
	w.u32(x.holdsIn)
	w.str(x.key)
	w.str(x.sourceID)
	w.bool(x.origin != nil)
	if o := x.origin; o != nil {
		w.raw16(o.First)
		w.raw16(o.From)
		w.u32(o.Replays)
		w.bool(o.behind)
		w.bool(o.raised)
	}
}

func (w *encoder) lane(l *lane) {
	w.str(l.key)
	w.u32(l.backlog, l.refs)
	w.list(l.waiting)
	w.u32(l.ready)
	w.u64(uint64(l.bytes))
	w.u32(uint32(l.leased))
	w.link(l.order)
	w.link(l.kindOrder)
	w.u8(l.listed)
	w.u32(uint32(l.kind))
	w.bool(l.grave)
}

// frozenTable is a table as it was at one instant.
type frozenTable struct {
	slab       frozenSlab[remembered]
	head, tail handle
	floor      uint64
}

func (t *table) freeze() frozenTable {
	return frozenTable{t.slab.freeze(), t.head, t.tail, t.floor}
}

func (w *encoder) table(f *frozenTable) {
	w.u32(uint32(f.head), uint32(f.tail))
	w.u64(f.floor)
	writeSlab(w, &f.slab, func(r *remembered) bool { return r.used }, func(r *remembered) {
		w.raw16(r.key)
		w.raw16(r.id)
		w.raw16(r.body)
		w.u64(uint64(r.until))
		w.u32(uint32(r.next))
	})
}

func (r *decoder) table(t *table) {
	t.head, t.tail, t.floor = r.handle(), r.handle(), r.u64()
	readSlab(r, &t.slab, func(x *remembered) {
		*x = remembered{key: r.raw16(), id: r.raw16(), body: r.raw16(), until: int64(r.u64()), next: r.handle(), used: true}
	})
}

// writeSlab writes a slab's elements, a zero byte for each free one.
func writeSlab[T any](w *encoder, f *frozenSlab[T], used func(*T) bool, one func(*T)) {
	w.u32(uint32(f.used))
	for h := handle(1); h <= f.used; h++ {
		x := f.get(h)
		if !used(x) {
			w.u8(0)
			continue
		}
		w.u8(1)
		one(x)
		w.room()
	}
}

// decoder reads what encoder wrote; after an error everything is zero.
type decoder struct {
	in  *bufio.Reader
	tmp [16]byte
	err error
}

func newDecoder(in io.Reader) *decoder { return &decoder{in: bufio.NewReaderSize(in, flushAt)} }

func (r *decoder) read(b []byte) []byte {
	if r.err == nil {
		if _, err := io.ReadFull(r.in, b); err != nil {
			r.err = err
		}
	}
	if r.err != nil {
		clear(b)
	}
	return b
}

func (r *decoder) u8() uint8   { return r.read(r.tmp[:1])[0] }
func (r *decoder) bool() bool  { return r.u8() != 0 }
func (r *decoder) u32() uint32 { return binary.LittleEndian.Uint32(r.read(r.tmp[:4])) }
func (r *decoder) u64() uint64 { return binary.LittleEndian.Uint64(r.read(r.tmp[:8])) }
func (r *decoder) raw16() (id [16]byte) {
	copy(id[:], r.read(r.tmp[:16]))
	return id
}

// longest is more than any byte string of a state.
const longest = 16 << 20

func (r *decoder) bytes() []byte {
	n := r.u32()
	if n > longest {
		r.fail("a string of %d bytes", n)
	}
	if r.err != nil || n == 0 {
		return nil
	}
	return r.read(make([]byte, n))
}

func (r *decoder) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *decoder) str() string    { return string(r.bytes()) }
func (r *decoder) handle() handle { return handle(r.u32()) }
func (r *decoder) link() link     { return link{r.handle(), r.handle()} }
func (r *decoder) list() list     { return list{head: r.handle(), tail: r.handle(), n: r.u32()} }
func (r *decoder) ref() event.Ref { return event.Ref{Index: r.u64(), Number: r.u32()} }

func (r *decoder) queue(s *State) {
	q := &queue{name: r.str(), number: r.u32(), held: map[string]hold{}}
	q.backlog = &backlog{number: r.u32()} // filled in by its own record
	policy, err := event.DecodePolicy(r.bytes())
	if err != nil {
		r.fail("queue %q: %v", q.name, err)
		return
	}
	q.policy = policy
	q.revision, q.created, q.updated = r.u64(), int64(r.u64()), int64(r.u64())
	q.paused = r.bool()
	usable := r.bool()
	for _, c := range q.counters() {
		*c = int64(r.u64())
	}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		k := r.str()
		q.held[k] = hold{since: r.raw16(), dead: r.u32()}
	}
	s.numbers[q.number] = q
	s.backlogs[q.backlog.number] = q.backlog
	if usable {
		s.queues[q.name] = q
	}
}

func (r *decoder) backlog(s *State) {
	number, owner := r.u32(), r.u32()
	b, ok := s.backlogs[number]
	if !ok {
		b = &backlog{number: number}
		s.backlogs[number] = b
	}
	if b.queue, ok = s.numbers[owner]; !ok {
		r.fail("backlog %d: queue %d is not there", number, owner)
		return
	}
	b.index()
	b.ordering, b.grave = event.Ordering(r.u8()), r.bool()
	b.all, b.inFlight = r.list(), r.list()
	for i := range b.byPrio {
		b.byPrio[i] = r.list()
	}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		l := b.kindLists(r.handle())
		for i := range l {
			l[i] = r.list()
		}
	}
	b.ready, b.scheduled, b.bytes = int64(r.u64()), int64(r.u64()), int64(r.u64())
}

func (r *decoder) message(m *message) {
	m.id = r.raw16()
	m.due, m.lastIndex = int64(r.u64()), r.u64()
	m.lastNum, m.size, m.attempt, m.backlog = r.u32(), r.u32(), r.u32(), r.u32()
	m.lane, m.kind, m.lease, m.extra = r.handle(), r.handle(), r.handle(), r.handle()
	m.order, m.kindOrder, m.all = r.link(), r.link(), r.link()
	m.state, m.priority, m.place, m.returned = event.State(r.u8()), r.u8(), event.Place(r.u8()), r.bool()
}

func (r *decoder) lease(l *lease) { l.id, l.expires = r.raw16(), int64(r.u64()) }

func (r *decoder) extra(x *extra) {
	x.used = true
	x.expires, x.content = int64(r.u64()), r.ref()
	if r.bool() {
		d := &event.DeadView{Queue: r.str(), MessageID: r.raw16(), Reason: event.Reason(r.u8()), Attempts: r.u32(), ReplayCount: r.u32()}
		d.FailedAt, d.FirstEnqueuedAt = int64(r.u64()), int64(r.u64())
		d.First = r.raw16()
		x.dead = d
	}
	x.holds, x.holdsIn, x.key, x.sourceID = r.str(), r.u32(), r.str(), r.str()
	if r.bool() {
		x.origin = &origin{OriginView: event.OriginView{First: r.raw16(), From: r.raw16(), Replays: r.u32()}, behind: r.bool(), raised: r.bool()}
	}
}

func (r *decoder) lane(l *lane) {
	l.used = true
	l.key, l.backlog, l.refs = r.str(), r.u32(), r.u32()
	l.waiting, l.ready, l.bytes, l.leased = r.list(), r.u32(), int64(r.u64()), r.handle()
	l.order, l.kindOrder = r.link(), r.link()
	l.listed, l.kind, l.grave = r.u8(), r.handle(), r.bool()
}

func readSlab[T any](r *decoder, s *slab[T], one func(*T)) {
	n := r.u32()
	for h := handle(1); h <= handle(n) && r.err == nil; h++ {
		if int(h>>chunkBits) >= len(s.chunks) {
			s.grow()
		}
		s.used = h
		if r.u8() != 0 {
			one(s.get(h))
		}
	}
}
