package sim

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/cluster/crashtest"
	"github.com/qlogd/qlogd/log"
)

const patience = 5 * time.Second // of a request

// call runs a client's request at a node.
func (w *world) call(ctx context.Context, node int,
	do func(context.Context, crashtest.Conn) error) crashtest.Op {
	n := w.nodes[node]
	op := crashtest.Op{Node: n.name, Outcome: crashtest.OK}
	c := &conn{}
	err := func() error {
		l := n.now()
		if l == nil {
			return errRefused
		}
		op.Life = l.no
		c.engine = l.eng.Load()
		if c.engine == nil || !c.enter() {
			return errRefused // 503, as while the engine is reopened
		}
		defer c.leave()
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		defer context.AfterFunc(l.alive, cancel)()
		err := do(ctx, c)
		if l.alive.Err() != nil {
			return errGone // whatever it was, it did not arrive
		}
		return err
	}()
	if err == nil {
		op.Index = c.index
		return op
	}
	op.Error, op.Outcome = err.Error(), crashtest.Unknown
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

// conn is a node as a client reaches it: it does what api does with a request.
type conn struct {
	*engine
	index uint64 // of the entry that the last request became
}

// propose is what api does with a command.
func (c *conn) propose(ctx context.Context, cmd *event.Command) (event.Result, error) {
	if p := cmd.Produce; p != nil {
		if q, ok := c.machine.Queue(p.Queue); ok {
			p.Revision = q.Revision
		}
	}
	res, err := c.replica.Propose(ctx, cmd)
	switch {
	case err != nil:
		return res, err
	case res.Problem != nil:
		return res, res.Problem
	case !res.Kept.IsZero():
		kept, err := c.log.Content(res.Kept)
		if err != nil {
			return res, fmt.Errorf("the answer that was kept: %w", err)
		}
		first, err := event.DecodeResult(kept.Answer)
		if err != nil {
			return res, err
		}
		res = *first
	}
	c.index = res.Index
	return res, nil
}

// request identifies a request and its repeats; nil if name is empty.
func (c *conn) request(name string, body any) *event.Request {
	if name == "" {
		return nil
	}
	return &event.Request{Key: hashOf("key", name), Body: hashOf("body", body)}
}

func hashOf(parts ...any) (h event.Hash) {
	sum := sha256.Sum256(fmt.Append(nil, parts...))
	copy(h[:], sum[:])
	return h
}

// encode returns a payload's size and content.
func encode(p crashtest.Payload) (uint32, event.Blob) {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return uint32(len(b)), event.EncodeContent(&event.Content{Payload: b})
}

// PutQueue implements crashtest.Conn.
func (c *conn) PutQueue(ctx context.Context, q crashtest.Queue, lease time.Duration) error {
	p := event.DefaultPolicy()
	p.LeaseMS, p.InitialBackoffMS, p.MaxBackoffMS = lease.Milliseconds(), 100, 1000
	p.MaxAttempts, p.RateLimit, p.RatePerMS = uint32(q.Attempts), q.Rate, q.PerMS
	if q.PerKey {
		p.Ordering, p.LaneBatch = event.PerKey, uint32(q.Batch)
	}
	if q.Held {
		p.OnDead = event.DeadHoldKey
	}
	_, err := c.propose(ctx, &event.Command{PutQueue: &event.PutQueue{
		Name: q.Name, Policy: p, DeadLetterAuto: q.DeadLetters != "",
	}})
	return err
}

// Produce implements crashtest.Conn.
func (c *conn) Produce(ctx context.Context, queue, request string,
	ms []crashtest.Payload) ([]string, error) {
	p := &event.Produce{Queue: queue}
	for _, m := range ms {
		size, content := encode(m)
		p.Messages = append(p.Messages, event.NewMessage{Key: m.Key, Priority: 5, Size: size,
			Content: content})
	}
	res, err := c.propose(ctx, &event.Command{Request: c.request(request, ms), Produce: p})
	var ids []string
	for _, m := range res.Produced {
		ids = append(ids, m.ID.String())
	}
	return ids, err
}

// Lease implements crashtest.Conn. It does not wait.
func (c *conn) Lease(ctx context.Context, queue string, most int,
	_ time.Duration) ([]crashtest.Found, error) {
	res, err := c.propose(ctx, &event.Command{Lease: &event.Lease{Queues: []string{queue},
		Max: most, Worker: "client"}})
	if err != nil {
		return nil, err
	}
	var found []crashtest.Found
	for _, m := range res.Leased {
		uid, err := c.uidOf(m.Content, m.Key)
		if err != nil {
			return nil, c.unreadable(err)
		}
		found = append(found, crashtest.Found{
			ID: m.ID.String(), UID: uid, Key: m.Key, Lease: m.Lease.String(),
			Attempt: int64(m.Attempt), Expires: m.LeaseExpiresAt,
		})
	}
	return found, nil
}

// uidOf reads a payload from the node's own log.
func (c *conn) uidOf(ref event.Ref, key string) (string, error) {
	content, err := c.log.Content(ref)
	if err != nil {
		return "", err
	}
	return crashtest.UIDOf(content.Payload, key), nil
}

var settleOps = map[crashtest.Kind]event.SettleOp{
	crashtest.Ack: event.OpAck, crashtest.Retry: event.OpRetry, crashtest.Release: event.OpRelease,
	crashtest.Extend: event.OpExtend, crashtest.DeadLetter: event.OpDeadLetter,
}

// Settle implements crashtest.Conn.
func (c *conn) Settle(ctx context.Context, kind crashtest.Kind, queue string, fs []crashtest.Found,
	extend time.Duration) ([]crashtest.Settled, error) {
	s := &event.Settle{Queue: queue}
	for _, f := range fs {
		id, err := event.ParseID(f.Lease)
		if err != nil {
			return nil, err
		}
		item := event.SettleItem{Op: settleOps[kind], Lease: id, DelayMS: -1}
		if kind == crashtest.Extend {
			item.LeaseMS = extend.Milliseconds()
		}
		s.Items = append(s.Items, item)
	}
	res, err := c.propose(ctx, &event.Command{Settle: s})
	if err != nil {
		return nil, err
	}
	var out []crashtest.Settled
	ends := map[uint64]bool{}
	for i := range res.Settled {
		r := &res.Settled[i]
		if r.Status == event.StatusRejected {
			if err := c.settledBefore(ctx, &s.Items[i], r, ends); err != nil {
				return nil, c.unreadable(err)
			}
		}
		out = append(out, crashtest.Settled{Status: r.Status, Expires: r.ExpiresAt})
	}
	return out, nil
}

// settledBefore looks a lost lease up in the log, as the api does: where it
// ended by what the same call does, the answer is that of the first time.
func (c *conn) settledBefore(ctx context.Context, item *event.SettleItem, t *event.Settled,
	ends map[uint64]bool) error {
	if item.Op == event.OpExtend || event.RefOf(item.Lease).Index > c.log.Head() {
		return nil
	}
	end, err := c.log.EndOf(ctx, item.Lease)
	if errors.Is(err, log.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	is := func(op event.SettleOp, types ...event.Type) bool {
		return item.Op == op && slices.Contains(types, end.Type)
	}
	switch {
	case is(event.OpAck, event.Acked), is(event.OpRelease, event.Released), is(event.OpRetry,
		event.Retried),
		is(event.OpRetry, event.DeadLettered, event.Discarded) &&
			end.Reason == event.ReasonMaxAttempts,
		is(event.OpDeadLetter, event.DeadLettered, event.Discarded) &&
			end.Reason == event.ReasonRejected:
		t.Status = end.Type.String()
		ends[event.RefOf(end.ID).Index] = true
	case end.Type == event.Returned && item.Op != event.OpAck &&
		ends[event.RefOf(end.ID).Index]:
		t.Status = event.StatusReleased
	}
	return nil
}

// fresh waits until a read is linearizable.
func (c *conn) fresh(ctx context.Context) error { return c.replica.Barrier(ctx) }

// Get implements crashtest.Conn. The log shows a message that has left.
func (c *conn) Get(ctx context.Context, kind crashtest.Kind, message string) (string, error) {
	if kind == crashtest.Get {
		if err := c.fresh(ctx); err != nil {
			return "", err
		}
	}
	id, err := event.ParseID(message)
	if err != nil {
		return "", err
	}
	if m, ok := c.machine.Message(id); ok {
		return m.State.String(), nil
	}
	history, err := c.log.History(ctx, id)
	switch {
	case errors.Is(err, log.ErrNotFound), err == nil && len(history) == 0:
		return crashtest.Absent, nil
	case err != nil:
		return "", c.unreadable(err)
	}
	return event.StateAcked.String(), nil
}

// Peek implements crashtest.Conn.
func (c *conn) Peek(ctx context.Context, queue string) ([]crashtest.Found, error) {
	if err := c.fresh(ctx); err != nil {
		return nil, err
	}
	ms, _ := c.machine.Messages(queue, event.MessageFilter{})
	return c.found(ms)
}

// Dead implements crashtest.Conn.
func (c *conn) Dead(ctx context.Context, queue string, most int) ([]crashtest.Found, error) {
	if err := c.fresh(ctx); err != nil {
		return nil, err
	}
	ms, _ := c.machine.Dead(queue, event.DeadFilter{Limit: most})
	return c.found(ms)
}

func (c *conn) found(ms []event.MessageView) (found []crashtest.Found, err error) {
	for _, m := range ms {
		uid, err := c.uidOf(m.Content, m.Key)
		if err != nil {
			return nil, c.unreadable(err)
		}
		f := crashtest.Found{ID: m.ID.String(), UID: uid, Key: m.Key, State: m.State.String(),
			Attempt: int64(m.Attempt)}
		if m.Dead != nil {
			f.DeadID = m.Dead.MessageID.String()
		}
		found = append(found, f)
	}
	return found, nil
}

// Revive implements crashtest.Conn.
func (c *conn) Revive(ctx context.Context, kind crashtest.Kind, queue, request string, ids []string,
	edits map[string]crashtest.Payload,
) (map[string]string, error) {
	replay, purge := &event.Replay{Queue: queue}, &event.PurgeDead{Queue: queue}
	for _, s := range ids {
		id, err := event.ParseID(s)
		if err != nil {
			return nil, err
		}
		item := event.ReplayItem{ID: id}
		if p, ok := edits[s]; ok {
			item.Edited = true
			item.Size, item.Content = encode(p)
		}
		replay.Items, purge.IDs = append(replay.Items, item), append(purge.IDs, id)
	}
	cmd := &event.Command{Request: c.request(request, kind), Replay: replay}
	if kind == crashtest.Purge {
		cmd.Replay, cmd.PurgeDead = nil, purge
	}
	res, err := c.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	became := map[string]string{}
	for i, m := range res.Moved {
		if m.Code == "" {
			became[ids[i]] = ""
			if !m.To.IsZero() {
				became[ids[i]] = m.To.String()
			}
		}
	}
	return became, nil
}

// Left implements crashtest.Conn.
func (c *conn) Left(ctx context.Context, queue string) (int, error) {
	if err := c.fresh(ctx); err != nil {
		return 0, err
	}
	q, _ := c.machine.Queue(queue)
	return int(q.Stats.Ready + q.Stats.Scheduled + q.Stats.InFlight), nil
}

// unreadable reports an error in reading a node's own log.
func (c *conn) unreadable(err error) error {
	l := c.l
	if l.alive.Err() == nil && !l.n.flipped.Load() && !l.mem.Crashed() &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		l.n.w.find("%s cannot read what it shows: %v", l.n.name, err)
	}
	return err
}

// Pause implements crashtest.Conn.
func (c *conn) Pause(ctx context.Context, kind crashtest.Kind, queue, key string) error {
	_, err := c.propose(ctx, &event.Command{PauseQueue: &event.PauseQueue{Name: queue, Key: key,
		Paused: kind == crashtest.Pause}})
	return err
}

// Paused implements crashtest.Conn.
func (c *conn) Paused(ctx context.Context, queue string) ([]string, error) {
	if err := c.fresh(ctx); err != nil {
		return nil, err
	}
	q, _ := c.machine.Queue(queue)
	return q.PausedKeys, nil
}
