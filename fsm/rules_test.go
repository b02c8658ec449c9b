package fsm

import (
	"bytes"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections"
	"pgregory.net/rapid"
)

// rulesCommand draws a mark or an upgrade, also one to rules that nobody knows,
// or older ones.
func rulesCommand(t *rapid.T) *event.Command {
	if rapid.Bool().Draw(t, "mark") {
		return &event.Command{Mark: &event.Mark{}}
	}
	return &event.Command{Upgrade: &event.Upgrade{Rules: rapid.SampledFrom([]uint16{0, 1, 2, 2, 3, 3, 4, 65_535}).Draw(t, "rules")}}
}

func (w *model) upgrade(c *event.Upgrade, got event.Result) {
	w.t.Helper()
	switch {
	case c.Rules > w.wants:
		w.problem(got, event.CodeInvalidArgument, -1)
	case got.Problem != nil:
		w.fatal("an upgrade to rules %d is refused: %+v", c.Rules, got.Problem)
	case c.Rules > w.rules:
		if e := w.emit(event.Event{Type: event.RulesChanged}); e.Rules != c.Rules {
			w.fatal("rules %d should be told, not %d", c.Rules, e.Rules)
		}
		w.rules = c.Rules
	}
}

func (b *bench) upgrade(rules uint16) event.Result {
	b.t.Helper()
	return b.one(&event.Command{Upgrade: &event.Upgrade{Rules: rules}})
}

func (b *bench) mark() [16]byte {
	b.t.Helper()
	return b.ok(b.one(&event.Command{Mark: &event.Mark{}})).Digest
}

// TestMark: it changes nothing, leaves an empty block, and is answered with the
// digest of the state after the whole entry, what stands behind it included.
func TestMark(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a")
	mustEqual(t, b.mark(), b.m.Digest())
	b.wantTells("")
	rs := b.do(
		&event.Command{Mark: &event.Mark{}},
		&event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{msg("b")}}},
		&event.Command{Mark: &event.Mark{}},
	)
	b.wantTells("enqueued b")
	mustEqual(t, rs[0].Digest, b.m.Digest())
	mustEqual(t, rs[2].Digest, b.m.Digest())
	mustEqual(t, rs[1].Digest, [16]byte{})
	b.refold()
}

// TestUpgrade: rules come into force by an event, once, and never go back (I19).
func TestUpgrade(t *testing.T) {
	b := setup(t)
	mustEqual(t, b.m.Rules(), 1)
	b.wants = 1
	b.wantProblem(b.upgrade(2), event.CodeInvalidArgument, "rules 2 came in an entry that wants only 1")
	b.wantTells("")
	b.wants = 2
	b.ok(b.upgrade(2))
	b.wantTells("rules_changed")
	mustEqual(t, b.last().Events[0].Rules, 2)
	for _, rules := range []uint16{2, 1, 0} {
		b.ok(b.upgrade(rules))
		b.wantTells("")
		mustEqual(t, b.m.Rules(), 2)
	}
	b.restart()
	mustEqual(t, b.m.Rules(), 2)
	b.wants = 1 // was on its way when the rules changed
	b.mustQueue("q", nil)
	b.refold()
}

// TestTooNew: under older rules a command that wants newer ones is refused, and
// nothing else of it happens, not even its answer is kept; it can be repeated.
func TestTooNew(t *testing.T) {
	b := setup(t)
	c := &event.Command{Request: &event.Request{Key: event.Hash{1}}, DeleteWebhook: &event.DeleteWebhook{Name: "w"}}
	for _, brought := range []uint16{1, 2} {
		b.wants = brought
		r := b.do(&event.Command{Upgrade: &event.Upgrade{Rules: brought}}, c)[1]
		b.wantProblem(r, event.CodeConflict, "this wants rules 3, and not all nodes run a program that knows them, or can be asked: exchange the programs of all, then repeat it")
		if r.Problem.RetryAfterMS == 0 {
			t.Error("it should be called retryable")
		}
		b.wantTells([]string{1: "", 2: "rules_changed"}[brought])
	}
	b.refold()
}

// TestKnown: a machine that knows less takes what is of the rules it knows, and
// stops, changing nothing, at the entry that brings others; also where it comes
// upon a state that is under others already.
func TestKnown(t *testing.T) {
	b := setup(t)
	old := New(projections.New(), &memLog{}, Options{Known: 1})
	take := func() error {
		e := b.entries[len(b.entries)-1]
		_, err := old.Apply(e.index, e.data)
		return err
	}
	b.wants = 1
	b.mustQueue("q", nil)
	if err := take(); err != nil || old.Digest() != b.m.Digest() {
		t.Fatal(err)
	}
	b.wants = 2
	b.ok(b.upgrade(2))
	mustEqual(t, take(), "apply 2: the entry wants rules 2, this program knows 1: run a newer one")
	mustEqual(t, old.Index(), 1)

	old.state.Fold(b.last()) // a log from a peer, or of a newer program that ran before
	b.wants = 1
	b.tick(0)
	mustEqual(t, take(), "apply 3: the entry wants rules 2, this program knows 1: run a newer one")
	mustEqual(t, old.Index(), 2)

	_, err := b.m.Apply(99, (&event.Entry{Time: epoch}).Encode())
	mustEqual(t, err, "apply 99: the entry does not say which rules it wants")
}

// TestOldNodesTakeCheckpoints: until other rules are in force, a written state
// has the bytes that it had before there were any.
func TestOldNodesTakeCheckpoints(t *testing.T) {
	b := setup(t)
	first := func() byte {
		f := b.m.Freeze()
		defer f.Release()
		var buf bytes.Buffer
		if _, err := f.WriteTo(&buf); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()[0]
	}
	b.mustQueue("q", nil)
	mustEqual(t, first(), 1)
	b.ok(b.upgrade(2))
	mustEqual(t, first(), 2)
	b.ok(b.upgrade(3))
	mustEqual(t, first(), 3)
}

// TestUpgradeNodeByNode: of two machines the one with the older program keeps up
// with the other, byte for byte, until newer rules are wanted; it stops there,
// having changed nothing; and with the newer program it goes on from where it
// stopped, by deciding or by folding, to the same.
func TestUpgradeNodeByNode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		lead := setup(rt)
		lead.plain = true
		c := &chaos{t: rt}
		log := &memLog{}
		old := New(projections.New(), log, Options{Known: 1})
		stopped := false
		for range rapid.IntRange(5, 30).Draw(rt, "entries") {
			c.m = lead.m
			lead.now += draw[int64](c, "ms", 0, 1, 400, 1500)
			lead.wants = lead.m.Rules()
			cs := []*event.Command{c.admin(), c.command(), c.command()}
			if lead.wants > 1 {
				cs = append(cs, &event.Command{Mark: &event.Mark{}})
			}
			if draw(c, "upgrade", false, false, false, false, false, true) {
				cs = append(cs, &event.Command{Upgrade: &event.Upgrade{Rules: 2}})
				lead.wants = 2
			}
			for i, cmd := range cs { // only what a leader proposes under these rules
				if cmd.WantsRules() > lead.wants || lead.wants == 1 && cmd.Upgrade != nil {
					cs[i] = &event.Command{}
				}
			}
			c.learn(lead.do(cs...), lead.last())
			e := lead.entries[len(lead.entries)-1]
			before := old.Index()
			_, err := old.Apply(e.index, e.data)
			if stopped = stopped || lead.wants > 1; stopped != (err != nil) {
				rt.Fatalf("index %d wants rules %d: %v", e.index, lead.wants, err)
			}
			if stopped && old.Index() != before {
				rt.Fatalf("it stopped, but is at %d, before at %d", old.Index(), before)
			}
			if !stopped && old.Digest() != lead.m.Digest() {
				rt.Fatalf("index %d: another digest", e.index)
			}
		}
		fresh := &bench{t: rt, log: log, m: old}
		newer := New(fresh.load(old.Freeze()), log, Options{})
		for i, e := range lead.entries {
			if e.index <= newer.Index() {
				continue
			}
			if rapid.Bool().Draw(rt, "fold") {
				newer.state.Fold(lead.log.blocks[i])
				_ = log.Append(lead.log.blocks[i])
			} else if _, err := newer.Apply(e.index, e.data); err != nil {
				rt.Fatal(err)
			}
			if newer.Digest() != lead.digests[i] || !bytes.Equal(blockBytes(log.blocks[i]), blockBytes(lead.log.blocks[i])) {
				rt.Fatalf("index %d: the upgraded one differs", e.index)
			}
		}
	})
}
