package api

import (
	"net/http"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections/store"
)

// listWorkers answers GET /v1/workers?queue=&limit=&cursor=&consistency=.
func (s *Server) listWorkers(q *request) error {
	q.read("queue", "limit", "cursor", "consistency")
	limit, only, of := q.limit(1000, 1000), q.query.Has("queue"), q.query.Get("queue")
	if only {
		q.do(func() error { return validName("queue", of) })
	}
	queue, worker, isCursor := strings.Cut(q.query.Get("cursor"), "/")
	if q.query.Has("cursor") && (!isCursor || !event.ValidName(queue)) {
		q.refuse("cursor", "cursor must be the next_cursor of an answer")
	}
	if q.fresh(); q.err == nil && !q.stale() {
		s.countAll(q)
	}
	all := get(q, func() ([]store.Worker, error) {
		return s.deps.Models.Workers(s.clock(s.deps.State))
	})
	var out wire.WorkerList
	out.Workers, out.NextCursor = page(q, all, limit, func(w *store.Worker) bool {
		return (w.Queue > queue || w.Queue == queue && w.Name > worker || !isCursor) &&
			(!only || w.Queue == of) && q.sees(w.Queue)
	}, func(w *store.Worker) (wire.Worker, error) {
		return wire.Worker{
			Worker: w.Name, Queue: w.Queue, Leases: int64(w.Count),
			Since: wire.Time(w.First), LastSeen: wire.Time(w.Last),
		}, nil
	}, func(w *wire.Worker) string { return w.Queue + "/" + w.Worker })
	return q.answer(http.StatusOK, &out)
}
