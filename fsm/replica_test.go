package fsm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/invariants"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
	"pgregory.net/rapid"
)

// blockBytes is all that the log writes of a block.
func blockBytes(b *event.Block) []byte {
	out := binary.BigEndian.AppendUint64(nil, b.Index)
	out = binary.BigEndian.AppendUint64(out, uint64(b.Time))
	for i := range b.Events {
		e := &b.Events[i]
		out = append(append(out, e.ID[:]...), e.Subject[:]...)
		out = binary.BigEndian.AppendUint64(out, e.Prev.Index)
		out = binary.BigEndian.AppendUint32(out, e.Prev.Number)
		out = append(append(append(out, e.Alias[:]...), event.AppendHeader(nil, e)...), e.Content.Digest[:]...)
		out = append(out, e.Content.Bytes...)
	}
	return out
}

// tellResults writes answers out.
func tellResults(rs []event.Result) string {
	b, err := json.Marshal(rs)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// replica takes the entries that another machine has taken, in its own way.
type replica struct {
	t     *rapid.T
	name  string
	log   *memLog
	m     *Machine
	asOf  checkpoint.State // a checkpoint that is being written
	lead  *bench
	tells map[uint64]string // the leader's answers by index
}

// take brings the replica to the leader's next entry.
func (r *replica) take(i int) {
	r.t.Helper()
	e, want := r.lead.entries[i], r.lead.log.blocks[i]
	switch rapid.IntRange(0, 9).Draw(r.t, r.name) {
	case 0: // a restart from a checkpoint of now
		if r.asOf == nil {
			b := &bench{t: r.t, log: r.log, m: r.m}
			r.m = newMachine(b.load(r.m.Freeze()), r.log)
		}
	case 1: // a checkpoint is begun
		if r.asOf == nil {
			r.asOf = r.m.Freeze()
		}
	case 2: // a restart from the one begun, and the log from there on
		if r.asOf != nil {
			b := &bench{t: r.t, log: r.log, m: r.m}
			b.resume(r.asOf)
			r.m, r.asOf = b.m, nil
		}
	case 3: // a restart without a checkpoint
		if r.asOf == nil {
			s := projections.New()
			for _, bl := range r.log.blocks {
				s.Fold(bl)
			}
			r.m = newMachine(s, r.log)
		}
	}
	if rapid.IntRange(0, 3).Draw(r.t, r.name+" folds") == 0 { // the block came from a peer
		r.m.state.Fold(want)
		_ = r.log.Append(want)
	} else {
		rs, err := r.m.Apply(e.index, e.data)
		must(r.t, err)
		if got := tellResults(rs); got != r.tells[e.index] {
			r.t.Fatalf("index %d, %s: answers\n%s\nthe leader's\n%s", e.index, r.name, got, r.tells[e.index])
		}
	}
	if got := r.log.blocks[i]; !bytes.Equal(blockBytes(got), blockBytes(want)) {
		r.t.Fatalf("index %d, %s: block\n%+v\nthe leader's\n%+v", e.index, r.name, got, want)
	}
	require.Equal(r.t, r.m.Digest(), r.lead.digests[i],
		"index %d, %s: another digest", e.index, r.name)
	if i%8 != 0 && i != len(r.lead.digests)-1 {
		return // the leader's was checked each time
	}
	if err := invariants.Check(r.m.state); err != nil { // I8, among others
		r.t.Fatalf("index %d, %s: %v", e.index, r.name, err)
	}
}

// TestReplicas gives two machines the same entries, with restarts (from
// checkpoints, old ones too, and from the log alone) at different points, some
// entries decided, some folded from the block: digests and blocks must be
// equal at every index.
func TestReplicas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		lead := setup(rt)
		c := &chaos{t: rt}
		tells := map[uint64]string{}
		var rs []*replica
		for n := range 2 {
			log := &memLog{}
			rs = append(rs, &replica{t: rt, name: fmt.Sprint("replica ", n), log: log, m: newMachine(projections.New(), log), lead: lead, tells: tells})
		}
		for i := range rapid.IntRange(10, 60).Draw(rt, "entries") {
			c.m = lead.m
			lead.now += draw[int64](c, "ms", 0, 0, 1, 50, 400, 1500)
			if rapid.IntRange(0, 20).Draw(rt, "own") == 0 {
				lead.index += 3 // Raft's own entries leave no block
			}
			if rapid.IntRange(0, 20).Draw(rt, "clock") == 0 {
				lead.now -= 5000 // a stamp may go back, the log's clock does not
			}
			// A leader stamps what it has applied: behind an upgrade some more
			// entries of the older rules come.
			lead.wants = draw[uint16](c, "wants", 1, 1, known)
			var cs []*event.Command
			for range rapid.IntRange(0, 5).Draw(rt, "commands") {
				switch rapid.IntRange(0, 12).Draw(rt, "which") {
				case 0:
					cs = append(cs, c.admin())
				case 1:
					cs = append(cs, c.carry(), &event.Command{Retain: &event.Retain{Before: lead.index}})
				case 2:
					cs = append(cs, rulesCommand(rt))
				default:
					cs = append(cs, c.command())
				}
			}
			if i < 3 {
				cs = append(cs, c.admin(), c.admin())
				if draw(c, "rules 3", true, true, false) {
					cs = append(cs, &event.Command{Upgrade: &event.Upgrade{Rules: lead.wants}})
				}
			}
			answers := lead.do(cs...)
			c.learn(answers, lead.last())
			tells[lead.index] = tellResults(answers)
			for _, r := range rs {
				r.take(i)
			}
		}
		lead.refold()
	})
}

// carry draws a command that writes contents anew.
func (c *chaos) carry() *event.Command {
	cmd := &event.Carry{}
	c.m.View(func(s *projections.State) {
		for _, id := range c.ids {
			if m, ok := s.Message(id); ok && rapid.Bool().Draw(c.t, "carried") {
				cmd.Items = append(cmd.Items, event.CarryItem{ID: id, From: m.Content, Content: event.EncodeContent(&event.Content{Payload: []byte("carried")})})
			}
		}
	})
	return &event.Command{Carry: cmd}
}

// TestSkip: an entry whose block the log holds is not decided again (I4).
func TestSkip(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	b.fill("q", "a", "b")
	before, blocks := b.m.Digest(), len(b.log.blocks)
	for _, e := range b.entries {
		rs, err := b.m.Apply(e.index, e.data)
		if rs != nil || err != nil {
			t.Fatal(rs, err)
		}
	}
	require.True(t, b.m.Digest() == before && len(b.log.blocks) == blocks,
		"an entry took effect again")
}

// TestLoadedStateWakesAlike: messages that were purged while they waited for
// their time must not use up, after a restart, what wakes others.
func TestLoadedStateWakesAlike(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.t = t
	b.mustQueue("q", nil)
	for range 14 {
		b.many("q", 1000, delay(1000))
	}
	mustEqual(t, b.purge("q"), 14_000)
	b.tick(1000) // the first ones come due
	for range 3 {
		b.tick(0)
	}
	b.put("q", msg("late", delay(10)))

	other := &bench{t: t, log: &memLog{}, index: b.index, now: b.now, names: b.names, leases: map[string]event.ID{}, ids: b.ids}
	other.m = newMachine(b.load(b.m.Freeze()), other.log)
	b.tick(10)
	other.tick(10)
	mustEqual(t, b.stats("q").Ready, 1)
	mustEqual(t, other.stats("q").Ready, 1)
	require.Equal(t, b.m.Digest(), other.m.Digest(),
		"a loaded state differs from the one that was never restarted")
}
