package projections

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/qlogd/qlogd/event"
)

// stateVersion is the first value of a written state.
const stateVersion = 1

// Frozen is a state as it was at one instant, to be written beside the writer
// who goes on. Release gives it up; the caller serialises Freeze and Release
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
	queues   []frozenQueue
	backlogs []frozenBacklog
	graves   []frozenGrave
	messages frozenSlab[message]
	leases   frozenSlab[lease]
	extras   frozenSlab[extra]
	lanes    frozenSlab[lane]
	kinds    frozenSlab[kind]
	dedup    frozenTable
	answers  frozenTable
	webhooks []webhook
	tasks    []task
}

type frozenQueue struct {
	queue
	usable bool
	held   []heldBy
}

type heldBy struct {
	key string
	hold
}

type frozenBacklog struct {
	backlog
	owner uint32 // number of its queue
	kinds []kindLists
}

type kindLists struct {
	kind  handle
	lists [event.MaxPriority + 1]list
}

type frozenGrave struct {
	grave
	number uint32 // of the deleted queue; 0 none
}

// Freeze copies what is small and marks the rest to be copied on the next
// write, chunk by chunk: its cost is one pointer for 256 messages.
func (s *State) Freeze() *Frozen {
	f := &Frozen{
		s: s, index: s.index, clock: s.clock, digest: s.Digest(), next: s.next, history: s.history,
		rules: s.rules, sum: s.sum,
		messages: s.messages.freeze(), leases: s.leases.freeze(), extras: s.extras.freeze(),
		lanes: s.lanes.freeze(),
		kinds: s.kinds.slab.freeze(), dedup: s.dedup.freeze(), answers: s.answers.freeze(),
	}
	for _, n := range sortedNumbers(s.numbers) {
		q := s.numbers[n]
		fq := frozenQueue{queue: *q, usable: s.queues[q.name] == q}
		for _, k := range heldKeys(q) {
			fq.held = append(fq.held, heldBy{k, q.held[k]})
		}
		f.queues = append(f.queues, fq)
	}
	for _, n := range sortedNumbers(s.backlogs) {
		b := s.backlogs[n]
		fb := frozenBacklog{backlog: *b, owner: b.queue.number}
		for k, l := range b.byKind { // order does not matter: sorted below
			fb.kinds = append(fb.kinds, kindLists{k, *l})
		}
		sort.Slice(fb.kinds, func(i, j int) bool { return fb.kinds[i].kind < fb.kinds[j].kind })
		f.backlogs = append(f.backlogs, fb)
	}
	for _, g := range s.graves {
		fg := frozenGrave{grave: *g}
		if g.deleted != nil {
			fg.number = g.deleted.number
		}
		f.graves = append(f.graves, fg)
	}
	for _, h := range s.sortedWebhooks() {
		f.webhooks = append(f.webhooks, *h)
	}
	for _, t := range s.sortedTasks() {
		f.tasks = append(f.tasks, *t)
	}
	return f
}

func sortedNumbers[T any](m map[uint32]T) []uint32 {
	return slices.Sorted(maps.Keys(m))
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
	n := &counter{w: out}
	w := bufio.NewWriterSize(n, 64<<10)
	c := &coder{enc: msgpack.NewEncoder(w)}
	c.enc.UseCompactInts(true)
	c.image(f, &State{})
	if c.err == nil {
		c.err = w.Flush()
	}
	return n.n, c.err
}

// Load reads a written state and builds what follows from it.
func Load(in io.Reader) (s *State, err error) {
	f := &Frozen{rules: 1}
	s = New()
	c := &coder{dec: msgpack.NewDecoder(bufio.NewReaderSize(in, 64<<10))}
	if c.image(f, s); c.err != nil {
		return nil, fmt.Errorf("load state: %w", c.err)
	}
	if err := s.thawed(f); err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	defer func() {
		// The bytes passed their checksum, so a handle that leads nowhere is a
		// fault of the program that wrote them; still an error says more than
		// a crash.
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("load state: inconsistent: %v", p)
		}
	}()
	s.reindex()
	if s.sum != f.sum || s.Digest() != f.digest {
		return nil, fmt.Errorf("load state: digest at index %d is %x, %x was written", s.index,
			s.Digest(), f.digest)
	}
	return s, nil
}

// thawed takes over all that was read beside the slabs.
func (s *State) thawed(f *Frozen) error {
	s.rules, s.index, s.clock, s.next, s.history = f.rules, f.index, f.clock, f.next, f.history
	for i := range f.queues {
		q := &f.queues[i].queue
		q.held = map[string]hold{}
		for _, h := range f.queues[i].held {
			q.held[h.key] = h.hold
		}
		s.numbers[q.number], s.backlogs[q.backlog.number] = q, q.backlog
		if f.queues[i].usable {
			s.queues[q.name] = q
		}
	}
	for i := range f.backlogs {
		from := &f.backlogs[i]
		b, ok := s.backlogs[from.number]
		if !ok {
			b = &backlog{}
			s.backlogs[from.number] = b
		}
		*b = from.backlog
		if b.queue, ok = s.numbers[from.owner]; !ok {
			return fmt.Errorf("backlog %d: queue %d is not there", b.number, from.owner)
		}
		b.index()
		for _, k := range from.kinds {
			*b.kindLists(k.kind) = k.lists
		}
	}
	for i := range f.graves {
		g := &f.graves[i].grave
		g.deleted = s.numbers[f.graves[i].number]
		s.graves = append(s.graves, g)
	}
	s.dedup.head, s.dedup.tail, s.dedup.floor = f.dedup.head, f.dedup.tail, f.dedup.floor
	s.answers.head, s.answers.tail, s.answers.floor = f.answers.head, f.answers.tail, f.answers.floor
	for i := range f.webhooks {
		h := &f.webhooks[i]
		h.sum = sha256.Sum256(h.definition)
		s.webhooks[h.name] = h
	}
	for i := range f.tasks {
		s.tasks[f.tasks[i].ID] = &f.tasks[i]
	}
	return nil
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
		s.byID[m.id] = h
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
			s.byLease[l.id] = m.lease
			s.deadlines.items = append(s.deadlines.items, timer{at: l.expires, h: h, kind: timerWait})
		}
	}
	s.reindexDead(dead)
	s.reindexTasks()
	for _, h := range s.byAge(imported) {
		s.listSource(s.backlogs[s.messages.get(h).backlog], h)
	}
	s.waiting.rebuild()
	s.deadlines.rebuild()
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
