package client

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// JSON returns a message whose payload is v's JSON. It panics if v has none, which
// is a programming error.
func JSON(v any) NewMessage {
	b, err := wire.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("client: payload: %v", err))
	}
	return NewMessage{Payload: b}
}

// Bytes returns a message whose payload is bytes of a content type.
func Bytes(b []byte, contentType string) NewMessage {
	if b == nil {
		b = []byte{} // an empty payload, not none
	}
	return NewMessage{PayloadBytes: b, ContentType: contentType}
}

// Produce enqueues 1 to 1000 messages, all or none, and answers in their order.
func (c *Client) Produce(ctx context.Context, queue string,
	messages ...NewMessage) ([]Produced, error) {
	return c.ProduceAll(ctx, queue, messages)
}

// ProduceAll is Produce with options.
func (c *Client) ProduceAll(ctx context.Context, queue string, messages []NewMessage,
	opts ...CallOption) ([]Produced, error) {
	messages, err := c.hooked(ctx, queue, messages)
	if err != nil {
		return nil, err
	}
	q := newPacked(queuePath(queue, "/messages"), &wire.ProduceRequest{Messages: messages})
	out, err := do[wire.ProduceResponse](ctx, c, q, opts)
	return answered(out.Messages, len(messages), "messages", err)
}

// Enqueue enqueues one message and returns when it is durable. It is meant for many
// goroutines at once: their messages share requests, and each gets its own answer or
// error. One call alone is as fast as Produce.
//
// Messages that one goroutine enqueues one after the other are in that order.
// Messages that several goroutines enqueue at the same time are in none.
//
// If ctx ends first, the message is not enqueued if it had not been sent; else the error is also
// ErrOutcomeUnknown. Give the message an IdempotencyKey if it will be enqueued again then.
func (c *Client) Enqueue(ctx context.Context, queue string, m NewMessage) (Produced, error) {
	if err := c.hook(ctx, queue, &m); err != nil {
		return Produced{}, err
	}
	m.Headers = c.carrying(ctx, m.Headers)
	return c.enqueueLane(queue).do(ctx, m, sizeOf(&m))
}

// hook runs the client's hooks on a message, whose headers stay the caller's.
func (c *Client) hook(ctx context.Context, queue string, m *NewMessage) error {
	if len(c.hooks) > 0 {
		own := m.Headers
		m.Headers = map[string]string{}
		maps.Copy(m.Headers, own)
	}
	for _, hook := range c.hooks {
		if err := hook(ctx, queue, m); err != nil {
			return fmt.Errorf("enqueue hook: %w", err)
		}
	}
	return nil
}

// hooked returns messages as the client's hooks change them.
func (c *Client) hooked(ctx context.Context, queue string,
	messages []NewMessage) ([]NewMessage, error) {
	if len(c.hooks) == 0 {
		return messages, nil
	}
	out := slices.Clone(messages)
	for i := range out {
		if err := c.hook(ctx, queue, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// hookedAll is hooked for messages of several queues.
func (c *Client) hookedAll(ctx context.Context,
	all []TransactionProduce) ([]TransactionProduce, error) {
	out := slices.Clone(all)
	for i := range out {
		var err error
		if out[i].Messages, err = c.hooked(ctx, out[i].Queue, out[i].Messages); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// carrying returns a message's headers with what ctx carries: a shared request carries nothing for
// all of its messages.
func (c *Client) carrying(ctx context.Context, own map[string]string) map[string]string {
	if c.carries == nil {
		return own
	}
	headers := map[string]string{}
	c.carries.Inject(ctx, headers)
	for name := range headers {
		if _, ok := own[name]; ok {
			return own
		}
	}
	if len(headers) == 0 {
		return own
	}
	maps.Copy(headers, own)
	return headers
}

type enqueueLane = lane[NewMessage, Produced]

func (c *Client) enqueueLane(queue string) *enqueueLane {
	return laneOf(c, laneKey{queue, "enqueue"}, func() *enqueueLane {
		return &enqueueLane{c: c, list: "messages",
			send: func(ctx context.Context, messages []NewMessage) ([]Produced, error) {
				q := newPacked(queuePath(queue, "/messages"),
					&wire.ProduceRequest{Messages: messages})
				q.spread, q.several = true, len(messages) > 1
				out, err := do[wire.ProduceResponse](ctx, c, q, nil)
				return out.Messages, err
			}}
	})
}

// sizeOf estimates how many bytes a message takes in a request.
func sizeOf(m *NewMessage) int {
	n := 64 + len(m.Payload) + len(m.PayloadBytes) + len(m.Key)
	for k, v := range m.Headers {
		n += len(k) + len(v) + 8
	}
	return n
}

// LeaseOptions selects what to lease. The zero value leases up to 10 messages without
// waiting, for the time of the queue's policy.
type LeaseOptions struct {
	Max    int           // 1 to 1000; 0 is 10
	Wait   time.Duration // how long to wait for a message; at most a minute
	Lease  time.Duration // 100 ms to 12 h; 0 is the queue's policy
	Worker string        // the caller's name, for display
	Kinds  []string      // empty: all
}

// Lease leases messages of a queue; it returns none if none came in time.
//
// A lease is not repeated once it may have reached the server: messages it leased
// stay undelivered until the lease runs out.
func (c *Client) Lease(ctx context.Context, queue string, o LeaseOptions) ([]LeasedMessage, error) {
	return c.LeaseFrom(ctx, []string{queue}, o)
}

// LeaseFrom is Lease from several queues, tried in their order.
func (c *Client) LeaseFrom(ctx context.Context, queues []string,
	o LeaseOptions) ([]LeasedMessage, error) {
	out, err := do[wire.LeaseResponse](ctx, c, leaseCall(queues, o), nil)
	return out.Messages, err
}

// leaseCall returns a lease from one queue, or from several.
func leaseCall(queues []string, o LeaseOptions) *call {
	r := &wire.LeaseRequest{
		WaitMS: o.Wait.Milliseconds(), LeaseMS: o.Lease.Milliseconds(),
		Worker: o.Worker, Kinds: o.Kinds,
	}
	if o.Max > 0 {
		r.MaxMessages = new(int64(o.Max))
	}
	path := "/v1/lease"
	if r.Queues = queues; len(queues) == 1 {
		path, r.Queues = queuePath(queues[0], "/lease"), nil
	}
	q := newPacked(path, r)
	q.lease, q.patience = true, o.Wait
	return q
}

// Settle calls return a result for each lease, in order. In a call for many leases, which are of
// one queue or, where that is "", of any, a lost one has the status "rejected"; in the …One form it
// is ErrLeaseLost. Either says what became of its message.

// Ack ends leases with success.
func (c *Client) Ack(ctx context.Context, queue string, leases ...string) ([]SettleResult, error) {
	return c.settle(ctx, queue, DoAck, &AckRequest{LeaseIDs: leases},
		len(leases), nil)
}

// AckAll is Ack with a result (JSON, kept for duplicates of the messages).
func (c *Client) AckAll(ctx context.Context, queue string, r AckRequest,
	opts ...CallOption) ([]SettleResult, error) {
	return c.settle(ctx, queue, DoAck, &r, len(r.LeaseIDs), opts)
}

// AckAndProduce acks leases and enqueues messages (r.Produce), into any queues, in
// one atomic step: if one lease is lost nothing happens (ErrLeaseLost).
func (c *Client) AckAndProduce(ctx context.Context, queue string, r AckRequest,
	opts ...CallOption) (_ *TransactionResponse, err error) {
	if r.Produce, err = c.hookedAll(ctx, r.Produce); err != nil {
		return nil, err
	}
	return do[TransactionResponse](ctx, c, newPacked(leasesOf(queue)+"ack", &r), opts)
}

// Retry returns messages for another try.
func (c *Client) Retry(ctx context.Context, queue string, items []RetryItem,
	opts ...CallOption) ([]SettleResult, error) {
	return c.settle(ctx, queue, DoRetry, &wire.RetryRequest{Items: items},
		len(items), opts)
}

// DeadLetter moves messages to the dead-letter queue.
func (c *Client) DeadLetter(ctx context.Context, queue string, items []DeadLetterItem,
	opts ...CallOption) ([]SettleResult, error) {
	return c.settle(ctx, queue, DoDeadLetter, &wire.DeadLetterRequest{Items: items},
		len(items), opts)
}

// Extend extends leases, counted from now.
func (c *Client) Extend(ctx context.Context, queue string, items []ExtendItem,
	opts ...CallOption) ([]SettleResult, error) {
	return c.settle(ctx, queue, DoExtend, &wire.ExtendRequest{Items: items},
		len(items), opts)
}

// Release returns messages at once, without counting the attempt.
func (c *Client) Release(ctx context.Context, queue string,
	leases ...string) ([]SettleResult, error) {
	return c.settle(ctx, queue, DoRelease, &wire.ReleaseRequest{LeaseIDs: leases},
		len(leases), nil)
}

// Snooze is Release for after a delay, which each item says. The attempt is not counted.
func (c *Client) Snooze(ctx context.Context, queue string, items []ReleaseItem,
	opts ...CallOption) ([]SettleResult, error) {
	return c.settle(ctx, queue, DoRelease, &wire.ReleaseRequest{Items: items}, len(items), opts)
}

// settle settles the n leases of body.
func (c *Client) settle(ctx context.Context, queue string, verb Verb, body any, n int,
	opts []CallOption) ([]SettleResult, error) {
	out, err := do[wire.SettleResponse](ctx, c, settleCall(leasesOf(queue), verb, body), opts)
	return answered(out.Results, n, "leases", err)
}

// AckOne ends a lease with success.
func (c *Client) AckOne(ctx context.Context, lease string, r AckOne,
	opts ...CallOption) (*SettleResult, error) {
	return c.settleOne(ctx, lease, DoAck, &r, opts)
}

// RetryOne returns a message for another try.
func (c *Client) RetryOne(ctx context.Context, lease string, r RetryOne,
	opts ...CallOption) (*SettleResult, error) {
	return c.settleOne(ctx, lease, DoRetry, &r, opts)
}

// DeadLetterOne moves a message to the dead-letter queue.
func (c *Client) DeadLetterOne(ctx context.Context, lease string, r DeadLetterOne,
	opts ...CallOption) (*SettleResult, error) {
	return c.settleOne(ctx, lease, DoDeadLetter, &r, opts)
}

// ExtendOne extends a lease.
func (c *Client) ExtendOne(ctx context.Context, lease string, r ExtendOne,
	opts ...CallOption) (*SettleResult, error) {
	return c.settleOne(ctx, lease, DoExtend, &r, opts)
}

// ReleaseOne returns a message, at once or after a delay.
func (c *Client) ReleaseOne(ctx context.Context, lease string, r ReleaseOne,
	opts ...CallOption) (*SettleResult, error) {
	return c.settleOne(ctx, lease, DoRelease, &r, opts)
}

func (c *Client) settleOne(ctx context.Context, lease string, verb Verb, body any,
	opts []CallOption) (*SettleResult, error) {
	q := settleCall("/v1/leases/"+url.PathEscape(lease)+"/", verb, body)
	return do[SettleResult](ctx, c, q, opts)
}

// leasesOf returns the path of calls that settle leases of a queue, "" any.
func leasesOf(queue string) string {
	if queue == "" {
		return "/v1/"
	}
	return queuePath(queue, "/")
}

func settleCall(path string, verb Verb, body any) *call {
	q := newPacked(path+string(verb), body)
	q.settle = true
	return q
}

// Transaction settles and produces in one atomic step over any queues: if one lease
// is lost nothing happens (ErrLeaseLost, with Field and Index).
func (c *Client) Transaction(ctx context.Context, t TransactionRequest,
	opts ...CallOption) (_ *TransactionResponse, err error) {
	if t.Produce, err = c.hookedAll(ctx, t.Produce); err != nil {
		return nil, err
	}
	return do[TransactionResponse](ctx, c, newPacked("/v1/transactions", &t), opts)
}

// Settlement is how one lease ends.
type Settlement struct {
	LeaseID string
	Do      Verb
	Error   string         // DoRetry, DoDeadLetter: why, at most 64 KiB
	Delay   *time.Duration // DoRetry: until the next try; nil is the policy's backoff. DoRelease: nil is none
	Lease   time.Duration  // DoExtend: from now; 0 is the policy's
}

// Verb is a way to settle a lease.
type Verb string

// The ways to settle a lease. DoExtend does not settle: it extends the lease.
const (
	DoAck        Verb = "ack"
	DoRetry      Verb = "retry"
	DoDeadLetter Verb = "dead-letter"
	DoExtend     Verb = "extend"
	DoRelease    Verb = "release"
)

// Settle settles one lease of a queue, "" any. It is meant for many goroutines at once: their
// settlements share requests, as messages do in Enqueue, and each gets its own
// answer. A lost lease is ErrLeaseLost.
func (c *Client) Settle(ctx context.Context, queue string, s Settlement) (SettleResult, error) {
	out, err := c.settleLane(queue, s.Do).do(ctx, s, s.size())
	if err == nil {
		err = lost(&out)
	}
	return out, err
}

// lost returns the error of a settlement that was rejected.
func lost(r *SettleResult) error {
	if r.Status != "rejected" {
		return nil
	}
	return &Error{Problem: Problem{
		Status: http.StatusConflict, Code: r.Code, Title: "The lease is lost",
		Outcome: wire.NotApplied,
		Detail:  "lease " + r.LeaseID + " is not, or no longer, its message's current one",
		Fate:    r.Fate,
	}}
}

func (s *Settlement) size() int { return 64 + len(s.Error) }

type settleLane = lane[Settlement, SettleResult]

func (c *Client) settleLane(queue string, verb Verb) *settleLane {
	if verb == DoDeadLetter {
		verb = DoRetry // its items can be either
	}
	return laneOf(c, laneKey{queue, verb}, func() *settleLane {
		l := &settleLane{c: c, list: "items",
			send: func(ctx context.Context, s []Settlement) ([]SettleResult, error) {
				q := settleCall(leasesOf(queue), verb, settleBody(verb, s))
				q.spread = true
				out, err := do[wire.SettleResponse](ctx, c, q, nil)
				return out.Results, err
			}}
		if verb == DoAck {
			l.list = "lease_ids"
		}
		return l
	})
}

// settleBody returns the request of settlements that share a verb.
func settleBody(verb Verb, all []Settlement) any {
	switch verb {
	case DoAck:
		return &AckRequest{LeaseIDs: each(all, leaseID)}
	case DoRelease:
		return &wire.ReleaseRequest{Items: each(all, func(s *Settlement) (it ReleaseItem) {
			if it.LeaseID = s.LeaseID; s.Delay != nil {
				it.DelayMS = s.Delay.Milliseconds()
			}
			return it
		})}
	case DoExtend:
		return &wire.ExtendRequest{Items: each(all, func(s *Settlement) ExtendItem {
			return ExtendItem{LeaseID: s.LeaseID, LeaseMS: s.Lease.Milliseconds()}
		})}
	}
	return &wire.RetryRequest{Items: each(all, func(s *Settlement) RetryItem {
		it := RetryItem{LeaseID: s.LeaseID, Error: s.Error}
		if s.Do == DoDeadLetter {
			it.Retryable = new(bool)
		} else if s.Delay != nil {
			it.DelayMS = new(s.Delay.Milliseconds())
		}
		return it
	})}
}

func leaseID(s *Settlement) string { return s.LeaseID }

// each returns what f makes of each settlement.
func each[T any](all []Settlement, f func(*Settlement) T) []T {
	out := make([]T, len(all))
	for i := range all {
		out[i] = f(&all[i])
	}
	return out
}
