package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/webhook"
)

// leaseOne answers POST /v1/queues/{queue}/lease.
func (s *Server) leaseOne(q *request) error {
	name := q.queue()
	in := q.leaseRequest()
	if in.Queues != nil {
		q.refuse("queues", "queues goes with POST /v1/lease; here the path names the queue")
	}
	in.Queues = []string{name}
	return s.lease(q, in)
}

// leaseMany answers POST /v1/lease, from several queues.
func (s *Server) leaseMany(q *request) error {
	in := q.leaseRequest()
	if len(in.Queues) < 1 || len(in.Queues) > maxQueues {
		q.refuse("queues", "queues must name 1 to %d queues, not %d", maxQueues, len(in.Queues))
	}
	for i, name := range in.Queues {
		if !event.ValidName(name) {
			q.refuseAt(i, "queues", "queues[%d] must match %s; it was %s",
				i, event.Names, echo(name))
		} else if slices.Contains(in.Queues[:i], name) {
			q.refuseAt(i, "queues", "queues[%d] is named twice", i)
		}
	}
	q.do(func() error { return q.mayLease(in.Queues) })
	return s.lease(q, in)
}

// mayLease returns an error unless the token may consume from all these queues.
func (q *request) mayLease(queues []string) error {
	for i, name := range queues {
		if p, ok := q.may(roleConsume, name).(*event.Problem); ok && len(queues) > 1 {
			return p.At(i)
		} else if ok {
			return p
		}
	}
	return nil
}

// leaseRequest reads and checks the body; an empty one asks for the defaults.
func (q *request) leaseRequest() *wire.LeaseRequest {
	in := &wire.LeaseRequest{}
	q.read().optionalBody(in)
	if in.MaxMessages == nil {
		in.MaxMessages = new(int64(10))
	}
	q.do(func() error {
		return cmp.Or(inRange("max_messages", *in.MaxMessages, 1, event.MaxBatch),
			inRange("wait_ms", in.WaitMS, 0, event.MaxWaitMS), within("worker", in.Worker, maxWorker))
	})
	if len(in.Kinds) > maxKinds {
		q.refuse("kinds", "kinds must be at most %d, not %d", maxKinds, len(in.Kinds))
	}
	for i, k := range in.Kinds {
		if len(k) > maxKind {
			q.refuseAt(i, "kinds", "kinds[%d] must be at most %d bytes", i, maxKind)
		}
	}
	if v := in.LeaseMS; v != 0 && (v < event.MinLeaseMS || v > event.MaxLeaseMS) {
		q.refuse("lease_ms", "lease_ms must be from %d to %d, or 0 for the queue's own, not %d",
			event.MinLeaseMS, event.MaxLeaseMS, v)
	}
	return in
}

// lease waits for work, proposes a lease, and answers with its messages.
func (s *Server) lease(q *request, in *wire.LeaseRequest) error {
	for _, name := range in.Queues {
		get(q, func() (event.QueueView, error) { return s.current(q, name) })
	}
	if q.err != nil {
		return q.err
	}
	q.release() // not needed during a long poll
	q.idle = true
	c := &event.Command{Actor: q.actor(), Lease: &event.Lease{
		Queues: in.Queues, Max: int(*in.MaxMessages), LeaseMS: in.LeaseMS, Worker: in.Worker,
		Kinds: in.Kinds,
	}}
	q.patience = time.Duration(in.WaitMS) * time.Millisecond
	res, err := s.leaseWhile(q.Context(), c, q.patience, func() error {
		// After a long wait the token may have been revoked.
		return cmp.Or(q.refused(s.rules[q.route]), q.mayLease(in.Queues))
	})
	if err != nil {
		return err
	}
	if res.Index != 0 {
		q.committed(&res)
	}
	q.idle = len(res.Leased) == 0
	return s.answerLeased(q, in.Worker, res.Leased)
}

var shuttingDown = &event.Problem{
	Code: event.CodeShuttingDown, Index: -1, RetryAfterMS: 2000,
	Detail: "this node is shutting down; ask another one",
}

// leaseWhile waits for work and leases it, until ctx ends. It calls may before each proposal.
func (s *Server) leaseWhile(
	ctx context.Context, c *event.Command, wait time.Duration, may func() error,
) (res event.Result, err error) {
	if s.draining() {
		return res, shuttingDown
	}
	w := s.waiters.add(c.Lease.Queues, c.Lease.Kinds, c.Lease.Max)
	w.command = func() *event.Command {
		if ctx.Err() != nil || may() != nil {
			return nil
		}
		return c
	}
	w.lease = func(pending pendingWrite) (n int, err error) {
		// Always wait for the proposal: messages leased for a client that is gone must be released.
		awaited := context.WithoutCancel(ctx)
		if pending != nil {
			if res, err = s.track(awaited, c, "", pending); !unknown(err) {
				err = nil // the produce was refused, not this call, which keeps waiting
			}
			return len(res.Leased), err
		}
		// Each entry lets a bounded number of messages die instead, or separates a bounded number of
		// paused keys; continue behind those.
		for more := true; more; more = err == nil && len(res.Leased) == 0 && res.Count > 0 {
			if err = cmp.Or(ctx.Err(), may()); err == nil {
				res, err = s.propose(awaited, c, "")
			}
		}
		return len(res.Leased), err
	}
	err = w.poll(ctx, wait)
	if ctx.Err() != nil && len(res.Leased) > 0 {
		s.releaseAll(res.Leased)
		return event.Result{}, ctx.Err()
	}
	return res, err
}

// freshOrDraining returns once this node's state is linearizable, or the server drains.
func (s *Server) freshOrDraining(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.undrained, cancel)()
	if err := s.barrier(ctx); err != nil && !s.draining() {
		return err
	}
	return nil
}

// unknown reports whether the write that failed with err may still be committed.
func unknown(err error) bool {
	p, ok := errors.AsType[*event.Problem](err)
	return err != nil && (!ok || p.Unknown)
}

// takeLeases returns the waiters on this node that can lease the messages that a command is about
// to produce, and their lease commands, to be proposed with it. The caller sends each waiter the
// pending answer to its lease.
func (s *Server) takeLeases(c *event.Command) (woken []*waiter, leases []*event.Command) {
	take := func(p *event.Produce) {
		for _, w := range s.waiters.take(p.Queue, func() []string { return s.deliverable(p) }) {
			if lease := w.command(); lease != nil {
				woken, leases = append(woken, w), append(leases, lease)
			} else {
				w.wake <- nil
			}
		}
	}
	switch {
	case s.draining():
	case c.Produce != nil:
		take(c.Produce)
	case c.Transaction != nil:
		for i := range c.Transaction.Produce {
			take(&c.Transaction.Produce[i])
		}
	}
	return woken, leases
}

// deliverable returns the kinds of a produce's messages that can be leased at once (only the first
// of a partition), as far as this node knows. It may be wrong: an empty lease changes nothing.
func (s *Server) deliverable(p *event.Produce) (kinds []string) {
	q, ok := s.deps.State.Queue(p.Queue)
	ordering := q.Policy.Ordering
	if !ok || q.MayLease == 0 || ordering == event.FIFO && q.Stats.Ready+q.Stats.InFlight > 0 {
		return nil
	}
	now := s.clock(s.deps.State)
	taken := map[string]bool{}
	for i := range p.Messages {
		m := &p.Messages[i]
		key := ordering.PartitionKey(m.Key)
		_, paused := slices.BinarySearch(q.PausedKeys, key)
		if p.Delay(m, &q.Policy) > 0 || m.DeliverAt > now || paused ||
			ordering != event.Unordered && taken[key] {
			continue
		}
		taken[key] = true
		kinds = append(kinds, m.Kind)
	}
	return kinds[:min(len(kinds), q.MayLease)]
}

// releaseAll releases leases that no client has received. The attempts are not counted.
func (s *Server) releaseAll(leased []event.LeasedMessage) {
	items := make([]event.SettleItem, len(leased))
	for i := range leased {
		items[i] = event.SettleItem{Op: event.OpRelease, Lease: leased[i].Lease}
	}
	c := &event.Command{Settle: &event.Settle{Items: items}}
	if _, err := s.propose(context.Background(), c, ""); err != nil {
		s.log.Warn("cannot release leases that no client has received",
			"leases", len(items), "error", err)
	}
}

// damagedPause is how long a message that cannot be read here stays leased. Meanwhile other
// messages of its queue are delivered, and the file may be repaired.
const damagedPause = 5 * time.Second

// answerLeased writes the leased messages. A message that cannot be read because a file is damaged
// is released after a pause: that costs no attempt, and other nodes can read it. A message that
// cannot be decoded is left out: its lease expires, and eventually it is dead-lettered. Messages
// behind either in its batch are released as well.
func (s *Server) answerLeased(q *request, worker string, leased []event.LeasedMessage) error {
	readable, contents := leased[:0], make([]*event.Content, 0, len(leased))
	withheld := map[event.ID]bool{} // leases
	out := leaseAnswer{Messages: make([]wire.LeasedMessage, 0, len(leased))}
	var damaged []event.LeasedMessage
	for _, m := range leased {
		if withheld[m.Behind] { // it must not overtake the one ahead of it
			withheld[m.Lease], damaged = true, append(damaged, m)
			continue
		}
		c, err := s.content(m.Content)
		if err == nil && c == nil {
			if _, lost := s.deps.Log.Content(m.Content); log.IsDamage(lost) {
				err = lost // it must not be acked without its content: the file may be repaired
			}
		}
		var shown wire.LeasedMessage
		if err == nil {
			shown, err = s.leasedMessage(&m, c)
		}
		if err != nil {
			withheld[m.Lease] = true
		}
		switch {
		case err == nil:
			readable, contents = append(readable, m), append(contents, c)
			out.Messages = append(out.Messages, shown)
		case log.IsDamage(err):
			damaged = append(damaged, m)
		default:
			s.log.Error("cannot read a leased message's content",
				"message", m.ID, "queue", m.Queue, "error", err)
		}
	}
	if len(damaged) > 0 {
		time.AfterFunc(damagedPause, func() { s.releaseAll(damaged) })
	}
	switch {
	case len(readable) > 0 || len(leased) == 0:
	case len(damaged) > 0:
		return nodeDamaged()
	default:
		return fmt.Errorf("no content of %d leased messages can be read", len(leased))
	}
	q.noteLeased(worker, &out)
	if q.accepts(webhook.CloudBatchType) != "" {
		return q.answerEvents(readable, contents)
	}
	return q.answer(http.StatusOK, &out)
}

// leasedMessage returns a leased message's view; c is nil if the content was erased.
func (s *Server) leasedMessage(m *event.LeasedMessage, c *event.Content) (
	out wire.LeasedMessage, err error) {
	var of wire.Message
	setContent(&of, c)
	out = wire.LeasedMessage{
		ID: m.ID.String(), LeaseID: m.Lease.String(), Queue: m.Queue, Key: m.Key, Kind: m.Kind,
		Attempt: int64(m.Attempt), MaxAttempts: int64(m.MaxAttempts), Priority: int64(m.Priority),
		EnqueuedAt: wire.Time(m.EnqueuedAt), LeaseExpiresAt: wire.Time(m.LeaseExpiresAt),
		Headers: of.Headers, Payload: of.Payload, PayloadBytes: of.PayloadBytes,
		ContentType: of.ContentType, Original: of.Original, CorrelationID: of.CorrelationID,
	}
	if !m.Behind.IsZero() {
		out.Behind = m.Behind.String()
	}
	out.Erased, out.Damaged = s.absent(c, m.Content)
	if o := m.Origin; o != nil {
		out.Origin = &wire.LeasedOrigin{MessageID: o.First.String(), Replays: int64(o.Replays)}
	}
	if m.Dead != nil {
		out.Dead = messageOf(&m.MessageView, nil).Dead
		err = s.died(&m.MessageView, out.Dead)
	}
	return out, err
}

// leaseAnswer is a wire.LeaseResponse whose JSON has users' JSON verbatim.
type leaseAnswer wire.LeaseResponse

// write writes the JSON, payloads by hand: the library would read them again. They come last in a
// message, so a search for the first "id" finds the message's.
func (a *leaseAnswer) write(b *bytes.Buffer) error {
	b.WriteString(`{"messages":[`)
	var rest wire.LeasedMessage // of each message, so that it is allocated once
	for i := range a.Messages {
		if i > 0 {
			b.WriteByte(',')
		}
		m := &a.Messages[i]
		rest = *m
		rest.Payload, rest.PayloadBytes, rest.Original = nil, nil, nil // left out
		if err := wire.Write(b, &rest); err != nil {
			return err
		}
		b.Truncate(b.Len() - len("}"))
		if m.PayloadBytes != nil {
			b.WriteString(`,"payload_base64":"`)
			b.Grow(base64.StdEncoding.EncodedLen(len(m.PayloadBytes)))
			b.Write(base64.StdEncoding.AppendEncode(b.AvailableBuffer(), m.PayloadBytes))
			b.WriteByte('"')
		} else {
			b.WriteString(`,"payload":`)
			b.Write(m.Payload)
		}
		if m.Original != nil {
			b.WriteString(`,"original":`)
			b.Write(m.Original)
		}
		b.WriteByte('}')
	}
	b.WriteString("]}")
	return nil
}

// pushActor is the actor, in events, of the cluster's own deliveries.
const pushActor = "push"

// LeaseHere leases for push, as a client's long poll does. Messages leased after ctx has ended are
// released. If an error says that the outcome is unknown, the leases expire.
func (s *Server) LeaseHere(
	ctx context.Context, lease *event.Lease, wait time.Duration,
) ([]event.LeasedMessage, error) {
	c := &event.Command{Actor: pushActor, Lease: lease}
	res, err := s.leaseWhile(ctx, c, wait, func() error { return nil })
	return res.Leased, err
}
