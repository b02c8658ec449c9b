package fsm

import (
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

// TestKnown: a machine that knows less takes what is of the rules it knows, and
// stops, changing nothing, at the entry that brings others; also where it comes
// upon a state that is under others already.
func TestKnown(t *testing.T) {
	b := setup(t)
	old := New(projections.New(), &memLog{})
	old.known = 1
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
	mustEqual(t, take(), "entry 2 requires rules version 2, this binary supports up to 1")
	mustEqual(t, old.Index(), 1)

	old.state.Fold(b.last()) // a log from a peer, or of a newer program that ran before
	b.wants = 1
	b.tick(0)
	mustEqual(t, take(), "entry 3 requires rules version 2, this binary supports up to 1")
	mustEqual(t, old.Index(), 2)

	_, err := b.m.Apply(99, (&event.Entry{Time: epoch}).Encode())
	mustEqual(t, err, "apply 99: the entry does not say which rules it wants")
}
