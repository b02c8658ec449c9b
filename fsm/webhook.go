package fsm

import (
	"bytes"

	"github.com/qlogd/qlogd/event"
)

// putWebhook creates a webhook or replaces its definition.
func (d *decision) putWebhook(c *event.PutWebhook) event.Result {
	if p := d.checkWebhook(c, d.hasQueue); p != nil {
		return problem(p)
	}
	_, exists := d.s.Webhook(c.Name)
	d.setWebhook(c)
	return event.Result{Created: !exists}
}

func (d *decision) hasQueue(name string) bool { return d.s.Policy(name) != nil }

// checkWebhook checks a webhook; hasQueue reports which queues exist when it is set.
func (d *decision) checkWebhook(c *event.PutWebhook, hasQueue func(string) bool) *event.Problem {
	switch {
	case !event.ValidName(c.Name):
		return invalid("name", "name must match %s", event.Names)
	case len(c.Definition) > event.MaxDefinition:
		return invalid("definition", "definition must be at most %d bytes", event.MaxDefinition)
	case c.Queue != "" && !hasQueue(c.Queue):
		return invalid("queue", "queue '%s' does not exist; create it first", c.Queue)
	}
	return nil
}

// setWebhook creates or updates a checked webhook, and reports whether that changed
// anything.
func (d *decision) setWebhook(c *event.PutWebhook) bool {
	e := event.Event{Type: event.WebhookCreated, Webhook: c.Name, Queue: c.Queue,
		Definition: c.Definition}
	if was, ok := d.s.Webhook(c.Name); ok {
		if was.Queue == c.Queue && bytes.Equal(was.Definition, c.Definition) {
			return false
		}
		e.Type = event.WebhookUpdated
	}
	d.emit(e)
	return true
}

func (d *decision) deleteWebhook(c *event.DeleteWebhook) event.Result {
	w, ok := d.s.Webhook(c.Name)
	if !ok {
		return problem(event.Problemf(event.CodeWebhookNotFound, "name",
			"webhook %q does not exist", c.Name))
	}
	d.emit(event.Event{Type: event.WebhookDeleted, Webhook: c.Name, Queue: w.Queue})
	return event.Result{}
}

// fedBy returns a webhook whose messages go to a queue, the first by name.
func (d *decision) fedBy(queue string) (string, bool) {
	for _, w := range d.s.Webhooks() {
		if w.Queue == queue {
			return w.Name, true
		}
	}
	return "", false
}
