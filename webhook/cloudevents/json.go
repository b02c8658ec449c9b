package cloudevents

import (
	"encoding/base64"
	"maps"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// FromJSON reads an event in the JSON format: the members of its object. null is
// an attribute that is not set. What is wrong is told as an *Error. The data may
// share the members' memory.
func FromJSON(members map[string]jsontext.Value) (*Event, error) {
	e := &Event{Attributes: make(map[string]any, len(members))}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		v := members[name]
		if name == "data" || name == "data_base64" {
			continue
		}
		switch v.Kind() {
		case 'n':
			continue
		case '"':
			var s string
			if err := json.Unmarshal(v, &s); err != nil {
				return nil, wrong(clip(name), "must be a string")
			}
			e.Attributes[name] = s
		case 't', 'f':
			e.Attributes[name] = v.Kind() == 't'
		case '0':
			n, err := strconv.ParseInt(string(v), 10, 32)
			if err != nil {
				return nil, wrong(clip(name), "must be a whole number of 32 bits")
			}
			e.Attributes[name] = int32(n)
		default:
			return nil, wrong(clip(name), "must be a string, a whole number, or true or false")
		}
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	data, isJSON := members["data"]
	coded, isBytes := members["data_base64"]
	if isBytes && coded.Kind() == 'n' {
		isBytes = false
	}
	switch {
	case isJSON && isBytes:
		return nil, wrong("data_base64", "excludes data")
	case isBytes:
		var text string
		if coded.Kind() != '"' || json.Unmarshal(coded, &text) != nil {
			return nil, wrong("data_base64", "must be a string")
		}
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, wrong("data_base64", "must be base64 (RFC 4648 section 4)")
		}
		e.Data, e.Binary = b, true
		if b == nil {
			e.Data = []byte{}
		}
	case isJSON && data.Kind() == '"' && !isJSONType(e.Get("datacontenttype")):
		// A text of another type, which the format carries as a string: the same
		// event in HTTP's binary mode would have these bytes as its body.
		var text string
		if err := json.Unmarshal(data, &text); err != nil {
			return nil, wrong("data", "must be UTF-8")
		}
		e.Data, e.Binary = []byte(text), true
	case isJSON:
		e.Data = data
	}
	return e, nil
}

// isJSONType reports whether a datacontenttype declares JSON; "" does.
func isJSONType(v string) bool {
	if v == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(v)
	return err == nil && (strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json"))
}

// AppendJSON appends the event in the JSON format, the same bytes for the same
// event.
func (e *Event) AppendJSON(b []byte) []byte {
	b = append(b, '{')
	for i, name := range e.names() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), '"', ':')
		if s, ok := e.Attributes[name].(string); ok {
			b, _ = jsontext.AppendQuote(b, s) // an error is bad UTF-8, which is replaced
		} else {
			b = append(b, e.Get(name)...)
		}
	}
	switch {
	case e.Data == nil:
	case e.Binary:
		b = append(b, `,"data_base64":"`...)
		b = base64.StdEncoding.AppendEncode(b, e.Data)
		b = append(b, '"')
	default:
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// names are the attributes' in the order in which they are written: those that
// every event has, then the others by name.
func (e *Event) names() []string {
	first := []string{"specversion", "id", "source", "type"}
	out := make([]string, 0, len(e.Attributes))
	for _, name := range first {
		if _, ok := e.Attributes[name]; ok {
			out = append(out, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Attributes)) {
		if !slices.Contains(first, name) {
			out = append(out, name)
		}
	}
	return out
}
