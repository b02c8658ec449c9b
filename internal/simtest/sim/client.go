package sim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/cluster/crashtest"
	"github.com/qlogd/qlogd/log"
)

// The queues, as those of internal/cluster/crashtest.
const (
	ordered = "ordered" // per key; messages stay until they are acked
	pool    = "pool"    // unordered; the same
	flaky   = "flaky"   // per key; three attempts, then to flaky.dlq
	dead    = flaky + ".dlq"
	held    = "held" // per key; two attempts, then to held.dlq, and its key stops until that is mended
	fallen  = held + ".dlq"
	barrier = "barrier" // takes a message behind each crash; nobody looks at it
)

// peeked are the queues in the order in which they are peeked: one before its
// dead letters.
var peeked = []string{ordered, pool, flaky, dead, held, fallen}

// worked are those that clients produce into and work off.
var worked = []string{ordered, pool, flaky, held}

var rules = map[string]crashtest.Rules{
	ordered: {PerKey: true}, pool: {}, flaky: {PerKey: true, DeadLetters: dead}, held: {PerKey: true, DeadLetters: fallen, Held: true},
}

const leaseMS = 3000

func policies() map[string]event.Policy {
	p := event.DefaultPolicy()
	p.LeaseMS, p.InitialBackoffMS, p.MaxBackoffMS = leaseMS, 100, 1000
	out := map[string]event.Policy{}
	p.MaxAttempts = 0
	out[pool], out[barrier] = p, p
	p.Ordering = event.PerKey
	out[ordered] = p
	p.MaxAttempts = 3
	out[flaky] = p
	p.MaxAttempts, p.OnDead = 2, event.DeadHoldKey
	out[held] = p
	return out
}

// client is somebody who produces and consumes. It is bound to a node, but for
// repeats, or goes where it likes.
type client struct {
	w  *world
	id int
	r  *rand.Rand
	n  int // of what it has produced
}

const patience = 5 * time.Second // of a request

// call runs one request at a node, and says what is to be told of it but for its
// content.
func (w *world) call(id int, n *node, fn func(ctx context.Context, e *engine) error) crashtest.Op {
	op := crashtest.Op{Client: id, Node: n.name, Outcome: crashtest.OK, Invoke: w.tick()}
	err := func() error {
		l := n.now()
		if l == nil {
			return errRefused
		}
		op.Life = l.no
		e := l.eng.Load()
		if e == nil || !e.enter() {
			return errRefused // 503, as while the engine is opened anew
		}
		defer e.leave()
		ctx, cancel := context.WithTimeout(l.alive, patience)
		defer cancel()
		err := fn(ctx, e)
		if l.alive.Err() != nil {
			return errGone // whatever it was, it did not arrive
		}
		return err
	}()
	op.Return = w.tick()
	if err == nil {
		return op
	}
	op.Error = err.Error()
	op.Outcome = crashtest.Unknown
	p, ok := errors.AsType[*event.Problem](err)
	if err == errRefused || ok && !p.Unknown {
		op.Outcome = crashtest.Fail
	}
	return op
}

var (
	errRefused = errors.New("connection refused")
	errGone    = errors.New("connection reset")
)

// propose is what api does with a command.
func propose(ctx context.Context, e *engine, c *event.Command) (event.Result, error) {
	if p := c.Produce; p != nil {
		if q, ok := e.machine.Queue(p.Queue); ok {
			p.Revision = q.Revision
		}
	}
	res, err := e.replica.Propose(ctx, c)
	if err != nil {
		return res, err
	}
	if res.Problem != nil {
		return res, res.Problem
	}
	if !res.Kept.IsZero() {
		kept, err := e.log.Content(res.Kept)
		if err != nil {
			return res, fmt.Errorf("the answer that was kept: %w", err)
		}
		first, err := event.DecodeResult(kept.Answer)
		if err != nil {
			return res, err
		}
		return *first, nil
	}
	return res, nil
}

func hashOf(parts ...any) (h event.Hash) {
	sum := sha256.Sum256(fmt.Append(nil, parts...))
	copy(h[:], sum[:])
	return h
}

func request(name string, body any) *event.Request {
	return &event.Request{Key: hashOf("key", name), Body: hashOf("body", body)}
}

// payloads say whose they are.
func payload(uid, key, fill string) []byte { return fmt.Appendf(nil, "%q", uid+"|"+key+"|"+fill) }

func uidOf(c *event.Content, key string) string {
	parts := strings.SplitN(strings.Trim(string(c.Payload), `"`), "|", 3)
	if len(parts) != 3 || parts[1] != key {
		return ""
	}
	return parts[0]
}

func (c *client) pause() bool { return c.w.sleep(ms(c.r, 20, 400)) }

// where picks the node for a request.
func (c *client) where(again bool) *node {
	if c.id%2 == 0 && !again {
		return c.w.nodes[c.id/2%len(c.w.nodes)]
	}
	return c.w.nodes[c.r.IntN(len(c.w.nodes))]
}

// repeat calls fn until its outcome is known, or the client gives up.
func (c *client) repeat(giveUp bool, fn func(n *node) crashtest.Outcome) {
	for again := false; ; again = true {
		o := fn(c.where(again))
		if o == crashtest.OK && c.r.IntN(20) > 0 {
			return // else once more, to see whether it is answered the same
		}
		if giveUp && o == crashtest.Unknown || c.w.halt.Load() {
			return
		}
		if o != crashtest.OK {
			if !c.pause() {
				return
			}
			giveUp = giveUp || c.r.IntN(50) == 0
		}
	}
}

// work is a client's day.
func (c *client) work() {
	var late []crashtest.Op
	for !c.w.halt.Load() && c.pause() {
		if len(late) > 0 && c.r.IntN(4) == 0 {
			c.settle(crashtest.Ack, late[0].Queue, late[0].Found)
			late = late[1:]
		}
		switch n := c.r.IntN(12); {
		case n < 4:
			c.produce()
			continue
		case n == 4:
			c.mend()
			continue
		}
		queue := worked[c.r.IntN(len(worked))]
		op := c.lease(queue, 1+c.r.IntN(4))
		var acks []crashtest.Found
		for i, f := range op.Found {
			one := op.Found[i : i+1]
			switch n := c.r.IntN(100); {
			case n < 72:
				acks = append(acks, f)
			case n < 80:
				c.settle(crashtest.Retry, queue, one)
			case n < 85:
				c.settle(crashtest.Release, queue, one)
			case n < 90:
				c.settle(crashtest.Extend, queue, one)
				c.settle(crashtest.Ack, queue, one)
			case n < 93 && (queue == flaky || queue == held):
				c.settle(crashtest.DeadLetter, queue, one)
			case n < 97:
				late = append(late, crashtest.Op{Queue: queue, Found: one})
			default: // forgotten
			}
		}
		if len(acks) > 0 {
			c.settle(crashtest.Ack, queue, acks)
			c.look(queue, acks[0])
		}
	}
}

func (c *client) produce() {
	queue := []string{ordered, ordered, pool, flaky, held}[c.r.IntN(5)]
	key := fmt.Sprintf("k%d-%d", c.id, c.r.IntN(2))
	if c.r.IntN(3) == 0 {
		key = fmt.Sprintf("shared-%d", c.r.IntN(3))
	}
	key += fmt.Sprintf(".%d", c.w.age()) // lanes are to be short: see crashtest
	size := 1
	if c.r.IntN(3) == 0 {
		size += c.r.IntN(4)
	}
	p := &event.Produce{Queue: queue}
	var uids []crashtest.Message
	for range size {
		c.n++
		uid := fmt.Sprintf("c%d-%d", c.id, c.n)
		b := payload(uid, key, strings.Repeat("x", c.r.IntN(300)))
		p.Messages = append(p.Messages, event.NewMessage{
			Key: key, Priority: 5, Size: uint32(len(b)), Content: event.EncodeContent(&event.Content{Payload: b}),
		})
		uids = append(uids, crashtest.Message{UID: uid, Key: key})
	}
	name := fmt.Sprintf("%d-%d-%d", c.w.o.Seed, c.id, c.n)
	var made crashtest.Found
	again := 0
	c.repeat(c.r.IntN(20) == 0, func(n *node) crashtest.Outcome {
		cmd := &event.Command{Request: request(name, uids), Produce: p}
		if again++; again > 1 && c.w.o.Plant == NoKey {
			cmd.Request = request(fmt.Sprint(name, again), uids)
		}
		q := *p
		cmd.Produce = &q
		var res event.Result
		op := c.w.call(c.id, n, func(ctx context.Context, e *engine) (err error) {
			res, err = propose(ctx, e, cmd)
			return err
		})
		op.Kind, op.Queue, op.Request, op.Messages = crashtest.Produce, queue, name, slices.Clone(uids)
		if op.Outcome == crashtest.OK {
			op.Index = res.Index
			for i := range op.Messages {
				op.Messages[i].ID = res.Produced[i].ID.String()
			}
			made = crashtest.Found{ID: op.Messages[0].ID, UID: op.Messages[0].UID, Key: key}
		}
		c.w.note(op)
		return op.Outcome
	})
	if made.ID != "" {
		c.look(queue, made)
	}
}

func (c *client) lease(queue string, most int) crashtest.Op {
	var got []crashtest.Found
	op := c.w.call(c.id, c.where(false), func(ctx context.Context, e *engine) error {
		res, err := propose(ctx, e, &event.Command{Lease: &event.Lease{Queues: []string{queue}, Max: most, Worker: fmt.Sprint("client-", c.id)}})
		if err != nil {
			return err
		}
		if got, err = e.leased(res.Leased); err != nil {
			return c.w.unreadable(e, err)
		}
		return nil
	})
	op.Kind, op.Queue = crashtest.Lease, queue
	if op.Outcome == crashtest.OK {
		op.Found = got
	}
	if op.Outcome != crashtest.OK || len(got) > 0 {
		if len(got) > 0 && op.Outcome == crashtest.OK {
			id, _ := event.ParseID(got[0].Lease)
			op.Index = event.RefOf(id).Index
		}
		c.w.note(op)
	}
	return op
}

// leased reads what was leased from the node's own log.
func (e *engine) leased(ms []event.LeasedMessage) (out []crashtest.Found, err error) {
	refs := make([]event.Ref, len(ms))
	for i := range ms {
		refs[i] = ms[i].Content
	}
	contents, err := e.log.Contents(refs)
	if err != nil {
		return nil, err
	}
	for i, m := range ms {
		out = append(out, crashtest.Found{
			ID: m.ID.String(), UID: uidOf(contents[i], m.Key), Key: m.Key, Lease: m.Lease.String(),
			Attempt: int64(m.Attempt), Expires: m.LeaseExpiresAt,
		})
	}
	return out, nil
}

var settleOps = map[crashtest.Kind]event.SettleOp{
	crashtest.Ack: event.OpAck, crashtest.Retry: event.OpRetry, crashtest.Release: event.OpRelease,
	crashtest.Extend: event.OpExtend, crashtest.DeadLetter: event.OpDeadLetter,
}

// settle settles leases in one call, and repeats it until its outcome is known.
func (c *client) settle(kind crashtest.Kind, queue string, fs []crashtest.Found) {
	s := &event.Settle{Queue: queue}
	for _, f := range fs {
		id, err := event.ParseID(f.Lease)
		if err != nil {
			c.w.find("lease %q: %v", f.Lease, err)
			return
		}
		item := event.SettleItem{Op: settleOps[kind], Lease: id, DelayMS: -1}
		if kind == crashtest.Extend {
			item.LeaseMS = 2 * leaseMS
		}
		s.Items = append(s.Items, item)
	}
	c.repeat(c.r.IntN(20) == 0, func(n *node) crashtest.Outcome {
		var res event.Result
		op := c.w.call(c.id, n, func(ctx context.Context, e *engine) (err error) {
			if res, err = propose(ctx, e, &event.Command{Settle: s}); err != nil {
				return err
			}
			for i := range res.Settled {
				if res.Settled[i].Status == event.StatusRejected {
					if err := e.settledBefore(ctx, &s.Items[i], &res.Settled[i]); err != nil {
						return c.w.unreadable(e, err)
					}
				}
			}
			return nil
		})
		var ops []crashtest.Op
		for i, f := range fs {
			op := op
			op.Kind, op.Queue, op.Lease, op.Message = kind, queue, f.Lease, f.ID
			if op.Outcome == crashtest.OK {
				op.Status, op.Expires, op.Index = res.Settled[i].Status, res.Settled[i].ExpiresAt, res.Index
			}
			ops = append(ops, op)
		}
		c.w.note(ops...)
		return op.Outcome
	})
}

// settledBefore looks a lost lease up in the log, as the api does: where it
// ended by what the same call does, the answer is that of the first time.
func (e *engine) settledBefore(ctx context.Context, item *event.SettleItem, t *event.Settled) error {
	if item.Op == event.OpExtend || event.RefOf(item.Lease).Index > e.log.Head() {
		return nil
	}
	end, err := e.log.EndOf(ctx, item.Lease)
	if errors.Is(err, log.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	is := func(op event.SettleOp, types ...event.Type) bool {
		return item.Op == op && slices.Contains(types, end.Type)
	}
	switch {
	case is(event.OpAck, event.Acked), is(event.OpRelease, event.Released), is(event.OpRetry, event.Retried),
		is(event.OpRetry, event.DeadLettered, event.Discarded) && end.Reason == event.ReasonMaxAttempts,
		is(event.OpDeadLetter, event.DeadLettered, event.Discarded) && end.Reason == event.ReasonRejected:
		t.Status = end.Type.String()
	}
	return nil
}

// look now and then asks any node for a message that was just written, or has it
// told what it thinks without asking the others.
func (c *client) look(queue string, f crashtest.Found) {
	kind := crashtest.Get
	switch n := c.r.IntN(6); {
	case n > 2 || queue == held: // its messages go on under other ids
		return
	case n == 2:
		kind = crashtest.Stale
	}
	f = crashtest.Found{ID: f.ID, UID: f.UID, Key: f.Key}
	op := c.w.call(c.id, c.where(true), func(ctx context.Context, e *engine) (err error) {
		if kind == crashtest.Get {
			if err := e.fresh(ctx); err != nil {
				return err
			}
		}
		if f.State, err = e.stateOf(ctx, f.ID); err != nil {
			return c.w.unreadable(e, err)
		}
		return nil
	})
	if op.Outcome == crashtest.OK {
		op.Kind, op.Queue, op.Found = kind, queue, []crashtest.Found{f}
		c.w.note(op)
	}
}

// fresh waits until a read is linearizable.
func (e *engine) fresh(ctx context.Context) error {
	if e.l.n.w.o.Plant == NoBarrier {
		return nil
	}
	return e.replica.Barrier(ctx)
}

// stateOf says how a message is, as the api does: of one that has left the log
// tells.
func (e *engine) stateOf(ctx context.Context, message string) (string, error) {
	id, err := event.ParseID(message)
	if err != nil {
		return "", err
	}
	if m, ok := e.machine.Message(id); ok {
		return m.State.String(), nil
	}
	history, err := e.log.History(ctx, id)
	switch {
	case errors.Is(err, log.ErrNotFound), err == nil && len(history) == 0:
		return "absent", nil
	case err != nil:
		return "", err
	}
	return event.StateAcked.String(), nil
}

// peek writes down what is in every queue, as a node tells it. No client may be
// at work.
func (w *world) peek(n *node) error {
	for _, q := range peeked {
		var found []crashtest.Found
		op := w.call(-1, n, func(ctx context.Context, e *engine) error {
			if err := e.fresh(ctx); err != nil {
				return err
			}
			ms, _ := e.machine.Messages(q, event.MessageFilter{})
			for _, m := range ms {
				c, err := e.log.Content(m.Content)
				if err != nil {
					return fmt.Errorf("payload of %s: %w", m.ID, err)
				}
				f := crashtest.Found{ID: m.ID.String(), UID: uidOf(c, m.Key), Key: m.Key, State: m.State.String(), Attempt: int64(m.Attempt)}
				if m.Dead != nil {
					f.DeadID = m.Dead.MessageID.String()
				}
				found = append(found, f)
			}
			return nil
		})
		if op.Outcome != crashtest.OK {
			return fmt.Errorf("peek %s at %s: %s", q, n.name, op.Error)
		}
		op.Kind, op.Queue, op.Found = crashtest.Peek, q, found
		w.note(op)
	}
	return nil
}

// cross has a write done: what was under way before a crash of all comes before
// it, or never.
func (w *world) cross(r *rand.Rand, until time.Time) bool {
	for time.Now().Before(until) && !w.over.Load() {
		op := w.call(-1, w.nodes[r.IntN(len(w.nodes))], func(ctx context.Context, e *engine) error {
			b := payload("barrier", "", "")
			_, err := propose(ctx, e, &event.Command{Produce: &event.Produce{Queue: barrier, Messages: []event.NewMessage{
				{Priority: 5, Size: uint32(len(b)), Content: event.EncodeContent(&event.Content{Payload: b})},
			}}})
			return err
		})
		if op.Outcome == crashtest.OK {
			op.Kind, op.Queue = crashtest.Barrier, barrier
			w.note(op)
			return true
		}
		if !w.sleep(ms(r, 20, 300)) {
			return false
		}
	}
	return false
}
