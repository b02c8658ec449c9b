package api

import (
	"context"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections/store"
)

// rebuildTimeout bounds clearing the read models; they are counted again in the background.
const rebuildTimeout = 10 * time.Second

// queueStats answers GET /v1/queues/{queue}/stats?minutes=&consistency=.
func (s *Server) queueStats(q *request) error {
	name := q.read("minutes", "consistency").queue()
	minutes := q.number("minutes", 60, 1, 24*60)
	counts := s.deps.Models
	q.fresh()
	v := found(q, name, s.deps.State.Queue, queueNotFound)
	if q.err != nil {
		return q.err
	}
	stats := s.queueOf(&v, s.deps.State).Stats
	out := wire.QueueStats{
		Queue: name, MessagesPerMinute: stats.MessagesPerMinute,
		OldestMessageAgeSeconds: stats.OldestMessageAgeSeconds, DeadByReason: map[string]uint64{},
	}
	// The position first: the numbers include at least everything up to there.
	out.Index, _ = counts.Position()
	out.Totals = get(q, func() (map[string]uint64, error) { return counts.QueueTotals(name) })
	dead := get(q, func() (map[event.Reason]uint64, error) { return counts.DeadLetters(name) })
	for reason, n := range dead {
		out.DeadByReason[reason.String()] = n
	}
	now := s.clock(s.deps.State)
	counted := get(q, func() ([]store.Minute, error) {
		return counts.Minutes(name, now-minutes*60_000, now+1)
	})
	out.Minutes = make([]wire.Minute, len(counted))
	for i, m := range counted {
		out.Minutes[i] = wire.Minute{
			Start: wire.Time(m.Start), Enqueued: m.Enqueued, Leased: m.Leased, Acked: m.Acked,
			Retried: m.Retried, LeaseExpired: m.LeaseExpired, DeadLettered: m.DeadLettered,
			Discarded: m.Discarded, Replayed: m.Replayed,
		}
	}
	return q.answer(http.StatusOK, &out)
}

// projections answers GET /v1/projections.
func (s *Server) projections(q *request) error {
	q.read()
	return q.answer(http.StatusOK, new(s.projectionsNow()))
}

func (s *Server) projectionsNow() wire.Projections {
	// The head last: it is never behind what is counted.
	index, clock := s.deps.Models.Position()
	return wire.Projections{Index: index, Time: wire.Time(clock), LogHead: s.deps.Log.Head()}
}

// rebuildProjections answers POST /v1/projections/rebuild with 202 and counts again in the
// background.
func (s *Server) rebuildProjections(q *request) error {
	q.read().noBody()
	return q.change("rebuild read models", rebuildTimeout, func(context.Context) (int, any, error) {
		if err := s.deps.Models.Rebuild(); err != nil {
			return 0, nil, err
		}
		s.log.Info("rebuilding read models", "actor", q.actor(), "request_id", q.id)
		return http.StatusAccepted, s.projectionsNow(), nil
	})
}
