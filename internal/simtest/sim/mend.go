package sim

import (
	"context"
	"fmt"
	"strings"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/cluster/crashtest"
)

// mend does what an operator does with dead letters: it looks at some, and has
// them replayed to their place, now and then with another payload, or purges one.
func (c *client) mend() {
	var ms []event.MessageView
	var uids []string
	op := c.w.call(c.id, c.where(false), func(ctx context.Context, e *engine) error {
		if err := e.fresh(ctx); err != nil {
			return err
		}
		ms, _ = e.machine.Dead(held, event.DeadFilter{Limit: 1 + c.r.IntN(5)})
		for _, m := range ms {
			content, err := e.log.Content(m.Content)
			if err != nil {
				return c.w.unreadable(e, err)
			}
			uids = append(uids, uidOf(content, m.Key))
		}
		return nil
	})
	if op.Outcome != crashtest.OK || len(ms) == 0 {
		return
	}
	kind := crashtest.Replay
	cmd := event.Command{Replay: &event.Replay{Queue: held}}
	for i, m := range ms {
		it := event.ReplayItem{ID: m.ID}
		if c.r.IntN(4) == 0 {
			b := payload(uids[i], m.Key, strings.Repeat("y", c.r.IntN(300)))
			it.Edited, it.Size, it.Content = true, uint32(len(b)), event.EncodeContent(&event.Content{Payload: b})
		}
		cmd.Replay.Items = append(cmd.Replay.Items, it)
	}
	if c.r.IntN(5) == 0 {
		kind, ms = crashtest.Purge, ms[:1]
		cmd = event.Command{PurgeDead: &event.PurgeDead{Queue: held, IDs: []event.ID{ms[0].ID}}}
	}
	c.n++
	name := fmt.Sprintf("%d-%d-%d", c.w.o.Seed, c.id, c.n)
	cmd.Request = request(name, kind)
	c.repeat(c.r.IntN(20) == 0, func(n *node) crashtest.Outcome {
		var res event.Result
		op := c.w.call(c.id, n, func(ctx context.Context, e *engine) (err error) {
			res, err = propose(ctx, e, &cmd)
			return err
		})
		var ops []crashtest.Op
		for i, m := range ms {
			op, found := op, crashtest.Found{UID: uids[i], Key: m.Key}
			op.Kind, op.Queue, op.Request, op.Message = kind, held, name, m.ID.String()
			if op.Outcome == crashtest.OK {
				op.Index, op.Status = res.Index, map[bool]string{true: "done", false: "rejected"}[res.Moved[i].Code == ""]
				if to := res.Moved[i].To; !to.IsZero() {
					found.ID = to.String()
				}
			}
			op.Found = []crashtest.Found{found}
			ops = append(ops, op)
		}
		c.w.note(ops...)
		return op.Outcome
	})
}
