package webhook

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Media types of the JSON format.
const (
	CloudEventType = "application/cloudevents+json"
	CloudBatchType = "application/cloudevents-batch+json"
)

const (
	specVersion = "1.0" // the only supported one
	cePrefix    = "ce-" // before an attribute's name as a header
	maxName     = event.MaxHeaderName - len(cePrefix)
	null        = "null" // the payload of an event without data
)

// CloudEvent is an event of CloudEvents 1.0 (cloudevents.io) as qlogd accepts and returns them: in
// the JSON format, structured and batched, and bound to HTTP headers. It is kept as a message: its
// data is the payload, its attributes are the headers ce-NAME.
type CloudEvent struct {
	// Attributes are by name, datacontenttype and specversion among them. A value is a string, an
	// int32 or a bool.
	Attributes map[string]any
	Data       []byte // nil: it has none
	Binary     bool   // Data is bytes, else JSON
}

// Get returns an attribute as text, "" if it is not set.
func (e *CloudEvent) Get(name string) string {
	if v, ok := e.Attributes[name]; ok {
		return fmt.Sprint(v)
	}
	return ""
}

// core are the attributes of the specification itself, which are non-empty strings; required are
// those that every event has.
var (
	required = []string{"specversion", "id", "source", "type"}
	core     = append([]string{"datacontenttype", "dataschema", "subject", "time"}, required...)
)

// names returns the attributes' names: those that are required, then the others, sorted.
func (e *CloudEvent) names() []string {
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(e.Attributes)), func(name string) bool {
		return slices.Contains(required, name)
	})
	return append(slices.Clone(required), others...)
}

// check compares the attributes with the specification. Of several that are wrong it always reports
// the same one.
func (e *CloudEvent) check() error {
	if v, ok := e.Attributes["specversion"]; ok && v != specVersion {
		return bad("specversion", "must be %s", specVersion)
	}
	for _, name := range required {
		if _, ok := e.Attributes[name]; !ok {
			return bad(name, "is required")
		}
	}
	if len(e.Attributes) > event.MaxHeaders {
		return bad("extensions",
			"are too many: an event has at most %d attributes", event.MaxHeaders)
	}
	for _, name := range e.names() {
		if err := checkAttribute(name, e.Attributes[name]); err != nil {
			return err
		}
	}
	return nil
}

var attributeName = regexp.MustCompile(`^[a-z0-9]+$`)

func checkAttribute(name string, value any) error {
	v, text := value.(string)
	isCore := slices.Contains(core, name)
	switch {
	case len(name) > maxName || !attributeName.MatchString(name):
		return bad(echo(name), "is no attribute: names are 1 to %d of a-z and 0-9", maxName)
	case name == "data":
		return bad(name, "is not a name for an attribute")
	case !text && isCore:
		return bad(name, "must be a string")
	case !text:
		return nil
	case len(v) > event.MaxHeaderValue:
		return bad(name, "must be at most %d bytes", event.MaxHeaderValue)
	case !validString(v):
		return bad(name, "must be UTF-8 without control characters")
	case isCore && strings.TrimSpace(v) == "": // blank is as good as empty to others
		return bad(name, "must not be empty")
	}
	ok, want := true, ""
	switch name {
	case "source":
		_, err := url.Parse(v)
		ok, want = err == nil, "a URI reference"
	case "dataschema":
		u, err := url.Parse(v)
		ok, want = err == nil && u.IsAbs(), "an absolute URI"
	case "time":
		_, err := time.Parse(time.RFC3339Nano, v)
		ok, want = err == nil, "an RFC 3339 time such as 2026-01-31T12:00:00Z"
	case "datacontenttype":
		_, _, err := mime.ParseMediaType(v)
		ok, want = err == nil, "a media type such as application/json"
	}
	if !ok {
		return bad(name, "must be %s", want)
	}
	return nil
}

// validString reports whether s is a String of the specification: no control characters,
// surrogates or noncharacters.
func validString(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x20 || r >= 0x7f && r <= 0x9f || r >= 0xfdd0 && r <= 0xfdef ||
			r&0xfffe == 0xfffe
	})
}

// echo shortens a name that a client sent, for an error: without quotes, so that a problem's field
// can be found in the event, and escaped if it is not ASCII.
func echo(s string) string {
	if s == "" {
		return `""`
	}
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

// CloudEventFromJSON reads an event in the JSON format: the members of its object. An attribute
// that is null is not set. An error is an *event.Problem. The data may share the members' memory.
func CloudEventFromJSON(members map[string]jsontext.Value) (*CloudEvent, error) {
	e := &CloudEvent{Attributes: make(map[string]any, len(members))}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		v := members[name]
		if name == "data" || name == "data_base64" {
			continue
		}
		switch v.Kind() {
		case 'n':
		case '"':
			var s string
			if err := json.Unmarshal(v, &s); err != nil {
				return nil, bad(echo(name), "must be a string")
			}
			e.Attributes[name] = s
		case 't', 'f':
			e.Attributes[name] = v.Kind() == 't'
		case '0':
			n, err := strconv.ParseInt(string(v), 10, 32)
			if err != nil {
				return nil, bad(echo(name), "must be a whole number of 32 bits")
			}
			e.Attributes[name] = int32(n)
		default:
			return nil, bad(echo(name), "must be a string, a whole number, or true or false")
		}
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	data, isJSON := members["data"]
	coded, isBytes := members["data_base64"]
	isBytes = isBytes && coded.Kind() != 'n'
	var text string
	switch {
	case isJSON && isBytes:
		return nil, bad("data_base64", "excludes data")
	case isBytes:
		if coded.Kind() != '"' || json.Unmarshal(coded, &text) != nil {
			return nil, bad("data_base64", "must be a string")
		}
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, bad("data_base64", "must be base64 (RFC 4648 section 4)")
		}
		e.Data, e.Binary = append([]byte{}, b...), true // not nil
	case isJSON && data.Kind() == '"' && !isJSONType(e.Get("datacontenttype")):
		// A text of another type, which the format carries as a string: the same event in HTTP's
		// binary mode would have these bytes as its body.
		if err := json.Unmarshal(data, &text); err != nil {
			return nil, bad("data", "must be UTF-8")
		}
		e.Data, e.Binary = []byte(text), true
	case isJSON:
		e.Data = data
	}
	return e, nil
}

// isJSONType reports whether a datacontenttype declares JSON; "" does.
func isJSONType(v string) bool {
	media, _, err := mime.ParseMediaType(v)
	return v == "" ||
		err == nil && (strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json"))
}

// AppendJSON appends the event in the JSON format, the same bytes for the same event.
func (e *CloudEvent) AppendJSON(b []byte) []byte {
	for i, name := range e.names() {
		value, _ := json.Marshal(e.Attributes[name], jsontext.AllowInvalidUTF8(true)) // never fails
		b = fmt.Appendf(b, "%c%q:%s", "{,"[min(i, 1)], name, value)
	}
	switch {
	case e.Data == nil:
	case e.Binary:
		b = fmt.Appendf(b, `,"data_base64":"%s"`, base64.StdEncoding.EncodeToString(e.Data))
	default:
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// IsCloudEvent reports whether HTTP headers, by their canonical names, carry an event: one of the
// attributes that every event has.
func IsCloudEvent(headers map[string][]string) bool {
	for _, name := range [...]string{"Ce-Specversion", "Ce-Id", "Ce-Source", "Ce-Type"} {
		if len(headers[name]) > 0 {
			return true
		}
	}
	return false
}

// CloudEventFromHeaders reads an event in HTTP's binary mode: attributes in headers, the data is
// the body, and Content-Type its type. Without one it is JSON; the caller checks that it is, if
// Binary is false. An error is an *event.Problem.
func CloudEventFromHeaders(headers map[string][]string, body []byte) (*CloudEvent, error) {
	e := &CloudEvent{Attributes: map[string]any{}}
	for header, values := range headers {
		name, ok := strings.CutPrefix(strings.ToLower(header), cePrefix)
		switch {
		case !ok:
		case len(values) > 1:
			return nil, bad(echo(name), "was given %d times", len(values))
		case name == "datacontenttype":
			return nil, bad(name, "is the header Content-Type in binary mode")
		default:
			e.Attributes[name] = decodeValue(values[0])
		}
	}
	if ct := headers["Content-Type"]; len(ct) > 0 && ct[0] != "" {
		e.Attributes["datacontenttype"] = ct[0]
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	if len(body) > 0 {
		e.Data, e.Binary = body, !isJSONType(e.Get("datacontenttype"))
	}
	return e, nil
}

var (
	percent = regexp.MustCompile("%[0-9A-Fa-f]{2}")
	escaped = regexp.MustCompile(`(?s)\\(.)`)
)

// decodeValue decodes an attribute from a header's value: perhaps in double quotes, and
// percent-encoded. A % that encodes nothing stays: some senders, SDKs among them, do not encode.
func decodeValue(v string) string {
	if n := len(v); n >= 2 && v[0] == '"' && v[n-1] == '"' {
		v = escaped.ReplaceAllString(v[1:n-1], "$1")
	}
	return percent.ReplaceAllStringFunc(v, func(code string) string {
		b, _ := hex.DecodeString(code[1:])
		return string(b)
	})
}

// Bind sets the headers of the event in HTTP's binary mode, and returns the body and its type,
// which may be "".
func (e *CloudEvent) Bind(header http.Header) (contentType string, body []byte) {
	for _, name := range e.names() {
		if name != "datacontenttype" {
			header.Set(cePrefix+name, encodeValue(e.Get(name)))
		}
	}
	contentType = e.Get("datacontenttype")
	if contentType == "" && e.Data != nil && !e.Binary {
		contentType = "application/json"
	}
	return contentType, e.Data
}

// encodeValue encodes an attribute as a header's value.
func encodeValue(v string) string {
	var b strings.Builder
	for i := range len(v) {
		if c := v[i]; c <= ' ' || c == '"' || c == '%' || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Headers returns the message headers in which an event's attributes are kept: ce-NAME each, and
// traceparent and tracestate also under their own names, where tracing looks for them. A payload of
// bytes has its own content_type.
func (e *CloudEvent) Headers() map[string]string {
	out := make(map[string]string, len(e.Attributes)+2)
	for name := range e.Attributes {
		if name == "datacontenttype" && e.Binary {
			continue
		}
		out[cePrefix+name] = e.Get(name)
		if name == event.Traceparent || name == event.Tracestate {
			out[name] = e.Get(name)
		}
	}
	return out
}

// Payload returns the message's payload: the data, or null without it.
func (e *CloudEvent) Payload() []byte {
	if e.Data == nil {
		return []byte(null)
	}
	return e.Data
}

// CloudEventOf returns a message as an event; c is nil if its content is erased. One that came as
// an event has its attributes; any other gets an id, a source and a type. Extensions describe the
// message: messageid, queue, enqueuedat, priority, partitionkey, correlationid, and those of its
// other headers whose names can be attributes'. One that is leased has leaseid, leaseexpiresat,
// attempt and, if there is a limit, maxattempts.
func CloudEventOf(m *event.LeasedMessage, c *event.Content) *CloudEvent {
	e := &CloudEvent{Attributes: map[string]any{}}
	if c != nil {
		for _, h := range c.Headers {
			if name, ok := strings.CutPrefix(h.Name, cePrefix); ok {
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
		kept := e.Get("datacontenttype")
		e.Attributes = map[string]any{
			"specversion": specVersion, "id": m.ID.String(), "source": "/queues/" + m.Queue,
			"type": "qlogd.message", "time": stamp(m.EnqueuedAt),
		}
		e.set("type", m.Kind)
		if e.Binary {
			e.set("datacontenttype", kept)
		}
	}
	e.set("messageid", m.ID.String())
	e.set("queue", m.Queue)
	e.set("enqueuedat", stamp(m.EnqueuedAt))
	e.Attributes["priority"] = int32(m.Priority)
	if _, ok := e.Attributes["partitionkey"]; !ok {
		e.set("partitionkey", m.Key)
	}
	if d := m.Dead; d != nil {
		e.set("deadqueue", d.Queue)
		e.set("deadmessageid", d.MessageID.String())
		e.set("deadreason", d.Reason.String())
		e.set("failedat", stamp(d.FailedAt))
	}
	if c == nil {
		e.Attributes["erased"] = true
	} else {
		e.set("correlationid", c.CorrelationID)
		for _, h := range c.Headers {
			_, ok := e.Attributes[h.Name]
			if !ok && !slices.Contains(core, h.Name) && checkAttribute(h.Name, h.Value) == nil {
				e.Attributes[h.Name] = h.Value
			}
		}
	}
	if m.State == event.StateLeased {
		e.set("leaseid", m.Lease.String())
		e.set("leaseexpiresat", stamp(m.LeaseExpiresAt))
		e.Attributes["attempt"] = int32(min(m.Attempt, 1<<31-1))
		delete(e.Attributes, "maxattempts")
		if m.MaxAttempts > 0 {
			e.Attributes["maxattempts"] = int32(m.MaxAttempts)
		}
	}
	return e
}

func stamp(ms int64) string { return wire.Time(ms).String() }

// set sets an attribute to a text, unless that is empty or invalid for it.
func (e *CloudEvent) set(name, v string) {
	if v != "" && checkAttribute(name, v) == nil {
		e.Attributes[name] = v
	}
}
