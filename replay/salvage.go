package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// Loss is damage in a log, and what it affects.
type Loss struct {
	log.Loss
	Messages []event.ID // each once: of damaged contents, of the events left out after it
	LeftOut  int        // events that are impossible without what was lost
	Created  []Created

	gap *gap // nil: no queue is created here
}

// Created is a queue that is created in place of a lost event, because later ones need it.
type Created struct {
	Queue string `json:"queue"`
	// Checkpoint is the index of the one that has its policy; 0: none has, so it has the default
	// policy without a bound on attempts.
	Checkpoint uint64 `json:"checkpoint"`
}

// need is a queue that must have been created in a lost block.
type need struct {
	queue      string
	index      uint64 // of the first block that needs it
	loss       int    // the newest loss before that, then the one that creates it; -1: none can
	policy     event.Policy
	number     uint32 // 0: not known
	checkpoint uint64
}

// gap is the numbers of queues that are missing between two whole creations: a queue can only be
// created there if one was lost.
type gap struct {
	first, end uint32
	free       uint32
}

// Salvage writes a new data directory as Into does, of a log that is damaged anywhere: of every
// whole block, without the events that are impossible because others are missing. It returns what
// is damaged, in the log's order.
func Salvage(ctx context.Context, fsys vfs.FS, path string, card *datadir.Node, to event.Instant,
	target string, seed Seed, progress func(done, total int64)) (
	node *datadir.Node, losses []*Loss, err error) {
	d, _, err := newDir(fsys, path, card)
	if err != nil {
		return nil, nil, err
	}
	if target, err = d.checkTarget(target); err != nil {
		return nil, nil, err
	}
	v := &salvage{d: d, to: to, progress: progress, named: map[event.ID]*Loss{},
		missing: map[string]bool{}, known: map[string]bool{}}
	node, err = d.write(to, target, seed, func(logDir string) (origin, error) {
		return v.fill(ctx, logDir)
	})
	return node, v.losses, err
}

// salvage is the state of one Salvage.
type salvage struct {
	d        *Dir
	to       event.Instant
	progress func(done, total int64)
	state    *projections.State
	before   uint64 // index behind which the log begins
	losses   []*Loss
	named    map[event.ID]*Loss // the newest that names a message

	// A first pass finds which queues are missing; if any is, a second one creates them.
	second  bool
	needs   []*need
	missing map[string]bool // those of needs that nothing has created or deleted since
	known   map[string]bool // every queue that was ever there, or is needed
	gap     *gap            // of the newest losses, until a whole creation follows
}

// begin sets the state that the log begins with.
func (v *salvage) begin(before uint64) (uint64, int64) {
	v.before = before
	v.state = v.first()
	for _, q := range v.state.Queues() {
		v.known[q.Name] = true
	}
	if before > 0 && v.state.Index() == 0 {
		v.list(v.beginning())
	}
	return v.state.Index(), v.state.Clock()
}

// first returns the state that the log begins with.
func (v *salvage) first() *projections.State {
	for _, m := range slices.Backward(v.d.Metas) { // oldest first
		if v.before == 0 || m.HeadIndex < v.before {
			continue
		}
		if s, err := v.d.load(&m); err == nil {
			return s
		}
	}
	return projections.New()
}

// beginning is the loss of the log's beginning.
func (v *salvage) beginning() *log.Loss {
	return &log.Loss{Segment: log.SegmentName(v.before + 1), First: 1, Last: v.before,
		Reason: "the segments before it are missing"}
}

func (v *salvage) list(l *log.Loss) *Loss {
	v.losses = append(v.losses, &Loss{Loss: *l, Messages: slices.Clone(l.Damaged)})
	return v.losses[len(v.losses)-1]
}

// lost lists a loss, and returns a block that creates the queues that later events need.
func (v *salvage) lost(loss *log.Loss) *event.Block {
	l := v.list(loss)
	if l.Kept || l.Last <= v.state.Index() {
		return nil
	}
	if v.gap == nil {
		v.gap = &gap{v.state.NextNumber(), math.MaxUint32, math.MaxUint32}
	}
	l.gap = v.gap
	b := &event.Block{Index: l.Last, Time: v.state.Clock()}
	for _, n := range v.needs {
		_, there := v.state.Look(n.queue)
		if !v.second || n.loss != len(v.losses)-1 || there {
			continue
		}
		if len(b.Events) == 0 {
			v.state.Begin(b.Index, b.Time)
		}
		e := event.Event{ID: event.NewID(b.Time, b.Index, uint32(len(b.Events))),
			Type: event.QueueCreated, Queue: n.queue, Policy: &n.policy, Actor: "salvage",
			Number: max(v.state.NextNumber(), n.number)}
		v.state.Apply(&e)
		b.Events = append(b.Events, e)
		l.Created = append(l.Created, Created{n.queue, n.checkpoint})
	}
	if len(b.Events) == 0 {
		return nil
	}
	return b
}

// look records what an event implies about the queues that exist.
func (v *salvage) look(e *event.Event) {
	if e.Type == event.QueueCreated && v.gap != nil && e.Number >= v.state.NextNumber() {
		v.gap.end, v.gap.free = e.Number, e.Number-v.state.NextNumber()
		v.gap = nil
	}
	switch e.Type {
	case event.QueueCreated, event.QueueDeleted:
		delete(v.missing, e.Queue)
		v.known[e.Queue] = true
	case event.Enqueued, event.QueuePaused, event.QueueResumed, event.QueuePurged,
		event.QueueUpdated:
		v.want(e.Queue)
	case event.DeadLettered, event.Replayed, event.Resurrected:
		v.want(e.ToQueue)
	}
	if e.Policy != nil {
		v.want(e.Policy.DeadLetterQueue)
	}
}

// want records that a queue must exist.
func (v *salvage) want(queue string) {
	_, there := v.state.Look(queue)
	if there || queue == "" || v.missing[queue] {
		return
	}
	for i, l := range slices.Backward(v.losses) {
		if l.gap != nil {
			v.missing[queue], v.known[queue] = true, true
			v.needs = append(v.needs, &need{queue: queue, index: v.state.Index(), loss: i})
			return
		}
	}
}

// plan finds the policies of the queues to be created, and where they are created.
func (v *salvage) plan() {
	for _, m := range slices.Backward(v.d.Metas) { // oldest first
		wants := func(n *need) bool { return n.checkpoint == 0 && n.index <= m.HeadIndex }
		if !slices.ContainsFunc(v.needs, wants) {
			continue
		}
		state, err := v.d.load(&m)
		for i := 0; err == nil && i < len(v.needs); i++ { // it may grow
			n := v.needs[i]
			q, ok := state.Look(n.queue)
			if !ok || !wants(n) {
				continue
			}
			n.policy, n.number, n.checkpoint = q.Policy, q.Number, m.HeadIndex
			if dlq := q.Policy.DeadLetterQueue; dlq != "" && !v.known[dlq] {
				v.known[dlq] = true
				v.needs = append(v.needs, &need{queue: dlq, index: n.index, loss: n.loss})
			}
		}
	}
	for _, n := range v.needs {
		if n.checkpoint == 0 {
			n.policy = event.DefaultPolicy()
			n.policy.MaxAttempts = 0 // what would become of a dead message is not known
		}
		for ; n.loss >= 0; n.loss-- {
			g := v.losses[n.loss].gap
			if g == nil || g.free < 2 || n.number > 0 && n.number < g.first {
				continue
			}
			if g.free -= 2; n.number >= g.end {
				n.number = 0 // it is a later queue's
			}
			break
		}
	}
	slices.SortStableFunc(v.needs, func(a, b *need) int { return cmp.Compare(a.number, b.number) })
}

// ends reports whether --to is before a block.
func (v *salvage) ends(index uint64, time int64) bool {
	switch v.to.Kind {
	case event.InstantStart:
		return true
	case event.InstantNow:
		return false
	case event.InstantTime:
		return time > v.to.Time
	case event.InstantID:
		return index > event.RefOf(v.to.ID).Index
	}
	return index > v.to.Index
}

// fold folds a block and returns the events that are impossible.
func (v *salvage) fold(b *event.Block) (out []event.ID) {
	if b.Index <= v.state.Index() {
		return nil // a checkpoint holds what it has led to
	}
	v.state.Begin(b.Index, b.Time)
	for i := range b.Events {
		e := &b.Events[i]
		if !v.second {
			v.look(e)
		}
		if v.state.Try(e) {
			continue
		}
		out = append(out, e.ID)
		if len(v.losses) == 0 {
			v.list(&log.Loss{First: b.Index, Last: b.Index, Kept: true,
				Reason: "an event is impossible"})
		}
		l := v.losses[len(v.losses)-1]
		l.LeftOut++
		if id := e.Subject; !id.IsZero() && v.named[id] != l {
			v.named[id] = l
			l.Messages = append(l.Messages, id)
		}
	}
	return out
}

// fill writes the log and returns the state that it leads to.
func (v *salvage) fill(ctx context.Context, logDir string) (from origin, err error) {
	o := v.d.logOptions()
	o.SegmentSize = v.d.Node.LogSegmentBytes
	if v.to.Kind != event.InstantNow {
		o.Durable = 0
	}
	pass := func() (log.SegmentInfo, error) {
		return log.Salvage(ctx, o, log.Options{Dir: logDir},
			log.SalvageOptions{Begin: v.begin, Ends: v.ends, LeftOut: v.fold, Lost: v.lost,
				Progress: v.progress})
	}
	from.end, err = pass()
	if err == nil && len(v.needs) > 0 {
		v.plan()
		v.second, v.losses = true, nil
		if err = errors.Join(os.RemoveAll(logDir), os.Mkdir(logDir, 0o700)); err == nil {
			from.end, err = pass()
		}
	}
	if err == nil && from.end.Last == 0 {
		err = fmt.Errorf("%w: no block of the log up to --to is whole", ErrTarget)
	}
	if err != nil {
		return from, err
	}
	// What was tried is not trusted: the state is what the copy says.
	from.state = v.first()
	// Retention writes to the log what it deletes.
	if from.state.Index() > 0 && v.before >= max(v.state.History(), 1) {
		v.losses = slices.Insert(v.losses, 0, &Loss{Loss: *v.beginning()})
	}
	for _, l := range v.losses {
		if !l.Kept {
			from.lost = append(from.lost, datadir.Lost{First: l.First, Last: l.Last})
		}
	}
	l, err := log.OpenReadOnly(log.Options{Dir: logDir})
	if err != nil {
		return from, err
	}
	defer l.Close()
	for _, err := range (&Source{Log: l}).fold(ctx, from.state, math.MaxUint64) {
		if err != nil {
			return from, err
		}
	}
	return from, nil
}
