package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestSchemaBombs end within their budget.
func TestSchemaBombs(t *testing.T) {
	var wide strings.Builder
	wide.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 60 {
		fmt.Fprintf(&wide, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	wide.WriteString(`"d60":{"type":"integer"}}}`)
	deep := strings.Repeat(`{"a":`, 50) + `1` + strings.Repeat(`}`, 50)
	for name, c := range map[string][2]string{
		"doubling references": {wide.String(), `1`},
		"recursion":           {`{"properties":{"a":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}},"additionalProperties":false,"not":{"const":5}}`, deep},
		"failing recursion":   {`{"properties":{"a":{"oneOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"}]}},"type":["object","integer"]}`, deep},
		"itself":              {`{"$ref":"#"}`, `1`},
		"dynamic itself":      {`{"$dynamicAnchor":"x","allOf":[{"$dynamicRef":"#x"}]}`, `1`},
		"big enum":            {`{"items":{"enum":["x",` + numbers(20_000) + `]}}`, `[` + strings.TrimSuffix(strings.Repeat(`"y",`, 20_000), ",") + `]`},
	} {
		t.Run(name, func(t *testing.T) {
			sc, err := compileSchema("s", []byte(c[0]), true)
			if err != nil {
				t.Logf("refused: %v", err)
				return
			}
			_, why, err := sc.validate([]byte(c[1]))
			if len(why) > 200 {
				why = why[:200]
			}
			t.Logf("%s %v, %d steps left", why, err, sc.left)
			assert.False(t, why == "" && err == nil && sc.left < 0, "out of budget and valid")
		})
	}
}

// TestFormatOfOldSchemas: a schema that was set by an earlier program takes what it took, and asserts
// format once it is set again.
func TestFormatOfOldSchemas(t *testing.T) {
	h := setup(t)
	const schema = `{"properties":{"at":{"format":"date-time"}}}`
	p := event.DefaultPolicy()
	p.MessageSchema = []byte(schema)
	for _, c := range []event.Command{
		{PutQueue: &event.PutQueue{Name: "q", Policy: p}},
		{PutQueue: &event.PutQueue{Name: "in", Policy: event.DefaultPolicy()}},
		{PutWebhook: &event.PutWebhook{Name: "w", Queue: "in",
			Definition: []byte(`{"queue":"in","payload_schema":` + schema + `}`)}},
	} {
		_, err := h.Propose(t.Context(), &c)
		require.NoError(t, err)
	}
	send := func(queue, hook int) {
		t.Helper()
		h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":{"at":"noon"}}]}`).want(queue)
		h.do("POST", "/hook/w", `{"at":"noon"}`).want(hook)
	}
	send(201, 202)
	h.do("PATCH", "/v1/queues/q", `{"description":"x"}`).want(200)
	send(201, 202)
	h.do("PATCH", "/v1/queues/q", `{"message_schema":`+schema+`}`).want(200)
	h.do("PUT", "/v1/webhooks/w", `{"queue":"in","payload_schema":`+schema+`}`).want(200).
		with("assert_format", nil)
	send(400, 400)
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return strings.TrimSuffix(b.String(), ",")
}
