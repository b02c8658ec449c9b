package api

import (
	"net/http"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/webhook"
)

// What Of makes of any message is an event that FromJSON and FromBinding take.
func FuzzCloudEventsOf(f *testing.F) {
	f.Add("q", "kind", "key", "ce-id", "7", "corr", []byte("1"), false, "")
	f.Add("q", "", "", "ce-specversion", "1.0", "", []byte{0xff}, true, "text/plain")
	f.Fuzz(func(t *testing.T, queue, kind, key, header, value, correlation string, payload []byte, binary bool, contentType string) {
		if !event.ValidName(queue) || !binary && !jsonOK(payload) {
			t.Skip()
		}
		m := &event.LeasedMessage{MessageView: event.MessageView{ID: event.NewID(1, 2, 3), Queue: queue, Kind: kind, Key: key, Priority: 5, EnqueuedAt: 1,
			State: event.StateLeased, Lease: event.NewID(1, 2, 3), LeaseExpiresAt: 5, Attempt: 1}, MaxAttempts: 5}
		c := &event.Content{Payload: payload, Binary: binary, ContentType: contentType, CorrelationID: correlation, Headers: []event.Header{
			{Name: header, Value: value}, {Name: "ce-source", Value: value}, {Name: "ce-type", Value: "t"}, {Name: "ce-id", Value: "1"}, {Name: "ce-specversion", Value: "1.0"}}}
		e := webhook.CloudEventOf(m, c)
		members := membersOf(t, e.AppendJSON(nil))
		got, err := webhook.CloudEventFromJSON(members)
		require.NoError(t, err, "%s", e.AppendJSON(nil))
		require.Equal(t, string(got.AppendJSON(nil)), string(e.AppendJSON(nil)),
			"%s\n%s", got.AppendJSON(nil), e.AppendJSON(nil))
		headers := http.Header{}
		ct, body := e.Bind(headers)
		if ct != "" {
			headers["Content-Type"] = []string{ct}
		}
		got, err = webhook.CloudEventFromHeaders(headers, body)
		require.NoError(t, err, "%v", headers)
		for name := range e.Attributes {
			require.Equal(t, got.Get(name), e.Get(name), "%s", name)
		}
	})
}

func jsonOK(b []byte) bool {
	var v jsontext.Value
	return wire.Decode(b, &v) == nil
}

func membersOf(t *testing.T, b []byte) map[string]jsontext.Value {
	t.Helper()
	var members map[string]jsontext.Value
	require.NoError(t, wire.Decode(b, &members), "%s", b)
	return members
}
