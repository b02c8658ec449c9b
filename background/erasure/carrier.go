package erasure

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
)

// Carrier carries erasures out as far as one node can for all: see task.Run.
type Carrier struct {
	Finder
	// Propose gets a command decided.
	Propose func(context.Context, *event.Command) (event.Result, error)
	// Members returns the members of the cluster as they report (NodeOptions.Self).
	Members func() []string
	// OpenPast opens what goes back further than the log, nil where nothing does.
	// nil: there is no archive.
	OpenPast func(context.Context) (past Reader, done func(), err error)
	// Archive removes erased contents from the archive; nil without one.
	Archive func(ctx context.Context, refs []event.Ref) error

	// finding is held by the task that looks for what is to be erased: one after
	// the other reads the log.
	finding sync.Mutex
}

const (
	chunkItems = 200
	chunkRefs  = 4096
)

// lookForReports is how often it is looked whether all nodes have reported, or
// whether what was passed over can be told now.
var lookForReports = 200 * time.Millisecond

// Run is a task.Run: it returns nil when all contents are erased on all members.
func (c *Carrier) Run(ctx context.Context, t event.TaskView, raw []byte) (skipped int64, err error) {
	spec, id, err := DecodeSpec(raw)
	if err != nil {
		return 0, &event.Problem{Code: event.CodeInvalidArgument, Detail: err.Error(), Index: -1}
	}
	if !t.Sealed {
		if err := c.tell(ctx, &t, spec, id); err != nil {
			return 0, err
		}
	}
	if err := c.awaitReports(ctx, t.ID); err != nil || c.Archive == nil {
		return 0, err
	}
	// Last, when nobody brings anything to the archive any more that is not erased.
	refs, err := refsOf(ctx, c.Log, t.ID, c.Log.Head())
	if err != nil {
		return 0, err
	}
	return 0, c.Archive(ctx, refs)
}

// tell has all that is to be erased decided on, and seals the task.
func (c *Carrier) tell(ctx context.Context, t *event.TaskView, spec *Spec, id event.ID) error {
	c.finding.Lock()
	defer c.finding.Unlock()
	w := &work{
		Finder: c.Finder, c: c, task: t.ID, why: event.EncodeContent(&event.Content{Why: spec.Reason}),
		of: map[event.ID]event.ID{}, edits: edits{}, seen: map[event.ID][]event.Event{},
	}
	if c.OpenPast != nil {
		past, done, err := c.OpenPast(ctx)
		if err != nil {
			return err
		}
		defer done()
		w.Past = past
	}
	if err := w.all(ctx, spec, id); err != nil {
		return err
	}
	_, err := c.propose(ctx, &event.Command{UpdateTask: &event.UpdateTask{ID: t.ID, Op: event.TaskOpSeal}})
	return err
}

// propose gets a command decided. A refusal is an error that is tried again, not
// one that ends the task: it was sealed, or cancelled, meanwhile, by the node that
// leads now.
func (c *Carrier) propose(ctx context.Context, cmd *event.Command) (event.Result, error) {
	r, err := c.Propose(ctx, cmd)
	if err == nil && r.Problem != nil {
		err = errors.New(r.Problem.Detail)
	}
	return r, err
}

// awaitReports returns when every member has carried the task out. Who is removed
// meanwhile is not waited for, who comes is.
func (c *Carrier) awaitReports(ctx context.Context, task event.ID) error {
	tick := time.NewTicker(lookForReports)
	defer tick.Stop()
	for {
		t, ok := c.State.Task(task)
		if !ok {
			return nil // dropped: it has ended
		}
		members := c.Members()
		missing := slices.ContainsFunc(members, func(m string) bool {
			return !slices.ContainsFunc(t.Nodes, func(n event.TaskNode) bool { return n.Node == m })
		})
		if len(members) > 0 && !missing {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// work is one go at a task's messages.
type work struct {
	Finder
	c    *Carrier
	task event.ID
	why  event.Blob

	chunk event.Erase
	refs  int
	again []event.ID
	// of has every id of a message that was looked at, and by which one.
	of    map[event.ID]event.ID
	edits edits
	// seen are the events of these messages since it began.
	seen map[event.ID][]event.Event
}

// all has everything erased: again and again, until nothing has happened to any
// of the messages since it was looked at. A message may be acked, die or be
// replayed between that and its erasure; once that is decided it is gone, and
// only what was on its way can still come.
func (w *work) all(ctx context.Context, spec *Spec, id event.ID) error {
	from := w.Log.Head() + 1
	var err error
	if !id.IsZero() {
		err = w.message(ctx, id)
	} else {
		err = w.Key(ctx, spec.Queue, spec.Key, w.task, func(id event.ID) error { return w.message(ctx, id) })
	}
	for {
		if err == nil {
			err = w.flush(ctx)
		}
		if err != nil {
			return err
		}
		slices.SortFunc(w.again, event.ID.Compare)
		open := slices.Compact(w.again)
		w.again = nil
		next := w.Log.Head() + 1
		touched := map[event.ID]bool{}
		err = each(ctx, w.Log, from, next-1, func(e *event.Event) error {
			by, ours := w.of[e.Subject]
			if !ours {
				return nil
			}
			if e.IsMove() {
				w.of[e.ID] = by
			}
			met := *e
			met.Content.Bytes = nil // the log's, until the next block
			w.seen[by] = append(w.seen[by], met)
			if own := e.Task == w.task && (e.Type == event.Erased || e.Type == event.Discarded); !own && !touched[by] {
				touched[by] = true
				open = append(open, by)
			}
			return nil
		})
		if err != nil || len(open) == 0 {
			return err
		}
		from = next
		for _, id := range open {
			if err = w.message(ctx, id); err != nil {
				break
			}
		}
	}
}

// message adds what is to be erased of a message.
func (w *work) message(ctx context.Context, id event.ID) error {
	found, err := w.Finder.message(ctx, id, w.edits, w.seen[id])
	if err != nil {
		return err
	}
	for _, other := range found.IDs {
		w.of[other] = id
	}
	if found.More {
		w.again = append(w.again, id)
	}
	// What is live first: it must not be leased when the event that has its payload
	// is told to be erased, as that of an id that it had before.
	slices.SortStableFunc(found.Items, func(a, b event.EraseItem) int {
		switch live, other := a.Last.IsZero(), b.Last.IsZero(); {
		case live && !other:
			return -1
		case other && !live:
			return 1
		}
		return 0
	})
	for _, it := range found.Items {
		// An id comes once in a command: deciding passes over a second one.
		if len(w.chunk.Items) >= chunkItems || w.refs+len(it.Refs) > chunkRefs ||
			slices.ContainsFunc(w.chunk.Items, func(o event.EraseItem) bool { return o.ID == it.ID }) {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
		w.chunk.Items = append(w.chunk.Items, it)
		w.refs += len(it.Refs)
	}
	return nil
}

// flush proposes what was added.
func (w *work) flush(ctx context.Context) error {
	if len(w.chunk.Items) == 0 {
		return nil
	}
	erase := w.chunk
	erase.Task, erase.Why = w.task, w.why
	w.chunk, w.refs = event.Erase{}, 0
	r, err := w.c.propose(ctx, &event.Command{Erase: &erase})
	if err != nil || r.Count == int64(len(erase.Items)) {
		return err
	}
	// Some were passed over: they have left their queue since they were looked at, or
	// are about to, purged with many others.
	for _, it := range erase.Items {
		w.again = append(w.again, w.of[it.ID])
	}
	select {
	case <-time.After(lookForReports):
	case <-ctx.Done():
	}
	return ctx.Err()
}
