package wire

import (
	"testing"

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

// What Decode refuses is in package api, TestBadInput. Clients take what is newer than they are.
func TestUnmarshalTakesNewFields(t *testing.T) {
	var r ProduceRequest
	require.NoError(t, Unmarshal([]byte(`{"messages":[{"payload":null}],"new":1}`), &r))
	require.Equal(t, string(r.Messages[0].Payload), "null")
}
