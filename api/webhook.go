package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// Secrets are the secrets that this node has.
type Secrets interface {
	// Of returns those that a definition names. An error names a missing one, and
	// never contains a secret.
	Of(v *wire.VerifyHMAC) ([]string, error)
	// Missing names those that this node lacks.
	Missing(v *wire.VerifyHMAC) []string
}

// Forwarder sends to the targets of webhooks.
type Forwarder interface {
	// CheckTarget returns an error for a URL that nothing may be sent to; its text
	// follows the field's name.
	CheckTarget(url string) error
	// Forward POSTs a body and returns the answer, whatever its status. Errors do not
	// contain the URL; they wrap ErrNotForwarded if the target has certainly not
	// received the request.
	Forward(ctx context.Context, url string, header http.Header, body []byte) (*Forwarded, error)
}

// ErrNotForwarded is wrapped by an error of Forward that came before the target
// was reached.
var ErrNotForwarded = errors.New("not sent")

// Forwarded is what a target answered.
type Forwarded struct {
	Status      int
	ContentType string
	Body        []byte
	Cut         bool // Body is only the beginning
}

func webhookNotFound(name string) *event.Problem {
	return event.Problemf(event.CodeWebhookNotFound, "name", "webhook %s does not exist", echo(name))
}

// listWebhooks answers GET /v1/webhooks?limit=&cursor=&consistency=.
func (s *Server) listWebhooks(q *request) error {
	in := q.read("limit", "cursor", "consistency")
	limit, after := in.limit(1000, 1000), in.nameCursor()
	if in.fresh(); in.err != nil {
		return in.err
	}
	views, more := firstN(s.deps.State.Webhooks(), limit, func(v *event.WebhookView) bool { return v.Name > after })
	out := wire.WebhookList{Webhooks: []wire.Webhook{}}
	for i := range views {
		w, err := webhookOf(&views[i])
		if err != nil {
			return err
		}
		out.Webhooks = append(out.Webhooks, *w)
	}
	if more {
		out.NextCursor = views[limit-1].Name
	}
	return q.answer(http.StatusOK, &out)
}

// getWebhook answers GET /v1/webhooks/{name}?consistency=.
func (s *Server) getWebhook(q *request) error {
	in := q.read("consistency")
	name := in.pathName("name")
	if in.fresh(); in.err != nil {
		return in.err
	}
	v, ok := s.deps.State.Webhook(name)
	if !ok {
		return webhookNotFound(name)
	}
	return q.answerWebhook(http.StatusOK, &v)
}

// webhookOf returns a webhook as the API shows it.
func webhookOf(v *event.WebhookView) (*wire.Webhook, error) {
	w := &wire.Webhook{Name: v.Name, CreatedAt: wire.Time(v.CreatedAt), UpdatedAt: wire.Time(v.UpdatedAt)}
	if err := wire.Unmarshal(v.Definition, &w.WebhookDefinition); err != nil {
		return nil, fmt.Errorf("webhook %s: %w", v.Name, err)
	}
	return w, nil
}

func (q *request) answerWebhook(status int, v *event.WebhookView) error {
	w, err := webhookOf(v)
	if err != nil {
		return err
	}
	return q.answer(status, w)
}

// putWebhook answers PUT /v1/webhooks/{name}: it creates a webhook (201) or replaces its
// definition (200).
func (s *Server) putWebhook(q *request) error {
	in := q.read()
	name := in.pathName("name")
	var d wire.WebhookDefinition
	in.body(&d)
	text := get(in, func() ([]byte, error) { return s.checkWebhook(name, &d) })
	if in.err != nil {
		return in.err
	}
	res, err := q.propose(&event.Command{PutWebhook: &event.PutWebhook{Name: name, Queue: d.Queue, Definition: text}})
	if err != nil {
		return err
	}
	status := http.StatusOK
	if res.Created {
		status = http.StatusCreated
	}
	v, ok := q.after(&res).Webhook(name)
	if !ok || string(v.Definition) != string(text) {
		v.Name, v.Definition = name, text // changed since: answer with this call's definition
	}
	return q.answerWebhook(status, &v)
}

// checkWebhook checks a definition, except for the existence of its queue, and returns
// it as it is stored. An error is an *event.Problem about a field.
func (s *Server) checkWebhook(name string, d *wire.WebhookDefinition) (text []byte, err error) {
	if d.Queue != "" && !event.ValidName(d.Queue) {
		return nil, bad("queue", "queue must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$; it was %s", echo(d.Queue))
	}
	w, err := webhook.Compile(name, d)
	var wrong *webhook.Error
	if errors.As(err, &wrong) {
		return nil, bad(clip(wrong.Field, 120), "%s %s", clip(wrong.Field, 120), wrong.Text)
	}
	if err != nil {
		return nil, err
	}
	if d.Target != "" {
		if s.deps.Forward == nil {
			return nil, bad("target", "target is not served here")
		}
		if err := s.deps.Forward.CheckTarget(d.Target); err != nil {
			return nil, bad("target", "target %s", clip(err.Error(), 200))
		}
	}
	if schema := w.Definition.PayloadSchema; len(schema) > 0 {
		if err := checkSchema("payload_schema", schema); err != nil {
			return nil, err
		}
	}
	if text, err = w.JSON(); err != nil {
		return nil, err
	}
	if len(text) > event.MaxDefinition {
		return nil, bad("", "the definition has %d bytes, at most %d are taken", len(text), event.MaxDefinition)
	}
	return text, nil
}

// deleteWebhook answers DELETE /v1/webhooks/{name}.
func (s *Server) deleteWebhook(q *request) error {
	in := q.read()
	name := in.pathName("name")
	if q.Header["Idempotency-Key"] == nil { // else it may have been executed before
		in.do(func() error {
			_, err := s.currentWebhook(q, name)
			return err
		})
	}
	if in.err != nil {
		return in.err
	}
	if _, err := q.propose(&event.Command{DeleteWebhook: &event.DeleteWebhook{Name: name}}); err != nil {
		return err
	}
	return q.noContent()
}

// currentWebhook returns a webhook as it is now.
func (s *Server) currentWebhook(q *request, name string) (event.WebhookView, error) {
	return currently(s, q, name, s.deps.State.Webhook, webhookNotFound)
}

// webhooks keeps compiled definitions, by name and revision.
type webhooks struct {
	mu   sync.RWMutex
	made map[string]*compiledWebhook
}

type compiledWebhook struct {
	*webhook.Webhook
	revision uint64
	created  int64 // distinguishes it from a deleted webhook of the same name
	schema   *lazySchema
}

// of returns a webhook compiled.
func (c *webhooks) of(v *event.WebhookView) (*compiledWebhook, error) {
	c.mu.RLock()
	w := c.made[v.Name]
	c.mu.RUnlock()
	if w != nil && w.revision == v.Revision && w.created == v.CreatedAt {
		return w, nil
	}
	p, err := webhook.Parse(v.Name, v.Definition)
	if err != nil {
		return nil, err
	}
	w = &compiledWebhook{Webhook: p, revision: v.Revision, created: v.CreatedAt}
	if len(p.Definition.PayloadSchema) > 0 {
		w.schema = &lazySchema{text: p.Definition.PayloadSchema}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil || len(c.made) > 10_000 {
		c.made = map[string]*compiledWebhook{} // those that are gone go with the others
	}
	c.made[v.Name] = w
	return w, nil
}

// secretsMissing names the secrets of webhooks that this node lacks.
func (s *Server) secretsMissing() (reasons []string) {
	if s.deps.Secrets == nil {
		return nil
	}
	views := s.deps.State.Webhooks()
	for i := range views {
		w, err := s.hooks.of(&views[i])
		if err != nil || !w.Signed() {
			continue
		}
		if missing := s.deps.Secrets.Missing(w.Definition.VerifyHMAC); len(missing) > 0 {
			reasons = append(reasons, fmt.Sprintf("secret_missing: webhook %s: %s", w.Name, strings.Join(missing, "; ")))
		}
	}
	return reasons
}
