package main

import (
	"cmp"

	"github.com/qlogd/qlogd/api/wire"
)

var attentionCommand = remote("attention", func(c request, _ *none) error {
	items, err := c.Attention(c.ctx)
	return list(c.app, items, err, "severity,kind,queue,node,since,count,key,message,detail",
		func(t *wire.AttentionItem) []any {
			return []any{t.Severity, t.Kind, orDash(t.Queue), orDash(t.Node), c.when(t.Since), t.Count,
				orDash(t.Key), orDash(t.MessageID), t.Detail}
		})
})

// orDash is a column's text; nil is none.
func orDash(text *string) string {
	if text == nil {
		return "-"
	}
	return *text
}

var workersCommand = remote("workers", func(c request, f *struct{ Queue string }) error {
	workers, err := c.Workers(c.ctx, f.Queue)
	return list(c.app, workers, err, "queue,worker,leases,since,last seen",
		func(w *wire.Worker) []any {
			return []any{w.Queue, cmp.Or(w.Worker, "-"), w.Leases, c.when(w.Since), c.when(w.LastSeen)}
		})
})
