package dead

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/event"
)

// Mover executes a Spec, in as many entries as it takes. Each proposal names the task, and
// the state machine skips messages that are not dead any more, so a Mover may start again at
// any time, on any node.
type Mover struct {
	Finder
	task.Mover
}

// chunkBytes is the most bytes of edits that one entry has.
const chunkBytes = 512 << 10

// start decodes a task's spec and lists the messages that it selects among those that were
// dead when the task was created: one that dies again while it runs is not selected again.
func (m *Mover) start(ctx context.Context, t *event.TaskView, raw []byte) (
	s *Spec, out []task.Message, err error) {
	if s, err = task.DecodeSpec[Spec](raw); err != nil {
		return nil, nil, err
	}
	if s.Filter == nil {
		for _, id := range s.IDs {
			if v, ok := m.State.Message(id); ok && v.DiedIn(t.Queue) {
				out = append(out, task.Message{ID: v.ID, First: v.Dead.First})
			}
		}
		return s, out, nil
	}
	search := &Search{Queue: t.Queue, Filter: *s.Filter, Before: t.ID}
	for v, err := range m.Select(ctx, search) {
		if err != nil {
			return nil, nil, err
		}
		out = append(out, task.Message{ID: v.ID, First: v.Dead.First})
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

// Replay is a task.Run that carries out a replay.
func (m *Mover) Replay(ctx context.Context, t event.TaskView, raw []byte) (
	skipped int64, _ []byte, err error) {
	s, all, err := m.start(ctx, &t, raw)
	if err != nil {
		return 0, nil, err
	}
	c := event.Replay{Queue: t.Queue, To: s.To, MaxReplays: s.MaxReplays, Task: t.ID}
	c.Order, _ = event.Parse[event.Order](s.Order)
	to := cmp.Or(s.To, t.Queue)
	target, ok := m.State.Queue(to)
	if ok && c.Order.In(target.Policy.Ordering) != event.OrderAppend {
		slices.SortStableFunc(all, func(a, b task.Message) int { return a.First.Compare(b.First) })
	}
	err = m.Move(ctx, to, s.Rate, all, func(next []task.Message, target *event.QueueView, most int) (
		int, *event.Command, []event.Moved, error) {
		c := c
		took, misfits, err := m.fill(&c, s, next, target, most)
		if len(c.Items) == 0 {
			return took, nil, misfits, err
		}
		return took, &event.Command{Actor: t.Actor, Replay: &c}, misfits, err
	}, func(moved []event.Moved) { skipped += skippedOf(moved) })
	return skipped, nil, err
}

// fill adds the next messages to a command; see task.Fill. misfits are those whose content does not
// match the target's schema.
func (m *Mover) fill(
	c *event.Replay, s *Spec, next []task.Message, target *event.QueueView, most int,
) (took int, misfits []event.Moved, err error) {
	c.Revision = target.Revision
	room, bytes := task.Room(target)
	most = int(min(int64(most), room))
	size := 0
	for took < len(next) && len(c.Items) < most && bytes > 0 && size < chunkBytes {
		v, ok := m.State.Message(next[took].ID)
		if !ok || !v.DiedIn(c.Queue) {
			took++
			continue
		}
		item, err := m.Item(&v, s.Edit[v.ID], target)
		if p, misfit := errors.AsType[*event.Problem](err); misfit {
			misfits = append(misfits, event.Moved{ID: v.ID, Code: p.Code})
			took++
			continue
		}
		if err != nil {
			return 0, nil, err
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

// skippedOf returns how many messages were skipped. It does not count those that were not dead any
// more: an earlier run most likely moved them.
func skippedOf(moved []event.Moved) (skipped int64) {
	for i := range moved {
		if code := moved[i].Code; code != "" && code != event.SkipGone {
			skipped++
		}
	}
	return skipped
}

// Purge is a task.Run that carries out a purge.
func (m *Mover) Purge(ctx context.Context, t event.TaskView, raw []byte) (
	skipped int64, _ []byte, err error) {
	_, all, err := m.start(ctx, &t, raw)
	if err != nil {
		return 0, nil, err
	}
	for part := range slices.Chunk(all, task.ChunkItems) {
		c := &event.PurgeDead{Queue: t.Queue, Task: t.ID}
		for _, l := range part {
			c.IDs = append(c.IDs, l.ID)
		}
		moved, err := m.Propose.Move(ctx, &event.Command{Actor: t.Actor, PurgeDead: c})
		if err != nil {
			return 0, nil, err
		}
		skipped += skippedOf(moved)
	}
	return skipped, nil, nil
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
