package api

import (
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

const (
	// keepDeliveries is the number of newest requests, and of newest refused requests, that a node
	// remembers for each webhook.
	keepDeliveries = 100
	// A webhook with refusedMany refused requests within refusedWithin needs attention.
	refusedMany   = 10
	refusedWithin = 10 * time.Minute
)

// deliveries holds the newest webhook requests that this node received. Refused ones create no
// event, because anyone could fill the log with them.
type deliveries struct {
	mu sync.Mutex
	of map[string]*delivered // by webhook
}

// delivered has the newest requests to a webhook, oldest first.
type delivered struct {
	all     []wire.WebhookDelivery
	refused []wire.Time
}

// add records a request to a webhook that exists.
func (d *deliveries) add(webhook string, v wire.WebhookDelivery) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.of[webhook]
	if of == nil {
		of = &delivered{}
		d.of[webhook] = of
	}
	of.all = addNewest(of.all, v)
	if v.Status >= http.StatusBadRequest && v.Status != statusClientGone {
		of.refused = addNewest(of.refused, v.At)
	}
}

// addNewest appends v to a list and trims it to between one and two times keepDeliveries.
func addNewest[T any](list []T, v T) []T {
	if len(list) == 2*keepDeliveries {
		list = slices.Delete(list, 0, keepDeliveries)
	}
	return append(list, v)
}

func newest[T any](list []T) []T { return slices.Clone(list[max(0, len(list)-keepDeliveries):]) }

// to returns the newest requests to a webhook.
func (d *deliveries) to(webhook string) []wire.WebhookDelivery {
	d.mu.Lock()
	defer d.mu.Unlock()
	if of := d.of[webhook]; of != nil {
		return newest(of.all)
	}
	return nil
}

// refused returns when the newest refused requests to each webhook came.
func (d *deliveries) refused(struct{}) map[string][]wire.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string][]wire.Time{}
	for webhook, of := range d.of {
		if len(of.refused) > 0 {
			out[webhook] = newest(of.refused)
		}
	}
	return out
}

// forget drops the webhooks that do not exist any more.
func (d *deliveries) forget(exists func(webhook string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.of, func(webhook string, _ *delivered) bool { return !exists(webhook) })
}

// listDeliveries answers GET /v1/webhooks/{name}/deliveries from the nodes' memories.
func (s *Server) listDeliveries(q *request) error {
	name := q.read("consistency").pathName("name")
	q.current()
	v := found(q, name, s.deps.State.Webhook, webhookNotFound)
	if q.err != nil {
		return q.err
	}
	lists := askOthers[[]wire.WebhookDelivery](q.Context(), s, askDeliveries, name)
	all := slices.Concat(append(lists, s.deliveries.to(name))...)
	all = slices.DeleteFunc(all, func(d wire.WebhookDelivery) bool { // of an earlier one of this name
		return d.At < wire.Time(v.CreatedAt)
	})
	slices.Reverse(all) // newest first among those of the same millisecond
	slices.SortStableFunc(all, func(a, b wire.WebhookDelivery) int { return int(b.At - a.At) })
	if all == nil {
		all = []wire.WebhookDelivery{}
	}
	for i := range all {
		all[i].Title = statuses()[all[i].Code].Title
	}
	return q.answer(http.StatusOK, all)
}

// webhooksNeeding returns which webhooks refuse requests, on all nodes together.
func (s *Server) webhooksNeeding(q *request) (items []wire.AttentionItem) {
	type times = map[string][]wire.Time
	nodes := append(askOthers[times](q.Context(), s, askRefused, struct{}{}),
		s.deliveries.refused(struct{}{}))
	from := wire.TimeOf(time.Now().Add(-refusedWithin))
	for _, v := range s.deps.State.Webhooks() {
		var refused []wire.Time
		for _, n := range nodes {
			refused = append(refused, n[v.Name]...)
		}
		refused = slices.DeleteFunc(refused, func(at wire.Time) bool {
			return at < max(from, wire.Time(v.CreatedAt))
		})
		maySee := q.who == nil || q.who.mayAll(roleAdmin) || v.Queue != "" && q.sees(v.Queue)
		if len(refused) < refusedMany || !maySee {
			continue
		}
		items = append(items, wire.AttentionItem{
			Kind: "webhook_refused", Severity: 2, Queue: nilIfZero(v.Queue),
			Webhook: &v.Name, Since: slices.Min(refused), Count: int64(len(refused)),
			Detail: "requests to webhook " + v.Name + " were refused within the last 10 minutes",
		})
	}
	return items
}
