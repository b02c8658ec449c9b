package crashtest

import (
	"context"
	"errors"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// ForNodes returns a Driver whose clients use real nodes through HTTP, and pause for up to that
// long between two requests.
func ForNodes(seed uint64, pause time.Duration, nodes ...*cluster.Node) *Driver {
	var clients []*client.Client
	for _, n := range nodes {
		clients = append(clients, n.Client(client.WithRetry(client.Retry{Attempts: 1})))
	}
	timeout := 30 * time.Second
	if len(nodes) > 1 { // a node that is paused or cut off does not answer for a while
		timeout = 10 * time.Second
	}
	return NewDriver(Options{
		Seed: seed, Nodes: len(nodes), Pause: pause,
		Lease: 700 * time.Millisecond, KeyAge: 3000,
		Call: func(ctx context.Context, node int, do func(context.Context, Conn) error) Op {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return callNode(ctx, clients[node], do)
		},
	})
}

// callNode classifies a request's error: what reached a connection may have been
// done unless the program answers that it was not.
func callNode(ctx context.Context, c *client.Client, do func(context.Context, Conn) error) Op {
	var sent atomic.Bool
	var a cluster.Answer
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	})
	err := do(cluster.WithAnswer(ctx, &a), conn{c})
	op := Op{Outcome: OK, Life: a.Starts, Index: a.Index}
	if a.Node != nil {
		op.Node = a.Node.Name()
	}
	if err == nil {
		return op
	}
	op.Error, op.Outcome = err.Error(), Unknown
	var e *client.Error
	if errors.As(err, &e) && e.Problem.Outcome != wire.Unknown && e.Problem.Status != 0 ||
		!sent.Load() {
		op.Outcome = Fail
	}
	return op
}

type conn struct{ c *client.Client }

var errShort = errors.New("the answer has less than was asked for")

func (n conn) PutQueue(ctx context.Context, q Queue, lease time.Duration) error {
	d := wire.DeliveryUpdate{
		LeaseMS: wire.Some(lease.Milliseconds()), MaxAttempts: wire.Some(q.Attempts),
		InitialBackoffMS: wire.Some[int64](20), MaxBackoffMS: wire.Some[int64](200),
	}
	if q.DeadLetters != "" {
		d.DeadLetterQueue = wire.Some("auto")
	}
	if q.Held {
		d.OnDead = wire.Some("hold_key")
	}
	if q.Batch > 0 {
		d.LaneBatch = wire.Some(int64(q.Batch))
	}
	if q.Rate > 0 {
		d.RateLimit = wire.Some(wire.RateLimitUpdate{
			Count: wire.Some(q.Rate), PerMS: wire.Some(q.PerMS),
		})
	}
	p := wire.PolicyUpdate{Delivery: wire.Some(d)}
	if q.PerKey {
		p.Ordering = wire.Some("per_key")
	}
	_, _, err := n.c.PutQueue(ctx, q.Name, p)
	return err
}

func (n conn) Produce(ctx context.Context, queue, request string, ms []Payload) ([]string, error) {
	var opts []client.CallOption
	if request != "" {
		opts = append(opts, client.WithIdempotencyKey(request))
	}
	var messages []wire.NewMessage
	for _, p := range ms {
		m := client.JSON(p)
		m.Key = p.Key
		messages = append(messages, m)
	}
	got, err := n.c.ProduceAll(ctx, queue, messages, opts...)
	var ids []string
	for _, p := range got {
		ids = append(ids, p.ID)
	}
	if err == nil && len(ids) != len(ms) {
		err = errShort
	}
	return ids, err
}

func (n conn) Lease(ctx context.Context, queue string, most int, wait time.Duration) ([]Found,
	error) {
	got, err := n.c.Lease(ctx, queue, client.LeaseOptions{Max: most, Wait: wait})
	var found []Found
	for _, m := range got {
		found = append(found, Found{
			ID: m.ID, UID: UIDOf(m.Payload, m.Key), Key: m.Key,
			Lease: m.LeaseID, Attempt: m.Attempt, Expires: int64(m.LeaseExpiresAt),
		})
	}
	return found, err
}

func foundIn(m *wire.Message) Found {
	f := Found{ID: m.ID, UID: UIDOf(m.Payload, m.Key), Key: m.Key, State: m.State,
		Attempt: m.Attempt}
	if m.Dead != nil {
		f.DeadID = m.Dead.MessageID
	}
	return f
}

func (n conn) Settle(ctx context.Context, kind Kind, queue string, fs []Found,
	extend time.Duration) ([]Settled, error) {
	var ids []string
	var retries []wire.RetryItem
	var dead []wire.DeadLetterItem
	var extends []wire.ExtendItem
	for _, f := range fs {
		ids = append(ids, f.Lease)
		retries = append(retries, wire.RetryItem{LeaseID: f.Lease, Error: "not today"})
		dead = append(dead, wire.DeadLetterItem{LeaseID: f.Lease, Error: "never"})
		extends = append(extends, wire.ExtendItem{LeaseID: f.Lease, LeaseMS: extend.Milliseconds()})
	}
	var got []wire.SettleResult
	var err error
	switch kind {
	case Ack:
		got, err = n.c.Ack(ctx, queue, ids...)
	case Release:
		got, err = n.c.Release(ctx, queue, ids...)
	case Retry:
		got, err = n.c.Retry(ctx, queue, retries)
	case DeadLetter:
		got, err = n.c.DeadLetter(ctx, queue, dead)
	case Extend:
		got, err = n.c.Extend(ctx, queue, extends)
	}
	if err == nil && len(got) != len(fs) {
		err = errShort
	}
	var out []Settled
	for _, r := range got {
		out = append(out, Settled{r.Status, int64(r.LeaseExpiresAt)})
	}
	return out, err
}

func (n conn) Get(ctx context.Context, kind Kind, id string) (string, error) {
	var opts []client.CallOption
	if kind == Stale {
		opts = append(opts, client.Stale())
	}
	m, err := n.c.Message(ctx, id, opts...)
	switch {
	case errors.Is(err, client.ErrMessageNotFound):
		return Absent, nil
	case err != nil:
		return "", err
	}
	return m.State, nil
}

func (n conn) Peek(ctx context.Context, queue string) (found []Found, err error) {
	for after := ""; ; {
		page, err := n.c.Messages(ctx, queue, client.MessageQuery{Limit: 200, After: after})
		if err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			found = append(found, foundIn(&m))
		}
		if after = page.NextCursor; after == "" {
			return found, nil
		}
	}
}

func (n conn) Dead(ctx context.Context, queue string, most int) (found []Found, err error) {
	page, err := n.c.Dead(ctx, queue, client.DeadQuery{Limit: most})
	if err != nil {
		return nil, err
	}
	for _, m := range page.Dead {
		found = append(found, foundIn(&m))
	}
	return found, nil
}

func (n conn) Revive(ctx context.Context, kind Kind, queue, request string, ids []string,
	edits map[string]Payload,
) (map[string]string, error) {
	became := map[string]string{}
	var done *wire.DeadMoved
	var err error
	if kind == Purge {
		done, _, err = n.c.PurgeDead(ctx, queue, wire.PurgeRequest{MessageIDs: ids},
			client.WithIdempotencyKey(request))
	} else {
		r := wire.ReplayRequest{MessageIDs: ids, Edit: map[string]wire.ReplayEdit{}}
		for id, p := range edits {
			r.Edit[id] = wire.ReplayEdit{Payload: client.JSON(p).Payload}
		}
		done, _, err = n.c.Replay(ctx, queue, r, client.WithIdempotencyKey(request))
	}
	if err == nil {
		for _, m := range done.Messages {
			became[m.MessageID] = m.NewMessageID
		}
	}
	if errors.Is(err, client.ErrMessageNotFound) {
		return nil, nil // somebody else was first: nothing was done, nor will be
	}
	return became, err
}

func (n conn) Pause(ctx context.Context, kind Kind, queue, key string) error {
	if kind == Resume {
		return n.c.ResumeKey(ctx, queue, key)
	}
	return n.c.PauseKey(ctx, queue, key)
}

func (n conn) Paused(ctx context.Context, queue string) ([]string, error) {
	q, err := n.c.Queue(ctx, queue)
	if err != nil {
		return nil, err
	}
	return q.PausedKeys, nil
}

func (n conn) Left(ctx context.Context, queue string) (int, error) {
	q, err := n.c.Queue(ctx, queue)
	if err != nil {
		return 0, err
	}
	return int(q.Stats.Depth + q.Stats.Scheduled + q.Stats.InFlight), nil
}
