// Package cloudevents is CloudEvents 1.0 (cloudevents.io) as qlogd takes and
// gives them: its JSON format, structured and batched, and its binding to HTTP
// headers. It does not know HTTP itself.
//
// An event is kept as a message: its data is the payload, its attributes are the
// headers ce-NAME (Headers, Of).
package cloudevents

import (
	"fmt"
	"mime"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/qlogd/qlogd/event"
)

// Media types of the JSON format.
const (
	TypeEvent = "application/cloudevents+json"
	TypeBatch = "application/cloudevents-batch+json"
)

// SpecVersion is the one version that is understood.
const SpecVersion = "1.0"

// Event is one event: its attributes, and its data.
type Event struct {
	// Attributes are by name, datacontenttype and specversion among them. A value
	// is a string, an int32 or a bool.
	Attributes map[string]any
	Data       []byte // nil: it has none
	Binary     bool   // Data is bytes, else JSON
}

// Error says which attribute of an event is wrong, and why.
type Error struct{ Attribute, Why string }

func (e *Error) Error() string { return e.Attribute + " " + e.Why }

func wrong(attribute, format string, args ...any) error {
	return &Error{attribute, fmt.Sprintf(format, args...)}
}

// Get returns an attribute as text, "" where it is not set.
func (e *Event) Get(name string) string {
	switch v := e.Attributes[name].(type) {
	case string:
		return v
	case int32:
		return strconv.Itoa(int(v))
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}

// maxName is how long an attribute's name can be: it becomes a header's.
const maxName = event.MaxHeaderName - len(prefix)

// check holds the attributes against the specification. Which one is told of
// several that are wrong does not depend on chance.
func (e *Event) check() error {
	if v, ok := e.Attributes["specversion"]; ok && v != SpecVersion {
		return wrong("specversion", "must be %s", SpecVersion)
	}
	for _, name := range [...]string{"specversion", "id", "source", "type"} {
		if _, ok := e.Attributes[name]; !ok {
			return wrong(name, "is required")
		}
	}
	if len(e.Attributes) > event.MaxHeaders-1 { // traceparent may become another one
		return wrong("extensions", "are too many: an event has at most %d attributes", event.MaxHeaders-1)
	}
	for _, name := range e.names() {
		if err := e.checkOne(name); err != nil {
			return err
		}
	}
	return nil
}

func (e *Event) checkOne(name string) error {
	if !validName(name) {
		return wrong(clip(name), "is no attribute: names are 1 to %d of a-z and 0-9", maxName)
	}
	if name == "data" {
		return wrong(name, "is not a name for an attribute")
	}
	v, text := e.Attributes[name].(string)
	if !text {
		if core[name] {
			return wrong(name, "must be a string")
		}
		return nil
	}
	if len(v) > event.MaxHeaderValue {
		return wrong(name, "must be at most %d bytes", event.MaxHeaderValue)
	}
	if !validString(v) {
		return wrong(name, "must be UTF-8 without control characters")
	}
	if core[name] && strings.TrimSpace(v) == "" {
		return wrong(name, "must not be empty") // nor blank, which is as good as empty to others
	}
	switch name {
	case "source":
		if _, err := url.Parse(v); err != nil {
			return wrong(name, "must be a URI reference")
		}
	case "dataschema":
		if u, err := url.Parse(v); err != nil || !u.IsAbs() {
			return wrong(name, "must be an absolute URI")
		}
	case "time":
		if _, err := time.Parse(time.RFC3339Nano, v); err != nil {
			return wrong(name, "must be an RFC 3339 time such as 2026-01-31T12:00:00Z")
		}
	case "datacontenttype":
		if _, _, err := mime.ParseMediaType(v); err != nil {
			return wrong(name, "must be a media type such as application/json")
		}
	}
	return nil
}

// core are the attributes of the specification itself, which are strings and
// never empty.
var core = map[string]bool{
	"specversion": true, "id": true, "source": true, "type": true,
	"datacontenttype": true, "dataschema": true, "subject": true, "time": true,
}

func validName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// validString reports whether s is a String of the specification: no control
// characters, surrogates or noncharacters.
func validString(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < 0x20 || r >= 0x7f && r <= 0x9f || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return false
		}
	}
	return true
}

// clip shortens a name that a client sent, to be told: without quotes, for a
// problem's field is to be found in the event, and escaped where it is not ASCII.
func clip(s string) string {
	if len(s) > 60 {
		s = s[:60] + "…"
	}
	q := strconv.QuoteToASCII(s)
	if s == "" {
		return q
	}
	return q[1 : len(q)-1]
}
