package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/qlogd/qlogd/api/wire"
)

var texts = rapid.OneOf(rapid.StringN(0, 10, 30), rapid.SampledFrom([]string{"", "null", "yes", "1e3", "0x10", "~", "- a", "a: b", "# c", " lead", "trail ", "two\nlines\n", "tab\there", "\u0085", "\ufeff", "\r\n", "2026-01-31", "<<", "'", "\""}))

// drawnQueue is any queue that can be; its dead-letter queue is d, which has none.
func drawnQueue(t *rapid.T, name string) map[string]any {
	q := map[string]any{"name": name}
	may := func(what string, draw func()) {
		if rapid.Bool().Draw(t, what) {
			draw()
		}
	}
	delivery := map[string]any{}
	may("delivery", func() {
		delivery["lease_ms"] = rapid.IntRange(100, 1e6).Draw(t, "lease")
		delivery["max_attempts"] = rapid.IntRange(0, 1e6).Draw(t, "attempts")
		delivery["backoff_multiplier"] = float64(rapid.IntRange(1e6, 1e9).Draw(t, "multiplier")) / 1e6
		delivery["backoff_jitter"] = float64(rapid.IntRange(0, 1e6).Draw(t, "jitter")) / 1e6
		delivery["backoff_schedule_ms"] = rapid.SliceOfN(rapid.IntRange(0, 1e9), 0, 4).Draw(t, "schedule")
		delivery["on_retry"] = rapid.SampledFrom([]string{"block", "head", "tail"}).Draw(t, "on_retry")
		q["delivery"] = delivery
	})
	may("dead-letter queue", func() {
		if name != "d" {
			q["dead_letter_queue"] = "d"
		}
	})
	may("retention", func() { q["retention"] = map[string]any{"max_depth": rapid.Int64Range(0, 1<<53).Draw(t, "depth")} })
	may("texts", func() {
		q["namespace"], q["description"] = texts.Draw(t, "namespace"), texts.Draw(t, "description")
	})
	may("schema", func() {
		q["message_schema"] = map[string]any{
			"properties": map[string]any{texts.Draw(t, "property"): map[string]any{"const": texts.Draw(t, "const")}},
			"maximum":    json.Number(rapid.SampledFrom([]string{"1", "1.50", "1e300", "123456789012345678901234567890", "-0"}).Draw(t, "maximum")),
			"default":    nil, "examples": []any{}, "$defs": map[string]any{},
		}
	})
	return q
}

func drawnWebhook(t *rapid.T, name string) map[string]any {
	w := map[string]any{"name": name, "queue": rapid.SampledFrom([]string{"a", "b", "d"}).Draw(t, "queue")}
	if rapid.Bool().Draw(t, "signed") {
		w["verify_hmac"] = map[string]any{"scheme": "github", "secret_env": rapid.SampledFrom([]any{"A", []string{"A", "B"}}).Draw(t, "secrets")}
	}
	text := func(what string) string {
		b, err := json.Marshal(texts.Draw(t, what))
		if err != nil {
			t.Fatal(err)
		}
		return "string(" + string(b) + ")"
	}
	if rapid.Bool().Draw(t, "expressions") {
		w["filter"] = `payload.a == "b"` + rapid.SampledFrom([]string{"", "\n  && true", " // all"}).Draw(t, "filter")
		w["map_to"] = map[string]any{"input": map[string]any{"x": text("x"), "y": "webhook"}}
		w["priority"] = rapid.SampledFrom([]any{1, 10, "2 + 3"}).Draw(t, "priority")
		w["max_age_seconds"] = rapid.IntRange(0, 1000).Draw(t, "age")
		w["payload_schema"] = map[string]any{"type": "object", "description": texts.Draw(t, "schema")}
	}
	return w
}

// What is exported applies back to no change, as YAML and as JSON.
func TestExportApplies(t *testing.T) {
	t.Parallel()
	n := startTest(t, "")
	defer n.stop()
	rapid.Check(t, func(t *rapid.T) {
		doc, err := json.Marshal(map[string]any{
			"queues":   []any{drawnQueue(t, "a"), drawnQueue(t, "b"), drawnQueue(t, "d")},
			"webhooks": []any{drawnWebhook(t, "v"), drawnWebhook(t, "w")},
		})
		if err != nil {
			t.Fatal(err)
		}
		var d definitions
		if err := d.read("drawn.json", doc); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		req, err := d.request()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Define(t.Context(), req, false); err != nil {
			t.Fatalf("%s\n%v", doc, d.refused(err))
		}
		defs, err := n.Definitions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var yaml bytes.Buffer
		if err := writeDefinitions(&yaml, defs); err != nil {
			t.Fatal(err)
		}
		text, err := wire.Marshal(defs)
		if err != nil {
			t.Fatal(err)
		}
		for name, exported := range map[string][]byte{"yaml": yaml.Bytes(), "json": text} {
			var again definitions
			if err := again.read(name, exported); err != nil {
				t.Fatalf("%s\n%v", exported, err)
			}
			req, err := again.request()
			if err != nil {
				t.Fatalf("%s\n%v", exported, err)
			}
			changes, err := n.Define(t.Context(), req, true)
			if err != nil {
				t.Fatalf("%s\n%v", exported, again.refused(err))
			}
			if len(changes) != 5 {
				t.Fatalf("%d changes", len(changes))
			}
			for _, ch := range changes {
				if ch.Action != wire.ActionUnchanged {
					t.Fatalf("%s\n%s %s: %s\n%s", exported, ch.Kind, ch.Name, ch.Action, fmt.Sprintf("%s", ch.Diff))
				}
			}
		}
	})
}
