package fsm

import (
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
)

func hook(name, queue, definition string) *event.PutWebhook {
	return &event.PutWebhook{Name: name, Queue: queue, Definition: []byte(definition)}
}

func (b *bench) hook(name, queue, definition string) event.Result {
	b.t.Helper()
	return b.one(&event.Command{PutWebhook: hook(name, queue, definition)})
}

// hooks tells the webhooks: name, queue and definition.
func (b *bench) hooks() string {
	b.t.Helper()
	var out []string
	for _, w := range b.m.Webhooks() {
		out = append(out, w.Name+">"+w.Queue+" "+string(w.Definition))
		if got, ok := b.m.Webhook(w.Name); !ok || got.Revision != w.Revision {
			b.t.Fatalf("webhook %q is listed and reads as %+v", w.Name, got)
		}
	}
	return strings.Join(out, ", ")
}

func TestWebhookRefusals(t *testing.T) {
	b := setup(t)
	b.mustQueue("q", nil)
	for _, c := range []struct {
		about, name, queue, definition, field, detail string
	}{
		{"a queue that is not there", "w", "x", "{}", "queue", "queue 'x' does not exist; create it first"},
		{"a name that can't be", "a/b", "q", "{}", "name", "name must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
		{"no name", "", "q", "{}", "name", "name must match ^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"},
		{"too long", "w", "q", strings.Repeat("x", event.MaxDefinition+1), "definition", "definition must be at most 262144 bytes"},
	} {
		t.Run(c.about, func(t *testing.T) {
			r := b.hook(c.name, c.queue, c.definition)
			b.wantProblem(r, event.CodeInvalidArgument, c.detail)
			mustEqual(t, r.Problem.Field, c.field)
			mustEqual(t, b.hooks(), "")
		})
	}
}
