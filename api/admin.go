package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/dead"
	"github.com/qlogd/qlogd/event"
)

// The shapes of the first design, under /admin. They do what the calls under /v1
// do, in fewer words.

// adminQueues answers GET /admin/queues?tenant_id=.
func (s *Server) adminQueues(q *request) error {
	if err := q.allow("tenant_id"); err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	st := s.deps.State
	tenant, filtered := q.query.Get("tenant_id"), q.query.Has("tenant_id")
	out := wire.AdminQueues{Queues: []wire.AdminQueue{}}
	views := st.Queues()
	for i := range views {
		v := &views[i]
		if filtered && v.Policy.Namespace != tenant || !q.sees(v.Name) {
			continue
		}
		a := wire.AdminQueue{
			Name: v.Name, Depth: v.Stats.Ready, InFlight: v.Stats.InFlight, DLQSize: st.DeadCount(v.Name),
		}
		if v.Stats.Oldest > 0 {
			a.OldestMessageAgeSeconds = max(0, clock(st)-v.Stats.Oldest) / 1000
		}
		if s.deps.Rates != nil {
			a.MessagesPerMinute, _ = s.deps.Rates.MessagesPerMinute(v.Name)
		}
		out.Queues = append(out.Queues, a)
	}
	return q.answer(http.StatusOK, &out)
}

// adminDead answers GET /admin/queues/{queue}/dlq with all that died in a queue:
// the newest first, as who looks for what has just gone wrong wants it.
func (s *Server) adminDead(q *request) error {
	name, err := q.queue()
	if err != nil {
		return err
	}
	if err := q.allow("limit"); err != nil {
		return err
	}
	limit, err := q.number("limit", 1000, 1, 10_000)
	if err != nil {
		return err
	}
	if err := q.fresh(); err != nil {
		return err
	}
	st := s.deps.State
	if err := died(st, name); err != nil {
		return err
	}
	letters, err := s.newestDead(q.Context(), name, int(limit))
	if err != nil {
		return err
	}
	out := wire.AdminDeadLetters{DeadLetters: []wire.AdminDeadLetter{}}
	for len(letters) > 0 {
		n := min(len(letters), 256) // payloads are read so many at a time
		told, err := s.letters(letters[:n])
		if err != nil {
			return err
		}
		for i := range told {
			m := &told[i]
			out.DeadLetters = append(out.DeadLetters, wire.AdminDeadLetter{
				ID: m.ID, FailedAt: letters[i].Dead.FailedAt / 1000, Error: m.Dead.Error, Attempts: m.Dead.Attempts, Preview: preview(m),
			})
		}
		letters = letters[n:]
	}
	return q.answer(http.StatusOK, &out)
}

// newestDead returns the newest of what died in a queue, the newest first.
func (s *Server) newestDead(ctx context.Context, queue string, limit int) ([]dead.Letter, error) {
	var ring []dead.Letter // the last limit ones
	at := 0
	_, err := s.finder(s.deps.State).Select(ctx, queue, &dead.Filter{}, dead.Between{}, 0, func(l *dead.Letter) bool {
		if len(ring) < limit {
			ring = append(ring, *l)
		} else {
			ring[at] = *l
			at = (at + 1) % limit
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	out := make([]dead.Letter, 0, len(ring))
	views := make([]event.MessageView, 0, len(ring))
	for i := range ring {
		l := ring[(at+len(ring)-1-i)%len(ring)]
		out, views = append(out, l), append(views, l.MessageView)
	}
	texts, err := s.finder(s.deps.State).Errors(views)
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i].Error = texts[i]
	}
	return out, nil
}

// previewed is how many characters of a payload are shown.
const previewed = 200

// preview is the beginning of a payload: as it is, of bytes what can be read of
// them.
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
	to, err := s.moveOne(q, event.TaskReplay, q.PathValue("message_id"))
	if err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true, NewMessageID: to.String()})
}

// adminPurge answers DELETE /admin/queues/{queue}/dlq/{message_id}.
func (s *Server) adminPurge(q *request) error {
	if _, err := s.moveOne(q, event.TaskPurge, q.PathValue("message_id")); err != nil {
		return err
	}
	return q.answer(http.StatusOK, &wire.AdminDone{OK: true})
}
