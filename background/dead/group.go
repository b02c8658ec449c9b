package dead

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/qlogd/qlogd/event"
)

// Group is failures of the same kind.
type Group struct {
	Fingerprint string
	Reason      event.Reason
	Pattern     string
	Error       string // of the newest
	Count       int64
	First, Last int64      // failed at, Unix ms
	Messages    []event.ID // the newest ones, the newest first
}

// sampled is how many messages of a group are named.
const sampled = 5

// counted is what is kept of a group while it is counted: there may be as many
// groups as there are dead letters, and their texts are long.
type counted struct {
	print       string
	reason      event.Reason
	count       int64
	first, last int64
	newest      [sampled]event.ID
	content     event.Ref // of the newest
}

// Groups returns what died in queue and fits the filter, by fingerprint, the
// largest group first, at most limit; total is how many groups there are.
func (x *Finder) Groups(ctx context.Context, queue string, f *Filter, limit int) (out []*Group, total int64, err error) {
	groups := map[string]*counted{}
	_, err = x.Select(ctx, queue, f, Between{}, WithPattern|WithError, func(l *Letter) bool {
		g := groups[l.Fingerprint]
		if g == nil {
			g = &counted{print: l.Fingerprint, reason: l.Dead.Reason, first: l.Dead.FailedAt}
			groups[g.print] = g
		}
		g.count++
		g.last, g.content = l.Dead.FailedAt, l.Content
		copy(g.newest[1:], g.newest[:])
		g.newest[0] = l.ID
		return true
	})
	if err != nil {
		return nil, 0, err
	}
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *counted) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(b.last, a.last), cmp.Compare(a.print, b.print))
	})
	for part := range slices.Chunk(sorted[:min(len(sorted), limit)], perRead) {
		views := make([]event.MessageView, len(part))
		for i, g := range part {
			views[i] = event.MessageView{ID: g.newest[0], Content: g.content}
		}
		texts, err := x.Errors(views)
		if err != nil {
			return nil, 0, err
		}
		for i, g := range part {
			out = append(out, &Group{
				Fingerprint: g.print, Reason: g.reason, Pattern: Pattern(texts[i]), Error: texts[i],
				Count: g.count, First: g.first, Last: g.last, Messages: g.newest[:min(g.count, sampled)],
			})
		}
	}
	return out, int64(len(sorted)), nil
}
