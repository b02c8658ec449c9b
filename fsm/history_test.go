package fsm_test

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// TestSameHistory applies entries of all kinds and compares the chain and the digest of the state
// with those of an earlier program. Nodes of two versions run side by side, so a difference means
// that the rules changed and need a version of their own (I19).
func TestSameHistory(t *testing.T) {
	log, err := eventlog.Open(eventlog.Options{FS: vfs.OS{}, Dir: t.TempDir(), SegmentSize: 256 << 10, CacheBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m := fsm.New(projections.New(), log, fsm.Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	some := func(of ...string) string { return of[rng.IntN(len(of))] }
	hash := func(s string) (h event.Hash) { copy(h[:], s); return h }
	var leases, ids []event.ID
	now := int64(1_750_000_000_000)
	message := func() event.NewMessage {
		c := event.Content{Payload: make([]byte, rng.IntN(300)), Binary: rng.IntN(2) == 0, CorrelationID: some("", "c")}
		for i := range c.Payload {
			c.Payload[i] = byte(rng.Uint32())
		}
		for range rng.IntN(3) {
			c.Headers = append(c.Headers, event.Header{Name: some("a", "b"), Value: some("", "v")})
		}
		return event.NewMessage{
			Key: some("", "k1", "k2", "k3"), Kind: some("", "", "red", "blue"), Priority: uint8(1 + rng.IntN(10)), Size: uint32(len(c.Payload)),
			DelayMS: int64(rng.IntN(2) * rng.IntN(2000)), TTLMS: int64(rng.IntN(2) * rng.IntN(5000)), DedupKey: hash(some("", "", "d1", "d2", fmt.Sprint(rng.IntN(50)))),
			Content: event.EncodeContent(&c),
		}
	}
	produce := func() event.Produce {
		p := event.Produce{Queue: some("a", "b", "c"), AutoCreate: true}
		for range 1 + rng.IntN(12) {
			p.Messages = append(p.Messages, message())
		}
		return p
	}
	item := func() event.SettleItem {
		it := event.SettleItem{Op: event.SettleOp(1 + rng.IntN(5)), DelayMS: int64(rng.IntN(3)*100 - 1), Lease: leases[rng.IntN(len(leases))]}
		if it.Op == event.OpRetry {
			it.Content = event.EncodeContent(&event.Content{Error: "it failed"})
		}
		return it
	}
	command := func() *event.Command {
		c := &event.Command{Actor: some("", "someone")}
		if rng.IntN(6) == 0 {
			c.Request = &event.Request{Key: hash(fmt.Sprint("r", rng.IntN(60))), Body: hash(some("x", "y"))}
		}
		switch n := rng.IntN(20); {
		case n < 6:
			p := produce()
			c.Produce = &p
		case n < 11:
			c.Request = nil
			c.Lease = &event.Lease{Queues: []string{some("a", "b", "c", "a.dlq")}, Max: 1 + rng.IntN(10), LeaseMS: int64(rng.IntN(3) * 1500), Worker: some("", "w1")}
			if rng.IntN(4) == 0 {
				c.Lease.Kinds = []string{"red"}
			}
		case n < 15 && len(leases) > 0:
			c.Settle = &event.Settle{}
			for range 1 + rng.IntN(8) {
				c.Settle.Items = append(c.Settle.Items, item())
			}
		case n < 16 && len(leases) > 0:
			c.Transaction = &event.Transaction{Settle: []event.SettleItem{item()}, Produce: []event.Produce{produce()}}
		case n < 17:
			p := event.DefaultPolicy()
			p.Ordering, p.OnRetry, p.MaxAttempts = event.Ordering(rng.IntN(3)), event.OnRetry(rng.IntN(3)), uint32(rng.IntN(4))
			p.LeaseMS, p.MaxAgeSeconds, p.BackoffJitter = 1000, int64(rng.IntN(2)*6), int64(rng.IntN(2)*event.Million/2)
			c.PutQueue = &event.PutQueue{Name: some("a", "b", "c"), Policy: p, DeadLetterAuto: rng.IntN(2) == 0}
		case n < 18 && len(ids) > 0:
			c.Delete = &event.DeleteMessage{ID: ids[rng.IntN(len(ids))]}
		case n < 19:
			switch rng.IntN(6) {
			case 0:
				c.PurgeQueue = &event.PurgeQueue{Name: some("a", "b", "c")}
			case 1:
				c.DeleteQueue = &event.DeleteQueue{Name: some("a", "b", "c"), Force: true}
			default:
				c.PauseQueue = &event.PauseQueue{Name: some("a", "b", "c"), Paused: rng.IntN(3) == 0}
			}
		default:
			c.Mark, c.Request = &event.Mark{}, nil
		}
		return c
	}
	for index := uint64(1); index <= 3000; index++ {
		now += int64(rng.IntN(4) * rng.IntN(150))
		e := event.Entry{Rules: event.Rules, Time: now}
		for range rng.IntN(5) {
			e.Commands = append(e.Commands, event.EncodeCommand(command()))
		}
		rs, err := m.Apply(index, e.Encode())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			for _, l := range r.Leased {
				leases = append(leases, l.Lease)
			}
			for _, p := range r.Produced {
				ids = append(ids, p.ID)
			}
		}
		leases, ids = leases[max(0, len(leases)-60):], ids[max(0, len(ids)-200):]
	}
	_, chain := log.Tip()
	digest := m.Digest()
	if got, want := hex.EncodeToString(chain[:]), "ce125b290685b7a68820f3559e03310a69c7c9e25c0851d56fb03e8c14925f37"; got != want {
		t.Errorf("chain %s, an earlier program had %s", got, want)
	}
	if got, want := hex.EncodeToString(digest[:]), "18b226461c81ef3482da430604634eed"; got != want {
		t.Errorf("digest %s, an earlier program had %s", got, want)
	}
}
