package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// settleKinds are the settle calls by the last part of their paths.
var settleKinds = map[string]event.SettleOp{
	"ack": event.OpAck, "retry": event.OpRetry, "dead-letter": event.OpDeadLetter,
	"extend": event.OpExtend, "release": event.OpRelease,
}

// settles collects the settle items of a request. A mistake in one is the request's error.
type settles struct {
	q      *request
	items  []event.SettleItem
	places []place // their positions in the request, for problems
}

// place is a position in a list of a request; index -1: the path has the lease.
type place struct {
	list  string
	index int
}

// settle answers POST /v1/queues/{queue}/ack and the like (many leases, each with its own result),
// POST /v1/ack and the like (leases of any queues), and POST /v1/leases/{lease_id}/ack and the like
// (the lease in the path).
func (s *Server) settle(op event.SettleOp) handler {
	return func(q *request) error {
		queue, lease := q.PathValue("queue"), q.PathValue("lease_id")
		one := lease != ""
		if q.read(); one {
			lease = q.pathID("lease_id").String()
		} else if queue != "" {
			queue = q.queue()
		}
		in, produce := q.settleRequest(op, lease)
		items := in.items
		switch p, ok := q.err.(*event.Problem); {
		case queue != "":
			q.exists(queue)
		case ok && one:
			q.err = p.At(-1)
		case one, len(produce) > 0:
			q.do(func() error { return q.maySettle(items) })
		default:
			items = get(q, func() ([]event.SettleItem, error) { return q.settleable(items) })
		}
		if one && q.err == nil {
			in.places[0] = place{"lease_id", -1}
		}
		if len(produce) > 0 {
			if n := len(in.items) + messagesIn(produce); n > event.MaxBatch {
				q.refuse("produce", "leases and messages must be at most %d together, not %d",
					event.MaxBatch, n)
			}
			return s.transactAll(q, queue, in, produce)
		}
		results := s.settleItems(q, queue, items)
		for i := range results {
			if items[i].Lease.IsZero() {
				results[i].LeaseID = in.items[i].Lease.String()
			}
		}
		switch {
		case !one || q.err != nil:
			return q.answer(http.StatusOK, &wire.SettleResponse{Results: results})
		case results[0].Status == event.StatusRejected:
			q.fate = results[0].Fate
			return event.Problemf(event.CodeLeaseLost, "lease_id",
				"lease %s is not, or no longer, its message's current one", lease)
		}
		return q.answer(http.StatusOK, &results[0])
	}
}

// settleRequest reads a settle call: of many leases, or of the one in the path.
func (q *request) settleRequest(
	op event.SettleOp, one string,
) (in *settles, produce []wire.TransactionProduce) {
	in = &settles{q: q}
	list := "items"
	switch op {
	case event.OpAck:
		body := settleBody(q, one, func(o wire.AckOne) wire.AckRequest {
			return wire.AckRequest{LeaseIDs: []string{one}, Result: o.Result, Produce: o.Produce}
		})
		list, produce = "lease_ids", body.Produce
		in.leases(list, body.LeaseIDs, in.ackItem("result", -1, body.Result))
	case event.OpRetry:
		in.retry(list, settleBody(q, one, func(o wire.RetryOne) wire.RetryRequest {
			return wire.RetryRequest{Items: []wire.RetryItem{
				{LeaseID: one, Error: o.Error, DelayMS: o.DelayMS, RetryAt: o.RetryAt,
					Retryable: o.Retryable},
			}}
		}).Items)
	case event.OpDeadLetter:
		in.deadLetter(list, settleBody(q, one, func(o wire.DeadLetterOne) wire.DeadLetterRequest {
			items := []wire.DeadLetterItem{{LeaseID: one, Error: o.Error}}
			return wire.DeadLetterRequest{Items: items}
		}).Items)
	case event.OpExtend:
		in.extend(list, settleBody(q, one, func(o wire.ExtendOne) wire.ExtendRequest {
			return wire.ExtendRequest{Items: []wire.ExtendItem{{LeaseID: one, LeaseMS: o.LeaseMS}}}
		}).Items)
	case event.OpRelease:
		body := settleBody(q, one, func(o wire.ReleaseOne) wire.ReleaseRequest {
			items := []wire.ReleaseItem{{LeaseID: one, DelayMS: o.DelayMS}}
			return wire.ReleaseRequest{Items: items}
		})
		if in.release(list, body.Items); body.Items == nil {
			list = "lease_ids"
			in.leases(list, body.LeaseIDs, event.SettleItem{Op: event.OpRelease})
		} else if body.LeaseIDs != nil {
			q.refuse("items", "items and lease_ids exclude each other")
		}
	}
	q.do(func() error { return batchSize(list, len(in.items)) })
	return in, produce
}

// settleBody decodes the body of a settle call for many leases or, if one is not "", for the lease
// in the path, converted by many.
func settleBody[Many, One any](q *request, one string, many func(One) Many) (in Many) {
	if one == "" {
		q.body(&in)
		return in
	}
	var body One
	q.optionalBody(&body)
	return many(body)
}

// settleItems proposes a settle. A repeated item is not rejected: it gets the first answer.
func (s *Server) settleItems(
	q *request, queue string, items []event.SettleItem,
) []wire.SettleResult {
	res := q.commit(&event.Command{Settle: &event.Settle{Queue: queue, Items: items}})
	if q.err == nil && len(res.Settled) != len(items) {
		q.err = fmt.Errorf("%d answers to %d settled leases", len(res.Settled), len(items))
	}
	if q.err != nil {
		return nil
	}
	q.note(nil, &res)
	q.awaitKeyDeaths(res)
	ends := map[uint64]bool{} // entries at which repeated items took effect the first time
	for i := range res.Settled {
		switch t := &res.Settled[i]; {
		case t.Code == event.CodeWrongQueue && q.may(roleConsume, t.Queue) != nil:
			t.Code = event.CodeLeaseLost // the token may not learn the lease's queue
		case t.Code == event.CodeLeaseLost && !t.Lease.IsZero():
			q.do(func() error { return s.settledBefore(q, queue, &items[i], t, ends) })
		}
	}
	out := settleResults(res.Settled)
	q.fates(out, res.Settled, res.Index)
	return out
}

// fatesFor bounds the time that a settle call spends reading the fates of lost leases' messages,
// each of which takes a history. The rest of a long list is answered without.
const fatesFor = time.Second

// fates adds to results the fates, as of an entry, of the messages of lost leases.
func (q *request) fates(results []wire.SettleResult, settled []event.Settled, index uint64) {
	var until time.Time
	for i := range settled {
		if settled[i].Code != event.CodeLeaseLost {
			continue
		}
		q.s.metrics.leaseLost.Inc()
		if until.IsZero() {
			until = time.Now().Add(fatesFor)
		}
		if time.Now().Before(until) {
			results[i].Fate = get(q, func() (wire.Fate, error) {
				return q.fateOf(settled[i].Lease, index)
			})
		}
	}
}

// fateOf returns the fate, as of an entry, of the message of a lost lease: zero if history does not
// have the lease (any more), or if the token may not consume its queue.
func (q *request) fateOf(lease event.ID, index uint64) (f wire.Fate, err error) {
	leased, err := q.leasedEvent(lease)
	if err != nil || leased == nil || q.may(roleConsume, leased.Queue) != nil {
		return f, err
	}
	history, err := q.s.deps.Log.History(q.Context(), leased.Subject)
	history = cut(history, index)
	l := lifeOf(history, leased.Subject)
	if err != nil || l == nil {
		return f, err
	}
	state := l.state()
	if state == event.StateScheduled && l.last.Due <= q.s.clock(q.s.deps.State) {
		state = event.StateReady
	}
	if state == event.StateLeased && (l.last.ID == lease || l.last.Lease == lease) {
		return f, nil // not lost: an earlier item of the refused transaction would have returned it
	}
	f.State = state.String()
	if state != event.StateLeased && state != event.StateAcked {
		return f, nil // no worker has it
	}
	f.LeasedUntil = wire.Time(l.last.LeaseExpires)
	for i := range history {
		if e := &history[i]; e.ID == l.last.ID && e.Type == event.Leased || e.ID == l.last.Lease {
			f.Worker = e.Worker
		}
	}
	return f, nil
}

// settledBefore replaces the answer for a lost lease by the first one if the log shows that the
// same call ended it before: by the same item, or by an earlier item that returned the message, at
// one of the entries in ends.
func (s *Server) settledBefore(
	q *request, queue string, item *event.SettleItem, t *event.Settled, ends map[uint64]bool,
) error {
	if item.Op == event.OpExtend || event.RefOf(item.Lease).Index > s.deps.Log.Head() {
		return nil
	}
	e, err := s.deps.Log.EndOf(q.Context(), item.Lease)
	if notFound(err) || gone(err) {
		return nil
	}
	if err != nil || queue != "" && e.Queue != queue {
		return err
	}
	same, index := false, event.RefOf(e.ID).Index
	switch item.Op {
	case event.OpAck:
		same = e.Type == event.Acked
	case event.OpRelease:
		same = e.Type == event.Released
	case event.OpRetry:
		same = e.Type == event.Retried || e.Reason == event.ReasonMaxAttempts
	case event.OpDeadLetter:
		same = e.Reason == event.ReasonRejected
	}
	if e.Type == event.Returned && item.Op != event.OpAck && ends[index] {
		*t = event.Settled{Lease: item.Lease, Status: event.StatusReleased}
	}
	if same { // the statuses are the events' names
		ends[index] = true
		*t = event.Settled{Lease: item.Lease, Status: e.Type.String()}
		if e.Type == event.Retried || e.Due > 0 {
			t.NextAt = max(e.Due, event.ClockOf(e.ID))
		}
	}
	return nil
}

// settleResults returns the views of settle outcomes.
func settleResults(settled []event.Settled) []wire.SettleResult {
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

// add adds an item with its lease; field is the name of the lease's field, "" in a list of leases.
func (in *settles) add(at place, field, lease string, item event.SettleItem) {
	var err error
	if item.Lease, err = event.ParseID(lease); err != nil {
		in.refuse(at, field, "must be a ULID, 26 characters, not %s", echo(lease))
	}
	in.items, in.places = append(in.items, item), append(in.places, at)
}

// refuse records a problem with a field of an item, or with the item itself.
func (in *settles) refuse(at place, field, format string, args ...any) {
	pointer := strings.TrimSuffix(fmt.Sprintf("/%s/%d/%s", at.list, at.index, field), "/")
	full, short, index := locate(jsontext.Pointer(pointer))
	in.q.refuseAt(index, short, full+" "+format, args...)
}

// leases adds an equal item for each lease.
func (in *settles) leases(list string, leases []string, item event.SettleItem) {
	in.items, in.places = slices.Grow(in.items, len(leases)), slices.Grow(in.places, len(leases))
	for i, id := range leases {
		in.add(place{list, i}, "", id, item)
	}
}

// ackItem returns an ack with a result; field and index locate the result in the request.
func (in *settles) ackItem(field string, index int, result jsontext.Value) event.SettleItem {
	item := event.SettleItem{Op: event.OpAck}
	if most := in.q.s.opts.MaxPayload; int64(len(result)) > most && in.q.err == nil {
		in.q.err = event.Problemf(event.CodePayloadTooLarge, field,
			"the result has %d bytes, more than %d", len(result), most).At(index)
	}
	if len(result) > 0 && string(result) != "null" {
		item.Content = event.EncodeContent(&event.Content{Result: result})
	}
	return item
}

// acks adds acks, each with its own result.
func (in *settles) acks(list string, items []wire.AckItem) {
	for i, it := range items {
		field := ""
		if it.Result != nil {
			field = "lease_id"
		}
		in.add(place{list, i}, field, it.LeaseID, in.ackItem(list+".result", i, it.Result))
	}
}

// release adds releases with a delay.
func (in *settles) release(list string, items []wire.ReleaseItem) {
	for i, it := range items {
		in.delay(place{list, i}, "delay_ms", it.DelayMS)
		in.add(place{list, i}, "lease_id", it.LeaseID,
			event.SettleItem{Op: event.OpRelease, DelayMS: it.DelayMS})
	}
}

// delay checks a delay of an item.
func (in *settles) delay(at place, field string, ms int64) {
	if ms < 0 || ms > event.MaxDelayMS {
		in.refuse(at, field, "must be from 0 to %d (10 years), not %d",
			int64(event.MaxDelayMS), ms)
	}
}

func (in *settles) retry(list string, items []wire.RetryItem) {
	for i, it := range items {
		item, at := event.SettleItem{Op: event.OpRetry, DelayMS: -1}, place{list, i}
		if it.DelayMS != nil {
			item.DelayMS = *it.DelayMS
			in.delay(at, "delay_ms", item.DelayMS)
		}
		if it.RetryAt != nil {
			item.At = max(int64(*it.RetryAt), 1) // the past is now
			if it.DelayMS != nil {
				in.refuse(at, "retry_at", "and delay_ms exclude each other")
			} else if in.q.s.tooFar(*it.RetryAt) {
				in.refuse(at, "retry_at", "must be at most 10 years from now")
			}
		}
		if it.Retryable != nil && !*it.Retryable {
			item.Op, item.DelayMS, item.At = event.OpDeadLetter, 0, 0
		}
		if len(it.Error) > maxError {
			in.refuse(at, "error", "must be at most %d bytes, not %d", maxError, len(it.Error))
		}
		item.Content = event.EncodeContent(&event.Content{Error: it.Error})
		in.add(at, "lease_id", it.LeaseID, item)
	}
}

func (in *settles) deadLetter(list string, items []wire.DeadLetterItem) {
	retries := make([]wire.RetryItem, len(items))
	for i, it := range items {
		retries[i] = wire.RetryItem{LeaseID: it.LeaseID, Error: it.Error, Retryable: new(bool)}
	}
	in.retry(list, retries)
}

func (in *settles) extend(list string, items []wire.ExtendItem) {
	for i, it := range items {
		if v := it.LeaseMS; v != 0 && (v < event.MinLeaseMS || v > event.MaxLeaseMS) {
			in.refuse(place{list, i}, "lease_ms", "must be from %d to %d, not %d",
				event.MinLeaseMS, event.MaxLeaseMS, v)
		}
		item := event.SettleItem{Op: event.OpExtend, LeaseMS: it.LeaseMS}
		in.add(place{list, i}, "lease_id", it.LeaseID, item)
	}
}

// transact answers POST /v1/transactions: settles and produces in one entry, all or nothing.
func (s *Server) transact(q *request) error {
	var body wire.TransactionRequest
	q.read().body(&body)
	n := len(body.Ack) + len(body.Retry) + len(body.DeadLetter) + len(body.Extend) +
		messagesIn(body.Produce)
	if n < 1 || n > event.MaxBatch {
		q.refuse("", "a transaction must have 1 to %d leases and messages, not %d",
			event.MaxBatch, n)
	}
	in := &settles{q: q}
	in.acks("ack", body.Ack)
	in.retry("retry", body.Retry)
	in.deadLetter("dead_letter", body.DeadLetter)
	in.extend("extend", body.Extend)
	q.do(func() error { return q.maySettle(in.items) })
	return s.transactAll(q, "", in, body.Produce)
}

func messagesIn(produce []wire.TransactionProduce) (n int) {
	for i := range produce {
		n += len(produce[i].Messages)
	}
	return n
}

// transactAll proposes settles (of leases of queue; "": of any) and produces, all or nothing, and
// answers.
func (s *Server) transactAll(
	q *request, queue string, in *settles, produce []wire.TransactionProduce,
) error {
	q.do(func() error { return q.mayProduce(produce) }) // before checks that reveal a queue
	for i := 0; queue != "" && q.err == nil && i < len(in.items); i++ {
		q.do(func() error { return q.isOf(queue, in.items[i].Lease, in.places[i]) })
	}
	seen := make(map[event.ID]place, len(in.items))
	for i, item := range in.items {
		if other, ok := seen[item.Lease]; ok {
			in.refuse(in.places[i], "", "is lease %s, which %s[%d] names too: a lease is settled "+
				"or extended once", item.Lease, other.list, other.index)
		}
		seen[item.Lease] = in.places[i]
	}
	if q.span != nil && len(in.items) == 0 {
		q.span.SetName(opSend)
		q.span.SetAttributes(semconv.MessagingOperationTypeKey.String(opSend))
	}
	batches := get(q, func() ([]*batch, error) {
		return s.produceBatches(produce, q.traceContext())
	})
	for i, b := range batches {
		for j := range b.msgs {
			c := b.msgs[j].Cause
			if _, ok := seen[c]; !ok && !c.IsZero() {
				q.do(func() error {
					return inProduce(bad("cause", "cause must be a lease that this call settles, "+
						"not %s", c).At(j), i)
				})
			}
		}
	}
	if q.err != nil {
		return q.err
	}
	res := q.commitFresh("produce", "the policy of a queue", func() (*event.Command, error) {
		t := &event.Transaction{Settle: in.items}
		for i := range produce {
			p, err := s.fit(q, produce[i].Queue, batches[i])
			if err != nil {
				return nil, inProduce(err, i)
			}
			t.Produce = append(t.Produce, p)
		}
		return &event.Command{Transaction: t}, nil
	})
	if p, ok := q.err.(*event.Problem); ok {
		if p.Code == event.CodeLeaseLost {
			s.metrics.leaseLost.Inc()
		}
		if p.Field == event.FieldSettle {
			at, lease := in.places[p.Index], in.items[p.Index].Lease
			if p.Code == event.CodeLeaseLost {
				q.fate, _ = q.fateOf(lease, math.MaxUint64)
			}
			p = p.At(at.index)
			p.Field = at.list
		}
		return p
	}
	q.note(first(batches), &res)
	q.awaitKeyDeaths(res)
	messages := get(q, func() ([]wire.Produced, error) { return s.producedAll(q, res.Produced) })
	out := wire.TransactionResponse{Results: settleResults(res.Settled), Messages: messages}
	return q.answer(http.StatusOK, &out)
}

// isOf rejects a lease that does not belong to a queue: as wrong_queue if it is its message's
// current lease and the token may consume from its queue, else as lease_lost. A lease never changes
// its queue: see mayEnd.
func (q *request) isOf(queue string, lease event.ID, at place) error {
	leased, err := q.leasedEvent(lease)
	if err != nil || leased != nil && leased.Queue == queue {
		return err
	}
	if leased != nil && q.may(roleConsume, leased.Queue) == nil {
		if err := q.s.barrier(q.Context()); err != nil {
			return err
		}
		if m, ok := q.s.deps.State.Message(leased.Subject); ok && m.Lease == lease {
			return event.Problemf(event.CodeWrongQueue, at.list, "lease %s is of queue %s; "+
				"nothing was done", lease, leased.Queue).At(at.index)
		}
		q.fate, _ = q.fateOf(lease, math.MaxUint64)
	}
	return event.Problemf(event.CodeLeaseLost, at.list, "lease %s is not its message's "+
		"current one in this queue; nothing was done", lease).At(at.index)
}

// mayProduce returns an error unless the token may produce into all these queues.
func (q *request) mayProduce(produce []wire.TransactionProduce) error {
	for i := range produce {
		if err := q.may(roleProduce, produce[i].Queue); err != nil {
			return inProduce(err, i)
		}
	}
	return nil
}

// produceBatches checks the messages that are enqueued together with settles.
func (s *Server) produceBatches(
	produce []wire.TransactionProduce, trace []event.Header,
) (batches []*batch, err error) {
	for i, p := range produce {
		if !event.ValidName(p.Queue) {
			return nil, bad("produce.queue", "produce[%d].queue must match %s; it was %s",
				i, event.Names, echo(p.Queue)).At(i)
		}
		if err := batchSize(fmt.Sprintf("produce[%d].messages", i), len(p.Messages)); err != nil {
			return nil, err
		}
		b, err := s.newBatch(p.Messages, nil, trace)
		if err != nil {
			return nil, inProduce(err, i)
		}
		batches = append(batches, b)
	}
	return batches, nil
}

// inProduce locates a problem in a message or the queue of a transaction's i-th produce.
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

// SettleHere settles one lease for push and enqueues the answer, if any, in the same
// entry. A refusal is an *event.Problem; without an answer a lost lease is no error, but rejected.
func (s *Server) SettleHere(
	ctx context.Context, item event.SettleItem, to string, answer *wire.NewMessage,
) (event.Settled, error) {
	r := &http.Request{Header: http.Header{}}
	q := &request{
		Request: r.WithContext(ctx), s: s, w: noAnswer{header: http.Header{}},
		who: &principal{name: pushActor},
	}
	var res event.Result
	if answer == nil {
		res = q.commit(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{item}}})
	} else {
		b := get(q, func() (*batch, error) {
			return s.newBatch([]wire.NewMessage{*answer}, nil, nil)
		})
		res = q.commitFresh("queue", "the queue's policy", func() (*event.Command, error) {
			b.noCreate = true
			p, err := s.fit(q, to, b)
			return &event.Command{Transaction: &event.Transaction{
				Settle: []event.SettleItem{item}, Produce: []event.Produce{p},
			}}, err
		})
	}
	var settled event.Settled
	if len(res.Settled) > 0 {
		settled = res.Settled[0]
	}
	p, ok := q.err.(*event.Problem)
	if settled.Status == event.StatusRejected || ok && p.Code == event.CodeLeaseLost {
		s.metrics.leaseLost.Inc()
	}
	return settled, q.err
}

// noAnswer discards the headers of the answer to an internal request, which writes no body.
type noAnswer struct {
	http.ResponseWriter
	header http.Header
}

func (w noAnswer) Header() http.Header { return w.header }
