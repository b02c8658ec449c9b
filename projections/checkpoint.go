package projections

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/event"
)

// stateVersion is the first value of a written state.
const stateVersion = 1

// Frozen is a state as it was at one instant, for writing while folding continues. The
// caller serialises Freeze and Release with folding.
type Frozen struct {
	s          *State
	clock      int64
	digest     event.Hash
	head, tail []byte // the encoded parts before and behind the slabs
	slabs      State  // only its slabs
}

// Freeze encodes the small parts and marks the slabs to be copied on the next write,
// chunk by chunk: it costs one pointer for 256 messages.
func (s *State) Freeze() *Frozen {
	f := &Frozen{s: s, clock: s.clock, digest: s.Digest(), slabs: State{
		messages: s.messages.freeze(), leases: s.leases.freeze(), extras: s.extras.freeze(),
		partitions: s.partitions.freeze(), kinds: kindTable{slab: s.kinds.slab.freeze()},
		dedup:   table{slab: s.dedup.slab.freeze(), ends: s.dedup.ends},
		answers: table{slab: s.answers.slab.freeze(), ends: s.answers.ends},
		raised:  table{slab: s.raised.slab.freeze(), ends: s.raised.ends},
	}}
	encode := func(part func(*coder)) []byte {
		var b bytes.Buffer
		c := newEncoder(&b)
		if part(c); c.err != nil {
			panic(fmt.Sprintf("freeze: %v", c.err)) // only a type that the library cannot encode
		}
		return b.Bytes()
	}
	sum := s.sum
	f.head = encode(func(c *coder) { c.head(s, &f.digest, &sum) })
	f.tail = encode(func(c *coder) { c.tail(s) })
	return f
}

// Clock and Digest are the frozen state's.
func (f *Frozen) Clock() int64     { return f.clock }
func (f *Frozen) Digest() [16]byte { return f.digest }

// Release allows the state to write in place again.
func (f *Frozen) Release() {
	s := f.s
	s.messages.thaw()
	s.leases.thaw()
	s.extras.thaw()
	s.partitions.thaw()
	s.kinds.slab.thaw()
	s.dedup.slab.thaw()
	s.answers.slab.thaw()
	s.raised.slab.thaw()
}

// WriteTo writes the state's bytes (docs/reference/formats-checkpoint.md, body), in small pieces.
func (f *Frozen) WriteTo(out io.Writer) (int64, error) {
	w := &counter{w: out}
	// the library allocates for each byte that it writes without
	buf := bufio.NewWriterSize(w, 64<<10)
	c := newEncoder(buf)
	_, c.err = buf.Write(f.head)
	c.slabs(&f.slabs)
	if c.err == nil {
		_, c.err = buf.Write(f.tail)
	}
	if c.err == nil {
		c.err = buf.Flush()
	}
	return w.n, c.err
}

// Load reads a written state and builds its indexes.
func Load(in io.Reader) (s *State, err error) {
	defer func() {
		// The bytes passed their checksum, so an invalid handle is a fault of the program
		// that wrote them; still, an error says more than a panic.
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("load state: inconsistent: %v", p)
		}
	}()
	s = New()
	var sum digest
	var written event.Hash
	c := &coder{dec: msgpack.NewDecoder(in)}
	c.head(s, &written, &sum)
	c.slabs(s)
	c.tail(s)
	if c.err != nil {
		return nil, fmt.Errorf("load state: %w", c.err)
	}
	s.reindex()
	if s.sum != sum || s.Digest() != written {
		return nil, fmt.Errorf("load state: digest at index %d is %x, %x was written", s.index,
			s.Digest(), written)
	}
	return s, nil
}

// reindex builds the parts that a written state leaves out: maps, heaps, counts and
// digests.
func (s *State) reindex() {
	s.leases.index(func(l *lease) bool { return l.id != event.ID{} }, nil)
	s.extras.index(func(x *extra) bool { return x.used }, nil)
	s.partitions.index(func(l *partition) bool { return l.refs > 0 }, func(h handle, l *partition) {
		if !l.deleted {
			s.backlogs[l.backlog].partitions[l.key] = h
		}
	})
	s.kinds.slab.index(func(k *kind) bool { return k.refs > 0 }, func(h handle, k *kind) {
		s.kinds.byName[k.name] = h
	})
	s.dedup.reindex(true)
	s.answers.reindex(false)
	s.raised.reindex(false)
	var listed []handle // in lists by id
	s.messages.index(func(m *message) bool { return m.state != event.StateNone },
		func(h handle, m *message) {
			if s.reindexMessage(h, m) {
				listed = append(listed, h)
			}
		})
	for _, h := range s.byAge(listed) {
		m := s.messages.get(h)
		x, b := s.extras.get(m.extra), s.backlogs[m.backlog]
		if x.dead != nil {
			s.listDead(b, h)
		}
		if x.sourceID != "" {
			s.listSource(b, h)
		}
	}
	s.reindexTasks()
	for h := handle(1); h <= s.messages.used; h++ {
		if m := s.messages.get(h); m.state == event.StateScheduled || m.state == event.StateReady {
			s.armExpiry(h)
		}
	}
	for h := handle(1); h <= s.partitions.used; h++ {
		if l := s.partitions.get(h); l.lists != 0 {
			s.refreshKey(s.backlogs[l.backlog], h)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.backlogs)) {
		b := s.backlogs[n]
		if !b.deleted {
			s.setCursor(b, b.all.head)
		}
		if b.separate != 0 {
			s.separations = append(s.separations, b)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.numbers)) {
		s.armRefill(s.numbers[n])
	}
}

// reindexMessage indexes a message, and reports whether it is in a list by id too.
func (s *State) reindexMessage(h handle, m *message) (listed bool) {
	m.page = s.ids.add(m.id, h)
	if m.extra != 0 {
		x := s.extras.get(m.extra)
		listed = x.dead != nil || x.sourceID != ""
	}
	if m.id.Compare(s.lastID) > 0 {
		s.lastID = m.id
	}
	s.contents[bucket(s.contentOf(m).Index)]++
	s.sum.add(s.hashMessage(m))
	if m.returned {
		s.reindexFront(h, m)
	}
	b := s.backlogs[m.backlog]
	switch {
	case m.state == event.StateReady && m.place == placeApart && !b.deleted:
		s.reindexApart(b, h, m)
	case m.state == event.StateScheduled && m.due != 0: // 0: deleted, see becomeReady
		s.waiting.push(s, timer{at: m.due, id: m.id, h: h, kind: timerReady})
	case m.state == event.StateLeased:
		l := s.leases.mut(m.lease)
		l.page = s.ids.add(l.id, h)
		s.armLease(h, m)
	}
	return listed
}

// reindexFront finds the last message of a list that returned to the front.
func (s *State) reindexFront(h handle, m *message) {
	last := func(l link) bool { return l.next == 0 || !s.messages.get(l.next).returned }
	b := s.backlogs[m.backlog]
	switch {
	case b.ordering != event.Unordered:
		if last(m.order) {
			s.partitions.mut(m.partition).waiting.front = h
		}
	case !b.deleted: // a tombstone's lists are not kept
		if last(m.order) {
			s.readyList(b, m, 0).front = h
		}
		if m.kind != 0 && last(m.kindOrder) {
			s.readyList(b, m, m.kind).front = h
		}
	}
}

// reindexApart adds a message that is kept apart to its key's lists.
func (s *State) reindexApart(b *backlog, h handle, m *message) {
	add := func(kind handle, at link) {
		l := s.readyList(b, m, kind)
		l.n++
		if at.prev == 0 {
			l.head = h
		}
		if at.next == 0 {
			l.tail = h
		}
	}
	add(0, m.order)
	if m.kind != 0 {
		add(m.kind, m.kindOrder)
	}
}
