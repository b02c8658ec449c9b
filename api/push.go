package api

import (
	"context"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// answerToExists refuses a policy whose answers go to a queue that does not exist, or come back.
func (s *Server) answerToExists(q *request, name string, p *event.Policy) error {
	to := answerTo(p)
	if to == "" || to == name {
		return nil
	}
	// Catches up with the cluster where this node does not find the queue.
	if _, err := s.current(q, to); err != nil {
		if missing, ok := err.(*event.Problem); !ok || missing.Code != event.CodeQueueNotFound {
			return err
		}
	}
	live := func(name string) *event.Policy { return policyIn(s.deps.State, name) }
	if w := checkAnswerTo(name, p, live); w != nil {
		return w
	}
	return nil
}

// policyIn returns a queue's policy, nil where it does not exist.
func policyIn(st State, name string) *event.Policy {
	if v, ok := st.Queue(name); ok {
		return &v.Policy
	}
	return nil
}

// checkAnswerTo refuses the policy of a queue whose answers go to a queue that does not exist, or
// are delivered, and the answers to them, until they come back to it. policy returns those of the
// other queues, nil where there is none. Two that are set at the same time may still form a circle:
// they are checked before they are proposed.
func checkAnswerTo(name string, p *event.Policy, policy func(string) *event.Policy) *event.Problem {
	const field = "push.answer_to"
	first, seen := answerTo(p), map[string]bool{}
	for to := first; to != "" && to != name && !seen[to]; {
		seen[to] = true
		switch p = policy(to); {
		case p == nil && to == first:
			return bad(field, "push.answer_to '%s' does not exist; create it first", to)
		case p == nil:
			return nil
		}
		if to = answerTo(p); to == name {
			return bad(field, "push.answer_to %s has its answers delivered, and those come back "+
				"to %s: that would go on for ever", echo(first), echo(name))
		}
	}
	return nil
}

// answerTo returns the queue that the answers of a policy's push go to, "" for none.
func answerTo(p *event.Policy) string {
	if push := pushOf(p); push != nil {
		return push.AnswerTo
	}
	return ""
}

// pushOf returns a policy's push as the API shows it, nil for none.
func pushOf(p *event.Policy) *wire.Push {
	push := &wire.Push{}
	// What cannot be decoded is a newer program's; it is not delivered here either.
	if len(p.Push) == 0 || wire.Decode(p.Push, push) != nil {
		return nil
	}
	return push
}

// pushReasonTime is how long the leader may take to answer askPush.
const pushReasonTime = time.Second

// PushReason returns why push does not deliver a queue, nil if it does or the leader is silent.
func (s *Server) PushReason(ctx context.Context, v *event.QueueView) *wire.PushReason {
	if len(v.Policy.Push) == 0 {
		return nil
	}
	if s.deps.Node.LeaderHTTP() == "" {
		return s.deps.Push.Reason(v.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, pushReasonTime)
	defer cancel()
	var r *wire.PushReason
	b, err := wire.Marshal(v.Name)
	if err == nil {
		b, err = s.deps.Node.AskLeader(ctx, askPush, b)
	}
	if err != nil || wire.Unmarshal(b, &r) != nil {
		return nil
	}
	return r
}

// LeaseHere leases for the node itself, as a client's long poll does. Messages leased when ctx has
// ended are released. An error may say that the outcome is unknown: such leases expire.
func (s *Server) LeaseHere(
	ctx context.Context, c *event.Command, wait time.Duration,
) ([]event.LeasedMessage, error) {
	res, err := s.leaseWhile(ctx, c, wait, func() error { return nil })
	return res.Leased, err
}

// SettleHere settles one lease for the node itself and enqueues the answer, if any, in the same
// entry. A refusal is an *event.Problem; without an answer a lost lease is no error, but rejected.
func (s *Server) SettleHere(
	ctx context.Context, actor string, item event.SettleItem, to string, answer *wire.NewMessage,
) (event.Settled, error) {
	r := &http.Request{Header: http.Header{}}
	q := &request{
		Request: r.WithContext(ctx), s: s, w: noAnswer{http.Header{}}, who: &principal{name: actor},
	}
	var res event.Result
	if answer == nil {
		res = q.commit(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{item}}})
	} else {
		b := get(q, func() (*batch, error) {
			return s.newBatch([]wire.NewMessage{*answer}, nil)
		})
		res = q.commitFresh("queue", "the queue's policy", func() (*event.Command, error) {
			p := event.Produce{Queue: to, Messages: b.msgs}
			t := &event.Transaction{Settle: []event.SettleItem{item}}
			err := s.fit(q, &p, b)
			t.Produce = []event.Produce{p}
			return &event.Command{Transaction: t}, err
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

// noAnswer is the answer to a request of the node itself.
type noAnswer struct{ header http.Header }

func (w noAnswer) Header() http.Header       { return w.header }
func (noAnswer) Write(b []byte) (int, error) { return len(b), nil }
func (noAnswer) WriteHeader(int)             {}
