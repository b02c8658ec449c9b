package api

import (
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// settleKinds are the settle calls by the last part of their paths.
var settleKinds = map[string]event.SettleOp{
	"ack": event.OpAck, "retry": event.OpRetry, "dead-letter": event.OpDeadLetter,
	"extend": event.OpExtend, "release": event.OpRelease,
}

// settles is the settles of a request. places are their positions in it, for problems.
type settles struct {
	items  []event.SettleItem
	places []place
	err    error // the first one; later additions are ignored
}

// place is a position in a list of a request; index -1: the path has the lease.
type place struct {
	list  string
	index int
}

// settle answers POST /v1/queues/{queue}/ack and the like: many leases, each
// answered on its own.
func (s *Server) settle(q *request, op event.SettleOp) error {
	name := q.queue()
	if q.err != nil {
		return q.err
	}
	in, produce, err := q.settleRequest(op, "")
	if err != nil {
		return err
	}
	if err := q.exists(name); err != nil {
		return err
	}
	if len(produce) > 0 {
		return s.ackAndProduce(q, name, in, produce)
	}
	settled, err := s.settleItems(q, name, in.items)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.SettleResponse{Results: settledAll(settled)})
}

// settleOne answers POST /v1/leases/{lease_id}/ack and the like.
func (s *Server) settleOne(q *request, op event.SettleOp) error {
	lease, err := ulid("lease_id", q.PathValue("lease_id"))
	if err != nil {
		return err
	}
	in, produce, err := q.settleRequest(op, lease.String())
	if p, ok := err.(*event.Problem); ok && p.Index >= 0 {
		err = p.At(-1)
	}
	if err != nil {
		return err
	}
	if err := q.maySettle(in.items); err != nil {
		return err
	}
	in.places[0] = place{"lease_id", -1}
	if len(produce) > 0 {
		return s.ackAndProduce(q, "", in, produce)
	}
	settled, err := s.settleItems(q, "", in.items)
	if err != nil {
		return err
	}
	if settled[0].Status == event.StatusRejected {
		return event.Problemf(event.CodeLeaseLost, "lease_id", "lease %s is not, or no longer, its message's current one", lease)
	}
	return q.answer(http.StatusOK, &settledAll(settled)[0])
}

// settleRequest reads a settle call: of many leases, or of the one in the path.
func (q *request) settleRequest(op event.SettleOp, one string) (in settles, produce []wire.TransactionProduce, err error) {
	if err = q.allow(); err != nil {
		return in, nil, err
	}
	list := "items"
	switch op {
	case event.OpAck:
		var body wire.AckRequest
		body, err = settleBody(q, one, func(o wire.AckOne) wire.AckRequest {
			return wire.AckRequest{LeaseIDs: []string{one}, Result: o.Result, Produce: o.Produce}
		})
		list, produce = "lease_ids", body.Produce
		in.ack(list, body.LeaseIDs, body.Result, q.s.opts.MaxPayload)
	case event.OpRetry:
		var body wire.RetryRequest
		body, err = settleBody(q, one, func(o wire.RetryOne) wire.RetryRequest {
			item := wire.RetryItem{LeaseID: one, Error: o.Error, DelayMS: o.DelayMS, Retryable: o.Retryable}
			return wire.RetryRequest{Items: []wire.RetryItem{item}}
		})
		in.retry(list, body.Items)
	case event.OpDeadLetter:
		var body wire.DeadLetterRequest
		body, err = settleBody(q, one, func(o wire.DeadLetterOne) wire.DeadLetterRequest {
			return wire.DeadLetterRequest{Items: []wire.DeadLetterItem{{LeaseID: one, Error: o.Error}}}
		})
		in.deadLetter(list, body.Items)
	case event.OpExtend:
		var body wire.ExtendRequest
		body, err = settleBody(q, one, func(o wire.ExtendOne) wire.ExtendRequest {
			return wire.ExtendRequest{Items: []wire.ExtendItem{{LeaseID: one, LeaseMS: o.LeaseMS}}}
		})
		in.extend(list, body.Items)
	case event.OpRelease:
		var body wire.ReleaseRequest
		body, err = settleBody(q, one, func(wire.ReleaseOne) wire.ReleaseRequest {
			return wire.ReleaseRequest{LeaseIDs: []string{one}}
		})
		list = "lease_ids"
		for i, id := range body.LeaseIDs {
			in.add(list, "", i, id, event.SettleItem{Op: event.OpRelease})
		}
	}
	if err == nil {
		err = in.err
	}
	if err == nil {
		err = batchSize(list, len(in.items))
	}
	return in, produce, err
}

// settleBody decodes the body of a settle call: of many leases, or of the one in the
// path, which many converts.
func settleBody[Many, One any](q *request, one string, many func(One) Many) (in Many, err error) {
	if one == "" {
		err = q.decode(&in, false)
		return in, err
	}
	var body One
	err = q.decode(&body, true)
	return many(body), err
}

// settleItems proposes a settle. An item that is rejected because it was done before is
// answered as the first time.
func (s *Server) settleItems(q *request, queue string, items []event.SettleItem) ([]event.Settled, error) {
	res, err := q.propose(&event.Command{Settle: &event.Settle{Queue: queue, Items: items}})
	if err != nil {
		return nil, err
	}
	if len(res.Settled) != len(items) {
		return nil, fmt.Errorf("%d answers to %d settled leases", len(res.Settled), len(items))
	}
	q.keyFollowed(res)
	for i := range res.Settled {
		t := &res.Settled[i]
		if t.Status != event.StatusRejected {
			continue
		}
		if err := s.settledBefore(q, queue, &items[i], t); err != nil {
			return nil, err
		}
		if t.Status == event.StatusRejected {
			s.metrics.leaseLost.Inc()
		}
	}
	return res.Settled, nil
}

// settledBefore searches the log for the end of a lost lease: if the same call ended it,
// the answer is that of the first time.
func (s *Server) settledBefore(q *request, queue string, item *event.SettleItem, t *event.Settled) error {
	if item.Op == event.OpExtend || event.RefOf(item.Lease).Index > s.deps.Log.Head() {
		return nil
	}
	e, err := s.deps.Log.EndOf(q.Context(), item.Lease)
	if err != nil && !s.notFound(err) && !s.gone(err) {
		return err
	}
	if err != nil || e == nil || queue != "" && e.Queue != queue {
		return nil
	}
	status := ""
	switch op := item.Op; {
	case op == event.OpAck && e.Type == event.Acked:
		status = event.StatusAcked
	case op == event.OpRelease && e.Type == event.Released:
		status = event.StatusReleased
	case op == event.OpRetry && e.Type == event.Retried:
		status = event.StatusRetried
	case e.Reason == event.ReasonMaxAttempts && op == event.OpRetry, e.Reason == event.ReasonRejected && op == event.OpDeadLetter:
		switch e.Type {
		case event.DeadLettered:
			status = event.StatusDeadLettered
		case event.Discarded:
			status = event.StatusDiscarded
		}
	}
	if status == "" {
		return nil
	}
	*t = event.Settled{Lease: item.Lease, Status: status}
	if status == event.StatusRetried {
		t.NextAt = max(e.Due, event.ClockOf(e.ID))
	}
	return nil
}

// settledAll returns the outcome of each lease of a request.
func settledAll(settled []event.Settled) []wire.SettleResult {
	out := make([]wire.SettleResult, len(settled))
	for i := range settled {
		t := &settled[i]
		out[i] = wire.SettleResult{
			LeaseID: t.Lease.String(), Status: t.Status, Code: t.Code,
			NextAt: wire.Time(t.NextAt), LeaseExpiresAt: wire.Time(t.ExpiresAt),
		}
	}
	return out
}

// add adds an item with its lease; field is the lease's name within the item, "" where
// the list is of leases.
func (in *settles) add(list, field string, i int, id string, item event.SettleItem) {
	if in.err != nil {
		return
	}
	var err error
	if item.Lease, err = event.ParseID(id); err != nil {
		in.refuse(list, field, i, "must be a ULID, 26 characters, not %s", echo(id))
		return
	}
	in.items, in.places = append(in.items, item), append(in.places, place{list, i})
}

// refuse records a problem with a field of an item of a list, or the item itself.
func (in *settles) refuse(list, field string, i int, format string, args ...any) {
	if in.err != nil {
		return
	}
	full, short := fmt.Sprintf("%s[%d]", list, i), list
	if field != "" {
		full += "." + field
		if short = field; list != "items" {
			short = list + "." + field
		}
	}
	in.err = bad(short, full+" "+format, args...).At(i)
}

func (in *settles) ack(list string, leases []string, result jsontext.Value, maxPayload int64) {
	if int64(len(result)) > maxPayload {
		in.err = event.Problemf(codePayloadTooLarge, "result", "the result has %d bytes, more than %d", len(result), maxPayload)
	}
	var content event.Blob
	if len(result) > 0 && string(result) != "null" {
		content = event.EncodeContent(&event.Content{Result: result})
	}
	for i, id := range leases {
		in.add(list, "", i, id, event.SettleItem{Op: event.OpAck, Content: content})
	}
}

func (in *settles) retry(list string, items []wire.RetryItem) {
	for i := range items {
		it := &items[i]
		item := event.SettleItem{Op: event.OpRetry, DelayMS: -1, Content: in.failure(list, i, it.LeaseID, it.Error)}
		if it.DelayMS != nil {
			if *it.DelayMS < 0 || *it.DelayMS > event.MaxDelayMS {
				in.refuse(list, "delay_ms", i, "must be from 0 to %d (10 years), or null for the policy's backoff, not %d", int64(event.MaxDelayMS), *it.DelayMS)
			}
			item.DelayMS = *it.DelayMS
		}
		if it.Retryable != nil && !*it.Retryable {
			item.Op, item.DelayMS = event.OpDeadLetter, 0
		}
		in.add(list, "lease_id", i, it.LeaseID, item)
	}
}

func (in *settles) deadLetter(list string, items []wire.DeadLetterItem) {
	for i, it := range items {
		item := event.SettleItem{Op: event.OpDeadLetter, Content: in.failure(list, i, it.LeaseID, it.Error)}
		in.add(list, "lease_id", i, it.LeaseID, item)
	}
}

func (in *settles) extend(list string, items []wire.ExtendItem) {
	for i, it := range items {
		if v := it.LeaseMS; v != 0 && (v < event.MinLeaseMS || v > event.MaxLeaseMS) {
			in.refuse(list, "lease_ms", i, "must be from %d to %d, not %d", event.MinLeaseMS, event.MaxLeaseMS, v)
		}
		in.add(list, "lease_id", i, it.LeaseID, event.SettleItem{Op: event.OpExtend, LeaseMS: it.LeaseMS})
	}
}

// failure encodes a worker's error text.
func (in *settles) failure(list string, i int, lease, text string) (content event.Blob) {
	if len(text) > maxError {
		in.refuse(list, "error", i, "must be at most %d bytes, not %d", maxError, len(text))
	}
	if text != "" {
		content = event.EncodeContent(&event.Content{Error: text})
	}
	return content
}

// transact answers POST /v1/transactions: settles and produces over any queues
// in one entry, all of it or nothing.
func (s *Server) transact(q *request) error {
	if err := q.allow(); err != nil {
		return err
	}
	var body wire.TransactionRequest
	if err := q.decode(&body, false); err != nil {
		return err
	}
	n := len(body.Ack) + len(body.Retry) + len(body.DeadLetter) + len(body.Extend) + messagesIn(body.Produce)
	if n < 1 || n > event.MaxBatch {
		return bad("", "a transaction must have 1 to %d leases and messages, not %d", event.MaxBatch, n)
	}
	var in settles
	in.ack("ack", body.Ack, nil, s.opts.MaxPayload)
	in.retry("retry", body.Retry)
	in.deadLetter("dead_letter", body.DeadLetter)
	in.extend("extend", body.Extend)
	if err := in.distinct(); err != nil {
		return err
	}
	batches, err := s.produceBatches(body.Produce)
	if err != nil {
		return err
	}
	if err := q.maySettle(in.items); err != nil {
		return err
	}
	if err := q.mayProduce(body.Produce); err != nil {
		return err
	}
	return s.transactAll(q, in, body.Produce, batches)
}

func messagesIn(produce []wire.TransactionProduce) (n int) {
	for i := range produce {
		n += len(produce[i].Messages)
	}
	return n
}

// distinct returns the first problem, or that a lease occurs twice.
func (in *settles) distinct() error {
	if in.err != nil {
		return in.err
	}
	seen := make(map[event.ID]bool, len(in.items))
	for i := range in.items {
		id, at := in.items[i].Lease, in.places[i]
		if seen[id] {
			return bad(at.list, "%s[%d]: lease %s is settled twice", at.list, at.index, id).At(at.index)
		}
		seen[id] = true
	}
	return nil
}

// ackAndProduce acks leases, of queue unless that is "", and enqueues messages in one
// entry, all of it or nothing.
func (s *Server) ackAndProduce(q *request, queue string, in settles, produce []wire.TransactionProduce) error {
	if err := q.mayProduce(produce); err != nil {
		return err
	}
	if n := len(in.items) + messagesIn(produce); n > event.MaxBatch {
		return bad("produce", "leases and messages must be at most %d together, not %d", event.MaxBatch, n)
	}
	batches, err := s.produceBatches(produce)
	if err != nil {
		return err
	}
	if err := in.distinct(); err != nil {
		return err
	}
	var last *event.Block
	for i := range in.items {
		if queue == "" {
			break
		}
		of, err := q.leaseQueue(in.items[i].Lease, &last)
		if err != nil {
			return err
		}
		if of != queue {
			at := in.places[i]
			return event.Problemf(event.CodeLeaseLost, at.list, "lease %s is not its message's current one in this queue; nothing was done", in.items[i].Lease).At(at.index)
		}
	}
	return s.transactAll(q, in, produce, batches)
}

// transactAll proposes settles and produces, all of it or nothing, and answers.
func (s *Server) transactAll(q *request, in settles, produce []wire.TransactionProduce, batches []*batch) error {
	res, err := q.proposeFresh("produce", "the policy of a queue", func() (*event.Command, error) {
		t := &event.Transaction{Settle: in.items}
		for i := range produce {
			p := event.Produce{Queue: produce[i].Queue, AutoCreate: s.opts.AutoCreateQueues, Messages: batches[i].msgs}
			if err := s.fit(q, &p, batches[i]); err != nil {
				return nil, inProduce(err, i)
			}
			t.Produce = append(t.Produce, p)
		}
		return &event.Command{Transaction: t}, nil
	})
	if p, ok := err.(*event.Problem); ok {
		if p.Code == event.CodeLeaseLost {
			s.metrics.leaseLost.Inc()
		}
		return in.locate(p)
	}
	if err != nil {
		return err
	}
	q.keyFollowed(res)
	messages, err := s.producedAll(q, res.Produced)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.TransactionResponse{Results: settledAll(res.Settled), Messages: messages})
}

// locate replaces the position of a settle that was refused by its place in the request.
// Deciding counts the settles of one kind, where a retry that is not retryable is a
// dead-letter.
func (in *settles) locate(p *event.Problem) *event.Problem {
	ops := map[string]event.SettleOp{
		"ack": event.OpAck, "retry": event.OpRetry, "dead_letter": event.OpDeadLetter, "extend": event.OpExtend,
	}
	op, ok := ops[p.Field]
	if !ok || p.Index < 0 {
		return p
	}
	n := 0
	for i := range in.items {
		if in.items[i].Op != op {
			continue
		}
		if n == p.Index {
			out := *p
			out.Field, out.Index = in.places[i].list, in.places[i].index
			return &out
		}
		n++
	}
	return p
}

// mayProduce refuses unless the token may produce into all these queues.
func (q *request) mayProduce(produce []wire.TransactionProduce) error {
	for i := range produce {
		if err := q.may(roleProduce, produce[i].Queue); err != nil {
			return inProduce(err, i)
		}
	}
	return nil
}

// produceBatches checks the messages that are enqueued together with settles.
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
			return nil, inProduce(err, i)
		}
		batches = append(batches, b)
	}
	return batches, nil
}

// inProduce locates a problem in the i-th produce of a transaction: in one of its
// messages, or its queue.
func inProduce(err error, i int) error {
	p, ok := err.(*event.Problem)
	if !ok {
		return err
	}
	out := *p
	switch {
	case p.Index < 0:
		out.Index, out.Field = i, "produce.queue"
	case p.Field == "":
		out.Field = fmt.Sprintf("produce[%d].messages", i)
	default:
		out.Field = fmt.Sprintf("produce[%d].messages.%s", i, p.Field)
	}
	return &out
}
