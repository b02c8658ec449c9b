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

// settle answers POST /v1/queues/{queue}/ack and the like: many leases, each
// answered on its own.
func (s *Server) settle(q *request, op event.SettleOp) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow(); err != nil {
		return err
	}
	var items []event.SettleItem
	var produce []wire.TransactionProduce
	switch op {
	case event.OpAck:
		var in wire.AckRequest
		if err = q.decode(&in, true, false); err == nil {
			items, err = s.ackItems("lease_ids", in.LeaseIDs, in.Result)
			produce = in.Produce
		}
	case event.OpRetry:
		var in wire.RetryRequest
		if err = q.decode(&in, true, false); err == nil {
			items, err = retryItems("items", in.Items)
		}
	case event.OpDeadLetter:
		var in wire.DeadLetterRequest
		if err = q.decode(&in, true, false); err == nil {
			items, err = deadLetterItems("items", in.Items)
		}
	case event.OpExtend:
		var in wire.ExtendRequest
		if err = q.decode(&in, true, false); err == nil {
			items, err = extendItems("items", in.Items)
		}
	case event.OpRelease:
		var in wire.ReleaseRequest
		if err = q.decode(&in, true, false); err == nil {
			items, err = releaseItems(in.LeaseIDs)
		}
	}
	if err != nil {
		return err
	}
	field := "items"
	if op == event.OpAck || op == event.OpRelease {
		field = "lease_ids"
	}
	if err := batchSize(field, len(items)); err != nil {
		return err
	}
	if err := q.exists(name); err != nil {
		return err
	}
	if len(produce) > 0 {
		return s.ackAndProduce(q, name, field, items, produce)
	}
	settled, err := s.settleItems(q, name, items)
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
	if err := q.allow(); err != nil {
		return err
	}
	id := lease.String()
	var items []event.SettleItem
	var produce []wire.TransactionProduce
	switch op {
	case event.OpAck:
		var in wire.AckOne
		if err = q.decode(&in, true, true); err == nil {
			items, err = s.ackItems("lease_ids", []string{id}, in.Result)
			produce = in.Produce
		}
	case event.OpRetry:
		var in wire.RetryOne
		if err = q.decode(&in, true, true); err == nil {
			items, err = retryItems("items", []wire.RetryItem{{LeaseID: id, Error: in.Error, DelayMS: in.DelayMS, Retryable: in.Retryable}})
		}
	case event.OpDeadLetter:
		var in wire.DeadLetterOne
		if err = q.decode(&in, true, true); err == nil {
			items, err = deadLetterItems("items", []wire.DeadLetterItem{{LeaseID: id, Error: in.Error}})
		}
	case event.OpExtend:
		var in wire.ExtendOne
		if err = q.decode(&in, true, true); err == nil {
			items, err = extendItems("items", []wire.ExtendItem{{LeaseID: id, LeaseMS: in.LeaseMS}})
		}
	case event.OpRelease:
		var in wire.ReleaseOne
		if err = q.decode(&in, true, true); err == nil {
			items, err = releaseItems([]string{id})
		}
	}
	if err != nil {
		if p, ok := err.(*event.Problem); ok && p.Index >= 0 {
			err = p.At(-1)
		}
		return err
	}
	if err := q.maySettle(items); err != nil {
		return err
	}
	if len(produce) > 0 {
		return s.ackAndProduce(q, "", "", items, produce)
	}
	settled, err := s.settleItems(q, "", items)
	if err != nil {
		return err
	}
	if settled[0].Status == event.StatusRejected {
		return event.Problemf(event.CodeLeaseLost, "lease_id", "lease %s is not, or no longer, its message's current one", id)
	}
	return q.answer(http.StatusOK, &settledAll(settled)[0])
}

// settleItems proposes a settle. What is rejected because it was done before is
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

// settledBefore looks a lost lease up in the log: where it ended by what the
// same call does, the answer is that of the first time.
func (s *Server) settledBefore(q *request, queue string, item *event.SettleItem, t *event.Settled) error {
	if item.Op == event.OpExtend || event.RefOf(item.Lease).Index > s.deps.Log.Head() {
		return nil
	}
	e, err := s.deps.Log.EndOf(q.Context(), item.Lease)
	if err != nil {
		if s.notFound(err) || s.gone(err) {
			return nil
		}
		return err
	}
	if e == nil || queue != "" && e.Queue != queue {
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

// settledAll says what became of each lease of a request.
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

// The items of requests, checked. field is the list's name, for problems; its
// index is told with them.

func (s *Server) ackItems(field string, leases []string, result jsontext.Value) ([]event.SettleItem, error) {
	if int64(len(result)) > s.opts.MaxPayload {
		return nil, event.Problemf(codePayloadTooLarge, "result", "the result has %d bytes, more than %d", len(result), s.opts.MaxPayload)
	}
	var content event.Blob
	if len(result) > 0 && string(result) != "null" {
		content = event.EncodeContent(&event.Content{Result: result})
	}
	out := make([]event.SettleItem, len(leases))
	for i, id := range leases {
		lease, err := leaseID(field, "", i, id)
		if err != nil {
			return nil, err
		}
		out[i] = event.SettleItem{Op: event.OpAck, Lease: lease, Content: content}
	}
	return out, nil
}

func releaseItems(leases []string) ([]event.SettleItem, error) {
	out := make([]event.SettleItem, len(leases))
	for i, id := range leases {
		lease, err := leaseID("lease_ids", "", i, id)
		if err != nil {
			return nil, err
		}
		out[i] = event.SettleItem{Op: event.OpRelease, Lease: lease}
	}
	return out, nil
}

func retryItems(list string, items []wire.RetryItem) ([]event.SettleItem, error) {
	out := make([]event.SettleItem, len(items))
	for i := range items {
		it := &items[i]
		lease, content, err := failedItem(list, i, it.LeaseID, it.Error)
		if err != nil {
			return nil, err
		}
		out[i] = event.SettleItem{Op: event.OpRetry, Lease: lease, DelayMS: -1, Content: content}
		if it.DelayMS != nil {
			if *it.DelayMS < 0 || *it.DelayMS > event.MaxDelayMS {
				return nil, itemProblem(list, "delay_ms", i, "must be from 0 to %d (10 years), or null for the policy's backoff, not %d", int64(event.MaxDelayMS), *it.DelayMS)
			}
			out[i].DelayMS = *it.DelayMS
		}
		if it.Retryable != nil && !*it.Retryable {
			out[i].Op, out[i].DelayMS = event.OpDeadLetter, 0
		}
	}
	return out, nil
}

func deadLetterItems(list string, items []wire.DeadLetterItem) ([]event.SettleItem, error) {
	out := make([]event.SettleItem, len(items))
	for i := range items {
		lease, content, err := failedItem(list, i, items[i].LeaseID, items[i].Error)
		if err != nil {
			return nil, err
		}
		out[i] = event.SettleItem{Op: event.OpDeadLetter, Lease: lease, Content: content}
	}
	return out, nil
}

func extendItems(list string, items []wire.ExtendItem) ([]event.SettleItem, error) {
	out := make([]event.SettleItem, len(items))
	for i := range items {
		lease, err := leaseID(list, "lease_id", i, items[i].LeaseID)
		if err != nil {
			return nil, err
		}
		if v := items[i].LeaseMS; v != 0 && (v < event.MinLeaseMS || v > event.MaxLeaseMS) {
			return nil, itemProblem(list, "lease_ms", i, "must be from %d to %d, not %d", event.MinLeaseMS, event.MaxLeaseMS, v)
		}
		out[i] = event.SettleItem{Op: event.OpExtend, Lease: lease, LeaseMS: items[i].LeaseMS}
	}
	return out, nil
}

// failedItem checks what retry and dead-letter have in common.
func failedItem(list string, i int, id, text string) (lease event.ID, content event.Blob, err error) {
	if lease, err = leaseID(list, "lease_id", i, id); err != nil {
		return
	}
	if len(text) > maxError {
		err = itemProblem(list, "error", i, "must be at most %d bytes, not %d", maxError, len(text))
		return
	}
	if text != "" {
		content = event.EncodeContent(&event.Content{Error: text})
	}
	return
}

func leaseID(list, field string, i int, id string) (event.ID, error) {
	lease, err := event.ParseID(id)
	if err != nil {
		return lease, itemProblem(list, field, i, "must be a ULID, 26 characters, not %s", echo(id))
	}
	return lease, nil
}

// itemProblem is about a field of an item of a list, or the item itself.
func itemProblem(list, field string, i int, format string, args ...any) *event.Problem {
	full, short := fmt.Sprintf("%s[%d]", list, i), list
	if field != "" {
		full += "." + field
		if short = field; list != "items" && list != "messages" {
			short = list + "." + field
		}
	}
	return bad(short, full+" "+format, args...).At(i)
}
