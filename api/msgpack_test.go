package api

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/transcode"
	"github.com/qlogd/qlogd/webhook"
)

// FuzzBody puts bodies, as JSON and as msgpack, to every call that takes one:
// no panic, no 5xx, and what is refused leaves no command.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"payload":{"a":1},"key":"k","headers":{"h":"v"},"delay_ms":5}]}`,
		`{"max_messages":1,"kinds":["a"]}`, `{"lease_ids":["` + aULID + `"],"result":1}`,
		`{"items":[{"lease_id":"` + aULID + `","error":"x","delay_ms":null}]}`,
		`{"delivery":{"backoff_schedule_ms":[1,2],"dead_letter_queue":"auto"},
			"message_schema":{"type":"object"}}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","partitionkey":"k",
			"datacontenttype":"text/xml","data":"<a/>"}`,
		`[{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"AA=="}]`,
		`{"queues":[{"name":"a","dead_letter_queue":"b","delivery":{"on_dead":"hold_key"}},
			{"name":"b"}],"webhooks":[{"name":"w","queue":"a","filter":"payload.a"}]}`,
		`{"ack":["` + aULID + `"],"produce":[{"queue":"q","messages":[{"payload":null}]}]}`,
		"\x81\xa8messages\x91\x81\xa7payload\xc0", "",
	} {
		f.Add([]byte(s), uint8(len(s)), len(s) == 0 || s[0] == '\x81')
	}
	calls := []string{
		"POST /v1/lease", "PUT /v1/queues/q", "PATCH /v1/queues/q", "PUT /v1/definitions",
		"POST /v1/leases/" + aULID + "/ack", "POST /v1/leases/" + aULID + "/retry",
		"POST /v1/transactions", "POST /v1/queues/q/messages " + webhook.CloudEventType,
		"POST /v1/queues/q/messages " + webhook.CloudBatchType,
	}
	names := "messages lease ack retry dead-letter extend release purge"
	for name := range strings.FieldsSeq(names) {
		calls = append(calls, "POST /v1/queues/q/"+name)
	}
	shared := build()
	f.Cleanup(shared.close)
	f.Fuzz(func(t *testing.T, body []byte, call uint8, pack bool) {
		if strings.Contains(string(body), "wait_ms") {
			t.Skip("would wait")
		}
		if len(body) > 0 && strings.TrimSpace(string(body)) == "" {
			t.Skip("white space alone is taken for no body, which the document can't say")
		}
		h := &harness{T: t, fake: shared.fake, s: shared.s, h: shared.h}
		h.forget()
		h.do("PUT", "/v1/queues/q", "").want(201)
		before := h.proposals()
		method, target, _ := strings.Cut(calls[int(call)%len(calls)], " ")
		target, media, _ := strings.Cut(target, " ")
		var headers []string
		if media != "" {
			headers = []string{"Content-Type: " + media}
		} else if pack {
			headers = []string{"Content-Type: application/msgpack", "Accept: application/msgpack"}
		}
		a := h.do(method, target, string(body), headers...)
		require.True(t, a.Code < 500, "%d %s", a.Code, a.Body)
		require.False(t, a.Code >= 400 && a.Code != 409 && a.Code != 404 && h.proposals() != before,
			"%d, yet proposed: %s", a.Code, a.Body)
		if a.Code < 300 && pack {
			var v jsontext.Value
			err := transcode.Decode(a.Body.Bytes(), &v, 1<<20)
			require.False(t, err != nil && a.Header().Get("Content-Type") == typeMsgpack,
				"%v: %x", err, a.Body)
		}
	})
}

// anything draws a value that is often one that fits the type.
func anything(t *rapid.T, fit reflect.Type) any {
	kind := rapid.IntRange(0, 12).Draw(t, "kind")
	if fit != nil && kind > 1 {
		switch fit.Kind() {
		case reflect.Struct:
			out := map[string]any{}
			for _, f := range reflect.VisibleFields(fit) {
				if f.Anonymous {
					continue
				}
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if rapid.IntRange(0, 20).Draw(t, "unknown") == 0 {
					name += "x"
				}
				if rapid.Bool().Draw(t, "present") {
					out[name] = anything(t, f.Type)
				}
			}
			return out
		case reflect.Pointer:
			return anything(t, fit.Elem())
		case reflect.Slice:
			if fit.Elem().Kind() == reflect.Uint8 {
				return rapid.SampledFrom([]any{[]byte("x"), "AA==", "AA", []byte{}, "*", 5, 1.5,
					map[string]any{"a": []any{1, "b", nil}}}).Draw(t, "bytes")
			}
			out := make([]any, rapid.IntRange(0, 3).Draw(t, "length"))
			for i := range out {
				out[i] = anything(t, fit.Elem())
			}
			return out
		case reflect.Map:
			return map[string]any{"h": anything(t, fit.Elem())}
		case reflect.Int64:
			return rapid.SampledFrom([]any{0, 5, -7, 200, 70_000, int64(1) << 40, wholeFloat(3), float32(2.5),
				"2026-01-31T13:00:00Z", "soon", uint64(math.MaxInt64), uint64(math.MaxUint64)}).
				Draw(t, "number")
		case reflect.String:
			return rapid.SampledFrom([]any{"", "x", "é\x00", []byte("xyz")}).Draw(t, "text")
		}
	}
	return rapid.SampledFrom([]any{nil, true, false, 1, 1e300, "text", []byte("b"), []any{},
		[]any{nil}, map[string]any{}, map[string]any{"a": 1}}).Draw(t, "other")
}

// wholeFloat is a float that JSON shows as one.
type wholeFloat float64

func (v wholeFloat) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%.1f", v), nil }

// TestMsgpackIsJSON: a body is decoded to the same request, or refused in the same words, in both
// forms.
func TestMsgpackIsJSON(t *testing.T) {
	requests := []any{
		wire.ProduceRequest{}, wire.LeaseRequest{}, wire.TransactionRequest{}, wire.AckRequest{},
		wire.RetryRequest{}, wire.DeadLetterRequest{}, wire.ExtendRequest{}, wire.ReleaseRequest{},
		wire.AckOne{}, wire.RetryOne{}, wire.DeadLetterOne{}, wire.ExtendOne{}, wire.ReleaseOne{},
	}
	rapid.Check(t, func(t *rapid.T) {
		of := reflect.TypeOf(rapid.SampledFrom(requests).Draw(t, "request"))
		body := anything(t, of)
		text, err := wire.Marshal(body)
		require.NoError(t, err)
		var packed bytes.Buffer
		enc := msgpack.NewEncoder(&packed)
		enc.SetSortMapKeys(true)
		require.NoError(t, enc.Encode(body))
		want, got := reflect.New(of), reflect.New(of)
		wantErr := decodeStrict(text, want.Interface(), "code")
		err = decodeProblem(transcode.Decode(packed.Bytes(), got.Interface(), 1<<20), "code")
		require.DeepEqual(t, err, wantErr, "%s in msgpack", text)
		if err == nil {
			require.DeepEqual(t, got.Interface(), want.Interface(), "%s in msgpack", text)
		}
	})
}

// TestLeasedMessageIsTheSame: what is written by hand or as MessagePack is what the library writes.
func TestLeasedMessageIsTheSame(t *testing.T) {
	short := wire.LeasedMessage{
		ID: aULID, LeaseID: aULID, Queue: "q", Attempt: 1, Priority: 5,
		Headers: map[string]string{}, Payload: jsontext.Value(`{"a":[1,"b",null,2.5]}`),
		EnqueuedAt: 1_700_000_000_009, LeaseExpiresAt: 1_700_000_030_120,
	}
	full := short
	full.Key, full.Kind, full.CorrelationID, full.ContentType = "é\"\n", "\u2028", "<c>", "a/b"
	full.Headers = map[string]string{"b": "1", "a": "2"}
	full.Payload, full.PayloadBytes, full.Original = nil, wire.Bytes{1, 2, 255}, jsontext.Value("7")
	full.MaxAttempts, full.Erased = 5, true
	full.Dead = &wire.Dead{Queue: "p", MessageID: aULID, FailedAt: 1_600_000_000_000}
	for _, m := range []wire.LeasedMessage{short, full} {
		want, err := wire.Marshal(&m)
		require.NoError(t, err)
		var got bytes.Buffer
		err = (&leaseAnswer{Messages: []wire.LeasedMessage{m, m}}).write(&got)
		if two := fmt.Sprintf(`{"messages":[%s,%s]}`, want, want); err != nil ||
			!sameJSON(got.Bytes(), two) {
			t.Errorf("%s, %v\nwant %s", &got, err, two)
		}
		for _, kept := range []bool{false, true} {
			var back wire.LeasedMessage
			b, err := transcode.Append(nil, &m, kept)
			if err == nil {
				err = transcode.Decode(b, &back, 1<<20)
			}
			assert.True(t, err == nil && reflect.DeepEqual(back, m), "%x: %+v, %v", b, back, err)
		}
	}
}
