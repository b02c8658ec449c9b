package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

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
	q.read("limit", "cursor", "at", "consistency")
	limit, after := q.limit(1000, 1000), q.nameCursor()
	st := q.state()
	var out wire.WebhookList
	out.Webhooks, out.NextCursor = page(q, st.Webhooks(), limit, func(v *event.WebhookView) bool {
		return v.Name > after
	}, webhookOf, func(w *wire.Webhook) string { return w.Name })
	return q.answer(http.StatusOK, &out)
}

// getWebhook answers GET /v1/webhooks/{name}?at=&consistency=.
func (s *Server) getWebhook(q *request) error {
	name := q.read("at", "consistency").pathName("name")
	v := found(q, name, q.state().Webhook, webhookNotFound)
	return q.answerWebhook(http.StatusOK, &v)
}

func (q *request) answerWebhook(status int, v *event.WebhookView) error {
	out := get(q, func() (wire.Webhook, error) { return webhookOf(v) })
	return q.answer(status, &out)
}

// webhookOf returns a webhook as the API shows it.
func webhookOf(v *event.WebhookView) (wire.Webhook, error) {
	stored, err := storedOf(v)
	return wire.Webhook{
		Name: v.Name, WebhookDefinition: stored.WebhookDefinition,
		CreatedAt: wire.Time(v.CreatedAt), UpdatedAt: wire.Time(v.UpdatedAt),
	}, err
}

// storedWebhook is a definition as it is stored.
type storedWebhook struct {
	wire.WebhookDefinition
	// AssertFormat: as in event.Policy, of payload_schema.
	AssertFormat bool `json:"assert_format,omitzero"`
}

// definitionOf returns a webhook's definition as the API shows it.
func definitionOf(v *event.WebhookView) jsontext.Value {
	w, err := storedOf(v)
	if err != nil { // written by a newer version
		return v.Definition
	}
	text, _ := wire.Marshal(&w.WebhookDefinition) // an error: not UTF-8, which none is
	return text
}

func storedOf(v *event.WebhookView) (w storedWebhook, err error) {
	if err = wire.Unmarshal(v.Definition, &w); err != nil {
		err = fmt.Errorf("webhook %s: %w", v.Name, err)
	}
	return w, err
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
	v, _ := q.after(&res).Webhook(name)
	v.Name, v.Definition = name, text // as this call defined it: it may have changed since
	return q.answerWebhook(createdOrOK(res.Created), &v)
}

// checkWebhook validates a definition, except for the existence of its queue, and returns
// its stored form. An error is an *event.Problem about a field.
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
	stored := storedWebhook{WebhookDefinition: w.Definition}
	if schema := w.Definition.PayloadSchema; len(schema) > 0 {
		if err := checkSchema("payload_schema", schema); err != nil {
			return nil, err
		}
		stored.AssertFormat = true
	}
	if text, err = wire.Marshal(&stored); err != nil {
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

// compiledWebhook is a compiled webhook definition.
type compiledWebhook struct {
	*webhook.Webhook
	schema *schema // payload_schema; nil: none
}

// compiled returns the compiled form of a webhook, from the cache if possible.
func (s *Server) compiled(v *event.WebhookView) (*compiledWebhook, error) {
	return s.hooks.of(v.Name, v.Revision, func() (*compiledWebhook, error) {
		stored, err := storedOf(v)
		if err != nil {
			return nil, err
		}
		w := &compiledWebhook{}
		w.Webhook, err = webhook.Compile(v.Name, &stored.WebhookDefinition)
		if schema := stored.PayloadSchema; err == nil && len(schema) > 0 {
			w.schema, err = compileSchema("the webhook's payload_schema", schema,
				stored.AssertFormat)
		}
		if err != nil { // %v hides a problem: the mistake is not the sender's
			err = fmt.Errorf("webhook %s: %v", v.Name, err)
		}
		return w, err
	})
}

// secretsMissing returns a reason for each webhook whose secret this node lacks.
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

// hookPath is the path of incoming webhooks. It needs no token: a signature proves the sender.
const hookPath = "/hook/{name}"

// ForwardTimeout bounds the wait for a target's answer, and maxForwarded its size. The sender waits
// meanwhile, and most senders give up after half a minute at most.
const (
	maxForwarded   = 1 << 20
	ForwardTimeout = 30 * time.Second
)

// hook answers POST /hook/{name}. The order of the checks matters
// (docs/reference/webhooks.md): nothing of a definition is disclosed, and next to nothing spent,
// before the sender has proved that it has the secret.
func (s *Server) hook(q *request) error {
	q.write = true
	at := time.Now()
	name := q.PathValue("name")
	if !event.ValidName(name) {
		return webhookNotFound(name)
	}
	v, err := currently(q, name, s.deps.State.Webhook, webhookNotFound)
	if err != nil {
		return err // arbitrary names must not create metrics
	}
	w, err := s.compiled(&v)
	if err != nil {
		return err
	}
	d := wire.WebhookDelivery{
		At: wire.TimeOf(at), Node: s.deps.Node.Status().NodeID, SourceIP: q.source().String(),
	}
	d.Code, err = s.receive(q, w, at, &d)
	if err != nil {
		d.Code = "client_gone"
		if p := s.problem(q, q.hookProblem(err)); p != nil {
			d.Code, err = p.Code, p
			q.fail(p)
		}
	}
	d.Status = cmp.Or(q.status, statusClientGone)
	s.metrics.hook(w.Name, d.Code)
	s.deliveries.add(w.Name, d)
	return err
}

// receive checks a webhook request, and answers it unless it returns an error. The outcome is for
// metrics; an error is counted by its problem's code.
func (s *Server) receive(
	q *request, w *compiledWebhook, at time.Time, d *wire.WebhookDelivery,
) (outcome string, err error) {
	source := q.source()
	if !w.Allows(source) {
		return "", event.Problemf(codeIPNotAllowed, "",
			"webhook %s accepts nothing from %s", w.Name, source)
	}
	body, err := s.verified(q, w, at)
	if err != nil {
		return "", err
	}
	if err := q.checkHops(); err != nil {
		return "", err
	}
	m, err := w.Message(&webhook.Request{
		Header: q.Header, Body: body, Source: source, ReceivedAt: at,
	}, int(s.opts.MaxPayload))
	m.Payload, m.Original = bytes.TrimSpace(m.Payload), bytes.TrimSpace(m.Original)
	switch {
	case err != nil:
		return "", err
	case m.Filtered:
		return "filtered", q.answer(http.StatusOK, &wire.Hooked{OK: true, Filtered: true})
	case w.Definition.Target != "":
		return "forwarded", s.forward(q, w, &m)
	}
	return s.enqueueHooked(q, w, &m, at, d)
}

// hookProblem returns the problem that an error of package webhook is; any other error is returned.
func (q *request) hookProblem(err error) error {
	failed, isField := errors.AsType[*webhook.FieldError](err)
	detail := clip(err.Error(), 200)
	switch {
	case errors.Is(err, webhook.ErrSignature):
		return event.Problemf(codeInvalidSignature, "", "%s", detail)
	case errors.Is(err, webhook.ErrStale):
		return event.Problemf(codeStaleTimestamp, "", "%s", detail)
	case errors.Is(err, webhook.ErrBody):
		if q.media == "application/x-www-form-urlencoded" { // the most common mistake
			detail += "; it came as a form: let the sender send application/json " +
				"(GitHub: Content type, in the webhook's settings)"
		}
		return event.Problemf(codeInvalidJSON, "", "%s", detail)
	case isField:
		field := clip(failed.Field, 120)
		return bad(field, "%s failed on this request: %s", field, clip(failed.Err.Error(), 200))
	}
	return err
}

// checkHops rejects a request that has passed through too many pushes and hooks.
func (q *request) checkHops() error {
	if webhook.Hops(q.Header) <= webhook.MaxHops {
		return nil
	}
	return event.Problemf(codeLoopDetected, "", "the request has passed more than %d pushes and "+
		"hooks, as its header %s says", webhook.MaxHops, webhook.HopsHeader)
}

// source returns the address that a request came from, behind trusted proxies.
func (q *request) source() netip.Addr {
	remote, err := netip.ParseAddrPort(q.RemoteAddr)
	if err != nil {
		return netip.IPv4Unspecified() // of no network: only in tests without a connection
	}
	return webhook.Source(remote.Addr(), q.Header["X-Forwarded-For"], q.s.opts.TrustedProxies)
}

// verified reads the body and checks its signature.
func (s *Server) verified(q *request, w *compiledWebhook, at time.Time) ([]byte, error) {
	var secrets []string
	if w.Signed() {
		v := w.Definition.VerifyHMAC
		if secrets, _ = s.deps.Secrets.Find(v.SecretEnv, v.SecretFile); len(secrets) == 0 {
			p := event.Problemf(codeSecretMissing, "",
				"this node lacks the secret of webhook %s; its /readyz lists what is missing",
				w.Name)
			p.RetryAfterMS = 60_000
			return nil, p
		}
	}
	body, err := q.bytes(s.opts.MaxPayload)
	if err != nil {
		return nil, err
	}
	return body, w.Verify(q.Header, body, secrets, at)
}

// enqueueHooked enqueues the message. A duplicate is answered as one even if the current schema
// rejects its payload, because the first message was accepted.
func (s *Server) enqueueHooked(
	q *request, w *compiledWebhook, m *webhook.Message, at time.Time, d *wire.WebhookDelivery,
) (outcome string, err error) {
	// The request's Idempotency-Key is meant for the webhook, not for this API.
	q.Header.Del("Idempotency-Key")
	q.who = &principal{name: "webhook:" + w.Name}
	q.hooked(w.Definition.Queue, at)
	defer func() { q.end(err) }()
	b := &batch{noCreate: true, trace: q.ownTrace()}
	if s.deps.Tracer == nil { // no trace begins here, to which the sender's could be linked
		_, b.trace = q.sender()
	}
	if err := s.add(b, &m.NewMessage, m.Original); err != nil {
		return "", err
	}
	var res event.Result
	if err = w.schema.check(payload{q.raw, false}); err == nil {
		res, err = s.enqueue(q, w.Definition.Queue, b)
	}
	if p, ok := err.(*event.Problem); ok && p.Code == codeSchemaMismatch {
		// Only rejected requests need this search; for others the state machine finds duplicates.
		q.clearReadDeadline()
		if err := s.barrier(q.Context()); err != nil {
			return "", err
		}
		v, _ := s.deps.State.Queue(w.Definition.Queue)
		msg := &b.msgs[0]
		msg.PayloadHash = hash([]byte(m.Payload))
		id, lerr := s.originalOf(q.Context(), &v, msg)
		if lerr != nil || id.IsZero() {
			return "", cmp.Or(lerr, error(p.At(-1)))
		}
		res, err = event.Result{Produced: []event.Produced{{ID: id, Duplicate: true}}}, nil
	} else if ok && p.Code == event.CodeQueueNotFound {
		// The sender cannot fix this, but an operator can: let the sender retry.
		p = event.Problemf(p.Code, "", "the webhook's queue is gone; the webhook accepts nothing "+
			"until the queue exists again, or it names another one")
		p.RetryAfterMS = 60_000
		return "", p
	}
	if err != nil {
		return "", err
	}
	q.note(b, &res)
	id := res.Produced[0].ID
	out := wire.Hooked{OK: true, IdempotencyKey: m.IdempotencyKey, MessageID: id.String()}
	d.MessageID = &out.MessageID
	if !res.Produced[0].Duplicate {
		out.Queued = true
		return "queued", q.answer(http.StatusAccepted, &out)
	}
	out.Duplicate = true
	if out.State, out.Result, err = s.firstFate(q.Context(), id); err != nil {
		return "duplicate", err
	}
	return "duplicate", q.answer(http.StatusOK, &out)
}

// forward sends a webhook to its target at once, and returns the target's answer.
func (s *Server) forward(q *request, w *compiledWebhook, m *webhook.Message) error {
	if err := w.schema.check(payload{q.raw, false}); err != nil {
		return err
	}
	q.clearReadDeadline()
	header := http.Header{}
	for name, v := range m.Headers {
		header.Set(name, v)
	}
	header.Set("Content-Type", typeJSON)
	if m.IdempotencyKey != "" && visible(m.IdempotencyKey, 255) {
		header.Set("Idempotency-Key", m.IdempotencyKey)
	}
	ctx, cancel := context.WithTimeout(q.Context(), ForwardTimeout)
	defer cancel()
	a, err := s.deps.Forward.Do(ctx, webhook.Outgoing{
		URL: w.Definition.Target, Header: header, Body: m.Payload,
		Timeout: 2 * ForwardTimeout, MaxAnswer: maxForwarded,
	})
	late, isNet := errors.AsType[net.Error](err)
	switch {
	case webhook.Unsent(err):
		s.log.Warn("webhook target unreachable",
			"webhook", w.Name, "request_id", q.id, "error", err)
		return event.Problemf(codeTargetFailed, "", "the webhook's target could not be reached; "+
			"the server's log has the cause under this request's id")
	case err != nil && (ctx.Err() == context.DeadlineExceeded || isNet && late.Timeout()):
		return unknownOutcome(codeTargetTimeout,
			"the webhook's target did not answer in time; it may have received the request")
	case err != nil && q.Context().Err() != nil:
		return err
	case err != nil:
		s.log.Warn("webhook target gave no answer",
			"webhook", w.Name, "request_id", q.id, "error", err)
		return unknownOutcome(codeTargetFailed, "the webhook's target gave no answer, and may have "+
			"received the request; the server's log has the cause under this request's id")
	case a.Cut:
		return unknownOutcome(codeTargetFailed,
			"the webhook's target answered more than %d bytes", maxForwarded)
	case a.Status < 200 || a.Status > 599:
		return unknownOutcome(codeTargetFailed, "the webhook's target answered status %d", a.Status)
	}
	// In a browser, the answer must not act as a page of this server, which could call the API.
	q.w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	if a.Status == http.StatusNoContent || a.Status == http.StatusNotModified {
		return q.answer(a.Status, nil)
	}
	media := a.Header.Get("Content-Type")
	if media == "" || mediaType("", media) != nil {
		media = "application/octet-stream"
	}
	q.send(a.Status, media, a.Body)
	return nil
}
