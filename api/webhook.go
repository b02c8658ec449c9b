package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// Forwarder sends to the targets of webhooks; *webhook.Client is one.
type Forwarder interface {
	AllowPrivate() bool
	Do(ctx context.Context, r webhook.Outgoing) (*webhook.Answer, error)
}

func webhookNotFound(name string) *event.Problem {
	return event.Problemf(event.CodeWebhookNotFound, "name",
		"webhook %s does not exist", echo(name))
}

// listWebhooks answers GET /v1/webhooks?limit=&cursor=&consistency=.
func (s *Server) listWebhooks(q *request) error {
	q.read("limit", "cursor", "consistency")
	limit, after := q.limit(1000, 1000), q.nameCursor()
	q.fresh()
	webhooks, more := page(q, s.deps.State.Webhooks(), limit, func(v *event.WebhookView) bool {
		return v.Name > after
	}, webhookOf)
	out := wire.WebhookList{Webhooks: webhooks}
	if more {
		out.NextCursor = webhooks[limit-1].Name
	}
	return q.answer(http.StatusOK, &out)
}

// getWebhook answers GET /v1/webhooks/{name}?consistency=.
func (s *Server) getWebhook(q *request) error {
	name := q.read("consistency").pathName("name")
	q.fresh()
	v := found(q, name, s.deps.State.Webhook, webhookNotFound)
	return q.answerWebhook(http.StatusOK, &v)
}

func (q *request) answerWebhook(status int, v *event.WebhookView) error {
	out := get(q, func() (wire.Webhook, error) { return webhookOf(v) })
	return q.answer(status, &out)
}

// webhookOf returns a webhook as the API shows it.
func webhookOf(v *event.WebhookView) (wire.Webhook, error) {
	w := wire.Webhook{
		Name: v.Name, CreatedAt: wire.Time(v.CreatedAt), UpdatedAt: wire.Time(v.UpdatedAt),
	}
	if err := wire.Unmarshal(v.Definition, &w.WebhookDefinition); err != nil {
		return w, fmt.Errorf("webhook %s: %w", v.Name, err)
	}
	return w, nil
}

// putWebhook answers PUT /v1/webhooks/{name}: it creates (201) or redefines (200) a webhook.
func (s *Server) putWebhook(q *request) error {
	name := q.read().pathName("name")
	var d wire.WebhookDefinition
	q.body(&d)
	text := get(q, func() ([]byte, error) { return s.checkWebhook(name, &d) })
	res := q.commit(&event.Command{
		PutWebhook: &event.PutWebhook{Name: name, Queue: d.Queue, Definition: text},
	})
	if q.err != nil {
		return q.err
	}
	v, ok := q.after(&res).Webhook(name)
	if !ok || string(v.Definition) != string(text) {
		v.Name, v.Definition = name, text // changed since: answer with this call's definition
	}
	return q.answerWebhook(createdOr200(res.Created), &v)
}

// checkWebhook checks a definition, except for the existence of its queue, and returns
// it as it is stored. An error is an *event.Problem about a field.
func (s *Server) checkWebhook(name string, d *wire.WebhookDefinition) (text []byte, err error) {
	if d.Queue != "" {
		if err := validName("queue", d.Queue); err != nil {
			return nil, err
		}
	}
	w, err := webhook.Compile(name, d)
	if err != nil {
		return nil, err
	}
	if d.Target != "" {
		if err := webhook.CheckURL(d.Target, s.deps.Forward.AllowPrivate()); err != nil {
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
		return nil, bad("", "the definition must be at most %d bytes, not %d",
			event.MaxDefinition, len(text))
	}
	return text, nil
}

// deleteWebhook answers DELETE /v1/webhooks/{name}.
func (s *Server) deleteWebhook(q *request) error {
	name := q.read().pathName("name")
	mustExist(q, name, s.deps.State.Webhook, webhookNotFound)
	q.commit(&event.Command{DeleteWebhook: &event.DeleteWebhook{Name: name}})
	return q.answer(http.StatusNoContent, nil)
}

// compiledWebhook is a webhook that is ready to use.
type compiledWebhook struct {
	*webhook.Webhook
	schema *schema // payload_schema; nil: none
}

// compiled returns a webhook ready to use.
func (s *Server) compiled(v *event.WebhookView) (*compiledWebhook, error) {
	return s.hooks.of(v.Name, v.Revision, func() (*compiledWebhook, error) {
		p, err := webhook.Parse(v.Name, v.Definition)
		w := &compiledWebhook{Webhook: p}
		if err == nil && len(p.Definition.PayloadSchema) > 0 {
			const what = "the webhook's payload_schema"
			w.schema, err = compileSchema(what, p.Definition.PayloadSchema)
		}
		return w, err
	})
}

// secretsMissing names the secrets of webhooks that this node lacks.
func (s *Server) secretsMissing() (reasons []string) {
	for _, v := range s.deps.State.Webhooks() {
		w, err := s.compiled(&v)
		if err != nil || !w.Signed() {
			continue
		}
		v := w.Definition.VerifyHMAC
		if _, missing := s.deps.Secrets.Find(v.SecretEnv, v.SecretFile); len(missing) > 0 {
			reasons = append(reasons, fmt.Sprintf("secret_missing: webhook %s: %s",
				w.Name, strings.Join(missing, "; ")))
		}
	}
	return reasons
}
