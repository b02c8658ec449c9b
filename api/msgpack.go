package api

import (
	"errors"
	"net/http"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/coding"
)

// form is how an answer is written.
type form uint8

const (
	asJSON form = iota
	// asMsgpack is the JSON in msgpack: byte payloads are base64 strings.
	asMsgpack
	// asKept has payloads and results as they are kept: bytes as bin, JSON as the
	// extension type 74 with its text.
	asKept
)

// msgpackRoutes are the paths of produce, lease and settle calls.
var msgpackRoutes = map[string]bool{
	"/v1/queues/{queue}/messages": true, "/v1/queues/{queue}/lease": true, "/v1/lease": true, "/v1/transactions": true,
}

func init() {
	for name := range settleKinds {
		msgpackRoutes["/v1/queues/{queue}/"+name] = true
		msgpackRoutes["/v1/leases/{lease_id}/"+name] = true
	}
}

func isMsgpack(media string) bool {
	return media == typeMsgpack || media == "application/x-msgpack" || media == "application/vnd.msgpack"
}

// form is how the client wants the answer, where the route gives it so.
func (q *request) form() form {
	accept := q.Header["Accept"]
	if len(accept) == 0 || q.Method != http.MethodPost || !msgpackRoutes[q.path] {
		return asJSON
	}
	if accept[0] == wire.AcceptMsgpack {
		return asKept
	}
	for _, h := range accept {
		for part := range strings.SplitSeq(h, ",") {
			media, params, _ := strings.Cut(strings.ToLower(part), ";")
			if !isMsgpack(strings.TrimSpace(media)) {
				continue
			}
			for p := range strings.SplitSeq(params, ";") {
				name, v, _ := strings.Cut(p, "=")
				if strings.TrimSpace(name) == "payload" && strings.Trim(v, " \t\"") == "bin" {
					return asKept
				}
			}
			return asMsgpack
		}
	}
	return asJSON
}

// unpack reads msgpack that is wrong, or written in one of the ways that
// wire.DecodeRequest does not know (a whole number as a float, a text as bin), by
// way of JSON: one validation, and the same words for both.
func (q *request) unpack(b []byte, v any) error {
	limit := int(2 * q.s.opts.MaxRequest)
	text, err := coding.ToJSON(nil, b, limit)
	switch {
	case errors.Is(err, coding.ErrTooLarge):
		return event.Problemf(codePayloadTooLarge, "", "the body is larger than %d bytes as JSON", limit)
	case err != nil:
		return event.Problemf(codeInvalidMsgpack, "", "%s", err)
	case coding.TooDeep(text, coding.MaxDepth):
		return event.Problemf(codeInvalidMsgpack, "", "the body is nested deeper than %d", coding.MaxDepth)
	}
	return decodeProblem(wire.Decode(text, v), codeInvalidMsgpack)
}

// packJSON appends JSON that users wrote.
func packJSON(b []byte, form form, v []byte) ([]byte, error) {
	if form == asKept {
		return coding.AppendJSONText(b, v), nil
	}
	return coding.AppendJSON(b, v)
}

// packProduced appends a wire.Produced.
func (s *Server) packProduced(b []byte, q *request, form form, p *event.Produced) ([]byte, error) {
	if !p.Duplicate {
		b = packID(coding.AppendStr(coding.AppendMap(b, 2), "id"), p.ID)
		return coding.AppendStr(coding.AppendStr(b, "status"), wire.Enqueued), nil
	}
	state, result, err := s.fate(q.Context(), p.ID)
	if err != nil {
		return nil, err
	}
	n := 2
	if state != event.StateNone {
		n++
	}
	if result != nil {
		n++
	}
	b = packID(coding.AppendStr(coding.AppendMap(b, n), "id"), p.ID)
	b = coding.AppendStr(coding.AppendStr(b, "status"), wire.Duplicate)
	if state != event.StateNone {
		b = coding.AppendStr(coding.AppendStr(b, "state"), state.String())
	}
	if result != nil {
		return packJSON(coding.AppendStr(b, "result"), form, result)
	}
	return b, nil
}

// packLeased appends a wire.LeasedMessage.
func (s *Server) packLeased(b []byte, form form, m *event.LeasedMessage, c *event.Content) (_ []byte, err error) {
	n := 14
	if c == nil || c.Binary && c.ContentType != "" {
		n++
	}
	if c != nil && len(c.Original) > 0 {
		n++
	}
	b = packID(coding.AppendStr(coding.AppendMap(b, n), "id"), m.ID)
	b = packID(coding.AppendStr(b, "lease_id"), m.Lease)
	b = coding.AppendStr(coding.AppendStr(b, "queue"), m.Queue)
	b = coding.AppendStr(coding.AppendStr(b, "key"), m.Key)
	b = coding.AppendUint(coding.AppendStr(b, "attempt"), uint64(m.Attempt))
	b = coding.AppendUint(coding.AppendStr(b, "max_attempts"), uint64(m.MaxAttempts))
	b = coding.AppendUint(coding.AppendStr(b, "priority"), uint64(m.Priority))
	b = coding.AppendStr(coding.AppendStr(b, "kind"), m.Kind)
	b = coding.AppendStr(b, "headers")
	correlation := ""
	if c == nil {
		b = coding.AppendMap(b, 0)
	} else {
		correlation = c.CorrelationID
		b = coding.AppendMap(b, len(c.Headers))
		for _, h := range c.Headers {
			b = coding.AppendStr(coding.AppendStr(b, h.Name), h.Value)
		}
	}
	switch {
	case c == nil:
		b = coding.AppendNil(coding.AppendStr(b, "payload"))
		b = coding.AppendBool(coding.AppendStr(b, "erased"), true)
	case c.Binary:
		b = coding.AppendStr(b, "payload_base64")
		if form == asKept {
			b = coding.AppendBin(b, c.Payload)
		} else {
			b = coding.AppendBase64(b, c.Payload)
		}
		if c.ContentType != "" {
			b = coding.AppendStr(coding.AppendStr(b, "content_type"), c.ContentType)
		}
	case len(c.Payload) == 0:
		b = coding.AppendNil(coding.AppendStr(b, "payload"))
	default:
		if b, err = packJSON(coding.AppendStr(b, "payload"), form, c.Payload); err != nil {
			return nil, err
		}
	}
	if c != nil && len(c.Original) > 0 {
		if b, err = packJSON(coding.AppendStr(b, "original"), form, c.Original); err != nil {
			return nil, err
		}
	}
	b = packTime(coding.AppendStr(b, "enqueued_at"), m.EnqueuedAt)
	b = packTime(coding.AppendStr(b, "lease_expires_at"), m.LeaseExpiresAt)
	b = coding.AppendStr(coding.AppendStr(b, "correlation_id"), correlation)
	b = coding.AppendStr(b, "dead")
	if m.Dead == nil {
		return coding.AppendNil(b), nil
	}
	dead, err := s.deadOf(&m.MessageView)
	if err != nil {
		return nil, err
	}
	return wire.AppendMsgpack(b, dead)
}

func packID(b []byte, id event.ID) []byte {
	b = append(b, 0xa0|26)
	return appendID(b, id)
}

// packTime appends a time, Unix ms, or nil.
func packTime(b []byte, ms int64) []byte {
	if ms == 0 {
		return coding.AppendNil(b)
	}
	b = append(b, 0xa0|byte(len(wire.TimeFormat)))
	return wire.Time(ms).Append(b)
}
