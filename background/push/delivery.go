package push

import (
	"context"
	"errors"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/loop"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
)

// answerOf is the header of an enqueued answer that names the message.
const answerOf = "answer-of"

// delivery delivers one leased message.
type delivery struct {
	q     *queue
	t     *target
	m     event.LeasedMessage
	probe bool           // it finds out whether the target is back
	trace []event.Header // of the message, for the answer; set by send
}

// run delivers the message and settles its lease.
func (d *delivery) run() {
	e := d.q.e
	defer d.finish()
	// The lease is held meanwhile; ctx ends with it, or when the node can't wait any longer.
	ctx, cancel := context.WithCancel(e.hard)
	defer cancel()
	until := time.Now().Add(time.Duration(d.m.LeaseExpiresAt-e.Now()) * time.Millisecond)
	go d.hold(ctx, cancel, until)

	v := d.send(ctx)
	d.q.observe(d, &v)
	if ctx.Err() != nil {
		ctx, cancel = context.WithTimeout(context.Background(), giveBack)
		defer cancel()
	}
	d.settle(ctx, &v)
}

// finish removes the delivery from those in flight.
func (d *delivery) finish() {
	d.q.mu.Lock()
	defer d.q.mu.Unlock()
	d.q.flying(-1)
	d.q.signal()
}

// count counts what became of the message.
func (d *delivery) count(outcome string) {
	d.q.e.metrics.deliveries.WithLabelValues(d.q.name, outcome).Inc()
}

// answersElsewhere reports whether the queue's answers no longer go where this one does.
func (d *delivery) answersElsewhere() bool {
	d.q.mu.Lock()
	defer d.q.mu.Unlock()
	return !d.q.push || d.q.target != nil && d.q.target.AnswerTo != d.t.AnswerTo
}

// damagedPause is how long a message that cannot be read here is held before it is released.
const damagedPause = 5 * time.Second

// retry returns the verdict for a message to be retried by the queue's policy.
func retry(text string) verdict { return verdict{op: event.OpRetry, delayMS: -1, text: text} }

// send sends the request and returns its outcome.
func (d *delivery) send(ctx context.Context) verdict {
	e := d.q.e
	release := verdict{op: event.OpRelease}
	content, err := e.Content(d.m.Content)
	if log.IsDamage(err) { // the file may be repaired, or another node leads soon
		loop.Sleep(ctx, damagedPause)
		return release
	}
	if errors.Is(err, log.ErrDamaged) {
		return verdict{op: event.OpDeadLetter, text: "the message's content was lost to damage"}
	}
	if errors.Is(err, log.ErrErased) {
		return verdict{op: event.OpDeadLetter, text: "the message's content was erased"}
	}
	if err != nil {
		e.Logger.Error("failed to read a leased message's content",
			"queue", d.q.name, "message", d.m.ID, "error", err)
		return retry("the payload cannot be read on this node")
	}
	d.trace = event.TraceOf(content.Headers)
	keys, missing := e.keys(d.t)
	if missing != "" { // since the lease
		return release
	}
	r, err := d.t.request(&d.m, content, keys, time.Now(), int(e.MaxPayload))
	if err != nil {
		v := retry(event.Line(err.Error(), 512))
		if d.t.deadLetters {
			v.op = event.OpDeadLetter // a retry gives the same
		}
		return v
	}
	if d.t.AnswerTo != "" {
		r.MaxAnswer = e.MaxPayload
	}
	sent := time.Now()
	a, err := e.Client.Do(ctx, r)
	e.metrics.latency.WithLabelValues(d.q.name).Observe(time.Since(sent).Seconds())
	if err != nil && ctx.Err() != nil { // aborted here: it says nothing about the target
		return release
	}
	v := judge(a, err, time.Now())
	if v.op == event.OpAck && d.t.AnswerTo != "" && a.Cut {
		v = retry("the answer is larger than a payload may be")
		v.works = true
	}
	if v.unreached && d.probe { // a probe that was not received costs no attempt
		v.op = event.OpRelease
	}
	return v
}

// hold extends the lease until ctx ends, and ends ctx when the lease is lost. until is when it
// expires; the monotonic clock counts.
func (d *delivery) hold(ctx context.Context, lost func(), until time.Time) {
	defer lost()
	lease := time.Duration(d.t.leaseMS) * time.Millisecond
	for wait := lease / 3; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(wait, time.Until(until))):
		}
		asked := time.Now()
		if !asked.Before(until) {
			return
		}
		bounded, cancel := context.WithDeadline(ctx, until)
		s, err := d.q.e.Settle(bounded,
			event.SettleItem{Op: event.OpExtend, Lease: d.m.Lease, LeaseMS: d.t.leaseMS}, "", nil)
		cancel()
		switch {
		case err != nil:
			wait = lease / 20
		case s.Status != event.StatusExtended:
			return
		default:
			wait, until = lease/3, asked.Add(lease) // at least: it was decided after asked
		}
	}
}

// settle settles the lease by the verdict, and retries while the lease is held: a delivered message
// that is not acked would be delivered again.
func (d *delivery) settle(ctx context.Context, v *verdict) {
	e := d.q.e
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, retryAfter) {
		s, err := d.settleOnce(ctx, v)
		p, refused := errors.AsType[*event.Problem](err)
		answers := refused && v.answer != nil && d.t.AnswerTo != ""
		switch {
		case err == nil && s.Status != event.StatusRejected:
			d.count(s.Status)
			return
		case err == nil, refused && p.Code == event.CodeLeaseLost:
			d.count("lease_lost")
			return
		case answers && !p.Temporary() && p.Code != event.CodeQueueNotFound:
			// The queue of answers refuses this one.
			*v = retry("the answer was not taken by queue " + d.t.AnswerTo + ": " +
				event.Clip(p.Detail, 256))
			continue
		case answers && (p.Code == event.CodeQueueFull || p.Code == event.CodeQueueNotFound) &&
			d.answersElsewhere():
			// There may never be room, or such a queue, again, and nobody waits for the answer: the
			// message is given back, and delivered by the policy as it is now.
			*v = verdict{op: event.OpRelease}
			continue
		}
		e.Logger.Debug("failed to settle a delivery, retrying",
			"queue", d.q.name, "message", d.m.ID, "error", err)
		if loop.Sleep(ctx, pause); ctx.Err() == nil {
			continue
		}
		d.count("unsettled")
		e.Logger.Warn("lease expired before its delivery was settled, delivering again",
			"queue", d.q.name, "message", d.m.ID, "error", err)
		return
	}
}

func (d *delivery) settleOnce(ctx context.Context, v *verdict) (event.Settled, error) {
	item := event.SettleItem{Op: v.op, Lease: d.m.Lease, DelayMS: v.delayMS}
	var answer *wire.NewMessage
	to := ""
	switch {
	case v.op == event.OpAck:
		item.Content = event.EncodeContent(&event.Content{Result: v.result})
		if d.t.AnswerTo != "" && v.answer != nil {
			to, answer = d.t.AnswerTo, &wire.NewMessage{
				Key: d.m.Key, Payload: v.answer,
				Headers: map[string]string{answerOf: d.m.ID.String()},
			}
			for _, h := range d.trace {
				answer.Headers[h.Name] = h.Value
			}
		}
	case v.text != "" && v.op != event.OpRelease:
		item.Content = event.EncodeContent(&event.Content{Error: v.text})
	}
	return d.q.e.Settle(ctx, item, to, answer)
}
