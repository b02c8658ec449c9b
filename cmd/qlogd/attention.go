package main

import (
	"cmp"

	"github.com/qlogd/qlogd/api/wire"
)

var workersCommand = remote("workers", func(c request, f *struct{ Queue string }) error {
	workers, err := c.Workers(c.ctx, f.Queue)
	return list(c.app, workers, err, "queue,worker,leases,since,last seen",
		func(w *wire.Worker) []any {
			return []any{w.Queue, cmp.Or(w.Worker, "-"), w.Leases, c.when(w.Since), c.when(w.LastSeen)}
		})
})
