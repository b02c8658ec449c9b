package main

import (
	"context"
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/replay"
)

// deps hands the api what it stands on, each in the api's own words.
func (e *engine) deps(source *replay.Source, registry *prometheus.Registry) api.Deps {
	return api.Deps{
		Eraser:   erasable{e},
		Proposer: e.replica,
		Barrier:  e.replica,
		State:    liveReader{reader{e.machine}, e.replica},
		Log:      e.log,
		LogErrors: api.LogErrors{
			Gone: eventlog.ErrGone, Erased: eventlog.ErrErased, NotFound: eventlog.ErrNotFound, Range: eventlog.IsRange,
		},
		Past:        past{replay.NewPast(source, 4, 2)},
		Proof:       proof{e},
		Ready:       e.replica,
		EventCounts: e.machine.Counts,
		Rates:       rates{e.models, e.replica},
		Load:        load{e.replica},
		Counts:      counts{e.models},
		Operations:  operations{e.models, e.log},
		Replays:     replays{e.models},
		Floors:      e.machine,
		Finder:      e.log,
		Cluster:     clusterView{e.replica},
		Push:        pushed{e},
		Age:         e.replica.Age,
		Leader:      e.replica.LeaderHTTP,
		AskOthers:   e.askOthers,
		AskLeader:   e.replica.AskLeader,
		Logger:      e.logger,
		Registry:    registry,
	}
}

// past is replay.Past as the api's.
type past struct {
	*replay.Past
}

// At implements api.Past.
func (p past) At(ctx context.Context, at event.Instant) (api.State, func(), error) {
	state, err := p.Past.At(ctx, at)
	if err != nil {
		return nil, func() {}, err
	}
	return reader{state}, func() {}, nil
}

// rates are the read models' as the api's.
type rates struct {
	models *store.Store
	clock  interface{ Clock() int64 }
}

// MessagesPerMinute implements api.Rates.
func (r rates) MessagesPerMinute(queue string) (float64, bool) {
	n, err := r.models.MessagesPerMinute(queue, r.clock.Clock())
	return float64(n), err == nil
}

// counts are the read models that tell of a queue.
type counts struct{ *store.Store }

// Minutes implements api.Counts.
func (c counts) Minutes(queue string, from, to int64) ([]wire.Minute, error) {
	minutes, err := c.Store.Minutes(queue, from, to)
	out := make([]wire.Minute, len(minutes))
	for i := range minutes {
		m := &minutes[i]
		out[i] = wire.Minute{
			Start: wire.Time(m.Start), Enqueued: m.Enqueued, Leased: m.Leased, Acked: m.Acked, Retried: m.Retried,
			LeaseExpired: m.LeaseExpired, DeadLettered: m.DeadLettered, Discarded: m.Discarded, Replayed: m.Replayed,
		}
	}
	return out, err
}

// replays are the read models' as the api's.
type replays struct{ models *store.Store }

// Replayed implements api.Replays.
func (r replays) Replayed(queue string, after event.ID, limit int) ([]event.ID, uint64, error) {
	upTo, _ := r.models.Position() // before looking: what comes meanwhile is more
	found, err := r.models.Replayed(queue, after, limit)
	ids := make([]event.ID, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	return ids, upTo, err
}

// load is the replica's as the api's.
type load struct{ *raft.Replica }

// Load implements api.Load.
func (l load) Load() (float64, int64) {
	v := l.Replica.Load()
	return v.Utilization, int64(v.Waiting)
}

// followAgain is when it is tried anew after the read models could not go on.
const followAgain = 10 * time.Second

// follow lets the read models follow the log until the node ends. They are
// rebuildable, so an error of theirs (a full disk) stops nothing but them, and
// they go on once it is over.
func (e *engine) follow() {
	for {
		err := e.models.Follow(e.background, followed{e.log})
		if e.background.Err() != nil {
			return
		}
		e.logger.Error("read models stand still, trying again", "error", err, "in", followAgain)
		select {
		case <-time.After(followAgain):
		case <-e.background.Done():
			return
		}
	}
}

// followed is the event log as the read models want it.
type followed struct{ log *eventlog.Log }

// Follow implements store.Source.
func (f followed) Follow(from uint64) iter.Seq2[*event.Block, error] { return f.log.Follow(from) }

// Wait implements store.Source: at least this index, where the log's own waits
// for one above.
func (f followed) Wait(ctx context.Context, index uint64) error {
	if index == 0 {
		return ctx.Err()
	}
	return f.log.Wait(ctx, index-1)
}

// Head implements store.Source.
func (f followed) Head() uint64 { return f.log.Head() }

// Begins implements store.Source.
func (f followed) Begins() (uint64, int64) { return f.log.Begins() }

// observe tells the api and what runs in the background of what was applied, and the operator of
// messages that were discarded: a thousand that expire together are one line.
func (e *engine) observe(changed <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer e.warnOfDiscarded()
	leads := false
	var queues, tasks, erasures uint64
	for {
		select {
		case <-changed:
		case <-tick.C:
			e.warnOfDiscarded()
			continue
		case <-e.background.Done():
			return
		}
		e.api.Applied(e.machine.TakeLeasable())
		was := leads
		leads = e.replica.Leader()
		n := e.machine.Counts()
		differs := func(seen *uint64, types ...event.Type) bool {
			was := *seen
			*seen = 0
			for _, t := range types {
				*seen += n[t]
			}
			return *seen != was
		}
		if differs(&queues, event.QueueCreated, event.QueueUpdated, event.QueueDeleted) || leads != was {
			e.push.Wake()
		}
		if differs(&tasks, event.TaskCreated, event.TaskCancelled, event.TaskResumed, event.TaskEnded) || leads != was {
			e.tasks.Wake()
		}
		if differs(&erasures, event.Erased, event.TaskSealed, event.TaskResumed) {
			e.erasures.Wake()
		}
	}
}

func (e *engine) warnOfDiscarded() {
	for of, d := range e.machine.TakeDiscarded() {
		e.logger.Warn("messages were discarded: their queue has no dead-letter queue",
			"queue", of.Queue, "reason", of.Reason.String(), "count", d.Count, "last", d.Last)
	}
}
