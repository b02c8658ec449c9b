package api

import (
	"fmt"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// transact answers POST /v1/transactions: settles and produces over any queues
// in one entry, all of it or nothing.
func (s *Server) transact(q *request) error {
	if err := q.allow(); err != nil {
		return err
	}
	var in wire.TransactionRequest
	if err := q.decode(&in, true, false); err != nil {
		return err
	}
	settle, batches, err := s.transaction(&in)
	if err != nil {
		return err
	}
	if err := q.mayTransact(&in, settle); err != nil {
		return err
	}
	return s.transactAll(q, settle, in.Produce, batches, func(err error) error { return locateSettle(&in, err) })
}

// transactAll proposes settles and produces, all of it or nothing, and answers.
// locate tells where in the request a settle is that failed.
func (s *Server) transactAll(q *request, settle []event.SettleItem, produce []wire.TransactionProduce, batches []*batch, locate func(error) error) error {
	req, err := q.idempotency()
	if err != nil {
		return err
	}
	for range maxStale {
		t := event.Transaction{Settle: settle}
		for i := range produce {
			p := event.Produce{Queue: produce[i].Queue, AutoCreate: s.opts.AutoCreateQueues, Messages: batches[i].msgs}
			if err := s.fit(q, &p, batches[i]); err != nil {
				if p, ok := err.(*event.Problem); ok {
					return inProduce(p, i)
				}
				return err
			}
			t.Produce = append(t.Produce, p)
		}
		res, err := q.propose(&event.Command{Request: req, Transaction: &t})
		if isStale(err) {
			q.unhurried()
			if err := s.barrier(q.Context()); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return locate(err)
		}
		q.keyFollowed(res)
		return s.answerTransaction(q, &res)
	}
	return event.Problemf(event.CodeConflict, "produce", "the queues' policies keep changing; try again")
}

// mayTransact refuses unless the token may do each part.
func (q *request) mayTransact(in *wire.TransactionRequest, settle []event.SettleItem) error {
	if err := q.maySettle(settle); err != nil {
		return err
	}
	return q.mayProduce(in.Produce)
}

// mayProduce refuses unless the token may produce into all these queues.
func (q *request) mayProduce(produce []wire.TransactionProduce) error {
	for i := range produce {
		if err := q.may(roleProduce, produce[i].Queue); err != nil {
			return inProduce(err.(*event.Problem), i)
		}
	}
	return nil
}

// transaction checks a transaction's parts.
func (s *Server) transaction(in *wire.TransactionRequest) (settle []event.SettleItem, batches []*batch, err error) {
	n := len(in.Ack) + len(in.Retry) + len(in.DeadLetter) + len(in.Extend)
	for i := range in.Produce {
		n += len(in.Produce[i].Messages)
	}
	if n < 1 || n > event.MaxBatch {
		return nil, nil, bad("", "a transaction must have 1 to %d leases and messages, not %d", event.MaxBatch, n)
	}
	add := func(items []event.SettleItem, e error) {
		if err == nil {
			settle, err = append(settle, items...), e
		}
	}
	add(s.ackItems("ack", in.Ack, nil))
	add(retryItems("retry", in.Retry))
	add(deadLetterItems("dead_letter", in.DeadLetter))
	add(extendItems("extend", in.Extend))
	if err != nil {
		return nil, nil, err
	}
	if err := settledTwice(in, settle); err != nil {
		return nil, nil, err
	}
	batches, err = s.produceBatches(in.Produce)
	return settle, batches, err
}

// produceBatches checks what is to be enqueued together with settles.
func (s *Server) produceBatches(produce []wire.TransactionProduce) (batches []*batch, err error) {
	for i := range produce {
		p := &produce[i]
		if !event.ValidName(p.Queue) {
			return nil, bad("produce.queue", "produce[%d].queue must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$; it was %s", i, echo(p.Queue)).At(i)
		}
		if err := batchSize(fmt.Sprintf("produce[%d].messages", i), len(p.Messages)); err != nil {
			return nil, err
		}
		b, err := s.newBatch(p.Messages)
		if err != nil {
			return nil, inProduce(err.(*event.Problem), i)
		}
		batches = append(batches, b)
	}
	return batches, nil
}

// ackAndProduce acks leases and enqueues messages in one entry, all of it or
// nothing. queue is what the leases must be of, "" any; field is the list that
// they came in, "" where the path names the one.
func (s *Server) ackAndProduce(q *request, queue, field string, settle []event.SettleItem, produce []wire.TransactionProduce) error {
	if err := q.mayProduce(produce); err != nil {
		return err
	}
	n := len(settle)
	for i := range produce {
		n += len(produce[i].Messages)
	}
	if n > event.MaxBatch {
		return bad("produce", "leases and messages must be at most %d together, not %d", event.MaxBatch, n)
	}
	batches, err := s.produceBatches(produce)
	if err != nil {
		return err
	}
	lost := func(i int) error {
		name, p := "lease_id", event.Problemf(event.CodeLeaseLost, "", "lease %s is not, or no longer, its message's current one; nothing was done", settle[i].Lease)
		if field != "" {
			name, p.Index = field, i
		}
		p.Field = name
		return p
	}
	seen := make(map[event.ID]bool, len(settle))
	var last *event.Block
	for i := range settle {
		id := settle[i].Lease
		if seen[id] {
			return bad(field, "%s[%d]: lease %s is acked twice", field, i, id).At(i)
		}
		seen[id] = true
		if queue == "" {
			continue
		}
		of, err := q.leaseQueue(id, &last)
		if err != nil {
			return err
		}
		if of != queue {
			return lost(i)
		}
	}
	return s.transactAll(q, settle, produce, batches, func(err error) error {
		if p, ok := err.(*event.Problem); ok && p.Code == event.CodeLeaseLost && p.Index >= 0 && p.Index < len(settle) {
			s.metrics.leaseLost.Inc()
			return lost(p.Index)
		}
		return err
	})
}

// settledTwice refuses a lease that is in a transaction twice. settle has the
// items of in's lists, one after the other.
func settledTwice(in *wire.TransactionRequest, settle []event.SettleItem) error {
	seen := make(map[event.ID]bool, len(settle))
	for i := range settle {
		if id := settle[i].Lease; seen[id] {
			for _, l := range []struct {
				name string
				n    int
			}{{"ack", len(in.Ack)}, {"retry", len(in.Retry)}, {"dead_letter", len(in.DeadLetter)}, {"extend", len(in.Extend)}} {
				if i < l.n {
					return bad(l.name, "%s[%d]: lease %s is settled twice", l.name, i, id).At(i)
				}
				i -= l.n
			}
		}
		seen[settle[i].Lease] = true
	}
	return nil
}

// inProduce names the produce whose message, or queue, a problem is about.
func inProduce(p *event.Problem, i int) *event.Problem {
	out := *p
	switch {
	case p.Index < 0: // the queue itself
		out.Index = i
		out.Field = "produce.queue"
	case p.Field == "":
		out.Field = fmt.Sprintf("produce[%d].messages", i)
	default:
		out.Field = fmt.Sprintf("produce[%d].messages.%s", i, p.Field)
	}
	return &out
}

// locateSettle tells the list and the position in it of a settle that failed.
// Deciding counts settles of one kind, and a retry that is not retryable is a
// dead-letter to it.
func locateSettle(in *wire.TransactionRequest, err error) error {
	p, ok := err.(*event.Problem)
	if !ok || p.Index < 0 {
		return err
	}
	n := p.Index // how many of the kind are still to be passed
	pass := func(list string, i int, kind string) bool {
		if kind != p.Field {
			return false
		}
		if n--; n >= 0 {
			return false
		}
		out := *p
		out.Field, out.Index = list, i
		err = &out
		return true
	}
	for i := range in.Ack {
		if pass("ack", i, "ack") {
			return err
		}
	}
	for i := range in.Retry {
		kind := "retry"
		if r := in.Retry[i].Retryable; r != nil && !*r {
			kind = "dead_letter"
		}
		if pass("retry", i, kind) {
			return err
		}
	}
	for i := range in.DeadLetter {
		if pass("dead_letter", i, "dead_letter") {
			return err
		}
	}
	for i := range in.Extend {
		if pass("extend", i, "extend") {
			return err
		}
	}
	return err
}

func (s *Server) answerTransaction(q *request, res *event.Result) error {
	messages, err := s.producedAll(q, res.Produced)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.TransactionResponse{Results: settledAll(res.Settled), Messages: messages})
}
