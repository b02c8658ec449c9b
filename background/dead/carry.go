package dead

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/qlogd/qlogd/event"
)

// Mover carries out what a Spec says, in as many entries as it takes. Each of its
// proposals names the task, and deciding passes over what is not dead any more:
// so it may begin anew at any time, on any node.
type Mover struct {
	Finder
	// Propose gets a command decided, as raft.Replica's.
	Propose func(context.Context, *event.Command) (event.Result, error)
	// Head is the newest block's index, Wait returns when it is above index.
	Head func() uint64
	Wait func(ctx context.Context, index uint64) error
	// Fits checks a content against a queue's message_schema: an *event.Problem
	// says why it does not fit.
	Fits func(q *event.QueueView, c *event.Content) error
}

// Replays carries out replays.
type Replays struct{ Mover }

// Purges carries out purges.
type Purges struct{ Mover }

// What one entry moves at most.
const (
	chunkItems = 500
	chunkBytes = 512 << 10 // of edits
)

// letter is what is kept of each message while a task works: there may be
// millions.
type letter struct{ id, first event.ID }

// errNotRunning ends a carrying: the task was cancelled. The runner hears of it
// as well, unless it was resumed already; then it begins anew.
var errNotRunning = errors.New("the task was not running")

// letters lists what a spec selects, of what was dead when the task was created:
// what dies again while it works must not come around again.
func (m *Mover) letters(ctx context.Context, t event.TaskView, s *Spec) (out []letter, err error) {
	if s.Filter == nil {
		for _, id := range s.IDs {
			if v, ok := m.State.Message(id); ok && IsDeadIn(&v, t.Queue) {
				out = append(out, letter{v.ID, v.Dead.First})
			}
		}
		return out, nil
	}
	_, err = m.Select(ctx, t.Queue, s.Filter, Between{Before: t.ID}, 0, func(l *Letter) bool {
		out = append(out, letter{l.ID, l.Dead.First})
		return true
	})
	return out, err
}

// IsDeadIn reports whether a live message is one that died in queue.
func IsDeadIn(v *event.MessageView, queue string) bool {
	return v.Dead != nil && v.Dead.Queue == queue &&
		(v.State == event.StateReady || v.State == event.StateScheduled || v.State == event.StateLeased)
}

// InOrder reports whether a replay into q takes messages in the order of their
// first enqueue.
func InOrder(o event.Order, q *event.QueueView) bool {
	return o == event.OrderOriginal || o == event.OrderHead || o == event.OrderDefault && q.Policy.Ordering != event.Unordered
}

// ByFirst sorts by first enqueue.
func ByFirst[T any](list []T, first func(*T) event.ID) {
	slices.SortStableFunc(list, func(a, b T) int { return first(&a).Compare(first(&b)) })
}

// Carry implements task.Carrier.
func (m *Replays) Carry(ctx context.Context, t event.TaskView, spec []byte) (skipped int64, err error) {
	s, err := DecodeSpec(spec)
	if err != nil {
		return 0, event.Problemf(event.CodeInvalidArgument, "", "%s", err)
	}
	r := &replaying{Mover: &m.Mover, t: t, s: s, to: cmp.Or(s.To, t.Queue)}
	r.order, _ = event.ParseOrder(s.Order)
	if r.left, err = m.letters(ctx, t, s); err != nil {
		return 0, err
	}
	target, err := r.target()
	if err != nil {
		return 0, err
	}
	if InOrder(r.order, target) {
		ByFirst(r.left, func(l *letter) event.ID { return l.first })
	}
	pace := newPace(s.Rate)
	for len(r.left) > 0 {
		if err := pace.wait(ctx); err != nil {
			return r.skipped, err
		}
		n, err := r.chunk(ctx, pace.atMost())
		if err != nil {
			return r.skipped, err
		}
		pace.did(n)
	}
	return r.skipped, nil
}

// replaying is one carrying of a replay.
type replaying struct {
	*Mover
	t       event.TaskView
	s       *Spec
	to      string
	order   event.Order
	left    []letter
	skipped int64
}

func (r *replaying) target() (*event.QueueView, error) {
	v, ok := r.State.Queue(r.to)
	if !ok {
		return nil, event.Problemf(event.CodeQueueNotFound, "to", "queue %s does not exist any more", r.to)
	}
	return &v, nil
}

// chunk replays the next up to most messages, and returns how many of them it
// has done with.
func (r *replaying) chunk(ctx context.Context, most int) (int, error) {
	for {
		head := r.Head() // before looking, so that nothing is missed by waiting for more
		target, err := r.target()
		if err != nil {
			return 0, err
		}
		n, bytes := room(target)
		if n == 0 {
			if err := r.Wait(ctx, head); err != nil {
				return 0, err
			}
			continue
		}
		c := &event.Replay{Queue: r.t.Queue, To: r.s.To, Order: r.order, MaxReplays: r.s.MaxReplays, Revision: target.Revision, Task: r.t.ID}
		took, misfits, err := r.gather(c, target, min(n, most), bytes)
		if err != nil {
			return 0, err
		}
		if len(c.Items) == 0 {
			if took == 0 { // the next one has no room by its size
				if err := r.waitFor(ctx, head, target); err != nil {
					return 0, err
				}
				continue
			}
			r.left, r.skipped = r.left[took:], r.skipped+misfits
			return 0, nil
		}
		res, err := r.Propose(ctx, &event.Command{Actor: r.t.Actor, Replay: c})
		switch p := res.Problem; {
		case err != nil:
			return 0, err
		case p != nil && p.Code == event.CodeStaleRevision:
			// The policy changed, or this node is behind: a block tells which.
			if err := r.Wait(ctx, max(res.Index, 1)-1); err != nil {
				return 0, err
			}
			continue
		case p != nil && p.Code == event.CodeQueueFull:
			// Others were faster; what makes room again is an entry.
			if err := r.Wait(ctx, max(res.Index, head)); err != nil {
				return 0, err
			}
			continue
		case p != nil:
			return 0, p
		}
		passed, err := passedOver(res.Moved)
		if err != nil {
			return 0, err
		}
		r.left, r.skipped = r.left[took:], r.skipped+misfits+passed
		return len(c.Items) - int(passed), nil
	}
}

// passedOver counts what deciding passed over, but for what is gone: that was
// done by an earlier carrying, most likely.
func passedOver(moved []event.Moved) (n int64, err error) {
	for i := range moved {
		switch moved[i].Code {
		case "", event.SkipGone:
		case event.SkipTask:
			return 0, errNotRunning
		default:
			n++
		}
	}
	return n, nil
}

// gather fills a command from what is left: at most n messages, and bytes of
// payload. took is how many of them it looked at, misfits those that the target
// does not take for what is in them.
func (r *replaying) gather(c *event.Replay, target *event.QueueView, n int, bytes int64) (took int, misfits int64, err error) {
	checked := len(target.Policy.MessageSchema) > 0 && r.to != r.t.Queue
	size := 0
	for took < len(r.left) && len(c.Items) < n && size < chunkBytes {
		l := r.left[took]
		v, ok := r.State.Message(l.id)
		if !ok || !IsDeadIn(&v, r.t.Queue) {
			took++
			continue
		}
		item := event.ReplayItem{ID: l.id}
		length := int64(v.Size)
		edit := r.s.Edit[l.id]
		if edit != nil || checked {
			found, err := r.Contents([]event.Ref{v.Content})
			if err != nil {
				return 0, 0, err
			}
			old := found[0]
			if old == nil {
				if edit == nil || !edit.HasPayload { // erased: there is nothing to check, nor to edit
					misfits++
					took++
					continue
				}
				old = &event.Content{}
			}
			content := old
			if edit != nil {
				content = edit.Apply(old)
				item = Item(l.id, content)
				length = int64(item.Size)
			}
			var misfit *event.Problem
			if err := r.Fits(target, content); errors.As(err, &misfit) {
				misfits++
				took++
				continue
			} else if err != nil {
				return 0, 0, err
			}
		}
		if bytes -= length; bytes < 0 {
			break
		}
		size += len(item.Content.Bytes)
		c.Items = append(c.Items, item)
		took++
	}
	return took, misfits, nil
}

// waitFor waits until a target may have more room than it has now. A message
// that does not go into an empty queue never will.
func (r *replaying) waitFor(ctx context.Context, head uint64, target *event.QueueView) error {
	if s := &target.Stats; s.Ready+s.Scheduled+s.InFlight == 0 {
		return event.Problemf(event.CodeConflict, "to", "message %s is larger than the max_bytes of queue %s", r.left[0].id, r.to)
	}
	return r.Wait(ctx, head)
}

// room returns how many messages and bytes a queue has room for, at most what
// one entry moves.
func room(q *event.QueueView) (n int, bytes int64) {
	n, bytes = chunkItems, 1<<62
	s := &q.Stats
	if limit := q.Policy.MaxDepth; limit > 0 {
		n = int(max(0, min(int64(n), limit-s.Ready-s.Scheduled-s.InFlight)))
	}
	if limit := q.Policy.MaxBytes; limit > 0 {
		if bytes = limit - s.Bytes; bytes <= 0 {
			n = 0
		}
	}
	return n, bytes
}

// Carry implements task.Carrier.
func (m *Purges) Carry(ctx context.Context, t event.TaskView, spec []byte) (skipped int64, err error) {
	s, err := DecodeSpec(spec)
	if err != nil {
		return 0, event.Problemf(event.CodeInvalidArgument, "", "%s", err)
	}
	left, err := m.letters(ctx, t, s)
	if err != nil {
		return 0, err
	}
	for part := range slices.Chunk(left, chunkItems) {
		c := &event.PurgeDead{Queue: t.Queue, Task: t.ID}
		for _, l := range part {
			c.IDs = append(c.IDs, l.id)
		}
		res, err := m.Propose(ctx, &event.Command{Actor: t.Actor, PurgeDead: c})
		if err == nil && res.Problem != nil {
			err = res.Problem
		}
		if err != nil {
			return skipped, fmt.Errorf("purge: %w", err)
		}
		n, err := passedOver(res.Moved)
		if err != nil {
			return skipped, err
		}
		skipped += n
	}
	return skipped, nil
}

// pace spreads a task's messages over time.
type pace struct {
	rate  int64 // a second; 0: no bound
	begun time.Time
	done  int64
}

func newPace(rate int64) *pace { return &pace{rate: rate, begun: time.Now()} }

// perStep is how often a second a paced task proposes, where its rate allows.
const perStep = 10

// atMost is how many messages may go now.
func (p *pace) atMost() int {
	if p.rate == 0 {
		return chunkItems
	}
	return int(min(max(p.rate/perStep, 1), chunkItems))
}

func (p *pace) did(n int) { p.done += int64(n) }

// wait returns when the next messages may go.
func (p *pace) wait(ctx context.Context) error {
	if p.rate == 0 {
		return ctx.Err()
	}
	due := p.begun.Add(time.Duration(float64(p.done) / float64(p.rate) * float64(time.Second)))
	// Where it was held up, it does not catch up at once.
	if late := time.Since(due); late > time.Second {
		p.begun = p.begun.Add(late - time.Second)
	}
	t := time.NewTimer(time.Until(due))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
