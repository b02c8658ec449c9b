// Package dead finds, groups, edits, replays and purges dead letters. The API and the task runner
// share it, so that replays of ten and of a million messages behave the same.
package dead

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// State is the part of the live state, or of a past one, that a Finder reads.
type State interface {
	// Dead returns what died in a queue, rising by id, and whether there is more.
	Dead(queue string, f event.DeadFilter) ([]event.MessageView, bool)
	// Queue returns a queue.
	Queue(name string) (event.QueueView, bool)
	// Message returns a live message.
	Message(id event.ID) (event.MessageView, bool)
}

// Finder finds dead letters.
type Finder struct {
	State State
	// Content reads what users wrote in an event, nil where that was erased or deleted
	// by retention.
	Content func(ref event.Ref) (*event.Content, error)
	// Fits checks a content against a queue's message_schema. An *event.Problem
	// says why it does not fit.
	Fits func(q *event.QueueView, c *event.Content) error
}

// Filter selects dead letters of a queue. Empty fields select all. Tasks store it, so its instants
// are resolved: they mean the same whenever the task continues.
type Filter struct {
	Reason      string  `json:"reason,omitzero"`
	Error       string  `json:"error,omitzero"` // part of the error text, in any case
	Key         *string `json:"key,omitzero"`
	Kind        *string `json:"kind,omitzero"`
	From        int64   `json:"from_ms,omitzero"` // failed at, Unix ms, inclusive
	To          int64   `json:"to_ms,omitzero"`
	FromIndex   uint64  `json:"from_index,omitzero"` // of the entry in which it failed, inclusive
	ToIndex     uint64  `json:"to_index,omitzero"`
	Fingerprint string  `json:"fingerprint,omitzero"`
}

// ReadsErrors reports whether a filter depends on the messages' errors, which are in the log.
func (f *Filter) ReadsErrors() bool { return f.Error != "" || f.Fingerprint != "" }

// Selects reports whether a filter selects a message; false if the message is not dead.
func (x Finder) Selects(f *Filter, v *event.MessageView) (bool, error) {
	d, index := v.Dead, event.RefOf(v.ID).Index
	fits := d != nil && (f.Reason == "" || f.Reason == d.Reason.String()) &&
		(f.Key == nil || *f.Key == v.Key) && (f.Kind == nil || *f.Kind == v.Kind) &&
		d.FailedAt >= f.From && (f.To == 0 || d.FailedAt <= f.To) &&
		index >= f.FromIndex && (f.ToIndex == 0 || index <= f.ToIndex)
	if !fits || !f.ReadsErrors() {
		return fits, nil
	}
	text, err := x.Error(v)
	return err == nil && strings.Contains(strings.ToLower(text), strings.ToLower(f.Error)) &&
		(f.Fingerprint == "" || f.Fingerprint == Fingerprint(d.Reason, Pattern(text))), err
}

// ParseReason parses a reason for which a message can die; "" is any.
func ParseReason(s string) (event.Reason, bool) {
	r, ok := event.Parse[event.Reason](s)
	return r, ok && r <= event.ReasonKeyDead // messages die of no other
}

// Search iterates over the dead letters of a queue that match a filter, in ascending order of id.
type Search struct {
	Queue  string
	Filter Filter
	// After and Before bound the ids in the dead-letter queue, exclusive; zero is no
	// bound. After moves up to the newest message that was looked at, so that the
	// next walk goes on from there; where a loop is left, to the one before.
	After, Before event.ID
	// Most bounds how many messages are looked at, 0 not at all; More reports that it did.
	Most int
	More bool
}

// perRead is the number of dead letters read at once; no entry is applied meanwhile.
const perRead = 512

// Select yields what a search finds. It ends early, with ctx's error, when ctx
// does: the client has hung up.
func (x Finder) Select(ctx context.Context, s *Search) iter.Seq2[*event.MessageView, error] {
	return func(yield func(*event.MessageView, error) bool) {
		f, looked := &s.Filter, 0
		for more := true; more; {
			// The state is asked for all there is and not by the filter: if that selects
			// few, nothing could be applied until they are found among, perhaps, a million.
			var views []event.MessageView
			views, more = x.State.Dead(s.Queue, event.DeadFilter{
				After: s.After, Before: s.Before, To: f.To, Limit: perRead,
			})
			for i := range views {
				v := &views[i]
				if s.More = s.Most > 0 && looked == s.Most; s.More {
					return
				}
				looked++
				fits, err := x.Selects(f, v)
				if err = cmp.Or(ctx.Err(), err); err != nil {
					yield(nil, err)
					return
				}
				if fits && !yield(v, nil) {
					return
				}
				s.After = v.ID
			}
		}
	}
}

// Error returns the error text of a dead message. It is in the content of the event that
// moved the message, which has the message's own id; where that is gone it was carried
// forward with the message's content.
func (x Finder) Error(v *event.MessageView) (string, error) {
	c, err := x.Content(event.RefOf(v.ID))
	if err == nil && c == nil {
		c, err = x.Content(v.Content)
	}
	if err != nil || c == nil {
		return "", err
	}
	return c.Error, nil
}

// group is a group while it is counted.
type group struct {
	wire.DeadGroup
	newest  []event.ID // at most sampled, the newest last
	content event.Ref  // of the newest
}

// countAt counts a message of the step that starts at an instant. They come by time.
func (g *group) countAt(start wire.Time) {
	if n := len(g.Counts); n == 0 || g.Counts[n-1].Start != start {
		g.Counts = append(g.Counts, wire.DeadCount{Start: start})
	}
	g.Counts[len(g.Counts)-1].Count++
}

// sampled is how many messages of a group are named.
const sampled = 5

// Groups returns what a search finds, by fingerprint, the largest group first, at most limit; with
// a step, in ms, also how many died in each.
func (x Finder) Groups(ctx context.Context, s *Search, limit int, step int64) (
	out wire.DeadGroups, err error) {
	groups := map[string]*group{}
	prints := map[string]string{} // the same failure mostly comes in the same words
	for v, err := range x.Select(ctx, s) {
		text := ""
		if err == nil {
			text, err = x.Error(v)
		}
		if err != nil {
			return out, err
		}
		words := v.Dead.Reason.String() + "\x00" + event.Clip(text, maxPattern)
		print, ok := prints[words]
		if !ok {
			if len(prints) == 1000 {
				clear(prints) // texts are long
			}
			print = Fingerprint(v.Dead.Reason, Pattern(text))
			prints[words] = print
		}
		g := groups[print]
		if g == nil {
			g = &group{}
			g.Fingerprint, g.Reason = print, v.Dead.Reason.String()
			g.FirstFailedAt = wire.Time(v.Dead.FailedAt)
			groups[print] = g
		}
		g.Count++
		if step > 0 {
			g.countAt(wire.Time(v.Dead.FailedAt - v.Dead.FailedAt%step))
		}
		g.LastFailedAt, g.content = wire.Time(v.Dead.FailedAt), v.Content
		g.newest = append(g.newest[max(len(g.newest)-sampled+1, 0):], v.ID)
	}
	all := slices.SortedFunc(maps.Values(groups), func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(b.LastFailedAt, a.LastFailedAt),
			cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	out.Total = int64(len(all))
	if s.More {
		out.NextCursor = s.After.String()
	}
	for _, g := range all[:min(len(all), limit)] {
		for _, id := range slices.Backward(g.newest) {
			g.MessageIDs = append(g.MessageIDs, id.String())
		}
		// Only now: there may be as many groups as there are dead letters, and texts are long.
		newest := event.MessageView{ID: g.newest[len(g.newest)-1], Content: g.content}
		if g.Error, err = x.Error(&newest); err != nil {
			return out, err
		}
		g.Pattern = Pattern(g.Error)
		out.Groups = append(out.Groups, g.DeadGroup)
	}
	return out, nil
}
