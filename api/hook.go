package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// hookPath is where others' webhooks come in: open to everybody, for they prove
// themselves by a signature.
const hookPath = "/hook/{name}"

// maxForwarded is how much of a target's answer is told.
const maxForwarded = 1 << 20

// hook answers POST /hook/{name}. The order of what is checked is the contract's
// (section 9), and more than courtesy: nothing of a definition is told, and next
// to nothing spent, before the sender has shown that it has the secret.
func (s *Server) hook(q *request) error {
	q.write = true
	at := time.Now()
	w, err := s.hooked(q)
	if err != nil {
		return err // of a name that may be anybody's: not counted by it
	}
	outcome, err := s.take(q, w, at)
	if err != nil {
		switch p, ok := errors.AsType[*event.Problem](err); {
		case ok:
			outcome = p.Code
		case q.Context().Err() != nil:
			outcome = outcomeGone
		case errors.Is(err, context.DeadlineExceeded):
			outcome = codeNoLeader
		default:
			outcome = codeInternal
		}
	}
	s.metrics.hook(w.Name, outcome)
	return err
}

// What became of a request, for metrics; else it is a problem's code.
const (
	outcomeQueued    = "queued"
	outcomeFiltered  = "filtered"
	outcomeDuplicate = "duplicate"
	outcomeForwarded = "forwarded"
	outcomeGone      = "client_gone"
)

// take checks a request, and answers it unless there is an error.
func (s *Server) take(q *request, w *compiledWebhook, at time.Time) (outcome string, err error) {
	source := q.source()
	if !w.Allows(source) {
		return "", event.Problemf(codeIPNotAllowed, "", "webhook %s takes nothing from %s", w.Name, source)
	}
	body, err := s.verified(q, w, at)
	if err != nil {
		return "", err
	}
	payload, err := w.Check(body)
	if err != nil {
		return "", q.notJSON(err)
	}
	req := webhook.Request{Body: body, Headers: w.Headers(q.Header, source, at), Source: source, ReceivedAt: at}
	m, err := w.Message(&req, payload, int(s.opts.MaxPayload))
	if err != nil {
		var failed *webhook.EvalError
		if errors.As(err, &failed) {
			return "", bad(clip(failed.Field, 120), "%s failed on this request: %s", clip(failed.Field, 120), clip(failed.Err.Error(), 200))
		}
		return "", err
	}
	if m.Filtered {
		return outcomeFiltered, q.answer(http.StatusOK, &wire.Hooked{OK: true, Filtered: true})
	}
	if w.Definition.Target != "" {
		return outcomeForwarded, s.forward(q, w, &req, &m)
	}
	return s.enqueueHooked(q, w, &req, &m)
}

// hooked returns the webhook that the path names.
func (s *Server) hooked(q *request) (*compiledWebhook, error) {
	name := q.PathValue("name")
	if !event.ValidName(name) {
		return nil, webhookNotFound(name)
	}
	v, err := s.currentWebhook(q, name)
	if err != nil {
		return nil, err
	}
	return s.hooks.of(&v)
}

// source is the address that a request came from, behind the proxies that are
// trusted.
func (q *request) source() netip.Addr {
	remote, err := netip.ParseAddrPort(q.RemoteAddr)
	if err != nil {
		return netip.IPv4Unspecified() // of no network: only in tests without a connection
	}
	return webhook.Source(remote.Addr(), q.Header["X-Forwarded-For"], q.s.opts.TrustedProxies)
}

// verified reads the body and checks its signature. The body is valid until done.
func (s *Server) verified(q *request, w *compiledWebhook, at time.Time) ([]byte, error) {
	var secrets []string
	if w.Signed() {
		var err error
		if s.deps.Secrets == nil {
			err = errors.New("it was started without any")
		} else {
			secrets, err = s.deps.Secrets.Of(w.Definition.VerifyHMAC)
		}
		if err != nil {
			return nil, &event.Problem{Code: codeSecretMissing, Index: -1, RetryAfterMS: 60_000,
				Detail: "this node lacks the secret of webhook " + w.Name + "; its /readyz says what is missing"}
		}
	}
	body, err := q.bytes(s.opts.MaxPayload)
	if err != nil {
		return nil, err
	}
	err = w.Verify(func(name string) []string { return q.Header[http.CanonicalHeaderKey(name)] }, body, secrets, at)
	switch {
	case errors.Is(err, webhook.ErrStale):
		return nil, event.Problemf(codeStaleTimestamp, "", "%s", clip(err.Error(), 200))
	case err != nil:
		return nil, event.Problemf(codeInvalidSignature, "", "%s", clip(err.Error(), 200))
	}
	return body, nil
}

// notJSON refuses a body, with what to do about the mistake that most make.
func (q *request) notJSON(err error) error {
	detail := clip(err.Error(), 200)
	if q.media == "application/x-www-form-urlencoded" {
		detail += "; it came as a form: let the sender send application/json (GitHub: Content type, in the webhook's settings)"
	}
	return event.Problemf(codeInvalidJSON, "", "%s", detail)
}

// enqueueHooked makes the message. A duplicate is answered as one even where the
// payload would be refused or the queue is full: its sender has been served.
func (s *Server) enqueueHooked(q *request, w *compiledWebhook, req *webhook.Request, m *webhook.Message) (outcome string, err error) {
	msg, payload, err := s.hookMessage(req, m)
	if err != nil {
		return "", err
	}
	b := &batch{msgs: []event.NewMessage{msg}, payloads: [][]byte{payload}, binary: []bool{false}}
	refused := s.fitsSchema(w, req.Body)
	for range maxStale {
		p := event.Produce{Queue: w.Definition.Queue, Messages: b.msgs}
		if refused == nil {
			refused = s.fit(q, &p, b)
		}
		if refused != nil {
			return outcomeDuplicate, s.orDuplicate(q, w, m, &msg, refused)
		}
		res, err := s.proposeHooked(q, w, &p)
		if isStale(err) {
			q.unhurried()
			if err := s.barrier(q.Context()); err != nil {
				return "", err
			}
			continue
		}
		if err != nil {
			return "", hookRefusal(err)
		}
		if first := res.Produced[0]; first.Duplicate {
			return outcomeDuplicate, s.answerDuplicate(q, m, first.ID)
		}
		return outcomeQueued, q.answerQueued(m, res.Produced[0].ID)
	}
	return "", event.Problemf(event.CodeConflict, "queue", "the policy of %s keeps changing; try again", echo(w.Definition.Queue))
}

// answerQueued writes a wire.Hooked.
func (q *request) answerQueued(m *webhook.Message, id event.ID) error {
	return q.answer(http.StatusAccepted, &wire.Hooked{OK: true, Queued: true, IdempotencyKey: m.IdempotencyKey, MessageID: id.String()})
}

// hookMessage encodes the message once.
func (s *Server) hookMessage(req *webhook.Request, m *webhook.Message) (event.NewMessage, []byte, error) {
	payload := bytes.TrimSpace(m.Payload)
	in := wire.NewMessage{Payload: payload, Key: m.Key, Kind: m.Kind, IdempotencyKey: m.IdempotencyKey, Headers: req.Headers}
	if m.Priority > 0 {
		n := int64(m.Priority)
		in.Priority = &n
	}
	var original []byte
	if m.Mapped {
		original = bytes.TrimSpace(req.Body)
	}
	msg, err := s.newMessage(&in, payload, original)
	return msg, payload, err
}

// proposeHooked gets the message enqueued. The request's own Idempotency-Key, if
// it has one, is its sender's business with the webhook, not with this API.
func (s *Server) proposeHooked(q *request, w *compiledWebhook, p *event.Produce) (event.Result, error) {
	ctx, cancel := s.deadline(q.Context())
	defer cancel()
	res, err := s.propose(ctx, &event.Command{Actor: "webhook:" + w.Name, Produce: p}, "")
	if err == nil {
		q.w.Header().Set("X-Qlogd-Index", strconv.FormatUint(res.Index, 10))
	}
	return res, err
}

// hookRefusal is a refusal as the sender of a webhook has to hear it: what it
// can't help, an operator can, so it is to try again.
func hookRefusal(err error) error {
	p, ok := err.(*event.Problem)
	if !ok || p.Code != event.CodeQueueNotFound {
		return err
	}
	out := *p
	out.Field, out.RetryAfterMS = "", 60_000
	out.Detail = "the webhook's queue is gone; it takes nothing until it names another one, or that is made again"
	return &out
}

// fitsSchema checks the body against the webhook's own schema.
func (s *Server) fitsSchema(w *compiledWebhook, body []byte) error {
	if w.schema == nil {
		return nil
	}
	return w.schema.check("the webhook's payload_schema", one(body))
}

// orDuplicate answers what was refused, unless its first message was taken
// before. Only what is refused costs this look; else deciding looks.
func (s *Server) orDuplicate(q *request, w *compiledWebhook, m *webhook.Message, msg *event.NewMessage, refused error) error {
	if p, ok := refused.(*event.Problem); !ok || p.Code != codeSchemaMismatch {
		return hookRefusal(refused)
	}
	q.unhurried()
	if err := s.barrier(q.Context()); err != nil {
		return err
	}
	v, ok := s.deps.State.Queue(w.Definition.Queue)
	if !ok {
		return hookRefusal(queueNotFound(w.Definition.Queue))
	}
	id, found, err := s.firstOf(&v, msg, m.Payload)
	if err != nil {
		return err
	}
	if found {
		return s.answerDuplicate(q, m, id)
	}
	p := *refused.(*event.Problem)
	p.Index = -1 // of one
	return &p
}

func (s *Server) answerDuplicate(q *request, m *webhook.Message, id event.ID) error {
	out := wire.Hooked{OK: true, Duplicate: true, IdempotencyKey: m.IdempotencyKey, MessageID: id.String()}
	state, result, err := s.fate(q.Context(), id)
	if err != nil {
		return err
	}
	if state != event.StateNone {
		out.State = state.String()
	}
	out.Result = result
	return q.answer(http.StatusOK, &out)
}

// forward sends a webhook on at once, and answers what its target answers.
func (s *Server) forward(q *request, w *compiledWebhook, req *webhook.Request, m *webhook.Message) error {
	if err := s.fitsSchema(w, req.Body); err != nil {
		return err
	}
	if s.deps.Forward == nil {
		return event.Problemf(codeTargetFailed, "", "this node forwards nothing")
	}
	q.unhurried()
	header := http.Header{}
	for name, v := range req.Headers {
		header.Set(name, v)
	}
	header.Set("Content-Type", typeJSON)
	if m.IdempotencyKey != "" && visible(m.IdempotencyKey, 255) {
		header.Set("Idempotency-Key", m.IdempotencyKey)
	}
	a, err := s.deps.Forward.Forward(q.Context(), w.Definition.Target, header, bytes.TrimSpace(m.Payload))
	switch {
	case err != nil && errors.Is(err, ErrNotForwarded):
		s.log.Warn("a webhook's target could not be reached", "webhook", w.Name, "request_id", q.id, "error", err)
		return event.Problemf(codeTargetFailed, "", "the webhook's target could not be reached; the server's log tells more under this request's id")
	case err != nil && errors.Is(err, context.DeadlineExceeded):
		return perhaps(codeTargetTimeout, "the webhook's target did not answer in time; it may have had the request")
	case err != nil && q.Context().Err() != nil:
		return err
	case err != nil:
		s.log.Warn("a webhook's target gave no answer", "webhook", w.Name, "request_id", q.id, "error", err)
		return perhaps(codeTargetFailed, "the webhook's target gave no answer, and may have had the request; the server's log tells more under this request's id")
	case a.Cut:
		return perhaps(codeTargetFailed, "the webhook's target answered more than %d bytes", maxForwarded)
	case a.Status < 200 || a.Status > 599:
		return perhaps(codeTargetFailed, "the webhook's target answered status %d", a.Status)
	}
	// It is the target's, under this server's address: a browser is to take it for
	// no page of this server's, which may call the API.
	q.w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox")
	media := a.ContentType
	if media == "" || len(media) > maxContentType || !printable(media) {
		media = "application/octet-stream"
	}
	if a.Status == http.StatusNoContent || a.Status == http.StatusNotModified {
		q.status = a.Status
		q.w.WriteHeader(a.Status)
		return nil
	}
	q.send(a.Status, media, a.Body)
	return nil
}

// perhaps is a problem after which the target may have done what was asked.
func perhaps(code, format string, args ...any) error {
	p := event.Problemf(code, "", format, args...)
	p.Unknown = true
	return p
}

// hookStatus is what a code means at /hook, where that is something else: who
// sends webhooks tries again after a 503.
func hookStatus(path, code string) bool {
	return path == hookPath && (code == event.CodeQueueFull || code == event.CodeQueueNotFound)
}
