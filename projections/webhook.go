package projections

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/event"
)

// webhookPut folds webhook_created and webhook_updated. The definition is opaque to this package,
// and its queue may have been deleted by force.
func (s *State) webhookPut(e *event.Event) {
	was, ok := s.webhooks[e.Webhook]
	if ok != (e.Type == event.WebhookUpdated) {
		s.impossible(e, "webhook %q is there: %v", e.Webhook, ok)
	}
	w := event.WebhookView{
		Name: e.Webhook, Queue: e.Queue,
		Definition: bytes.Clone(e.Definition), Sum: sha256.Sum256(e.Definition),
		Revision: s.index, CreatedAt: s.clock, UpdatedAt: s.clock,
	}
	if ok {
		w.CreatedAt = was.CreatedAt
	}
	s.webhooks[w.Name] = w
}

func (s *State) webhookDeleted(e *event.Event) {
	if _, ok := s.webhooks[e.Webhook]; !ok {
		s.impossible(e, "webhook %q is not there", e.Webhook)
	}
	delete(s.webhooks, e.Webhook)
}

// Webhook returns a webhook as readers see it.
func (s *State) Webhook(name string) (event.WebhookView, bool) {
	w, ok := s.webhooks[name]
	return w, ok
}

// Webhooks returns all webhooks, sorted by name.
func (s *State) Webhooks() []event.WebhookView {
	return slices.SortedFunc(maps.Values(s.webhooks), func(a, b event.WebhookView) int {
		return strings.Compare(a.Name, b.Name)
	})
}
