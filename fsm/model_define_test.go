package fsm

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
	"pgregory.net/rapid"
)

// The naive model's webhooks and definitions: what is asked for at once is looked at as it will be.

// wrongHook returns the codes with which a webhook may be refused where there
// are these queues.
func wrongHook(c *event.PutWebhook, queues map[string]event.Policy) (codes []string) {
	if _, ok := queues[c.Queue]; c.Queue != "" && !ok || !event.ValidName(c.Name) {
		codes = append(codes, event.CodeInvalidArgument)
	}
	return codes
}

func (w *model) policies() map[string]event.Policy {
	out := map[string]event.Policy{}
	for name, q := range w.queues {
		out[name] = q.policy
	}
	return out
}

// refused holds a refusal against what is wrong; true: there was one.
func (w *model) refused(got event.Result, codes []string) bool {
	w.t.Helper()
	switch {
	case len(codes) == 0 && got.Problem == nil:
		return false
	case got.Problem == nil || !slices.Contains(codes, got.Problem.Code):
		w.fatal("it should be refused with one of %q, the answer is %+v", codes, got.Problem)
	}
	return true
}

// tellHook foretells what a webhook's definition changes.
func (w *model) tellHook(c *event.PutWebhook) {
	w.t.Helper()
	e := event.Event{Type: event.WebhookCreated, Queue: c.Queue}
	now := event.WebhookView{
		Name: c.Name, Queue: c.Queue, Definition: c.Definition, Sum: sha256.Sum256(c.Definition),
		Revision: w.index, CreatedAt: w.clock, UpdatedAt: w.clock,
	}
	if was, ok := w.hooks[c.Name]; ok {
		if was.Queue == c.Queue && bytes.Equal(was.Definition, c.Definition) {
			return
		}
		e.Type, now.CreatedAt = event.WebhookUpdated, was.CreatedAt
	}
	if got := w.emit(e); got.Webhook != c.Name || !bytes.Equal(got.Definition, c.Definition) {
		w.fatal("the event is of webhook %q: %s", got.Webhook, got.Definition)
	}
	w.hooks[c.Name] = now
}

func (w *model) putWebhook(c *event.PutWebhook, got event.Result) {
	w.t.Helper()
	if w.refused(got, wrongHook(c, w.policies())) {
		return
	}
	if _, ok := w.hooks[c.Name]; got.Created == ok {
		w.fatal("webhook %q was there: %v, the machine says %+v", c.Name, ok, got)
	}
	w.tellHook(c)
}

func (w *model) deleteWebhook(name string, got event.Result) {
	w.t.Helper()
	was, ok := w.hooks[name]
	if !ok {
		w.problem(got, event.CodeWebhookNotFound, -1)
		return
	}
	if e := w.emit(event.Event{Type: event.WebhookDeleted, Queue: was.Queue}); e.Webhook != name || got.Problem != nil {
		w.fatal("webhook %q is deleted, the machine says %+v, %+v", name, e, got)
	}
	delete(w.hooks, name)
}

// feeds tells whether a webhook's messages go to a queue.
func (w *model) feeds(queue string) bool {
	for _, h := range w.hooks {
		if h.Queue == queue {
			return true
		}
	}
	return false
}

func (w *model) putQueue(c *event.PutQueue, got event.Result) {
	w.t.Helper()
	will, codes := w.wrongQueues([]event.PutQueue{*c})
	if w.refused(got, codes) {
		return
	}
	if _, ok := w.queues[c.Name]; got.Created == ok {
		w.fatal("queue %q was there: %v, the machine says %+v", c.Name, ok, got)
	}
	w.setQueues(will)
}

// wrongQueues returns the codes with which queues may be refused, and all policies as they are to be.
func (w *model) wrongQueues(puts []event.PutQueue) (will map[string]event.Policy, codes []string) {
	will = w.policies()
	seen := map[string]bool{}
	for _, c := range puts {
		q, exists := w.queues[c.Name]
		p := c.Policy.Clone()
		if c.DeadLetterAuto {
			p.DeadLetterQueue = c.Name + ".dlq"
		}
		if c.IfRevision != 0 && (!exists || q.revision != c.IfRevision) {
			codes = append(codes, event.CodeStaleRevision)
		}
		if exists && q.fixed(&p) {
			codes = append(codes, event.CodeConflict)
		}
		if seen[c.Name] || p.DeadLetterQueue == c.Name || p.OnDead == event.DeadHoldKey && p.DeadLetterQueue == "" {
			codes = append(codes, event.CodeInvalidArgument)
		}
		seen[c.Name] = true
		will[c.Name] = p
	}
	for _, c := range puts {
		if _, ok := will[c.Name+".dlq"]; c.DeadLetterAuto && !ok {
			dlq := event.DefaultPolicy()
			dlq.MaxAttempts = 0
			will[c.Name+".dlq"] = dlq
		}
	}
	for name := range seen {
		if to := will[name].DeadLetterQueue; to != "" {
			target, ok := will[to]
			if !ok || target.DeadLetterQueue != "" {
				codes = append(codes, event.CodeInvalidArgument)
			}
			for _, p := range will {
				if p.DeadLetterQueue == name {
					codes = append(codes, event.CodeInvalidArgument)
				}
			}
		}
	}
	return will, codes
}

func (w *model) define(c *event.Define, got event.Result) {
	w.t.Helper()
	will, codes := w.wrongQueues(c.Queues)
	seen := map[string]bool{}
	for i := range c.Webhooks {
		codes = append(codes, wrongHook(&c.Webhooks[i], will)...)
		if seen[c.Webhooks[i].Name] {
			codes = append(codes, event.CodeInvalidArgument)
		}
		seen[c.Webhooks[i].Name] = true
	}
	if w.refused(got, codes) {
		return
	}
	began := w.at
	w.setQueues(will)
	for i := range c.Webhooks {
		w.tellHook(&c.Webhooks[i])
	}
	if n := int64(w.at - began); got.Count != n {
		w.fatal("%d were made or changed, the machine says %d", n, got.Count)
	}
}

// setQueues makes and changes queues. It takes the order from the machine, but for a dead-letter queue
// being there before those that name it.
func (w *model) setQueues(will map[string]event.Policy) {
	w.t.Helper()
	left := map[string]bool{}
	for name, p := range will {
		if q := w.queues[name]; q == nil || !bytes.Equal(event.EncodePolicy(&q.policy), event.EncodePolicy(&p)) {
			left[name] = true
		}
	}
	for len(left) > 0 {
		if w.at >= len(w.block.Events) {
			w.fatal("queues %v should be made or changed", left)
		}
		name := w.block.Events[w.at].Queue
		p := will[name]
		if !left[name] || !bytes.Equal(event.EncodePolicy(w.block.Events[w.at].Policy), event.EncodePolicy(&p)) {
			w.fatal("queues %v should be made or changed, the machine has %+v", left, w.block.Events[w.at])
		}
		if to := p.DeadLetterQueue; to != "" && w.queues[to] == nil {
			w.fatal("queue %q names %q, which is not there yet", name, to)
		}
		delete(left, name)
		if q := w.queues[name]; q != nil {
			w.updateQueue(q, p)
		} else {
			w.createQueue(name, p)
		}
	}
}

func (w *model) endHooks(b *bench) {
	w.t.Helper()
	var want []event.WebhookView
	for _, name := range slices.Sorted(maps.Keys(w.hooks)) {
		want = append(want, w.hooks[name])
	}
	if got := b.m.Webhooks(); fmt.Sprint(got) != fmt.Sprint(want) {
		w.fatal("the webhooks are %+v, the machine says %+v", want, got)
	}
}

func hook(name, queue, definition string) *event.PutWebhook {
	return &event.PutWebhook{Name: name, Queue: queue, Definition: []byte(definition)}
}

func (c *chaos) hook() *event.PutWebhook {
	return hook(draw(c, "webhook", "w1", "w2", "w2", "w/3"), draw(c, "feeds", "", "a", "b", "c", "dlq", "a.dlq"), draw(c, "definition", `{}`, `{"n":1}`))
}

// defs draws a command about webhooks, or a Define.
func (c *chaos) defs() *event.Command {
	switch rapid.IntRange(0, 5).Draw(c.t, "defs") {
	case 0:
		return &event.Command{DeleteWebhook: &event.DeleteWebhook{Name: c.hook().Name}}
	case 1, 2:
		return &event.Command{PutWebhook: c.hook()}
	}
	d := &event.Define{}
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "dlq", "a.dlq", "a"}), 0, 4, rapid.ID[string]).Draw(c.t, "queues") {
		put := event.PutQueue{Name: name, Policy: c.policy(), DeadLetterAuto: rapid.IntRange(0, 4).Draw(c.t, "auto") == 0}
		if name == "dlq" || name == "a.dlq" || rapid.Bool().Draw(c.t, "no dlq") {
			put.Policy.DeadLetterQueue = ""
			put.Policy.OnDead = event.DeadSkip
		}
		if q, ok := c.m.Queue(name); ok {
			c.keep(&put.Policy, &q.Policy)
			put.IfRevision = draw(c, "revision", 0, 0, 0, q.Revision, 1)
			if rapid.IntRange(0, 4).Draw(c.t, "same") == 0 {
				put.Policy = q.Policy
			}
		}
		put.Policy = laned(put.Policy)
		d.Queues = append(d.Queues, put)
		if rapid.IntRange(0, 30).Draw(c.t, "twice") == 0 {
			d.Queues = append(d.Queues, put)
		}
	}
	for range rapid.IntRange(0, 2).Draw(c.t, "webhooks") {
		d.Webhooks = append(d.Webhooks, *c.hook())
	}
	return &event.Command{Define: d}
}
