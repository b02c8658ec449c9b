package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// operate is an operator's day.
func (d *Driver) operate(id int, r *rand.Rand) {
	for n := 0; !d.stop.Load(); n++ {
		d.mend(id, r, n)
		d.pause(r)
	}
}

// mend does what an operator does with dead letters: looks at some, and has them
// replayed to their place, now and then with another payload, or purges one.
func (d *Driver) mend(id int, r *rand.Rand, n int) {
	var page *wire.DeadList
	op := d.call(id, d.where(id, r, false), func(ctx context.Context, c *client.Client) (err error) {
		page, err = c.Dead(ctx, held, client.DeadQuery{Limit: 1 + r.IntN(10)})
		return err
	})
	if op.Outcome != OK || len(page.Dead) == 0 {
		return
	}
	ms, kind := page.Dead, Replay
	if r.IntN(6) == 0 {
		ms, kind = ms[:1], Purge
	}
	replay := wire.ReplayRequest{Edit: map[string]wire.ReplayEdit{}}
	for _, m := range ms {
		replay.MessageIDs = append(replay.MessageIDs, m.ID)
		if r.IntN(4) == 0 {
			p := newPayload(uidOf(m.Payload, m.Key), m.Key, strings.Repeat("y", r.IntN(2000)))
			replay.Edit[m.ID] = wire.ReplayEdit{Payload: client.JSON(p).Payload}
		}
	}
	name := fmt.Sprintf("%d-%d-mend-%d", d.seed, id, n)
	d.repeat(id, r, r.IntN(20) == 0, func(node int) Outcome {
		became := map[string]string{}
		op := d.call(id, node, func(ctx context.Context, c *client.Client) error {
			err := d.revive(ctx, c, kind, replay, name, became)
			if errors.Is(err, client.ErrMessageNotFound) {
				return nil // somebody else was first with one: nothing was done, nor will be
			}
			return err
		})
		for _, m := range ms {
			op := op
			op.Kind, op.Queue, op.Request, op.Message = kind, held, name, m.ID
			f := Found{UID: uidOf(m.Payload, m.Key), Key: m.Key}
			if op.Outcome == OK {
				op.Status = "rejected"
				if to, ok := became[m.ID]; ok {
					op.Status, f.ID = "done", to
					if kind == Purge {
						d.waiting.Add(-1)
					}
				}
			}
			op.Found = []Found{f}
			d.History.Add(op)
		}
		return op.Outcome
	})
}

// revive replays or purges dead letters, and notes what became of each.
func (d *Driver) revive(ctx context.Context, c *client.Client, kind Kind, r wire.ReplayRequest, name string, became map[string]string) error {
	if kind == Purge {
		done, _, err := c.PurgeDead(ctx, held, wire.PurgeRequest{MessageIDs: r.MessageIDs}, client.WithIdempotencyKey(name))
		if err != nil {
			return err
		}
		for _, m := range done.Messages {
			became[m.MessageID] = ""
		}
		return nil
	}
	done, _, err := c.Replay(ctx, held, r, client.WithIdempotencyKey(name))
	if err != nil {
		return err
	}
	for _, m := range done.Messages {
		became[m.MessageID] = m.NewMessageID
	}
	return nil
}
