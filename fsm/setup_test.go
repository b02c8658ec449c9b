package fsm

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/invariants"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
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

// bench is a machine with words for tests. Time is ms from an arbitrary start.
type bench struct {
	t     require.T
	m     *Machine
	log   *memLog
	index uint64
	now   int64
	wants uint16 // the rules that entries carry; 0 the newest
	// digests of the live state after each entry
	digests [][16]byte
	entries []logged

	names  map[event.ID]string   // messages by their payload, also when they have moved
	leases map[string]event.ID   // the newest lease of each
	ids    map[string][]event.ID // ids of each, newest last
}

// logged is what the Raft log would hold.
type logged struct {
	index uint64
	data  []byte
}

const epoch = 1_700_000_000_000

// known is the newest version of the rules in tests: later than the binary's own, so
// that upgrades can be tried out.
const known = 4

// newMachine returns a machine that knows rules beyond today's.
func newMachine(s *projections.State, l Log) *Machine {
	m := New(s, l)
	m.known = known
	return m
}

func setup(t require.T) *bench {
	log := &memLog{}
	return &bench{
		t: t, log: log, m: newMachine(projections.New(), log), now: epoch,
		names: map[event.ID]string{}, leases: map[string]event.ID{}, ids: map[string][]event.ID{},
	}
}

// do applies one entry with commands.
func (b *bench) do(cs ...*event.Command) []event.Result {
	b.t.Helper()
	b.index++
	e := event.Entry{Rules: b.wants, Time: b.now}
	if b.wants == 0 {
		e.Rules = known
	}
	for _, c := range cs {
		e.Commands = append(e.Commands, event.EncodeCommand(c))
	}
	data := e.Encode()
	b.entries = append(b.entries, logged{b.index, data})
	rs, err := b.m.Apply(b.index, data)
	must(b.t, err)
	if len(b.entries)%8 == 0 { // it takes longer than deciding
		b.check()
	}
	b.learn(b.last())
	b.digests = append(b.digests, b.m.Digest())
	return rs
}

// check holds the invariants, and the fold of the log, against the state.
func (b *bench) check() {
	b.t.Helper()
	b.m.View(func(s *projections.State) {
		require.NoError(b.t, invariants.Check(s), "index %d", b.index)
	})
}

// refold folds the log from the start and compares.
func (b *bench) refold() {
	b.t.Helper()
	s := projections.New()
	for i, bl := range b.log.blocks {
		s.Fold(bl)
		require.False(b.t, i < len(b.digests) && s.Digest() != b.digests[i],
			"index %d: the fold of the log differs from the live state", bl.Index)
	}
	b.check()
}

// restart writes the state, loads it and goes on with it.
func (b *bench) restart() { b.t.Helper(); b.resume(b.m.Freeze()) }

func (b *bench) one(c *event.Command) event.Result { b.t.Helper(); return b.do(c)[0] }

func (b *bench) tick(ms int64) { b.t.Helper(); b.now += ms; b.do() }

func (b *bench) queue(name string, set func(p *event.Policy)) {
	b.t.Helper()
	p := event.DefaultPolicy()
	if set != nil {
		set(&p)
	}
	b.ok(b.one(&event.Command{PutQueue: &event.PutQueue{Name: name, Policy: p}}))
}

func msg(text string, set ...func(m *event.NewMessage)) event.NewMessage {
	m := event.NewMessage{Priority: event.NormalPriority, Size: uint32(len(text)), Content: event.EncodeContent(&event.Content{Payload: []byte(text)})}
	for _, f := range set {
		f(&m)
	}
	return m
}

func key(k string) func(*event.NewMessage)    { return func(m *event.NewMessage) { m.Key = k } }
func kindOf(k string) func(*event.NewMessage) { return func(m *event.NewMessage) { m.Kind = k } }
func delay(ms int64) func(*event.NewMessage)  { return func(m *event.NewMessage) { m.DelayMS = ms } }
func dedup(k string) func(*event.NewMessage) {
	return func(m *event.NewMessage) { copy(m.DedupKey[:], k) }
}

func (b *bench) put(queue string, ms ...event.NewMessage) {
	b.t.Helper()
	b.ok(b.one(&event.Command{Produce: &event.Produce{Queue: queue, Messages: ms}}))
}

func (b *bench) lease(queue string, n int, kinds ...string) []event.LeasedMessage {
	b.t.Helper()
	return b.ok(b.one(&event.Command{Lease: &event.Lease{Queues: []string{queue}, Max: n, Kinds: kinds}})).Leased
}

func (b *bench) settle(op event.SettleOp, lease event.ID) event.Settled {
	b.t.Helper()
	return b.one(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: op, Lease: lease, DelayMS: -1}}}}).Settled[0]
}

func (b *bench) q(name string) event.QueueView {
	b.t.Helper()
	q, ok := b.m.Queue(name)
	require.True(b.t, ok, "queue %q is not there", name)
	return q
}

// load writes a frozen state, releases it and loads what was written.
func (b *bench) load(f checkpoint.State) *projections.State {
	b.t.Helper()
	var buf bytes.Buffer
	_, err := f.WriteTo(&buf)
	must(b.t, err)
	f.Release()
	s, err := projections.Load(&buf)
	must(b.t, err)
	require.Equal(b.t, s.Digest(), f.Digest(), "index %d: loaded with another digest", s.Index())
	return s
}

// resume loads a state that was frozen some entries ago, folds the blocks since
// then and goes on with it.
func (b *bench) resume(f checkpoint.State) {
	b.t.Helper()
	s := b.load(f)
	for _, bl := range b.log.blocks {
		if bl.Index > s.Index() {
			s.Fold(bl)
		}
	}
	require.Equal(b.t, s.Digest(), b.m.Digest(),
		"index %d: a checkpoint brought up by the log differs from the live state", b.index)
	b.m = newMachine(s, b.log)
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
	b.t.Fatalf("it goes on for ever")
}

// last is the newest block.
func (b *bench) last() *event.Block { return b.log.blocks[len(b.log.blocks)-1] }

// learn remembers messages and leases by the messages' texts.
func (b *bench) learn(bl *event.Block) {
	b.t.Helper()
	for i := range bl.Events {
		e := &bl.Events[i]
		switch e.Type {
		case event.Enqueued:
			c, err := event.DecodeContent(e.Content.Bytes)
			must(b.t, err)
			b.names[e.ID] = string(c.Payload)
		case event.DeadLettered, event.Replayed, event.Resurrected:
			b.names[e.ID] = b.names[e.Subject]
		case event.Leased:
			b.leases[b.names[e.Subject]] = e.ID
			continue
		default:
			continue
		}
		b.ids[b.names[e.ID]] = append(b.ids[b.names[e.ID]], e.ID)
	}
}

// fill enqueues messages with these texts.
func (b *bench) fill(queue string, texts ...string) {
	b.t.Helper()
	var ms []event.NewMessage
	for _, s := range texts {
		ms = append(ms, msg(s))
	}
	b.put(queue, ms...)
}

// fillKeys enqueues messages whose key is their text's first letter.
func (b *bench) fillKeys(queue string, texts ...string) {
	b.t.Helper()
	var ms []event.NewMessage
	for _, s := range texts {
		ms = append(ms, msg(s, key(s[:1])))
	}
	b.put(queue, ms...)
}

// take leases up to n messages and tells their texts in order.
func (b *bench) take(queue string, n int, kinds ...string) string {
	b.t.Helper()
	var out []string
	for _, m := range b.lease(queue, n, kinds...) {
		out = append(out, b.names[m.ID])
	}
	return strings.Join(out, " ")
}

// wantTake leases up to n messages, which must be these.
func (b *bench) wantTake(queue string, n int, want string) {
	b.t.Helper()
	require.Equal(b.t, b.take(queue, n), want, "leased from %q", queue)
}

// messages returns a queue's messages by id.
func (b *bench) messages(queue string) (ms []event.MessageView) {
	b.m.View(func(s *projections.State) { ms, _ = s.Messages(queue, event.MessageFilter{}) })
	return ms
}

// holds tells a queue's messages by id with their states.
func (b *bench) holds(queue string) string {
	b.t.Helper()
	var out []string
	for _, m := range b.messages(queue) {
		s := b.names[m.ID] + ":" + m.State.String()
		if m.Held {
			s = b.names[m.ID] + ":held"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

// tells lists the newest block's events: type, text, reason.
func (b *bench) tells() string {
	var out []string
	bl := b.last()
	for i := range bl.Events {
		s := bl.Events[i].Type.String()
		if n := b.names[bl.Events[i].Subject]; n != "" {
			s += " " + n
		}
		if r := bl.Events[i].Reason; r != 0 {
			s += " " + r.String()
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func (b *bench) wantTells(want string) {
	b.t.Helper()
	require.Equal(b.t, b.tells(), want, "entry %d tells", b.index)
}

// wantProblem expects a refusal with this code and detail ("" any).
func (b *bench) wantProblem(r event.Result, code, detail string) {
	b.t.Helper()
	if r.Problem == nil || r.Problem.Code != code || (detail != "" && r.Problem.Detail != detail) {
		b.t.Fatalf("the answer is %+v, not %s: %s", r.Problem, code, detail)
	}
}

func (b *bench) ok(r event.Result) event.Result {
	b.t.Helper()
	require.True(b.t, r.Problem == nil, "%v", r.Problem)
	return r
}

// mustEqual compares two values by what %v prints.
func mustEqual(t require.T, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Fatalf("got %s, want %s", g, w)
	}
}

// must fails the test on an error.
var must = require.NoError

// newest is the newest id of the message with this text.
func (b *bench) newest(text string) event.ID {
	b.t.Helper()
	l := b.ids[text]
	require.NotEqual(b.t, len(l), 0, "there was no %q", text)
	return l[len(l)-1]
}
