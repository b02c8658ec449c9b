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
	b.queue("q", nil)
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
