package projections

import (
	"fmt"
	"io"
	"math"
	"sort"

	"github.com/qlogd/qlogd/event"
)

// stateVersion is the first byte of a written state.
const stateVersion = 1

// Frozen is a state as it was at one instant, to be written beside the writer
// who goes on. Release lets go of it; the caller serialises Freeze and Release
// with folding.
type Frozen struct {
	s        *State
	index    uint64
	clock    int64
	digest   [16]byte
	next     uint32
	history  uint64
	rules    uint16
	sum      digest
	queues   []queue
	held     [][]heldBy
	usable   []bool
	backlogs []backlog
	kindsOf  [][]kindLists
	graves   []grave
	messages frozenSlab[message]
	leases   frozenSlab[lease]
	extras   frozenSlab[extra]
	lanes    frozenSlab[lane]
	kinds    frozenSlab[kind]
	dedup    frozenTable
	answers  frozenTable
	webhooks []*webhook
	tasks    []task
}

type heldBy struct {
	key string
	hold
}

type kindLists struct {
	kind  handle
	lists [event.MaxPriority + 1]list
}

// Freeze copies what is small and marks the rest to be copied on the next
// write, chunk by chunk: its cost is one pointer for 256 messages.
func (s *State) Freeze() *Frozen {
	f := &Frozen{
		s: s, index: s.index, clock: s.clock, digest: s.Digest(), next: s.next, history: s.history, rules: s.rules, sum: s.sum,
		messages: s.messages.freeze(), leases: s.leases.freeze(), extras: s.extras.freeze(), lanes: s.lanes.freeze(),
		kinds: s.kinds.slab.freeze(), dedup: s.dedup.freeze(), answers: s.answers.freeze(),
		webhooks: s.sortedWebhooks(),
	}
	for _, n := range sortedNumbers(s.numbers) {
		q := s.numbers[n]
		f.queues = append(f.queues, *q)
		f.usable = append(f.usable, s.queues[q.name] == q)
		var held []heldBy
		for _, k := range heldKeys(q) {
			held = append(held, heldBy{k, q.held[k]})
		}
		f.held = append(f.held, held)
	}
	for _, n := range sortedNumbers(s.backlogs) {
		b := s.backlogs[n]
		f.backlogs = append(f.backlogs, *b)
		var kl []kindLists
		for k, l := range b.byKind { // order does not matter: sorted below
			kl = append(kl, kindLists{k, *l})
		}
		sort.Slice(kl, func(i, j int) bool { return kl[i].kind < kl[j].kind })
		f.kindsOf = append(f.kindsOf, kl)
	}
	for _, t := range s.sortedTasks() {
		f.tasks = append(f.tasks, *t)
	}
	for _, g := range s.graves {
		f.graves = append(f.graves, *g)
	}
	return f
}

func sortedNumbers[T any](m map[uint32]T) []uint32 {
	out := make([]uint32, 0, len(m))
	for n := range m { // order does not matter: sorted below
		out = append(out, n)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// Index, Clock and Digest are the frozen state's.
func (f *Frozen) Index() uint64    { return f.index }
func (f *Frozen) Clock() int64     { return f.clock }
func (f *Frozen) Digest() [16]byte { return f.digest }

// Release lets the state write in place again.
func (f *Frozen) Release() {
	s := f.s
	s.messages.thaw()
	s.leases.thaw()
	s.extras.thaw()
	s.lanes.thaw()
	s.kinds.slab.thaw()
	s.dedup.slab.thaw()
	s.answers.slab.thaw()
}

// WriteTo writes the state's bytes (docs/formats-checkpoint.md, body).
func (f *Frozen) WriteTo(out io.Writer) (int64, error) {
	w := &encoder{out: out}
	w.u8(stateVersion)
	w.u32(uint32(f.rules))
	w.u64(f.index, uint64(f.clock), uint64(f.next), f.history, f.sum.lo, f.sum.hi)
	w.bytes(f.digest[:])
	w.u32(uint32(len(f.queues)))
	for i := range f.queues {
		w.queue(&f.queues[i], f.usable[i], f.held[i])
	}
	w.u32(uint32(len(f.backlogs)))
	for i := range f.backlogs {
		w.backlog(&f.backlogs[i], f.kindsOf[i])
	}
	w.u32(uint32(len(f.graves)))
	for i := range f.graves {
		g := &f.graves[i]
		w.u8(uint8(g.reason))
		w.str(g.queue)
		w.u32(g.backlog, uint32(g.lane))
		w.str(g.to)
		n := uint32(0)
		if g.deleted != nil {
			n = g.deleted.number
		}
		w.u32(n)
	}
	writeSlab(w, &f.messages, func(m *message) bool { return m.state != event.StateNone }, w.message)
	writeSlab(w, &f.leases, func(l *lease) bool { return l.id != event.ID{} }, w.lease)
	writeSlab(w, &f.extras, func(x *extra) bool { return x.used }, w.extra)
	writeSlab(w, &f.lanes, func(l *lane) bool { return l.used }, w.lane)
	writeSlab(w, &f.kinds, func(k *kind) bool { return k.refs > 0 }, func(k *kind) { w.str(k.name); w.u32(k.refs) })
	w.table(&f.dedup)
	w.table(&f.answers)
	w.u32(uint32(len(f.webhooks)))
	for _, h := range f.webhooks {
		w.webhook(h)
	}
	w.u32(uint32(len(f.tasks)))
	for i := range f.tasks {
		w.task(&f.tasks[i])
	}
	w.flush()
	return w.n, w.err
}

// Load reads a written state and builds anew what follows from it.
func Load(in io.Reader) (s *State, err error) {
	r := newDecoder(in)
	if v := r.u8(); r.err == nil && v != stateVersion {
		return nil, fmt.Errorf("load state: format version %d, this binary supports %d", v, stateVersion)
	}
	s = New()
	rules := r.u32()
	if r.err == nil && (rules == 0 || rules > math.MaxUint16) {
		return nil, fmt.Errorf("load state: rules version %d", rules)
	}
	s.rules = uint16(rules)
	s.index, s.clock, s.next, s.history = r.u64(), int64(r.u64()), uint32(r.u64()), r.u64()
	sum := digest{r.u64(), r.u64()}
	var want [16]byte
	copy(want[:], r.bytes())
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.queue(s)
	}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.backlog(s)
	}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		g := &grave{reason: event.Reason(r.u8()), queue: r.str(), backlog: r.u32(), lane: handle(r.u32()), to: r.str()}
		g.deleted = s.numbers[r.u32()]
		s.graves = append(s.graves, g)
	}
	readSlab(r, &s.messages, r.message)
	readSlab(r, &s.leases, r.lease)
	readSlab(r, &s.extras, r.extra)
	readSlab(r, &s.lanes, r.lane)
	readSlab(r, &s.kinds.slab, func(k *kind) { k.name = r.str(); k.refs = r.u32() })
	r.table(&s.dedup)
	r.table(&s.answers)
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.webhook(s)
	}
	for n := r.u32(); n > 0 && r.err == nil; n-- {
		r.task(s)
	}
	if r.err != nil {
		return nil, fmt.Errorf("load state: %w", r.err)
	}
	defer func() {
		// The bytes passed their checksum, so a handle that leads nowhere is a
		// fault of the program that wrote them; still an error tells more than
		// a crash.
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("load state: inconsistent: %v", p)
		}
	}()
	s.reindex()
	if s.sum != sum || s.Digest() != want {
		return nil, fmt.Errorf("load state: digest at index %d is %x, %x was written", s.index, s.Digest(), want)
	}
	return s, nil
}

// reindex builds what a written state leaves out: maps, heaps, counts and
// digests.
func (s *State) reindex() {
	s.messages.index(func(m *message) bool { return m.state != event.StateNone })
	s.leases.index(func(l *lease) bool { return l.id != event.ID{} })
	s.extras.index(func(x *extra) bool { return x.used })
	s.lanes.index(func(l *lane) bool { return l.used })
	s.kinds.slab.index(func(k *kind) bool { return k.refs > 0 })
	s.dedup.reindex()
	s.answers.reindex()

	for h := handle(1); h <= s.kinds.slab.used; h++ {
		if k := s.kinds.slab.get(h); k.refs > 0 {
			s.kinds.byName[k.name] = h
		}
	}
	for h := handle(1); h <= s.lanes.used; h++ {
		if l := s.lanes.get(h); l.used && !l.grave {
			s.backlogs[l.backlog].lanes[l.key] = h
		}
	}
	var dead, imported []handle
	for h := handle(1); h <= s.messages.used; h++ {
		m := s.messages.get(h)
		if m.state == event.StateNone {
			continue
		}
		s.byID.add(s, h)
		if m.extra != 0 {
			x := s.extras.get(m.extra)
			if x.dead != nil {
				dead = append(dead, h)
			}
			if x.sourceID != "" {
				imported = append(imported, h)
			}
			if x.origin != nil && x.origin.raised {
				s.raised[x.origin.From] = h
			}
		}
		if m.id.Compare(s.lastID) > 0 {
			s.lastID = m.id
		}
		s.contents[bucket(s.contentOf(m).Index)]++
		s.sum.add(s.hashMessage(m))
		if m.returned {
			s.reindexFront(h, m)
		}
		switch m.state {
		case event.StateScheduled:
			if m.due == 0 { // buried, and was due: see becomeReady
				continue
			}
			s.waiting.items = append(s.waiting.items, timer{at: m.due, h: h, kind: timerWait})
		case event.StateLeased:
			l := s.leases.mut(m.lease)
			l.message = h
			s.byLease.add(s, m.lease)
			s.deadlines.items = append(s.deadlines.items, timer{at: l.expires, h: h, kind: timerWait})
		}
	}
	s.reindexDead(dead)
	s.reindexTasks()
	for _, h := range s.byAge(imported) {
		s.listSource(s.backlogs[s.messages.get(h).backlog], h)
	}
	s.waiting.rebuild(s)
	s.deadlines.rebuild(s)
	for h := handle(1); h <= s.messages.used; h++ {
		if m := s.messages.get(h); m.state == event.StateScheduled || m.state == event.StateReady {
			s.armExpiry(h)
		}
	}
	for _, n := range sortedNumbers(s.backlogs) {
		if b := s.backlogs[n]; !b.grave {
			s.setCursor(b, b.all.head)
		}
	}
	for _, q := range s.queues { // order does not matter: a sum
		s.use(q.policy, 1)
	}
}

// reindexFront finds the last of those that came back to the front of a list.
func (s *State) reindexFront(h handle, m *message) {
	last := func(l link) bool { return l.next == 0 || !s.messages.get(l.next).returned }
	b := s.backlogs[m.backlog]
	switch {
	case b.ordering != event.Unordered:
		if last(m.order) {
			s.lanes.mut(m.lane).waiting.front = h
		}
	case !b.grave: // a grave's lists are not kept
		if last(m.order) {
			b.ready1(m.priority).front = h
		}
		if m.kind != 0 && last(m.kindOrder) {
			b.kindLists(m.kind)[m.priority].front = h
		}
	}
}
