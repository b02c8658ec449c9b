package api

import (
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/transcode"
	"github.com/qlogd/qlogd/webhook"
)

// isEvents reports whether the body has CloudEvents, by its media type or by attributes in headers.
func (q *request) isEvents() bool {
	return q.media == webhook.CloudEventType || q.media == webhook.CloudBatchType ||
		webhook.IsCloudEvent(q.Header)
}

// eventBatch reads CloudEvents as messages. The query has the message fields that CloudEvents lack.
func (q *request) eventBatch() (*batch, error) {
	batched := q.media == webhook.CloudBatchType
	given := q.metadata("key", "priority", "delay_ms", "deliver_at", "ttl_ms", "correlation_id",
		"idempotency_key")
	if batched && given.IdempotencyKey != "" {
		q.refuse("idempotency_key", "idempotency_key goes with one event; in a batch their source "+
			"and id distinguish them")
	}
	events := get(q, q.readEvents)
	b := &batch{trace: q.traceContext()}
	for i, e := range events {
		err := q.addEvent(b, *given, e)
		if p, ok := err.(*event.Problem); ok && batched {
			return nil, p.At(i)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, q.err
}

// readEvents reads the body by its media type.
func (q *request) readEvents() ([]*webhook.CloudEvent, error) {
	batched := q.media == webhook.CloudBatchType
	if batched || q.media == webhook.CloudEventType {
		list := make([]map[string]jsontext.Value, 1)
		into := any(&list)
		if !batched {
			into = &list[0]
		}
		if err := q.decode(into, false, q.media); err != nil {
			return nil, err
		}
		out := make([]*webhook.CloudEvent, len(list))
		err := batchSize("events", len(list))
		for i := 0; err == nil && i < len(list); i++ {
			out[i], err = webhook.CloudEventFromJSON(list[i])
			if p, ok := err.(*event.Problem); ok && batched {
				return nil, p.At(i)
			}
		}
		return out, err
	}
	body, err := q.bytes(q.s.opts.MaxPayload)
	if err != nil {
		return nil, err
	}
	e, err := webhook.CloudEventFromHeaders(q.Header, body)
	if err == nil && e.Data != nil && !e.Binary {
		var v jsontext.Value
		err = decodeStrict(body, &v, codeInvalidJSON)
		if transcode.TooDeep(body, transcode.MaxDepth) {
			err.(*event.Problem).Field = "data"
		}
	}
	return []*webhook.CloudEvent{e}, err
}

// addEvent adds an event to a batch as a message. Events with the same source and id are duplicates
// (CloudEvents 1.0, section 3.1.1), unless the query has an idempotency_key.
func (q *request) addEvent(b *batch, m wire.NewMessage, e *webhook.CloudEvent) error {
	if e.Binary {
		m.PayloadBytes, m.ContentType = e.Payload(), e.Get("datacontenttype")
	} else {
		m.Payload = e.Payload()
	}
	m.Kind, m.Headers = e.Get("type"), e.Headers()
	if len(m.Kind) > maxKind {
		return bad("type", "type must be at most %d bytes, not %d: "+
			"it is the message's kind", maxKind, len(m.Kind))
	}
	if key := e.Get("partitionkey"); len(key) > event.MaxKeyBytes {
		return bad("partitionkey", "partitionkey must be at most %d bytes, "+
			"not %d: it is the message's key", event.MaxKeyBytes, len(key))
	} else if key != "" {
		m.Key = key
	}
	q.link(m.Headers)
	err := q.s.add(b, &m, nil)
	if err == nil && m.IdempotencyKey == "" {
		// No idempotency_key contains 0xff, because it is UTF-8.
		key := hash("\xffcloudevent\x00", e.Get("source"), "\x00", e.Get("id"))
		b.msgs[len(b.msgs)-1].DedupKey = key
	}
	return err
}

// answerEvents writes leased messages as a batch of CloudEvents.
func (q *request) answerEvents(leased []event.LeasedMessage, contents []*event.Content) error {
	b := []byte{'['}
	for i := range leased {
		if i > 0 {
			b = append(b, ',')
		}
		b = webhook.CloudEventOf(&leased[i], contents[i]).AppendJSON(b)
	}
	return q.sendEvents(webhook.CloudBatchType, append(b, ']'))
}

// answerEvent writes one message as a CloudEvent, or as a batch of one.
func (q *request) answerEvent(media string, v *event.MessageView) error {
	c, err := q.s.content(v.Content)
	if err != nil {
		return err
	}
	one := []event.LeasedMessage{{MessageView: *v}}
	if media == webhook.CloudBatchType {
		return q.answerEvents(one, []*event.Content{c})
	}
	return q.sendEvents(media, webhook.CloudEventOf(&one[0], c).AppendJSON(nil))
}

func (q *request) sendEvents(media string, b []byte) error {
	q.send(http.StatusOK, media+"; charset=utf-8", b)
	return nil
}
