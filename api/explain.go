package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// The codes of an explanation's reasons.
const (
	whyPaused    = "queue_paused"
	whyHeld      = "held_by_dead"
	whyBehind    = "behind_message"
	whyLeased    = "leased"
	whyScheduled = "scheduled"
	whyNoWorker  = "no_waiting_worker"
	whyNotThere  = "not_in_queue"
	whyReady     = "ready"
)

// heldShown is how many of the dead messages that hold a key are named.
const heldShown = 10

// explain answers GET /v1/queues/{queue}/explain?key=|message_id=: why a message,
// or the first that waits under a key, or in all of the queue, is or is not
// being delivered.
func (s *Server) explain(q *request) error {
	in := q.read("key", "message_id", "consistency")
	name, id, key := in.queue(), in.queryID("message_id"), in.text("key", event.MaxKeyBytes)
	if key != nil && q.query.Has("message_id") {
		in.refuse("key", "key and message_id exclude each other")
	}
	in.fresh()
	if in.err != nil {
		return in.err
	}
	queue, ok := s.deps.State.Queue(name)
	if !ok {
		return queueNotFound(name)
	}
	x := &explaining{q: q, queue: &queue, out: wire.Explanation{Queue: name, Reasons: []wire.Reason{}}}
	if queue.Paused {
		x.because(wire.Reason{Code: whyPaused, Text: "the queue is paused: nothing is leased from it until POST /v1/queues/" + name + "/resume"})
	}
	var err error
	if !id.IsZero() {
		x.out.MessageID = new(id.String())
		err = x.message(id)
	} else {
		x.out.Key = key
		err = x.key(key)
	}
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &x.out)
}

// explaining is an explanation in the making.
type explaining struct {
	q     *request
	queue *event.QueueView
	out   wire.Explanation
}

func (x *explaining) because(r wire.Reason) { x.out.Reasons = append(x.out.Reasons, r) }

// message explains one message.
func (x *explaining) message(id event.ID) error {
	s := x.q.s
	v, ok := s.deps.State.Message(id)
	if !ok || v.Queue != x.queue.Name || v.State == event.StateDiscarded || v.State == event.StateDeadLettered {
		_, was, err := s.deadNow(x.q, "", id) // what became of it in any queue
		if err != nil {
			return err
		}
		x.because(wire.Reason{Code: whyNotThere, MessageID: id.String(), Text: fmt.Sprintf("message %s is not in queue %s: %s", id, x.queue.Name, was.text)})
		return nil
	}
	x.out.Key = &v.Key
	return x.live(&v)
}

// key explains the message of a key, or of all keys (nil), that would be
// delivered next.
func (x *explaining) key(key *string) error {
	st := x.q.s.deps.State
	of := "in queue " + x.queue.Name
	if key != nil {
		of = fmt.Sprintf("with key %s in queue %s", echo(*key), x.queue.Name)
	}
	if x.queue.Policy.Ordering == event.FIFO || key != nil && x.queue.Policy.Ordering == event.PerKey {
		lane, _ := st.Lane(x.queue.Name, laneKey(x.queue, key))
		switch {
		case lane.Leased != nil:
			return x.first(lane.Leased)
		case lane.Head != nil:
			return x.first(lane.Head)
		case lane.HeldBy > 0:
			return x.held(laneKey(x.queue, key), &lane)
		}
	}
	// A scheduled message is in no partition, and an unordered queue has none.
	for _, state := range []event.State{event.StateReady, event.StateScheduled, event.StateLeased} {
		if found, _ := st.Messages(x.queue.Name, event.MessageFilter{State: state, Key: key, Limit: 1}); len(found) > 0 {
			return x.first(&found[0])
		}
	}
	x.because(wire.Reason{Code: whyNotThere, Text: "no message is " + of})
	return nil
}

func (x *explaining) first(v *event.MessageView) error {
	x.out.MessageID = new(v.ID.String())
	if x.out.Key == nil {
		x.out.Key = &v.Key
	}
	return x.live(v)
}

// laneKey is how a partition is named: a fifo queue has one.
func laneKey(q *event.QueueView, key *string) string {
	if key == nil || q.Policy.Ordering != event.PerKey {
		return ""
	}
	return *key
}

// live explains a message that is in the queue.
func (x *explaining) live(v *event.MessageView) error {
	switch v.State {
	case event.StateLeased:
		x.because(x.leased(v))
		return nil
	case event.StateScheduled:
		x.because(scheduled(v))
		return nil
	}
	if x.queue.Policy.Ordering != event.Unordered {
		key := laneKey(x.queue, &v.Key)
		if lane, ok := x.q.s.deps.State.Lane(x.queue.Name, key); ok {
			if lane.HeldBy > 0 {
				if err := x.held(key, &lane); err != nil {
					return err
				}
			}
			for _, ahead := range []*event.MessageView{lane.Leased, lane.Head} {
				if ahead != nil && ahead.ID != v.ID {
					x.behind(ahead)
					break
				}
			}
		}
	}
	if len(x.out.Reasons) > 0 {
		return nil
	}
	x.out.Deliverable = true
	if len(x.queue.Policy.Push) > 0 { // the cluster itself is the worker
		x.pushed()
		return nil
	}
	waiters := x.q.s.clusterWaiters(x.q.Context(), x.queue.Name, v.Kind)
	r := wire.Reason{Code: whyReady, Waiters: &waiters, Text: fmt.Sprintf("it can be leased at once, and %d leases wait for work: it is about to be delivered", waiters)}
	if waiters == 0 {
		r.Code, r.Text = whyNoWorker, "it can be leased at once, but no worker asks for work from this queue now"
		if v.Kind != "" {
			r.Text += fmt.Sprintf(", none that takes kind %s", echo(v.Kind))
		}
	}
	x.because(r)
	return nil
}

// pushed explains why the cluster does not push what could be leased, or that it
// does.
func (x *explaining) pushed() {
	r := wire.Reason{Code: whyReady, Text: "it can be leased at once, and the cluster pushes this queue's messages: it is about to be delivered"}
	if p := x.q.s.PushReason(x.q.Context(), x.queue); p != nil {
		r = wire.Reason{Code: p.Code, Text: p.Detail, Until: p.NextProbe}
		if p.LastError != "" {
			r.Text += ": " + p.LastError
		}
	}
	x.because(r)
}

// leased describes a message's lease.
func (x *explaining) leased(v *event.MessageView) wire.Reason {
	r := wire.Reason{Code: whyLeased, MessageID: v.ID.String(), State: v.State.String(), LeaseID: v.Lease.String(), Until: wire.Time(v.LeaseExpiresAt)}
	who := "a worker"
	if e, err := x.q.s.deps.Log.Event(event.RefOf(v.Lease)); err == nil && e.Worker != "" { // else it is gone with the history
		r.Worker = e.Worker
		who = "worker " + echo(r.Worker)
	}
	r.Text = fmt.Sprintf("%s works on it (attempt %d) and has until %s to settle it", who, v.Attempt, r.Until)
	return r
}

func scheduled(v *event.MessageView) wire.Reason {
	r := wire.Reason{Code: whyScheduled, MessageID: v.ID.String(), State: v.State.String(), Until: wire.Time(v.Due)}
	r.Text = fmt.Sprintf("it was enqueued with a delay and comes due at %s", r.Until)
	if v.Attempt > 0 {
		r.Text = fmt.Sprintf("its attempt %d failed; the next one is at %s", v.Attempt, r.Until)
	}
	return r
}

// behind describes a message that goes before this one.
func (x *explaining) behind(ahead *event.MessageView) {
	r := wire.Reason{Code: whyBehind, MessageID: ahead.ID.String(), State: ahead.State.String()}
	r.Text = fmt.Sprintf("message %s of the same key goes before it", ahead.ID)
	if x.queue.Policy.Ordering == event.FIFO {
		r.Text = fmt.Sprintf("message %s goes before it, as this queue is fifo", ahead.ID)
	}
	switch ahead.State {
	case event.StateLeased:
		l := x.leased(ahead)
		r.LeaseID, r.Worker, r.Until = l.LeaseID, l.Worker, l.Until
		r.Text += fmt.Sprintf(" and is leased until %s", r.Until)
	case event.StateScheduled:
		r.Until = wire.Time(ahead.Due)
		r.Text += fmt.Sprintf(" and waits for its next try at %s", r.Until)
	default:
		r.Text += " and is ready itself"
	}
	x.because(r)
}

// held describes the dead messages that hold a key: those of it that died since it is held,
// and are not resolved.
func (x *explaining) held(key string, lane *event.LaneView) error {
	f := dead.Filter{FromIndex: event.RefOf(lane.Since).Index}
	if x.queue.Policy.Ordering == event.PerKey {
		f.Key = &key
	}
	r := wire.Reason{Code: whyHeld, MessageIDs: []string{}}
	s := x.q.s
	finder := s.DeadLetters()
	for v, err := range finder.Select(x.q.Context(), &dead.Search{Queue: x.queue.Name, Filter: f}) {
		if err != nil {
			return err
		}
		if v.ID.Compare(lane.Since) >= 0 {
			r.MessageIDs = append(r.MessageIDs, v.ID.String())
		}
		if len(r.MessageIDs) == heldShown {
			break
		}
	}
	if len(r.MessageIDs) == 0 { // just resolved
		r.MessageIDs = append(r.MessageIDs, lane.Since.String())
	}
	r.MessageID = r.MessageIDs[0]
	holds := "the dead message " + r.MessageID + " holds"
	if lane.HeldBy > 1 {
		holds = fmt.Sprintf("%d dead messages, the first of them %s, hold", lane.HeldBy, r.MessageID)
	}
	r.Text = holds + " its key (on_dead is hold_key): it goes on when they are replayed or purged"
	x.because(r)
	return nil
}

// waitersQuestion asks another node for the number of leases that wait for messages of a queue
// and a kind.
type waitersQuestion struct {
	Queue string `json:"queue"`
	Kind  string `json:"kind"`
}

// clusterWaiters counts the leases that wait for messages of a queue and a kind, on all
// nodes that answer.
func (s *Server) clusterWaiters(ctx context.Context, queue, kind string) int64 {
	n := s.waiters.count(queue, kind)
	question := waitersQuestion{queue, kind}
	for _, others := range askOthers[int64](ctx, s, askWaiters, &question) {
		n += others
	}
	return n
}
