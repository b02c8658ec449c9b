package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// explain answers GET /v1/queues/{queue}/explain?key=|message_id=&at=: why a message, or the first
// one waiting in a key or in the whole queue, is or is not being delivered.
func (s *Server) explain(q *request) error {
	q.read("key", "message_id", "at", "consistency")
	name, id, key := q.queue(), q.queryID("message_id"), q.text("key", event.MaxKeyBytes)
	if key != nil && q.query.Has("message_id") {
		q.refuse("key", "key and message_id exclude each other")
	}
	st := q.state()
	queue := found(q, name, st.Queue, queueNotFound)
	if q.err != nil {
		return q.err
	}
	x := &explanation{q: q, st: st, queue: &queue, out: wire.Explanation{Queue: name}}
	if queue.Paused {
		x.because(wire.Reason{Code: "queue_paused"}, "the queue is paused: "+
			"nothing is leased from it until POST /v1/queues/%s/resume", name)
	}
	if !id.IsZero() {
		x.out.MessageID = new(id.String())
		q.err = x.message(id)
	} else {
		x.out.Key = key
		q.err = x.key(key)
	}
	return q.answer(http.StatusOK, &x.out)
}

// explanation is an explanation under construction.
type explanation struct {
	q     *request
	st    State // the live one, or the past one of at=
	queue *event.QueueView
	out   wire.Explanation
}

func (x *explanation) because(r wire.Reason, format string, args ...any) {
	r.Text = fmt.Sprintf(format, args...)
	x.out.Reasons = append(x.out.Reasons, r)
}

// message explains one message.
func (x *explanation) message(id event.ID) error {
	v, ok := x.st.Message(id)
	if ok && v.Queue == x.queue.Name && v.State.Live() {
		x.out.Key = &v.Key
		return x.live(&v)
	}
	t, err := x.q.s.follow(x.q.Context(), x.st, id)
	if err != nil {
		return err
	}
	became := x.q.became(id, &t)
	diedOf, err := x.diedOf(&t)
	if diedOf != "" {
		became += ", with error " + echo(diedOf)
	}
	x.because(wire.Reason{Code: "not_in_queue", MessageID: id.String()},
		"message %s is not in queue %s: %s", id, x.queue.Name, became)
	return err
}

// diedOf returns the error of a dead message, if the token may read it.
func (x *explanation) diedOf(t *trail) (string, error) {
	switch v := t.live; {
	case v != nil && v.Dead != nil && (x.q.sees(v.Queue) || x.q.sees(v.Dead.Queue)):
		return x.q.s.deadLetters(x.st).Error(v)
	case v == nil && t.life != nil && t.life.last.Type == event.Discarded &&
		x.q.sees(t.life.last.Queue):
		c, err := eventContent(t.life.last)
		if c == nil {
			return "", err
		}
		return c.Error, err
	}
	return "", nil
}

// key explains the message of a key, or of all keys (nil), that would be delivered next.
func (x *explanation) key(key *string) error {
	st, name := x.st, x.queue.Name
	ordering := x.queue.Policy.Ordering
	if ordering == event.FIFO || key != nil && ordering == event.PerKey {
		partition, _ := st.Partition(name, deref(key))
		if v := cmp.Or(partition.Leased, partition.Head); v != nil {
			return x.first(v)
		}
		if partition.HeldBy > 0 {
			return x.held(deref(key), &partition)
		}
	}
	// A scheduled message is in no partition, and an unordered queue has none.
	for _, state := range []event.State{event.StateReady, event.StateScheduled, event.StateLeased} {
		found, _ := st.Messages(name, event.MessageFilter{State: state, Key: key, Limit: 1})
		if len(found) > 0 {
			return x.first(&found[0])
		}
	}
	of := "in queue " + name
	if key != nil {
		of = fmt.Sprintf("with key %s in queue %s", echo(*key), name)
	}
	x.because(wire.Reason{Code: "not_in_queue"}, "no message is %s", of)
	return nil
}

// first explains the message that would be delivered next.
func (x *explanation) first(v *event.MessageView) error {
	x.out.MessageID, x.out.Key = new(v.ID.String()), cmp.Or(x.out.Key, &v.Key)
	return x.live(v)
}

// live explains a message that is in the queue.
func (x *explanation) live(v *event.MessageView) error {
	switch r := x.about(v); v.State {
	case event.StateLeased:
		r.Code = "leased"
		who := "a worker"
		if r.Worker != "" {
			who = "worker " + echo(r.Worker)
		}
		x.because(r, "%s works on it (attempt %d) and has until %s to settle it",
			who, v.Attempt, r.Until)
		return nil
	case event.StateScheduled:
		if r.Code = "scheduled"; v.Attempt > 0 {
			x.because(r, "its attempt %d failed; the next one is at %s", v.Attempt, r.Until)
		} else {
			x.because(r, "it was enqueued with a delay and comes due at %s", r.Until)
		}
		x.spent(v)
		return nil
	}
	if _, paused := slices.BinarySearch(x.queue.PausedKeys, v.Key); paused {
		x.because(wire.Reason{Code: "key_paused"}, "its key is paused: nothing of the key is leased "+
			"until POST /v1/queues/%s/resume names it", x.queue.Name)
	}
	if x.queue.Policy.Ordering != event.Unordered {
		if err := x.ordered(v); err != nil {
			return err
		}
	}
	x.limits(v)
	x.spent(v)
	if len(x.out.Reasons) > 0 {
		return nil
	}
	x.out.Deliverable = true
	if _, past := x.st.(*pastState); past { // who waited then is not in the log
		x.because(wire.Reason{Code: "ready"}, "it could be leased at once")
		return nil
	}
	push := x.q.s.pushReason(x.q.Context(), x.queue)
	if push != nil { // the cluster itself is the worker
		text := push.Detail
		if push.LastError != "" {
			text += ": " + push.LastError
		}
		x.because(wire.Reason{Code: push.Code, Until: push.NextProbe}, "%s", text)
		return nil
	}
	r, text := wire.Reason{Code: "ready"}, "and the cluster pushes this queue's messages"
	if len(x.queue.Policy.Push) == 0 {
		n := x.q.s.clusterWaiters(x.q.Context(), x.queue.Name, v.Kind)
		r.Waiters, text = &n, fmt.Sprintf("and %d leases wait for work", n)
	}
	if text += ": it is about to be delivered"; r.Waiters != nil && *r.Waiters == 0 {
		r.Code, text = "no_waiting_worker", "but no worker asks for work from this queue now"
		if v.Kind != "" {
			text += ", none that takes kind " + echo(v.Kind)
		}
	}
	x.because(r, "it can be leased at once, %s", text)
	return nil
}

// spent adds the reason that max_attempts was lowered and leaves a message no further attempt.
func (x *explanation) spent(v *event.MessageView) {
	if most := x.queue.Policy.MaxAttempts; most > 0 && v.Attempt >= most {
		x.because(wire.Reason{Code: "max_attempts"}, "its attempts (%d) reach "+
			"delivery.max_attempts, now %d: it dies when it would be delivered next, unless the limit is "+
			"raised before", v.Attempt, most)
	}
}

// limits adds the limits of the policy that delay a message.
func (x *explanation) limits(v *event.MessageView) {
	p, n := &x.queue.Policy, x.queue.Stats.InFlight
	if p.MaxInFlight > 0 && n >= p.MaxInFlight {
		x.because(wire.Reason{Code: "max_in_flight"}, "%d messages of the queue are leased, and "+
			"delivery.max_in_flight is %d: it goes on when one of them is settled or its lease ends",
			n, p.MaxInFlight)
	}
	if at := x.queue.RefillsAt; at > 0 {
		until := wire.Time(at)
		x.because(wire.Reason{Code: "rate_limit", Until: until}, "delivery.rate_limit allows %d "+
			"leases per %d ms, and these are used up: the next one is at %s", p.RateLimit, p.RatePer(),
			until)
	}
	if p.MaxInFlightPerKey == 0 || v.Key == "" {
		return
	}
	partition, _ := x.q.s.deps.State.Partition(x.queue.Name, v.Key)
	if n := partition.Batch; n >= p.MaxInFlightPerKey {
		x.because(wire.Reason{Code: "max_in_flight_per_key"}, "%d messages of its key are leased, and "+
			"delivery.max_in_flight_per_key is %d: it goes on when one of them is settled or its lease ends",
			n, p.MaxInFlightPerKey)
	}
}

// about describes a message: its lease and worker, or when it is due.
func (x *explanation) about(v *event.MessageView) wire.Reason {
	r := wire.Reason{MessageID: v.ID.String(), State: v.State.String()}
	switch v.State {
	case event.StateLeased:
		r.LeaseID, r.Until = v.Lease.String(), wire.Time(v.LeaseExpiresAt)
		if e, err := x.q.s.deps.Log.Event(event.RefOf(v.Lease)); err == nil {
			r.Worker = e.Worker // else the event was deleted with the history
		}
	case event.StateScheduled:
		r.Until = wire.Time(v.Due)
	}
	return r
}

// ordered adds what precedes a message in its partition.
func (x *explanation) ordered(v *event.MessageView) error {
	partition, ok := x.st.Partition(x.queue.Name, v.Key)
	if !ok {
		return nil
	}
	if partition.HeldBy > 0 {
		if err := x.held(v.Key, &partition); err != nil {
			return err
		}
	}
	ahead := cmp.Or(partition.Leased, partition.Head)
	if ahead != nil && ahead.ID == v.ID {
		ahead = partition.Head
	}
	if ahead == nil || ahead.ID == v.ID {
		return nil
	}
	r := x.about(ahead)
	r.Code = "behind_message"
	why, state := "message %s of the same key goes before it", "is ready itself"
	if x.queue.Policy.Ordering == event.FIFO {
		why = "message %s goes before it, as this queue is fifo"
	}
	switch ahead.State {
	case event.StateLeased:
		state = "is leased until " + r.Until.String()
		if partition.Batch > 1 {
			state += fmt.Sprintf(", as the first of a batch of %d (lane_batch)", partition.Batch)
		}
	case event.StateScheduled:
		state = "waits for its next try at " + r.Until.String()
	}
	x.because(r, why+" and %s", ahead.ID, state)
	return nil
}

// held adds the dead messages that hold a key: the unresolved ones that died since it has been
// held.
func (x *explanation) held(key string, partition *event.PartitionView) error {
	search := &dead.Search{Queue: x.queue.Name}
	search.Filter.FromIndex = event.RefOf(partition.Since).Index
	if x.queue.Policy.Ordering == event.PerKey {
		search.Filter.Key = &key
	}
	r := wire.Reason{Code: "held_by_dead"}
	for v, err := range x.q.s.deadLetters(x.st).Select(x.q.Context(), search) {
		if err != nil {
			return err
		}
		if v.ID.Compare(partition.Since) >= 0 {
			r.MessageIDs = append(r.MessageIDs, v.ID.String())
		}
		if len(r.MessageIDs) == 10 { // more need not be named
			break
		}
	}
	if len(r.MessageIDs) == 0 { // just resolved
		r.MessageIDs = append(r.MessageIDs, partition.Since.String())
	}
	r.MessageID = r.MessageIDs[0]
	holds := "the dead message " + r.MessageID + " holds"
	if partition.HeldBy > 1 {
		holds = fmt.Sprintf("%d dead messages, the first of them %s, hold", partition.HeldBy,
			r.MessageID)
	}
	x.because(r, "%s its key (on_dead is hold_key): it goes on when they are replayed or purged",
		holds)
	return nil
}

// clusterWaiters counts the lease requests waiting for a queue and a kind, on all nodes that
// answer.
func (s *Server) clusterWaiters(ctx context.Context, queue, kind string) int64 {
	n := s.waiters.count(queue, kind)
	for _, others := range askOthers[int64](ctx, s, askWaiters, [2]string{queue, kind}) {
		n += others
	}
	return n
}

// pushReason returns why push does not deliver a queue; nil if it does, or if the leader does not
// answer.
func (s *Server) pushReason(ctx context.Context, v *event.QueueView) (r *wire.PushReason) {
	if len(v.Policy.Push) == 0 {
		return nil
	}
	if s.deps.Node.LeaderHTTP() == "" {
		return s.deps.Push.Reason(v.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()
	var answer jsontext.Value
	if s.deps.Node.AskLeader(ctx, askPush, v.Name, &answer) == nil {
		_ = wire.Unmarshal(answer, &r)
	}
	return r
}
