package dead

import (
	"cmp"
	"context"
	"slices"

	"github.com/qlogd/qlogd/internal/event"
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

// Groups returns what died in queue and fits the filter, by fingerprint, the
// largest group first.
func (x *Finder) Groups(ctx context.Context, queue string, f *Filter) ([]*Group, error) {
	groups := map[string]*Group{}
	_, err := x.Select(ctx, queue, f, Between{}, WithPattern|WithError, func(l *Letter) bool {
		g := groups[l.Fingerprint]
		if g == nil {
			g = &Group{Fingerprint: l.Fingerprint, Reason: l.Dead.Reason, Pattern: l.Pattern, First: l.Dead.FailedAt}
			groups[l.Fingerprint] = g
		}
		g.Error, g.Last = l.Error, l.Dead.FailedAt
		g.Count++
		if len(g.Messages) == sampled {
			g.Messages = g.Messages[:sampled-1]
		}
		g.Messages = slices.Insert(g.Messages, 0, l.ID)
		return true
	})
	if err != nil {
		return nil, err
	}
	out := make([]*Group, 0, len(groups))
	for _, g := range groups {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(b.Last, a.Last), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out, nil
}
