package api

import (
	"context"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// answerToExists refuses a policy whose answers go to a queue that does not exist,
// or come back.
func (s *Server) answerToExists(q *request, name string, p *event.Policy) error {
	to := AnswerTo(p)
	if to == "" || to == name {
		return nil
	}
	if _, err := s.current(q, to); err != nil {
		if missing, ok := err.(*event.Problem); !ok || missing.Code != event.CodeQueueNotFound {
			return err
		}
	}
	w := checkAnswerTo(name, p, func(name string) *event.Policy {
		if v, ok := s.deps.State.Queue(name); ok {
			return &v.Policy
		}
		return nil
	})
	if w != nil {
		return w
	}
	return nil
}

// checkAnswerTo refuses the policy of a queue whose answers go to a queue that does not exist,
// or are delivered, and the answers to them, until they come back to it. policy returns those
// of the other queues, nil where there is none. Two that are set at the same time may still
// make a circle: they are checked before they are proposed.
func checkAnswerTo(name string, p *event.Policy, policy func(string) *event.Policy) *event.Problem {
	const field = "push.answer_to"
	first, seen := AnswerTo(p), map[string]bool{}
	for to := first; to != "" && to != name && !seen[to]; {
		seen[to] = true
		if p = policy(to); p == nil && to == first {
			return bad(field, "push.answer_to '%s' does not exist; create it first", to)
		} else if p == nil {
			return nil
		}
		if to = AnswerTo(p); to == name {
			return bad(field, "push.answer_to %s has its answers delivered, and those come back to %s: that would go on for ever", echo(first), echo(name))
		}
	}
	return nil
}

// AnswerTo returns the queue that the answers of a policy's push go to, "" none.
func AnswerTo(p *event.Policy) string {
	if push := pushOf(p); push != nil {
		return push.AnswerTo
	}
	return ""
}

// pushOf returns a policy's push as it is told, nil none.
func pushOf(p *event.Policy) *wire.Push {
	if len(p.Push) == 0 {
		return nil
	}
	push := &wire.Push{}
	if err := wire.Decode(p.Push, push); err != nil {
		return nil // a newer program's: it is not delivered here either
	}
	return push
}

// pushUnready says what this node lacks to deliver. It serves all else, so it is
// ready: a policy must not take nodes out of use.
func (s *Server) pushUnready() []string {
	if s.deps.Push == nil {
		return nil
	}
	return s.deps.Push.Unready()
}

// AskPush is the name of the question that PushHere answers: a queue's name. The
// answer is a wire.PushReason as JSON, or nothing.
const AskPush = "api.push"

// PushHere answers another node's AskPush.
func (s *Server) PushHere(_ context.Context, body []byte) ([]byte, error) {
	if s.deps.Push == nil {
		return nil, nil
	}
	if r := s.deps.Push.Reason(string(body)); r != nil {
		return wire.Marshal(r)
	}
	return nil, nil
}

// pushReasonTime is how long the leader may take to say how a target is.
const pushReasonTime = time.Second

// PushReason says why a queue that has push is not delivered, nil where push has
// nothing against it, or nobody who knows can be asked.
func (s *Server) PushReason(ctx context.Context, v *event.QueueView) *wire.PushReason {
	if s.deps.Push == nil || len(v.Policy.Push) == 0 {
		return nil
	}
	if s.deps.Node.LeaderHTTP() != "" {
		ctx, cancel := context.WithTimeout(ctx, pushReasonTime)
		defer cancel()
		b, err := s.deps.Node.AskLeader(ctx, AskPush, []byte(v.Name))
		if err != nil || len(b) == 0 {
			return nil
		}
		r := &wire.PushReason{}
		if err := wire.Unmarshal(b, r); err != nil {
			return nil
		}
		return r
	}
	return s.deps.Push.Reason(v.Name)
}

// LeaseHere leases for the node itself, as a client's long poll does. Messages leased
// when ctx has ended are released. An error may say that the outcome is unknown: such
// leases expire.
func (s *Server) LeaseHere(ctx context.Context, c *event.Command, wait time.Duration) ([]event.LeasedMessage, error) {
	res, err := s.leaseWhile(ctx, c, wait, func() error { return nil })
	return res.Leased, err
}

// SettleHere settles one lease for the node itself and, where there is an answer,
// enqueues it into a queue in the same entry. A refusal is an *event.Problem;
// without an answer a lost lease is no error, but rejected.
func (s *Server) SettleHere(ctx context.Context, actor string, item event.SettleItem, to string, answer *wire.NewMessage) (event.Settled, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	settled := func(res event.Result, err error) (event.Settled, error) {
		if p, ok := err.(*event.Problem); ok && p.Code == event.CodeLeaseLost {
			s.metrics.leaseLost.Inc()
		}
		if err != nil || len(res.Settled) == 0 {
			return event.Settled{}, err
		}
		if res.Settled[0].Status == event.StatusRejected {
			s.metrics.leaseLost.Inc()
		}
		return res.Settled[0], nil
	}
	if answer == nil {
		return settled(s.propose(ctx, &event.Command{Actor: actor, Settle: &event.Settle{Items: []event.SettleItem{item}}}, ""))
	}
	batch, err := s.newBatch([]wire.NewMessage{*answer})
	if err != nil {
		return event.Settled{}, err
	}
	q := &request{Request: (&http.Request{Header: http.Header{}}).WithContext(ctx), s: s}
	for range maxStale {
		p := event.Produce{Queue: to, Messages: batch.msgs}
		if err := s.fit(q, &p, batch); err != nil {
			return event.Settled{}, err
		}
		t := &event.Transaction{Settle: []event.SettleItem{item}, Produce: []event.Produce{p}}
		res, err := s.propose(ctx, &event.Command{Actor: actor, Transaction: t}, "")
		if !isStale(err) {
			return settled(res, err)
		}
		if err := s.barrier(ctx); err != nil {
			return event.Settled{}, err
		}
	}
	return event.Settled{}, event.Problemf(event.CodeConflict, "queue", "the policy of %s keeps changing; try again", echo(to))
}
