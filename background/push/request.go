package push

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/webhook"
)

// target is a queue's push, ready for use.
type target struct {
	wire.Push
	input       *webhook.Object // nil: the payload as it is
	header      http.Header
	timeout     time.Duration
	leaseMS     int64
	deadLetters bool // the queue has a dead-letter queue
}

// The shortest and the longest lease. It is extended at a third of it, and each extension is an
// entry, so it is not too short; and what was in flight when this node died waits for its end, so
// it is not too long.
const (
	minLeaseMS = 3_000
	maxLeaseMS = 15_000
)

// newTarget reads a policy's push, which Check has accepted.
func newTarget(p *event.Policy) (*target, error) {
	t := &target{
		header: http.Header{}, leaseMS: min(max(p.LeaseMS, minLeaseMS), maxLeaseMS),
		deadLetters: p.DeadLetterQueue != "",
	}
	if err := wire.Decode(p.Push, &t.Push); err != nil {
		return nil, err
	}
	var err error
	if t.input, err = compile(t.Input); err != nil {
		return nil, err
	}
	for name, v := range t.Headers {
		t.header.Set(name, v)
	}
	t.timeout = time.Duration(t.TimeoutMS) * time.Millisecond
	return t, nil
}

// request returns the request of a delivery. Its id, in Webhook-Id and in Idempotency-Key, is the
// message's in its queue: the same at each attempt, by any node, so that a target can recognise
// what it has already done. A replay asks for the work again, perhaps with another payload: it has
// another id.
func (t *target) request(m *event.LeasedMessage, c *event.Content, keys [][]byte, now time.Time,
	maxBody int) (webhook.Outgoing, error) {
	r := webhook.Outgoing{URL: t.URL, Header: t.header.Clone(), Timeout: t.timeout}
	media, body := "application/json", c.Payload
	if c.Binary {
		if media = c.ContentType; media == "" {
			media = "application/octet-stream"
		}
	} else if len(body) == 0 {
		body = []byte("null")
	}
	if t.input != nil {
		vars, err := newVars(m, c)
		if err != nil {
			return r, err
		}
		if body, err = t.input.Eval(vars, maxBody); err != nil {
			return r, fmt.Errorf("push.%w", err)
		}
		media = "application/json"
	}
	if t.Format != formatPayload {
		e := webhook.CloudEventOf(&m.MessageView, c)
		e.Deliver(m.Lease, m.LeaseExpiresAt, m.Attempt, m.MaxAttempts)
		if t.input != nil {
			e.Data, e.Binary = body, false
			delete(e.Attributes, "datacontenttype")
		}
		if t.Format == formatEvent {
			media, body = webhook.CloudEventType, e.AppendJSON(nil)
		} else {
			var attributes []event.Header
			attributes, media, body = e.Binding()
			for _, a := range attributes {
				r.Header.Set(a.Name, a.Value)
			}
		}
	}
	if media != "" && (r.Header.Get("Content-Type") == "" || t.Format != formatPayload) {
		r.Header.Set("Content-Type", media)
	}
	for _, h := range c.Headers { // of W3C Trace Context, so that a trace continues at the target
		if h.Name == "traceparent" || h.Name == "tracestate" {
			r.Header.Set(h.Name, h.Value)
		}
	}
	id := m.ID.String()
	r.Header.Set("Idempotency-Key", id)
	r.Header.Set("Webhook-Id", id)
	r.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	r.Header.Set("Qlogd-Queue", m.Queue)
	r.Header.Set("Qlogd-Attempt", strconv.FormatUint(uint64(m.Attempt), 10))
	if len(keys) > 0 {
		r.Header.Set("Webhook-Signature", webhook.SignStandard(keys, id, now, body))
	}
	r.Body = body
	return r, nil
}

// newVars returns the variables of input's expressions. A payload of bytes is null.
func newVars(m *event.LeasedMessage, c *event.Content) (map[string]any, error) {
	var payload any
	if !c.Binary && len(c.Payload) > 0 {
		var err error
		if payload, err = webhook.ParseJSON(c.Payload); err != nil {
			return nil, fmt.Errorf("push.input: the payload: %w", err)
		}
	}
	headers := make(map[string]string, len(c.Headers))
	for _, h := range c.Headers {
		headers[h.Name] = h.Value
	}
	return map[string]any{
		"payload": payload, "headers": headers, "id": m.ID.String(), "key": m.Key, "queue": m.Queue,
		"kind": m.Kind, "attempt": int64(m.Attempt),
		"enqueued_at": time.UnixMilli(m.EnqueuedAt).UTC(),
	}, nil
}

// maxKeys bounds how many signatures a request has.
const maxKeys = 16

// keysOf reads the keys of Standard Webhooks in secrets, each of which may have several
// (webhook.Parts): a target looks for one signature that it knows. No error repeats any of them.
func keysOf(secrets []string) (keys [][]byte, err error) {
	for _, text := range secrets {
		for _, s := range webhook.Parts(text) {
			found := webhook.StandardKeys(s)
			if len(found) == 0 && s != webhook.StandardPrefix {
				return nil, errors.New("a secret is not base64 behind " + webhook.StandardPrefix)
			}
			for _, key := range found {
				same := func(k []byte) bool { return bytes.Equal(k, key) }
				if len(key) > 0 && !slices.ContainsFunc(keys, same) {
					keys = append(keys, key)
				}
			}
		}
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("it is empty")
	case len(keys) > maxKeys:
		return nil, errors.New("there are too many secrets")
	}
	return keys, nil
}
