package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

var texts = rapid.OneOf(rapid.StringN(0, 10, 30), rapid.SampledFrom([]string{
	"", "null", "yes", "1e3", "0x10", "~", "- a", "a: b", "# c", " lead", "trail ",
	"two\nlines\n", "tab\there", "\u0085", "\ufeff", "\r\n", "2026-01-31", "<<", "'", "\"",
}))

type object = map[string]any

// drawnQueue is any queue that can be; its dead-letter queue is d, which has none.
func drawnQueue(t *rapid.T, name string) object {
	q := object{"name": name}
	may := func(what string) bool { return rapid.Bool().Draw(t, what) }
	number := func(what string, low, high int) int {
		return rapid.IntRange(low, high).Draw(t, what)
	}
	if may("delivery") {
		q["delivery"] = object{
			"lease_ms":           number("lease", 100, 1e6),
			"max_attempts":       number("attempts", 0, 1e6),
			"backoff_multiplier": float64(number("multiplier", 1e6, 1e9)) / 1e6,
			"backoff_jitter":     float64(number("jitter", 0, 1e6)) / 1e6,
			"backoff_schedule_ms": rapid.SliceOfN(rapid.IntRange(0, 1e9), 0, 4).
				Draw(t, "schedule"),
			"on_retry": rapid.SampledFrom([]string{"block", "head", "tail"}).Draw(t, "on_retry"),
		}
	}
	if may("dead-letter queue") && name != "d" {
		q["dead_letter_queue"] = "d"
	}
	if may("retention") {
		q["retention"] = object{"max_depth": number("depth", 0, 1<<53)}
	}
	if may("texts") {
		q["namespace"], q["description"] = texts.Draw(t, "namespace"), texts.Draw(t, "description")
	}
	if may("schema") {
		numbers := []string{"1", "1.50", "1e300", "123456789012345678901234567890", "-0"}
		q["message_schema"] = object{
			"properties": object{
				texts.Draw(t, "property"): object{"const": texts.Draw(t, "const")},
			},
			"maximum": json.Number(rapid.SampledFrom(numbers).Draw(t, "maximum")),
			"default": nil, "examples": []any{}, "$defs": object{},
		}
	}
	return q
}

func drawnWebhook(t *rapid.T, name string) object {
	queue := rapid.SampledFrom([]string{"a", "b", "d"}).Draw(t, "queue")
	w := object{"name": name, "queue": queue}
	if rapid.Bool().Draw(t, "signed") {
		secrets := rapid.SampledFrom([]any{"A", []string{"A", "B"}}).Draw(t, "secrets")
		w["verify_hmac"] = object{"scheme": "github", "secret_env": secrets}
	}
	if rapid.Bool().Draw(t, "expressions") {
		text := must(json.Marshal(texts.Draw(t, "x")))
		w["filter"] = `payload.a == "b"` +
			rapid.SampledFrom([]string{"", "\n  && true", " // all"}).Draw(t, "filter")
		w["map_to"] = object{"input": object{"x": "string(" + string(text) + ")", "y": "webhook"}}
		w["priority"] = rapid.SampledFrom([]any{1, 10, "2 + 3"}).Draw(t, "priority")
		w["max_age_seconds"] = rapid.IntRange(0, 1000).Draw(t, "age")
		w["payload_schema"] = object{"type": "object", "description": texts.Draw(t, "schema")}
	}
	return w
}

// What is exported applies back to no change, as YAML and as JSON.
func TestExportApplies(t *testing.T) {
	t.Parallel()
	n := cluster.Start(t, cluster.Options{}).Client()
	define := func(t *rapid.T, name string, text []byte, dry bool) []wire.DefinitionChange {
		d := definitions{}
		require.NoError(t, d.read(name, text), "%s", text)
		req, err := d.request()
		require.NoError(t, err, "%s", text)
		changes, err := n.Define(t.Context(), req, dry)
		if err != nil {
			t.Fatalf("%s\n%v", text, d.refused(err))
		}
		return changes
	}
	rapid.Check(t, func(t *rapid.T) {
		define(t, "drawn.json", must(json.Marshal(object{
			"queues":   []any{drawnQueue(t, "a"), drawnQueue(t, "b"), drawnQueue(t, "d")},
			"webhooks": []any{drawnWebhook(t, "v"), drawnWebhook(t, "w")},
		})), false)
		defs := must(n.Definitions(t.Context()))
		var yaml bytes.Buffer
		require.NoError(t, writeDefinitions(&yaml, defs))
		for name, text := range map[string][]byte{
			"yaml": yaml.Bytes(), "json": must(wire.Marshal(defs)),
		} {
			changes := define(t, name, text, true)
			require.Equal(t, len(changes), 5, "changes")
			for _, c := range changes {
				if c.Action != wire.ActionUnchanged {
					t.Fatalf("%s\n%s %s: %s\n%s", text, c.Kind, c.Name, c.Action, c.Diff)
				}
			}
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
