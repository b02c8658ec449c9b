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

// webhook is a named definition, which is opaque to this package.
type webhook struct {
	name       string
	queue      string   // where its messages go, which may have been deleted by force; "" none
	definition []byte   // never changed in place
	sum        [32]byte // SHA-256 of definition, for the digest
	revision   uint64   // index of the entry that set it
	created    int64
	updated    int64
}

// webhookPut folds webhook_created and webhook_updated.
func (s *State) webhookPut(e *event.Event) {
	was, ok := s.webhooks[e.Webhook]
	if ok != (e.Type == event.WebhookUpdated) {
		s.impossible(e, "webhook %q is there: %v", e.Webhook, ok)
	}
	// Not in place: a frozen state reads what was.
	h := &webhook{name: e.Webhook, queue: e.Queue, definition: bytes.Clone(e.Definition),
		sum: sha256.Sum256(e.Definition), revision: s.index, created: s.clock, updated: s.clock}
	if ok {
		h.created = was.created
	}
	s.webhooks[h.name] = h
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
	return h.view(), true
}

// Webhooks returns all webhooks, sorted by name.
func (s *State) Webhooks() []event.WebhookView {
	out := make([]event.WebhookView, 0, len(s.webhooks))
	for _, h := range s.sortedWebhooks() {
		out = append(out, h.view())
	}
	return out
}

func (h *webhook) view() event.WebhookView {
	return event.WebhookView{
		Name: h.name, Queue: h.queue, Definition: h.definition, Revision: h.revision,
		CreatedAt: h.created, UpdatedAt: h.updated,
	}
}

func (s *State) sortedWebhooks() []*webhook {
	return slices.SortedFunc(maps.Values(s.webhooks), func(a, b *webhook) int {
		return strings.Compare(a.name, b.name)
	})
}

// appendDigest appends what the state's digest covers of a webhook.
func (h *webhook) appendDigest(b []byte) []byte {
	b = append(append(b, h.name...), 0)
	b = append(append(b, h.queue...), 0)
	b = append(b, h.sum[:]...)
	for _, v := range []uint64{h.revision, uint64(h.created), uint64(h.updated)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}
