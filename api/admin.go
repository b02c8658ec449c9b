package api

import (
	"context"
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
	in := q.read("tenant_id")
	in.fresh()
	if in.err != nil {
		return in.err
	}
	st := s.deps.State
	tenant, filtered := q.query.Get("tenant_id"), q.query.Has("tenant_id")
	out := wire.AdminQueues{Queues: []wire.AdminQueue{}}
	for _, v := range st.Queues() {
		if filtered && v.Policy.Namespace != tenant || !q.sees(v.Name) {
			continue
		}
		stats := s.queueOf(&v, st).Stats
		a := wire.AdminQueue{
			Name: v.Name, Depth: stats.Depth, InFlight: stats.InFlight, DLQSize: st.DeadCount(v.Name),
			OldestMessageAgeSeconds: stats.OldestMessageAgeSeconds,
		}
		if stats.MessagesPerMinute != nil {
			a.MessagesPerMinute = *stats.MessagesPerMinute
		}
		out.Queues = append(out.Queues, a)
	}
	return q.answer(http.StatusOK, &out)
}

// adminDead answers GET /admin/queues/{queue}/dlq with all that died in a queue, the newest
// first.
func (s *Server) adminDead(q *request) error {
	in := q.read("limit")
	name, limit := in.queue(), in.limit(1000, 10_000)
	in.fresh()
	in.do(func() error { return died(s.deps.State, name) })
	letters := get(in, func() ([]dead.Letter, error) { return s.newestDead(q.Context(), name, limit) })
	if in.err != nil {
		return in.err
	}
	out := wire.AdminDeadLetters{DeadLetters: []wire.AdminDeadLetter{}}
	for chunk := range slices.Chunk(letters, 256) { // payloads are read a chunk at a time
		messages, err := s.letters(chunk)
		if err != nil {
			return err
		}
		for i := range messages {
			m := &messages[i]
			out.DeadLetters = append(out.DeadLetters, wire.AdminDeadLetter{
				ID: m.ID, FailedAt: chunk[i].Dead.FailedAt / 1000, Error: m.Dead.Error, Attempts: m.Dead.Attempts, Preview: preview(m),
			})
		}
	}
	return q.answer(http.StatusOK, &out)
}

// newestDead returns the newest of what died in a queue, the newest first.
func (s *Server) newestDead(ctx context.Context, queue string, limit int) ([]dead.Letter, error) {
	var out []dead.Letter
	_, err := s.finder(s.deps.State).Select(ctx, queue, &dead.Filter{}, dead.Between{}, 0, func(l *dead.Letter) bool {
		if out = append(out, *l); len(out) == 2*limit {
			out = slices.Delete(out, 0, limit)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	out = out[max(0, len(out)-limit):]
	slices.Reverse(out)
	return out, s.fillErrors(out)
}

// previewed is how many characters of a payload are shown.
const previewed = 200

// preview is the beginning of a payload.
func preview(m *wire.Message) string {
	s := string(m.Payload)
	if m.PayloadBytes != nil {
		s = string(m.PayloadBytes[:min(len(m.PayloadBytes), 4*previewed)])
	}
	s = strings.ToValidUTF8(s[:min(len(s), 8*previewed)], "\uFFFD")
	n := 0
	for i := range s {
		if n == previewed {
			return s[:i]
		}
		n++
	}
	return s
}

// adminReplay answers POST /admin/queues/{queue}/dlq/{message_id}/replay.
func (s *Server) adminReplay(q *request) error {
	to, err := s.moveOne(q, event.TaskReplay)
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true, NewMessageID: to.String()})
}

// adminPurge answers DELETE /admin/queues/{queue}/dlq/{message_id}.
func (s *Server) adminPurge(q *request) error {
	if _, err := s.moveOne(q, event.TaskPurge); err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true})
}
