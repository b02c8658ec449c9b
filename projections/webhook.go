package projections

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/event"
)

// webhook is a named definition, which is opaque to this package and never changed in place. Its
// queue may have been deleted by force.
type webhook struct {
	event.WebhookView
	sum [32]byte // SHA-256 of Definition, for the digest
}

// webhookPut folds webhook_created and webhook_updated.
func (s *State) webhookPut(e *event.Event) {
	was, ok := s.webhooks[e.Webhook]
	if ok != (e.Type == event.WebhookUpdated) {
		s.impossible(e, "webhook %q is there: %v", e.Webhook, ok)
	}
	// Not in place: a frozen state reads what was.
	h := &webhook{sum: sha256.Sum256(e.Definition), WebhookView: event.WebhookView{
		Name: e.Webhook, Queue: e.Queue, Definition: bytes.Clone(e.Definition),
		Revision: s.index, CreatedAt: s.clock, UpdatedAt: s.clock,
	}}
	if ok {
		h.CreatedAt = was.CreatedAt
	}
	s.webhooks[h.Name] = h
}

func (s *State) webhookDeleted(e *event.Event) {
	if _, ok := s.webhooks[e.Webhook]; !ok {
		s.impossible(e, "webhook %q is not there", e.Webhook)
	}
	delete(s.webhooks, e.Webhook)
}

// Webhook returns a webhook as readers see it.
func (s *State) Webhook(name string) (event.WebhookView, bool) {
	h, ok := s.webhooks[name]
	if !ok {
		return event.WebhookView{}, false
	}
	return h.WebhookView, true
}

// Webhooks returns all webhooks, sorted by name.
func (s *State) Webhooks() []event.WebhookView {
	out := make([]event.WebhookView, 0, len(s.webhooks))
	for _, h := range s.sortedWebhooks() {
		out = append(out, h.WebhookView)
	}
	return out
}

func (s *State) sortedWebhooks() []*webhook {
	return slices.SortedFunc(maps.Values(s.webhooks), func(a, b *webhook) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// appendDigest appends what the state's digest covers of a webhook.
func (h *webhook) appendDigest(b []byte) []byte {
	b = append(append(b, h.Name...), 0)
	b = append(append(b, h.Queue...), 0)
	b = append(b, h.sum[:]...)
	for _, v := range []uint64{h.Revision, uint64(h.CreatedAt), uint64(h.UpdatedAt)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}
