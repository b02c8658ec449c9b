package fsm

import (
	"fmt"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
	"pgregory.net/rapid"
)

// replica takes the entries that another machine has taken, in its own way.
type replica struct {
	*bench
	name    string
	asOf    checkpoint.State // a checkpoint that is being written
	lead    *bench
	answers map[uint64][]event.Result // the leader's by index
}

// take brings the replica to the leader's next entry.
func (r *replica) take(rt *rapid.T, i int) {
	r.t.Helper()
	e, want := r.lead.entries[i], r.lead.log.blocks[i]
	switch rapid.IntRange(0, 9).Draw(rt, r.name) {
	case 0: // a restart from a checkpoint of now
		if r.asOf == nil {
			r.restart()
		}
	case 1: // a checkpoint is begun
		if r.asOf == nil {
			r.asOf = r.m.Freeze()
		}
	case 2: // a restart from the one begun, and the log from there on
		if r.asOf != nil {
			r.resume(r.asOf)
			r.asOf = nil
		}
	case 3: // a restart without a checkpoint
		if r.asOf == nil {
			r.resume(projections.New().Freeze())
		}
	}
	if rapid.IntRange(0, 3).Draw(rt, r.name+" folds") == 0 { // the block came from a peer
		r.m.state.Fold(want)
		_ = r.log.Append(want)
	} else {
		rs, err := r.m.Apply(e.index, e.data)
		must(r.t, err)
		require.DeepEqual(r.t, rs, r.answers[e.index], "index %d, %s: answers", e.index, r.name)
	}
	if old := rapid.IntRange(0, 60).Draw(rt, r.name+" again"); old <= i { // whose block it has (I4)
		rs, err := r.m.Apply(r.lead.entries[old].index, r.lead.entries[old].data)
		require.True(r.t, rs == nil && err == nil, "entry %d is decided again: %v, %v", old, rs, err)
	}
	require.Equal(r.t, len(r.log.blocks), i+1, "blocks")
	require.DeepEqual(r.t, r.last(), want, "index %d, %s: the block", e.index, r.name)
	require.Equal(r.t, r.m.Digest(), r.lead.digests[i],
		"index %d, %s: another digest", e.index, r.name)
	if i%8 == 0 || i == len(r.lead.digests)-1 {
		r.check() // I8, among others
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
		answers := map[uint64][]event.Result{}
		var replicas []*replica
		for n := range 2 {
			replicas = append(replicas, &replica{bench: setup(rt), lead: lead, answers: answers,
				name: fmt.Sprint("replica ", n)})
		}
		for i := range rapid.IntRange(10, 60).Draw(rt, "entries") {
			c.m = lead.m
			lead.now += draw[int64](c, "ms", 0, 0, 1, 50, 400, 1500)
			if rapid.IntRange(0, 20).Draw(rt, "own") == 0 {
				lead.index += 3 // Raft's own entries leave no block
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
			back := c.back()
			lead.now -= back
			rs := lead.do(cs...)
			lead.now += back
			answers[lead.index] = rs
			c.learn(rs, lead.last())
			for _, r := range replicas {
				r.take(rt, i)
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
