package replay

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// Loss is damage in a log, and what it affects.
type Loss struct {
	log.Loss
	Messages []event.ID // each once: of damaged contents, of the events left out after it
	LeftOut  int        // events that are impossible without what was lost
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
	v := &salvage{d: d, to: to, progress: progress, named: map[event.ID]*Loss{}}
	node, err = d.write(target, seed, func(tmp string) (
		*datadir.Node, checkpoint.Meta, io.WriterTo, error) {
		return v.fill(ctx, tmp)
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
}

// begin sets the state that the log begins with.
func (v *salvage) begin(before uint64) (uint64, int64) {
	v.before = before
	v.state = v.first()
	if before > 0 && v.state.Index() == 0 {
		v.lost(v.beginning())
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

func (v *salvage) lost(l *log.Loss) {
	v.losses = append(v.losses, &Loss{Loss: *l, Messages: slices.Clone(l.Damaged)})
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
		if v.state.Try(e) {
			continue
		}
		out = append(out, e.ID)
		if len(v.losses) == 0 {
			v.lost(&log.Loss{First: b.Index, Last: b.Index, Kept: true,
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
func (v *salvage) fill(ctx context.Context, tmp string) (
	*datadir.Node, checkpoint.Meta, io.WriterTo, error) {
	o := v.d.logOptions()
	o.SegmentSize = v.d.Node.LogSegmentBytes
	if v.to.Kind != event.InstantNow {
		o.Durable = 0
	}
	logDir := datadir.Path(tmp, datadir.LogDir)
	end, err := log.Salvage(ctx, o, log.Options{Dir: logDir},
		log.SalvageOptions{Begin: v.begin, Ends: v.ends, LeftOut: v.fold, Lost: v.lost,
			Progress: v.progress})
	if err == nil && end.Last == 0 {
		err = fmt.Errorf("%w: no block of the log is whole", ErrTarget)
	}
	if err != nil {
		return nil, checkpoint.Meta{}, nil, err
	}
	// What was tried is not trusted: the state is what the copy says.
	state := v.first()
	// Retention writes to the log what it deletes.
	if state.Index() > 0 && v.before >= max(v.state.History(), 1) {
		v.losses = slices.Insert(v.losses, 0, &Loss{Loss: *v.beginning()})
	}
	if err := v.again(ctx, state, logDir); err != nil {
		return nil, checkpoint.Meta{}, nil, err
	}
	frozen := state.Freeze()
	clock := state.Clock()
	if v.to.Kind == event.InstantTime {
		clock = max(clock, v.to.Time)
	}
	node, meta := v.d.forkNode(frozen, end, clock)
	for _, l := range v.losses {
		if !l.Kept {
			node.Fork.Lost = append(node.Fork.Lost, datadir.Lost{First: l.First, Last: l.Last})
		}
	}
	return node, meta, frozen, nil
}

// again folds the copy.
func (v *salvage) again(ctx context.Context, state *projections.State, dir string) error {
	l, err := log.OpenReadOnly(log.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, err := range (&Source{Log: l}).fold(ctx, state, math.MaxUint64) {
		if err != nil {
			return err
		}
	}
	return nil
}
