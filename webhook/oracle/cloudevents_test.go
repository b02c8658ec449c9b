package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/cloudevents/sdk-go/v2"
	sdkbinding "github.com/cloudevents/sdk-go/v2/binding"
	sdkhttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/webhook"
)

// must fails the test on an error.
var must = require.NoError

// The SDK, as of 2.16, does not quote nor percent-encode the values of headers (HTTP
// binding, section 3.1.3.2): in binary mode they agree on what needs neither.
var words, plain = rapid.StringMatching(`[!-~][ -~äß€𝄞]{0,20}`), rapid.StringMatching(`[!#$&-~]{1,20}`)

// drawn is an event of the SDK's, with all that an event can have.
func drawn(t *rapid.T, words *rapid.Generator[string]) sdk.Event {
	e := sdk.NewEvent()
	e.SetID(words.Draw(t, "id"))
	e.SetSource(rapid.SampledFrom([]string{"/queues/a", "https://example.com/a?b=c",
		"urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66", "mailto:a@b.example"}).Draw(t, "source"))
	e.SetType(rapid.StringMatching(`[a-z.]{1,30}`).Draw(t, "type"))
	if rapid.Bool().Draw(t, "has subject") {
		e.SetSubject(words.Draw(t, "subject"))
	}
	if rapid.Bool().Draw(t, "has time") {
		e.SetTime(time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(t, "time")).UTC())
	}
	if rapid.Bool().Draw(t, "has schema") {
		e.SetDataSchema("https://example.com/schema")
	}
	for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`x[a-z0-9]{1,10}`), 0, 3,
		rapid.ID).Draw(t, "extensions") {
		e.SetExtension(name, words.Draw(t, "value"))
	}
	switch rapid.IntRange(0, 3).Draw(t, "data") {
	case 1:
		must(t, e.SetData("application/json", map[string]any{"a": words.Draw(t, "json")}))
	case 2:
		must(t, e.SetData("text/plain", words.Draw(t, "text")))
	case 3:
		must(t, e.SetData("application/octet-stream",
			rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "bytes")))
	}
	must(t, e.Validate())
	return e
}

// same fails unless ours has the attributes and the data of theirs.
func same(t rapid.TB, ours *webhook.CloudEvent, theirs *sdk.Event) {
	t.Helper()
	want := map[string]string{"specversion": theirs.SpecVersion(), "id": theirs.ID(),
		"source": theirs.Source(), "type": theirs.Type(),
		"subject": theirs.Subject(), "dataschema": theirs.DataSchema(), "datacontenttype": theirs.DataContentType()}
	for name, v := range theirs.Extensions() {
		want[name] = v.(string)
	}
	n := 0
	for name, v := range want {
		require.Equal(t, ours.Get(name), v, "%s", name)
		if v != "" {
			n++
		}
	}
	if !theirs.Time().IsZero() {
		n++
		at, err := time.Parse(time.RFC3339Nano, ours.Get("time"))
		must(t, err)
		require.True(t, at.Equal(theirs.Time()), "time %s, the SDK's %s", at, theirs.Time())
	}
	require.Equal(t, len(ours.Attributes), n, "%v, the SDK's %s", ours.Attributes, theirs)
	if data := theirs.Data(); !ours.Binary && len(data) > 0 {
		var a, b any
		must(t, json.Unmarshal(ours.Data, &a))
		must(t, json.Unmarshal(data, &b))
		require.DeepEqual(t, a, b, "data")
	} else {
		require.Equal(t, string(ours.Data), string(data), "data")
	}
}

// read is what the API does with a request.
func read(t rapid.TB, r *http.Request) []*webhook.CloudEvent {
	t.Helper()
	var body []byte
	var err error
	if r.Body != nil {
		body, err = io.ReadAll(r.Body)
		must(t, err)
	}
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	var list []map[string]jsontext.Value
	switch {
	case media == webhook.CloudBatchType:
		must(t, json.Unmarshal(body, &list))
	case media == webhook.CloudEventType:
		list = make([]map[string]jsontext.Value, 1)
		must(t, json.Unmarshal(body, &list[0]))
	default:
		require.True(t, webhook.IsCloudEvent(r.Header), "an event: %v", r.Header)
		e, err := webhook.CloudEventFromHeaders(r.Header, body)
		must(t, err)
		return []*webhook.CloudEvent{e}
	}
	out := make([]*webhook.CloudEvent, len(list))
	for i := range list {
		out[i], err = webhook.CloudEventFromJSON(list[i])
		must(t, err)
	}
	return out
}

// What the SDK sends is read.
func TestRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		theirs, simple := drawn(t, words), drawn(t, plain)
		for _, c := range []struct {
			mode context.Context
			e    sdk.Event
		}{{sdkbinding.WithForceStructured(t.Context()),
			theirs}, {sdkbinding.WithForceBinary(t.Context()), simple}} {
			r, err := sdkhttp.NewHTTPRequestFromEvent(c.mode, "http://example.com", c.e)
			must(t, err)
			same(t, read(t, r)[0], &c.e)
		}
		all := []sdk.Event{theirs, simple}
		r, err := sdkhttp.NewHTTPRequestFromEvents(t.Context(), "http://example.com", all)
		must(t, err)
		got := read(t, r)
		for i := range all {
			same(t, got[i], &all[i])
		}
	})
}

// What qlogd tells is read by the SDK, whatever the message is that it is made of.
func TestWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SampledFrom([]*rapid.Generator[string]{words, plain}).Draw(t, "words")
		theirs := drawn(t, words)
		r, err := sdkhttp.NewHTTPRequestFromEvent(sdkbinding.WithForceStructured(t.Context()),
			"http://example.com", theirs)
		must(t, err)
		e := read(t, r)[0]
		c := &event.Content{Payload: e.Payload(), Binary: e.Binary}
		if e.Binary {
			c.ContentType = e.Get("datacontenttype")
		}
		if rapid.Bool().Draw(t, "came as an event") {
			for name, v := range e.Headers() {
				c.Headers = append(c.Headers, event.Header{Name: name, Value: v})
			}
		}
		out := webhook.CloudEventOf(&event.LeasedMessage{MessageView: event.MessageView{
			ID: event.NewID(1, 2, 3), Queue: "q",
			Kind: rapid.String().Draw(t, "kind"), Key: rapid.String().Draw(t, "key"),
			Priority: 5, EnqueuedAt: 1e12, State: event.StateLeased,
			Lease: event.NewID(1, 2, 4), LeaseExpiresAt: 2e12, Attempt: 3,
		}, MaxAttempts: 5}, c)

		var back sdk.Event
		must(t, json.Unmarshal(out.AppendJSON(nil), &back))
		must(t, back.Validate())
		likeTheSDK(t, out, &back)

		headers := http.Header{}
		ct, body := out.Bind(headers)
		r, err = http.NewRequest(http.MethodPost, "http://example.com", bytes.NewReader(body))
		must(t, err)
		r.Header = headers
		if ct != "" {
			r.Header.Set("Content-Type", ct)
		}
		got, err := sdkhttp.NewEventFromHTTPRequest(r)
		must(t, err)
		must(t, got.Validate())
		if words == plain && (got.ID() != out.Get("id") || got.Subject() != out.Get("subject")) ||
			!bytes.Equal(got.Data(), body) {
			t.Fatalf("%s\n%s", got, out.AppendJSON(nil))
		}
	})
}

func likeTheSDK(t rapid.TB, ours *webhook.CloudEvent, theirs *sdk.Event) {
	t.Helper()
	for name, v := range map[string]string{"id": theirs.ID(), "source": theirs.Source(),
		"type": theirs.Type(), "subject": theirs.Subject(), "datacontenttype": theirs.DataContentType()} {
		require.Equal(t, ours.Get(name), v, "%s", name)
	}
	for name, v := range theirs.Extensions() {
		require.True(t, name != "attempt" || v == int32(3), "attempt is %v to the SDK", v)
		_, ok := ours.Attributes[name]
		require.True(t, ok, "%s is one of ours", name)
	}
}
