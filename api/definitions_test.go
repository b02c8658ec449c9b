package api

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

const someDefinitions = `{
	"webhooks": [{"name": "github", "queue": "in", "filter": "payload.action == 'opened'", "map_to": {"input": {"title": "payload.issue.title"}}}],
	"queues": [
		{"name": "in", "ordering": "per_key", "delivery": {"max_attempts": 3}, "dead_letter_queue": "in.dead"},
		{"name": "in.dead", "delivery": {"max_attempts": 0}},
		{"name": "jobs", "delivery": {"dead_letter_queue": "auto"}, "message_schema": {"type": "object"}}
	]}`

func (h *harness) define(body string, headers ...string) answer {
	h.Helper()
	return h.do("PUT", "/v1/definitions", body, headers...)
}

// A whole document is one entry, in any order, and changes nothing the second time.
func TestDefinitions(t *testing.T) {
	h := setup(t)
	dry := h.do("PUT", "/v1/definitions?dry_run=true", someDefinitions).want(200)
	if n := h.proposals(); n != 0 {
		t.Fatalf("a dry run left %d entries", n)
	}
	a := h.define(someDefinitions).want(200)
	if a.Body.String() != dry.Body.String() || h.proposals() != 1 {
		t.Errorf("%d entries; done %s, told before %s", h.proposals(), a.Body, dry.Body)
	}
	a.has(map[string]any{
		"changes.0.kind": "queue", "changes.0.name": "in", "changes.0.action": "create",
		"changes.0.diff.0.path": "delivery.dead_letter_queue", "changes.0.diff.0.before": nil, "changes.0.diff.0.after": "in.dead",
		"changes.0.diff.1.path": "delivery.max_attempts", "changes.0.diff.1.after": 3,
		"changes.0.diff.2.path": "ordering", "changes.0.diff.2.after": "per_key", "changes.0.diff.3": nil,
		"changes.1.name": "in.dead", "changes.2.name": "jobs", "changes.3.name": "jobs.dlq", "changes.3.action": "create",
		"changes.4.kind": "webhook", "changes.4.name": "github", "changes.4.action": "create",
	})
	assert.NotEqual(t, a.Header().Get("X-Qlogd-Index"), "", "no index")
	// Again it changes nothing, and leaves no entry.
	a = h.define(someDefinitions).want(200)
	if strings.Count(a.Body.String(), `"action":"unchanged","diff":[]`) != 4 || h.proposals() != 1 {
		t.Errorf("%d entries: %s", h.proposals(), a.Body)
	}
	// What is told is taken, and changes nothing.
	told := h.do("GET", "/v1/definitions", "").want(200)
	told.has(map[string]any{"queues.0.name": "in", "queues.3.name": "jobs.dlq", "webhooks.0.name": "github", "webhooks.0.queue": "in", "webhooks.0.created_at": nil})
	a = h.define(told.Body.String()).want(200)
	if strings.Count(a.Body.String(), `"unchanged"`) != 5 || h.proposals() != 1 {
		t.Errorf("%d entries: %s", h.proposals(), a.Body)
	}
	// An update says what it changes; what is not named stays.
	a = h.define(`{"queues":[{"name":"jobs","message_schema":{"type":"array","x":1},"delivery":{"dead_letter_queue":"jobs.dlq"}}],"webhooks":[{"name":"github","queue":"jobs"}]}`).want(200)
	a.has(map[string]any{
		"changes.0.action": "update", "changes.0.diff.0.path": "message_schema.type", "changes.0.diff.0.before": "object", "changes.0.diff.0.after": "array",
		"changes.0.diff.1.path": "message_schema.x", "changes.0.diff.1.before": nil,
		"changes.1.action": "update", "changes.1.diff.0.path": "filter", "changes.1.diff.0.after": nil, "changes.1.diff.2.path": "queue", "changes.2": nil,
	})
	h.do("GET", "/v1/queues/in", "").want(200)
	// The policy changed between plan and entry: it is planned anew.
	h.fake.stale = 2
	h.define(`{"queues":[{"name":"jobs"}]}`).want(200).has(map[string]any{"changes.0.action": "update"})
	h.define(`{}`).want(200).has(map[string]any{"changes": "[]"})
}

// All that is wrong is told, not only the first, and nothing is done.
func TestDefinitionsRefused(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/old.dlq", "").want(201)
	h.do("PUT", "/v1/queues/old", `{"delivery":{"dead_letter_queue":"old.dlq"}}`).want(201)
	h.do("PUT", "/v1/queues/full", "").want(201)
	h.do("POST", "/v1/queues/full/messages", oneMessage).want(201)
	before := h.proposals()
	for _, c := range []struct{ name, body, want string }{
		{"many", `{"queues":[
			{"name":"a","ordering":"sorted","delivery":{"max_attempts":-1,"lease_ms":5,"backoff_schedule_ms":[1,-2],"nope":1},"retention":{"max_depth":"x"}},
			{"name":"_b"}, {"name":"a"}, 7, {}, {"name":"c","dead_letter_queue":"none"}],
			"webhooks":[{"name":"w","filter":"payload.","map_to":{"input":{"x":"nope"}},"allow_ips":["x"]},{"name":"v","queue":"missing"},{"name":"v","queue":"c"}]}`,
			"queues[0].delivery.backoff_schedule_ms[1] queues[0].delivery.lease_ms queues[0].delivery.max_attempts queues[0].delivery.nope queues[0].ordering queues[0].retention.max_depth " +
				"queues[1].name queues[2].name queues[3] queues[3].name queues[4].name queues[5].dead_letter_queue " +
				"webhooks[0].allow_ips[0] webhooks[0].filter webhooks[0].map_to.input.x webhooks[0].queue webhooks[1].queue webhooks[2].name"},
		{"itself", `{"queues":[{"name":"a","dead_letter_queue":"a","delivery":{"on_dead":"hold_key"}}]}`, "queues[0].dead_letter_queue"},
		{"itself, in delivery", `{"queues":[{"name":"a","delivery":{"dead_letter_queue":"a","on_dead":"hold_key"}}]}`, "queues[0].delivery.dead_letter_queue"},
		{"hold_key", `{"queues":[{"name":"a","delivery":{"on_dead":"hold_key"}}]}`, "queues[0].delivery.on_dead"},
		{"two", `{"queues":[{"name":"a","dead_letter_queue":"old.dlq","delivery":{"dead_letter_queue":"b"}}]}`, "queues[0].dead_letter_queue"},
		{"chain", `{"queues":[{"name":"a","dead_letter_queue":"b"},{"name":"b","dead_letter_queue":"c"},{"name":"c"}]}`, "queues[0].dead_letter_queue queues[1].dead_letter_queue"},
		{"chain with what is there", `{"queues":[{"name":"old.dlq","dead_letter_queue":"c"},{"name":"c"},{"name":"x","dead_letter_queue":"old"}]}`, "queues[0].dead_letter_queue queues[2].dead_letter_queue"},
		{"answers", `{"queues":[{"name":"a","push":{"url":"https://example.com/x","answer_to":"none"}}]}`, "queues[0].push.answer_to"},
		{"ordering", `{"queues":[{"name":"full","ordering":"fifo"},{"name":"b","ordering":"x"}]}`, "queues[0].ordering queues[1].ordering"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, query := range []string{"", "?dry_run=true"} {
				a := h.do("PUT", "/v1/definitions"+query, c.body).want(400)
				var got []string
				list, _ := a.get("errors").([]any)
				for _, e := range list {
					got = append(got, fmt.Sprint(e.(map[string]any)["field"]))
					if d := fmt.Sprint(e.(map[string]any)["detail"]); len(d) < 10 {
						t.Errorf("detail %q", d)
					}
				}
				slices.Sort(got)
				if strings.Join(got, " ") != c.want || a.str("code") != "invalid_argument" {
					t.Errorf("%s\ngot  %s\nwant %s", a.Body, strings.Join(got, " "), c.want)
				}
			}
		})
	}
	// A conflict alone is one: it may pass.
	h.define(`{"queues":[{"name":"full","ordering":"fifo"}]}`).want(409).has(map[string]any{"code": "conflict", "field": "queues[0].ordering"})
	for body, status := range map[string]int{``: 400, `{"queue":[]}`: 400, `{"queues":{}}`: 400, `{"queues":[{"name":"a","name":"b"}]}`: 400, `[]`: 400,
		`{"queues":[` + strings.TrimSuffix(strings.Repeat(`{},`, 1001), ",") + `]}`: 400} {
		h.define(body).want(status)
	}
	h.do("PUT", "/v1/definitions?prune=true", `{}`).want(400)
	if n := h.proposals(); n != before {
		t.Errorf("%d of them reached the Proposer", n-before)
	}
	h.do("GET", "/v1/definitions", "").want(200).has(map[string]any{"queues.3": nil, "webhooks": "[]"})
}

// Queues of the document take the place of those that are there: what would be
// wrong in steps is right at once.
func TestDefinitionsTogether(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/b", "").want(201)
	h.do("PUT", "/v1/queues/a", `{"delivery":{"dead_letter_queue":"b"}}`).want(201)
	// The two change roles.
	h.define(`{"queues":[{"name":"b","dead_letter_queue":"a"},{"name":"a"}]}`).want(200)
	h.define(`{"queues":[{"name":"c","push":{"url":"https://example.com/x","answer_to":"d"}},{"name":"d"}]}`).want(200)
}

func TestDefinitionsKey(t *testing.T) {
	h := setup(t)
	const key = "Idempotency-Key: k"
	h.define(`{"queues":[{"name":"a"}]}`, key).want(200)
	if a := h.define(`{"queues":[{"name":"a"}]}`, key).want(200); a.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("%v", a.Header())
	}
	h.define(`{"queues":[{"name":"b"}]}`, key).want(422)
	// What was done is answered, even where it could not be done any more.
	h.define(`{"webhooks":[{"name":"w","queue":"a"}]}`, "Idempotency-Key: w").want(200)
	h.do("DELETE", "/v1/queues/a?force=true", "").want(204)
	h.define(`{"webhooks":[{"name":"w","queue":"a"}]}`, "Idempotency-Key: w").want(200)
	n := h.proposals()
	h.define(`{"queues":[{"name":"_"}]}`, "Idempotency-Key: new").want(400)
	assert.Equal(t, h.proposals(), n, "a mistake was proposed")
}
