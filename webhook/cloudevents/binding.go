package cloudevents

import (
	"strings"

	"github.com/qlogd/qlogd/event"
)

// prefix is what an attribute's name has before it as a header.
const prefix = "ce-"

// IsBinding reports whether HTTP headers, by their canonical names, carry an
// event: one of those that every event has.
func IsBinding(headers map[string][]string) bool {
	for _, name := range [...]string{"Ce-Specversion", "Ce-Id", "Ce-Source", "Ce-Type"} {
		if len(headers[name]) > 0 {
			return true
		}
	}
	return false
}

// FromBinding reads an event in HTTP's binary mode: attributes in headers, the
// data is the body, and Content-Type its type. Without one it is JSON; the caller
// checks that it is, where Binary is false. What is wrong is told as an *Error.
func FromBinding(headers map[string][]string, body []byte) (*Event, error) {
	e := &Event{Attributes: map[string]any{}}
	for header, values := range headers {
		if len(header) < len(prefix) || !strings.EqualFold(header[:len(prefix)], prefix) {
			continue
		}
		name := strings.ToLower(header[len(prefix):])
		if len(values) > 1 {
			return nil, wrong(clip(name), "was given %d times", len(values))
		}
		if name == "datacontenttype" {
			return nil, wrong(name, "is the header Content-Type in binary mode")
		}
		e.Attributes[name] = decodeValue(values[0])
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

// decodeValue undoes how an attribute is written as a header's value: perhaps in
// double quotes, and percent-encoded. A % that encodes nothing stays: there are
// senders, SDKs among them, that do not encode.
func decodeValue(v string) string {
	if n := len(v); n >= 2 && v[0] == '"' && v[n-1] == '"' {
		var b strings.Builder
		for i := 1; i < n-1; i++ {
			if v[i] == '\\' && i+1 < n-1 {
				i++
			}
			b.WriteByte(v[i])
		}
		v = b.String()
	}
	if !strings.Contains(v, "%") {
		return v
	}
	var b strings.Builder
	for i := 0; i < len(v); i++ {
		if v[i] == '%' && i+2 < len(v) && unhex(v[i+1]) >= 0 && unhex(v[i+2]) >= 0 {
			b.WriteByte(byte(unhex(v[i+1])<<4 | unhex(v[i+2])))
			i += 2
		} else {
			b.WriteByte(v[i])
		}
	}
	return b.String()
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// Binding returns the event for HTTP's binary mode. Where contentType is "", it
// has none.
func (e *Event) Binding() (headers []event.Header, contentType string, body []byte) {
	for _, name := range e.names() {
		if name == "datacontenttype" {
			contentType = e.Get(name)
			continue
		}
		headers = append(headers, event.Header{Name: prefix + name, Value: encodeValue(e.Get(name))})
	}
	if contentType == "" && e.Data != nil && !e.Binary {
		contentType = "application/json"
	}
	return headers, contentType, e.Data
}

// encodeValue writes an attribute as a header's value.
func encodeValue(v string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(v) {
		if c := v[i]; c <= ' ' || c == '"' || c == '%' || c >= 0x7f {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
