package dead

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
)

// Mover executes a Spec, in as many entries as it takes. Each proposal names the task, and
// the state machine skips messages that are not dead any more, so a Mover may start again at
// any time, on any node.
type Mover struct {
	Finder
	Propose task.Propose
	// Head is the newest block's index, Wait returns when it is above index.
	Head func() uint64
	Wait func(ctx context.Context, index uint64) error
}

// What one entry moves at most.
const (
	chunkItems = 500
	chunkBytes = 512 << 10 // of edits
)

// letter is what a running task keeps in memory of each message: there may be millions.
type letter struct{ id, first event.ID }

// start decodes a task's spec and lists the messages that it selects among those that were
// dead when the task was created: one that dies again while it runs is not selected again.
func (m *Mover) start(ctx context.Context, t *event.TaskView, raw []byte) (
	s *Spec, out []letter, err error) {
	if s, err = task.DecodeSpec[Spec](raw); err != nil {
		return nil, nil, err
	}
	if s.Filter == nil {
		for _, id := range s.IDs {
			if v, ok := m.State.Message(id); ok && v.DiedIn(t.Queue) {
				out = append(out, letter{v.ID, v.Dead.First})
			}
		}
		return s, out, nil
	}
	search := &Search{Queue: t.Queue, Filter: *s.Filter, Before: t.ID}
	for v, err := range m.Select(ctx, search) {
		if err != nil {
			return nil, nil, err
		}
		out = append(out, letter{v.ID, v.Dead.First})
	}
	return s, out, nil
}

// Item returns the item that replays a message into target, with an edit, nil for none. A
// message that is edited or goes to another queue must match the target's message_schema; an
// *event.Problem says why it does not.
func (x Finder) Item(v *event.MessageView, edit *Edit, target *event.QueueView) (
	item event.ReplayItem, err error) {
	item.ID = v.ID
	checked := target.Name != v.Dead.Queue && len(target.Policy.MessageSchema) > 0
	if edit == nil && !checked {
		return item, nil
	}
	c, err := x.Content(v.Content)
	if err != nil {
		return item, err
	}
	if c == nil {
		if edit == nil || !edit.HasPayload {
			return item, event.Problemf("schema_mismatch", "payload",
				"the payload of message %s was erased", v.ID)
		}
		c = &event.Content{}
	}
	if edit != nil {
		c = edit.Apply(c)
		item.Edited, item.Size, item.Content = true, uint32(len(c.Payload)), event.EncodeContent(c)
	}
	return item, x.Fits(target, c)
}

// Replay carries out a replay.
func (m *Mover) Replay(ctx context.Context, t event.TaskView, raw []byte) (
	skipped int64, err error) {
	s, left, err := m.start(ctx, &t, raw)
	if err != nil {
		return 0, err
	}
	c := event.Replay{Queue: t.Queue, To: s.To, MaxReplays: s.MaxReplays, Task: t.ID}
	c.Order, _ = event.Parse[event.Order](s.Order)
	target, ok := m.State.Queue(cmp.Or(s.To, t.Queue))
	if ok && c.Order.In(target.Policy.Ordering) != event.OrderAppend {
		slices.SortStableFunc(left, func(a, b letter) int { return a.first.Compare(b.first) })
	}
	pace, most := task.Pace(s.Rate, chunkItems)
	for moved := 0; len(left) > 0; {
		if err := pace.WaitN(ctx, moved); err != nil {
			return 0, err
		}
		var took int
		var passed int64
		if took, moved, passed, err = m.replay(ctx, &t, s, c, left, most); err != nil {
			return 0, err
		}
		left, skipped = left[took:], skipped+passed
	}
	return skipped, nil
}

// replay proposes the command for the next messages, at most most. took is the number of messages
// processed: moved, skipped, or not dead any more.
func (m *Mover) replay(
	ctx context.Context, t *event.TaskView, s *Spec, c event.Replay, left []letter, most int,
) (took, moved int, skipped int64, err error) {
	head := m.Head() // before the state is read, so that Wait misses nothing
	to := cmp.Or(c.To, c.Queue)
	target, ok := m.State.Queue(to)
	if !ok {
		return 0, 0, 0, task.NoQueue(to)
	}
	c.Revision = target.Revision
	took, misfits, err := m.fill(&c, s, left, &target, most)
	switch {
	case err != nil:
		return 0, 0, 0, err
	case took == 0 && target.Stats.Messages() == 0:
		return 0, 0, 0, task.TooLarge(left[0].id, to)
	case took == 0:
		return 0, 0, 0, m.Wait(ctx, head)
	case len(c.Items) > 0:
		skipped, err = m.propose(ctx, &event.Command{Actor: t.Actor, Replay: &c})
	}
	if task.Outrun(err) {
		return 0, 0, 0, nil
	}
	return took, len(c.Items) - int(skipped), skipped + misfits, err
}

// fill adds the next messages to a command, as many as the target has room for, but at most most.
// took is the number of messages examined, misfits the number of those whose content does not match
// the target's schema.
func (m *Mover) fill(c *event.Replay, s *Spec, left []letter, target *event.QueueView, most int) (
	took int, misfits int64, err error) {
	room, bytes := task.Room(target)
	most = int(min(int64(most), room))
	size := 0
	for took < len(left) && len(c.Items) < most && bytes > 0 && size < chunkBytes {
		v, ok := m.State.Message(left[took].id)
		if !ok || !v.DiedIn(c.Queue) {
			took++
			continue
		}
		item, err := m.Item(&v, s.Edit[v.ID], target)
		if _, misfit := errors.AsType[*event.Problem](err); misfit {
			misfits++
			took++
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		if item.Edited {
			v.Size = item.Size
		}
		if bytes -= int64(v.Size); bytes < 0 {
			break
		}
		size += len(item.Content.Bytes)
		c.Items = append(c.Items, item)
		took++
	}
	return took, misfits, nil
}

// propose proposes a command and returns how many messages were skipped. It does not count messages
// that were not dead any more: an earlier run most likely moved them. A refusal is an error.
func (m *Mover) propose(ctx context.Context, c *event.Command) (skipped int64, err error) {
	moved, err := m.Propose.Move(ctx, c)
	for i := range moved {
		if code := moved[i].Code; code != "" && code != event.SkipGone {
			skipped++
		}
	}
	return skipped, err
}

// Purge carries out a purge.
func (m *Mover) Purge(ctx context.Context, t event.TaskView, raw []byte) (
	skipped int64, err error) {
	_, left, err := m.start(ctx, &t, raw)
	if err != nil {
		return 0, err
	}
	for part := range slices.Chunk(left, chunkItems) {
		c := &event.PurgeDead{Queue: t.Queue, Task: t.ID}
		for _, l := range part {
			c.IDs = append(c.IDs, l.id)
		}
		passed, err := m.propose(ctx, &event.Command{Actor: t.Actor, PurgeDead: c})
		if err != nil {
			return 0, err
		}
		skipped += passed
	}
	return skipped, nil
}

// Spec describes a replay or a purge of dead letters, as stored in a task (Content.Spec).
// Either IDs or Filter is set.
type Spec struct {
	IDs    []event.ID `json:"message_ids,omitzero"` // in the dead-letter queue
	Filter *Filter    `json:"filter,omitzero"`

	// Of a replay.
	To         string             `json:"to,omitzero"` // "": the queue in which they died
	Order      string             `json:"order,omitzero"`
	Rate       int64              `json:"rate_per_second,omitzero"` // 0: no limit
	MaxReplays uint32             `json:"max_replays,omitzero"`
	Edit       map[event.ID]*Edit `json:"edit,omitzero"`
}

// Edit replaces parts of a message. Where HasHeaders is false its own headers stay,
// where HasPayload is false its payload. Its trace context stays unless Headers has another one.
type Edit struct {
	Payload     []byte         `json:"payload,omitzero"`
	HasPayload  bool           `json:"has_payload,omitzero"`
	Binary      bool           `json:"binary,omitzero"`
	ContentType string         `json:"content_type,omitzero"`
	HasHeaders  bool           `json:"has_headers,omitzero"`
	Headers     []event.Header `json:"headers,omitzero"`
}

// Encode returns the bytes of a spec.
func (s *Spec) Encode() ([]byte, error) { return json.Marshal(s, json.Deterministic(true)) }

// Apply returns a message's content with the edit applied, and without the error text, which
// belongs to the message that died.
func (e *Edit) Apply(old *event.Content) *event.Content {
	c := *old
	c.Error = ""
	if e.HasPayload {
		c.Payload, c.Binary, c.ContentType = e.Payload, e.Binary, e.ContentType
	}
	if e.HasHeaders {
		c.Headers = event.WithTrace(e.Headers, event.TraceOf(old.Headers))
	}
	return &c
}
