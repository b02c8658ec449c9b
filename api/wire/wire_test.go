package wire

import (
	"errors"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestTimeAndOptRoundTrip(t *testing.T) {
	var u PolicyUpdate
	in := `{"delivery":{"lease_ms":5,"dead_letter_queue":null},"message_schema":{"type" : "object"}}`
	require.NoError(t, Decode([]byte(in), &u))
	d := u.Delivery.Value
	require.True(t, d.LeaseMS.Or(0) == 5 && d.DeadLetterQueue.Null && !d.OnRetry.Set, "%+v", d)
	require.Equal(t, string(u.MessageSchema.Value), `{"type" : "object"}`, "schema")
	b, err := Marshal(u)
	require.NoError(t, err)
	if want := `{"delivery":{"lease_ms":5,"dead_letter_queue":null},"message_schema":{"type":"object"}}`; string(b) != want {
		t.Fatalf("%s", b)
	}
	var tm Time
	if err := Decode([]byte(`"2026-01-31T13:00:00.123456+01:00"`), &tm); err != nil || tm.String() != "2026-01-31T12:00:00.123Z" {
		t.Fatalf("%v %v", tm, err)
	}
	for _, bad := range []string{`5`, `"soon"`, `"0001-01-01T00:00:00Z"`, `"1969-12-31T23:59:59Z"`, `true`, `{}`} {
		if err := Decode([]byte(bad), &tm); err == nil {
			t.Errorf("%s taken as a time", bad)
		}
	}
}

func TestDecodeIsStrict(t *testing.T) {
	for _, bad := range []string{
		`{"mesages":[]}`, `{"messages":[],"messages":[]}`, `{"messages":[]} x`, "{\"messages\":[{\"key\":\"\xff\"}]}",
		`{"messages":[{"priority":"5"}]}`, `{"messages":[{"delay_ms":1e300}]}`, `{"messages":[{"delay_ms":9223372036854775808}]}`, `[]`, ``,
	} {
		var r ProduceRequest
		err := Decode([]byte(bad), &r)
		var sem *json.SemanticError
		var syn *jsontext.SyntacticError
		assert.False(t, err == nil || !errors.As(err, &sem) && !errors.As(err, &syn),
			"%s: %v", bad, err)
	}
	var r ProduceRequest
	if err := Decode([]byte(`{"messages":[{"payload":null}]}`), &r); err != nil || string(r.Messages[0].Payload) != "null" {
		t.Fatalf("%v %+v", err, r.Messages)
	}
	require.NoError(t, Unmarshal([]byte(`{"messages":[],"new":1}`), &r))
}
