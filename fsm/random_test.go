package fsm

import (
	"testing"

	"github.com/qlogd/qlogd/event"
	"pgregory.net/rapid"
)

// TestRandomHistories drives a machine with whatever may come and holds, after
// every entry, the invariants of the state; restarts from a checkpoint and the
// fold from the start must give the same.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := setup(rt)
		names := []string{"a", "b", "c"}
		queueOf := rapid.SampledFrom(names)
		b.mustQueue("dlq", nil)
		if rapid.IntRange(0, 3).Draw(rt, "rules 3") > 0 {
			b.ok(b.upgrade(event.Rules))
		}
		c := &chaos{t: rt}
		var leases []event.ID
		var all []event.ID
		policy := func() event.Policy {
			p := event.DefaultPolicy()
			p.Ordering = event.Ordering(rapid.IntRange(0, 2).Draw(rt, "ordering"))
			p.OnRetry = event.OnRetry(rapid.IntRange(0, 2).Draw(rt, "on_retry"))
			p.MaxAttempts = uint32(rapid.IntRange(0, 3).Draw(rt, "attempts"))
			p.LeaseMS = 1000
			p.MaxAgeSeconds = int64(rapid.SampledFrom([]int{0, 0, 5}).Draw(rt, "age"))
			p.BackoffJitter = int64(rapid.SampledFrom([]int{0, event.Million / 2}).Draw(rt, "jitter"))
			if rapid.Bool().Draw(rt, "dlq") {
				p.DeadLetterQueue = "dlq"
				p.OnDead = event.OnDead(rapid.IntRange(0, 2).Draw(rt, "on_dead"))
			} else if rapid.Bool().Draw(rt, "key") {
				p.OnDead = event.DeadLetterKey
			}
			p.MaxDepth = int64(rapid.SampledFrom([]int{0, 0, 20}).Draw(rt, "depth"))
			return p
		}
		command := func() *event.Command {
			switch rapid.IntRange(0, 17).Draw(rt, "command") {
			case 0, 1, 2, 3:
				c := &event.Produce{Queue: queueOf.Draw(rt, "queue"), AutoCreate: true}
				for range rapid.IntRange(1, 5).Draw(rt, "n") {
					c.Messages = append(c.Messages, msg("x",
						key(rapid.SampledFrom([]string{"", "k1", "k2", "k3"}).Draw(rt, "key")),
						kindOf(rapid.SampledFrom([]string{"", "", "red", "blue"}).Draw(rt, "kind")),
						prio(uint8(rapid.IntRange(1, 10).Draw(rt, "prio"))),
						delay(int64(rapid.SampledFrom([]int{0, 0, 0, 700}).Draw(rt, "delay"))),
						ttl(int64(rapid.SampledFrom([]int{0, 0, 0, 1500}).Draw(rt, "ttl"))),
						dedup(rapid.SampledFrom([]string{"", "", "d1", "d2"}).Draw(rt, "dedup"))))
				}
				return &event.Command{Produce: c}
			case 4, 5, 6:
				l := &event.Lease{Queues: []string{"dlq"}, Max: rapid.IntRange(1, 5).Draw(rt, "max")}
				if rapid.IntRange(0, 4).Draw(rt, "which") > 0 {
					l.Queues[0] = queueOf.Draw(rt, "queue")
				}
				if rapid.IntRange(0, 3).Draw(rt, "kinds") == 0 {
					l.Kinds = []string{"red", "green"}
				}
				return &event.Command{Lease: l}
			case 7, 8, 9:
				s := &event.Settle{}
				for range rapid.IntRange(1, 4).Draw(rt, "n") {
					if len(leases) == 0 {
						break
					}
					s.Items = append(s.Items, event.SettleItem{
						Op: event.SettleOp(rapid.IntRange(1, 5).Draw(rt, "op")), Lease: rapid.SampledFrom(leases).Draw(rt, "lease"), DelayMS: -1,
					})
				}
				return &event.Command{Settle: s}
			case 10:
				return &event.Command{PutQueue: &event.PutQueue{Name: queueOf.Draw(rt, "queue"), Policy: policy()}}
			case 11:
				switch rapid.IntRange(0, 3).Draw(rt, "what") {
				case 0:
					return &event.Command{PurgeQueue: &event.PurgeQueue{Name: queueOf.Draw(rt, "queue")}}
				case 1:
					return &event.Command{PauseQueue: &event.PauseQueue{Name: queueOf.Draw(rt, "queue"), Paused: rapid.Bool().Draw(rt, "paused")}}
				case 2:
					return &event.Command{DeleteQueue: &event.DeleteQueue{Name: queueOf.Draw(rt, "queue"), Force: rapid.Bool().Draw(rt, "force")}}
				}
				return &event.Command{DeleteQueue: &event.DeleteQueue{Name: "dlq", Force: false}}
			case 12:
				if len(all) > 0 {
					return &event.Command{Delete: &event.DeleteMessage{ID: rapid.SampledFrom(all).Draw(rt, "id")}}
				}
			case 13:
				tx := &event.Transaction{Produce: []event.Produce{{Queue: queueOf.Draw(rt, "queue"), AutoCreate: true, Messages: []event.NewMessage{msg("t", key("k1"))}}}}
				if len(leases) > 0 {
					tx.Settle = []event.SettleItem{{Op: event.OpAck, Lease: leases[len(leases)-1]}}
				}
				return &event.Command{Transaction: tx}
			case 14:
				return rulesCommand(rt)
			case 15, 16:
				return &event.Command{Replay: c.replay()}
			case 17:
				return &event.Command{PurgeDead: c.purgeDead()}
			}
			return &event.Command{Settle: &event.Settle{}}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "entries") {
			b.now += int64(rapid.SampledFrom([]int{0, 1, 50, 400, 3000}).Draw(rt, "ms"))
			b.wants = rapid.SampledFrom([]uint16{1, 1, 2}).Draw(rt, "wants")
			c.m = b.m
			var cs []*event.Command
			for range rapid.IntRange(0, 3).Draw(rt, "commands") {
				cs = append(cs, command())
			}
			for _, r := range b.do(cs...) {
				for _, l := range r.Leased {
					leases = append(leases, l.Lease)
				}
				for _, p := range r.Produced {
					all = append(all, p.ID)
				}
			}
			if rapid.IntRange(0, 9).Draw(rt, "restart") == 0 {
				b.restart()
			}
		}
		b.refold()
	})
}
