package fsm

import (
	"bytes"

	"github.com/qlogd/qlogd/internal/event"
	"github.com/qlogd/qlogd/projections"
)

// memLog keeps the blocks.
type memLog struct{ blocks []*event.Block }

func (l *memLog) Append(b *event.Block) error {
	c := *b
	c.Events = append([]event.Event(nil), b.Events...)
	l.blocks = append(l.blocks, &c)
	return nil
}

func (l *memLog) events() (out []event.Event) {
	for _, b := range l.blocks {
		out = append(out, b.Events...)
	}
	return out
}

// tb is what *testing.T and *rapid.T share.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// bench is a machine with words for tests. Time is ms from an arbitrary start.
type bench struct {
	t     tb
	m     *Machine
	log   *memLog
	index uint64
	now   int64
	// digests of the live state after each entry
	digests [][16]byte
}

const epoch = 1_700_000_000_000

func setup(t tb) *bench {
	log := &memLog{}
	return &bench{t: t, log: log, m: New(projections.New(), log, Options{}), now: epoch}
}

// do applies one entry with commands.
func (b *bench) do(cs ...*event.Command) []event.Result {
	b.t.Helper()
	b.index++
	e := event.Entry{Rules: event.Rules, Time: b.now}
	for _, c := range cs {
		e.Commands = append(e.Commands, event.EncodeCommand(c))
	}
	rs, err := b.m.Apply(b.index, e.Encode())
	if err != nil {
		b.t.Fatal(err)
	}
	b.check()
	b.digests = append(b.digests, b.m.Digest())
	return rs
}

// check holds the invariants, and the fold of the log, against the state.
func (b *bench) check() {
	b.t.Helper()
	b.m.View(func(s *projections.State) {
		if err := s.Check(); err != nil {
			b.t.Fatalf("index %d: %v", b.index, err)
		}
	})
}

// refold folds the log from the start and compares.
func (b *bench) refold() {
	b.t.Helper()
	s := projections.New()
	for i, bl := range b.log.blocks {
		s.Fold(bl)
		if i < len(b.digests) && s.Digest() != b.digests[i] {
			b.t.Fatalf("index %d: the fold of the log differs from the live state", bl.Index)
		}
	}
}

// restart writes the state, loads it and goes on with it.
func (b *bench) restart() {
	b.t.Helper()
	f := b.m.Freeze()
	var buf bytes.Buffer
	if _, err := f.WriteTo(&buf); err != nil {
		b.t.Fatal(err)
	}
	f.Release()
	s, err := projections.Load(&buf)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := s.Check(); err != nil {
		b.t.Fatal(err)
	}
	b.m = New(s, b.log, Options{})
}

func (b *bench) one(c *event.Command) event.Result { b.t.Helper(); return b.do(c)[0] }

func (b *bench) tick(ms int64) { b.t.Helper(); b.now += ms; b.do() }

func (b *bench) queue(name string, set func(p *event.Policy)) event.Result {
	b.t.Helper()
	p := event.DefaultPolicy()
	if set != nil {
		set(&p)
	}
	return b.one(&event.Command{PutQueue: &event.PutQueue{Name: name, Policy: p}})
}

func (b *bench) mustQueue(name string, set func(p *event.Policy)) {
	b.t.Helper()
	if r := b.queue(name, set); r.Problem != nil {
		b.t.Fatal(r.Problem)
	}
}

func msg(text string, set ...func(m *event.NewMessage)) event.NewMessage {
	m := event.NewMessage{Priority: event.NormalPriority, Size: uint32(len(text)), Content: event.EncodeContent(&event.Content{Payload: []byte(text)})}
	for _, f := range set {
		f(&m)
	}
	return m
}

func key(k string) func(*event.NewMessage)    { return func(m *event.NewMessage) { m.Key = k } }
func prio(p uint8) func(*event.NewMessage)    { return func(m *event.NewMessage) { m.Priority = p } }
func kindOf(k string) func(*event.NewMessage) { return func(m *event.NewMessage) { m.Kind = k } }
func delay(ms int64) func(*event.NewMessage)  { return func(m *event.NewMessage) { m.DelayMS = ms } }
func ttl(ms int64) func(*event.NewMessage)    { return func(m *event.NewMessage) { m.TTLMS = ms } }
func dedup(k string) func(*event.NewMessage) {
	return func(m *event.NewMessage) { copy(m.DedupKey[:], k) }
}

func (b *bench) produce(queue string, ms ...event.NewMessage) event.Result {
	b.t.Helper()
	return b.one(&event.Command{Produce: &event.Produce{Queue: queue, Messages: ms}})
}

func (b *bench) put(queue string, ms ...event.NewMessage) []event.ID {
	b.t.Helper()
	r := b.produce(queue, ms...)
	if r.Problem != nil {
		b.t.Fatal(r.Problem)
	}
	var ids []event.ID
	for _, p := range r.Produced {
		ids = append(ids, p.ID)
	}
	return ids
}

func (b *bench) lease(queue string, n int, kinds ...string) []event.LeasedMessage {
	b.t.Helper()
	r := b.one(&event.Command{Lease: &event.Lease{Queues: []string{queue}, Max: n, Kinds: kinds}})
	if r.Problem != nil {
		b.t.Fatal(r.Problem)
	}
	return r.Leased
}

func (b *bench) settle(op event.SettleOp, lease event.ID) event.Settled {
	b.t.Helper()
	return b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: op, Lease: lease, DelayMS: -1}}}}).Settled[0]
}

func (b *bench) q(name string) event.QueueView {
	b.t.Helper()
	q, ok := b.m.Queue(name)
	if !ok {
		b.t.Fatalf("queue %q is not there", name)
	}
	return q
}

func ids(ms []event.LeasedMessage) (out []event.ID) {
	for _, m := range ms {
		out = append(out, m.ID)
	}
	return out
}

// load writes a frozen state, releases it and loads what was written.
func (b *bench) load(f *Frozen) *projections.State {
	b.t.Helper()
	var buf bytes.Buffer
	if _, err := f.WriteTo(&buf); err != nil {
		b.t.Fatal(err)
	}
	f.Release()
	s, err := projections.Load(&buf)
	if err != nil {
		b.t.Fatal(err)
	}
	if s.Digest() != f.Digest() {
		b.t.Fatalf("index %d: loaded with another digest", s.Index())
	}
	return s
}

// resume loads a state that was frozen some entries ago, folds the blocks since
// then and goes on with it.
func (b *bench) resume(f *Frozen) {
	b.t.Helper()
	s := b.load(f)
	for _, bl := range b.log.blocks {
		if bl.Index > s.Index() {
			s.Fold(bl)
		}
	}
	if s.Digest() != b.m.Digest() {
		b.t.Fatalf("index %d: a checkpoint brought up by the log differs from the live state", b.index)
	}
	if err := s.Check(); err != nil {
		b.t.Fatal(err)
	}
	b.m = New(s, b.log, Options{})
}

// quiet lets time pass until nothing is left to happen by itself, as the leader
// does; it must come to an end.
func (b *bench) quiet() {
	b.t.Helper()
	idle := 0
	for range 10_000 {
		at, ok := b.m.NextDue()
		if !ok {
			return
		}
		if at <= b.now {
			if idle++; idle > 3 {
				b.t.Fatalf("index %d: something is due at %d for ever", b.index, at)
			}
		}
		b.now = max(b.now, at)
		n := len(b.log.events())
		b.do()
		if len(b.log.events()) > n {
			idle = 0
		}
	}
	b.t.Fatal("it goes on for ever")
}
