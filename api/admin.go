package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// The shapes of the first design, under /admin. They do what the calls under /v1
// do, in fewer words.

// adminQueues answers GET /admin/queues?tenant_id=.
func (s *Server) adminQueues(q *request) error {
	q.read("tenant_id").fresh()
	st, tenant := s.deps.State, q.query.Get("tenant_id")
	queues := st.Queues()
	out, _ := page(q, queues, len(queues), func(v *event.QueueView) bool {
		return (!q.query.Has("tenant_id") || v.Policy.Namespace == tenant) && q.sees(v.Name)
	}, func(v *event.QueueView) (wire.AdminQueue, error) {
		stats := s.queueOf(v, st).Stats
		return wire.AdminQueue{
			Name: v.Name, Depth: stats.Depth, InFlight: stats.InFlight,
			DLQSize:                 st.DeadCount(v.Name),
			OldestMessageAgeSeconds: stats.OldestMessageAgeSeconds,
			MessagesPerMinute:       deref(stats.MessagesPerMinute),
		}, nil
	})
	return q.answer(http.StatusOK, &wire.AdminQueues{Queues: out})
}

// adminDead answers GET /admin/queues/{queue}/dlq with the newest of what died in a queue, the
// newest first.
func (s *Server) adminDead(q *request) error {
	q.read("limit")
	name, limit := q.queue(), q.limit(1000, 10_000)
	q.fresh()
	q.do(func() error { return died(s.deps.State, name) })
	if q.err != nil {
		return q.err
	}
	var newest []event.MessageView
	for v, err := range s.DeadLetters().Select(q.Context(), &dead.Search{Queue: name}) {
		if err != nil {
			return err
		}
		if newest = append(newest, *v); len(newest) == 2*limit {
			newest = slices.Delete(newest, 0, limit)
		}
	}
	newest = newest[max(0, len(newest)-limit):]
	var out wire.AdminDeadLetters
	for _, v := range slices.Backward(newest) {
		m, err := s.message(&v)
		if err != nil {
			return err
		}
		out.DeadLetters = append(out.DeadLetters, wire.AdminDeadLetter{
			ID: m.ID, FailedAt: v.Dead.FailedAt / 1000, Error: m.Dead.Error,
			Attempts: m.Dead.Attempts, Preview: preview(&m),
		})
	}
	return q.answer(http.StatusOK, &out)
}

// previewed is how many characters of a payload are shown.
const previewed = 200

// preview is the beginning of a payload.
func preview(m *wire.Message) string {
	s := string(m.Payload)
	if m.PayloadBytes != nil {
		s = string(m.PayloadBytes[:min(len(m.PayloadBytes), 4*previewed)])
	}
	text := []rune(strings.ToValidUTF8(s[:min(len(s), 8*previewed)], "\uFFFD"))
	return string(text[:min(len(text), previewed)])
}

// adminReplay answers POST /admin/queues/{queue}/dlq/{message_id}/replay.
func (s *Server) adminReplay(q *request) error {
	to := s.moveOne(q, event.TaskReplay)
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true, NewMessageID: to.String()})
}

// adminPurge answers DELETE /admin/queues/{queue}/dlq/{message_id}.
func (s *Server) adminPurge(q *request) error {
	s.moveOne(q, event.TaskPurge)
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true})
}
