package cloudevents

import (
	"strings"
	"time"

	"github.com/qlogd/qlogd/event"
)

// timeFormat is how times that qlogd tells are written.
const timeFormat = "2006-01-02T15:04:05.000Z"

// null is the payload of an event without data.
const null = "null"

// Headers returns the message headers in which an event's attributes are kept:
// ce-NAME each, and traceparent and tracestate as such too, where tracing looks
// for them. A payload of bytes has its own content_type.
func (e *Event) Headers() map[string]string {
	out := make(map[string]string, len(e.Attributes)+2)
	for name := range e.Attributes {
		if name == "datacontenttype" && e.Binary {
			continue
		}
		out[prefix+name] = e.Get(name)
		if name == "traceparent" || name == "tracestate" {
			out[name] = e.Get(name)
		}
	}
	return out
}

// Payload returns the message's payload: the data, or null where there is none.
func (e *Event) Payload() []byte {
	if e.Data == nil {
		return []byte(null)
	}
	return e.Data
}

// Of returns a message as an event; c is nil where its content is erased. One
// that came as an event has its attributes; any other gets an id, a source and a
// type. Extensions tell of the message: messageid, queue, enqueuedat, priority,
// partitionkey, correlationid, and those of its other headers whose names can be
// attributes'.
func Of(m *event.MessageView, c *event.Content) *Event {
	e := &Event{Attributes: map[string]any{}}
	if c != nil {
		for _, h := range c.Headers {
			if name, ok := strings.CutPrefix(h.Name, prefix); ok {
				e.Attributes[name] = h.Value
			}
		}
		e.Data, e.Binary = c.Payload, c.Binary
		switch {
		case c.Binary && c.ContentType != "":
			e.Attributes["datacontenttype"] = c.ContentType
		case c.Binary:
			delete(e.Attributes, "datacontenttype")
			if e.Data == nil {
				e.Data = []byte{}
			}
		case len(c.Payload) == 0 || string(c.Payload) == null:
			e.Data = nil
		}
	}
	if e.check() != nil {
		kept := e.Attributes["datacontenttype"]
		e.Attributes = map[string]any{
			"specversion": SpecVersion, "id": m.ID.String(), "source": "/queues/" + m.Queue, "type": "qlogd.message",
			"time": time.UnixMilli(m.EnqueuedAt).UTC().Format(timeFormat),
		}
		if m.Kind != "" {
			e.set("type", m.Kind)
		}
		if e.Binary && kept != nil {
			e.set("datacontenttype", kept.(string))
		}
	}
	e.set("messageid", m.ID.String())
	e.set("queue", m.Queue)
	e.set("enqueuedat", time.UnixMilli(m.EnqueuedAt).UTC().Format(timeFormat))
	e.Attributes["priority"] = int32(m.Priority)
	if _, ok := e.Attributes["partitionkey"]; !ok && m.Key != "" {
		e.set("partitionkey", m.Key)
	}
	if d := m.Dead; d != nil {
		e.set("deadqueue", d.Queue)
		e.set("deadmessageid", d.MessageID.String())
		e.set("deadreason", d.Reason.String())
		e.set("failedat", time.UnixMilli(d.FailedAt).UTC().Format(timeFormat))
	}
	if c == nil {
		e.Attributes["erased"] = true
		return e
	}
	if c.CorrelationID != "" {
		e.set("correlationid", c.CorrelationID)
	}
	for _, h := range c.Headers {
		if _, ok := e.Attributes[h.Name]; !ok && !core[h.Name] && h.Name != "data" {
			e.set(h.Name, h.Value)
		}
	}
	return e
}

// Deliver adds what one delivery is about: leaseid, leaseexpiresat, attempt and
// maxattempts, unless that has no limit. expires is Unix ms.
func (e *Event) Deliver(lease event.ID, expires int64, attempt, maxAttempts uint32) {
	e.set("leaseid", lease.String())
	e.set("leaseexpiresat", time.UnixMilli(expires).UTC().Format(timeFormat))
	e.Attributes["attempt"] = int32(min(attempt, 1<<31-1))
	delete(e.Attributes, "maxattempts")
	if maxAttempts > 0 {
		e.Attributes["maxattempts"] = int32(min(maxAttempts, 1<<31-1))
	}
}

// set sets an attribute where it can be one.
func (e *Event) set(name, v string) {
	old, had := e.Attributes[name]
	e.Attributes[name] = v
	if e.checkOne(name) == nil {
		return
	}
	if had {
		e.Attributes[name] = old
	} else {
		delete(e.Attributes, name)
	}
}
