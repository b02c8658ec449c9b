package api

import (
	"context"
	"net/http"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// rebuildTimeout bounds clearing the read models; they are counted again in the background.
const rebuildTimeout = 10 * time.Second

// queueStats answers GET /v1/queues/{queue}/stats?minutes=&consistency=.
func (s *Server) queueStats(q *request) error {
	in := q.read("minutes", "consistency")
	name, minutes := in.queue(), in.number("minutes", 60, 1, 24*60)
	in.fresh()
	counts := s.deps.Models
	switch {
	case in.err != nil:
		return in.err
	case counts == nil:
		return &problemNotFound
	}
	v, ok := s.deps.State.Queue(name)
	if !ok {
		return queueNotFound(name)
	}
	queue := s.queueOf(&v, s.deps.State)
	out := wire.QueueStats{
		Queue: name, MessagesPerMinute: queue.Stats.MessagesPerMinute, OldestMessageAgeSeconds: queue.Stats.OldestMessageAgeSeconds,
		DeadByReason: map[string]uint64{},
	}
	// The position first: the numbers include at least everything up to there.
	out.Index, _ = counts.Position()
	var err error
	if out.Totals, err = counts.QueueTotals(name); err != nil {
		return err
	}
	dead, err := counts.DeadLetters(name)
	if err != nil {
		return err
	}
	for reason, n := range dead {
		out.DeadByReason[reason.String()] = n
	}
	now := s.clock(s.deps.State)
	counted, err := counts.Minutes(name, now-minutes*60_000, now+1)
	if err != nil {
		return err
	}
	out.Minutes = make([]wire.Minute, len(counted))
	for i := range counted {
		m := &counted[i]
		out.Minutes[i] = wire.Minute{
			Start: wire.Time(m.Start), Enqueued: m.Enqueued, Leased: m.Leased, Acked: m.Acked, Retried: m.Retried,
			LeaseExpired: m.LeaseExpired, DeadLettered: m.DeadLettered, Discarded: m.Discarded, Replayed: m.Replayed,
		}
	}
	return q.answer(http.StatusOK, &out)
}

// projections answers GET /v1/projections.
func (s *Server) projections(q *request) error {
	if err := q.allow(); err != nil {
		return err
	}
	if s.deps.Models == nil {
		return &problemNotFound
	}
	out := s.projectionsNow()
	return q.answer(http.StatusOK, &out)
}

func (s *Server) projectionsNow() wire.Projections {
	// The head last: it is never behind what is counted.
	index, clock := s.deps.Models.Position()
	return wire.Projections{Index: index, Time: wire.Time(clock), LogHead: s.deps.Log.Head()}
}

// rebuildProjections answers POST /v1/projections/rebuild with 202 and counts again in the
// background.
func (s *Server) rebuildProjections(q *request) error {
	in := q.read()
	in.noBody()
	switch {
	case in.err != nil:
		return in.err
	case s.deps.Models == nil:
		return &problemNotFound
	}
	return q.change("rebuild read models", rebuildTimeout, func(context.Context) (int, any, error) {
		if err := s.deps.Models.Rebuild(); err != nil {
			return 0, nil, err
		}
		s.log.Info("rebuilding read models", "actor", q.actor(), "request_id", q.id)
		return http.StatusAccepted, s.projectionsNow(), nil
	})
}
