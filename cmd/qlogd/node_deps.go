package main

import (
	"context"
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/replay"
)

// deps is what the api runs on.
func (e *engine) deps(n *node, source *replay.Source, registry *prometheus.Registry) api.Deps {
	past := replay.NewPast(source, 4, 2)
	return api.Deps{
		Node: e.replica, State: e.machine, Log: e.log, Models: e.models,
		Past:  func(ctx context.Context, at event.Instant) (api.State, error) { return past.At(ctx, at) },
		Proof: proof{e}, Cluster: clusterView{e.replica}, Push: pushed{e}, Eraser: erasable{e},
		Secrets: n.hooked, Forward: n.forward, Logger: e.logger, Registry: registry,
	}
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
