package dead

import (
	"context"
	"slices"
	"strings"

	"github.com/qlogd/qlogd/event"
)

// Filter selects some of what died in a queue. What is empty selects all. It is
// as a task keeps it: instants are resolved, so that they mean the same whenever
// the task goes on.
type Filter struct {
	Reason      string  `json:"reason,omitzero"`
	Error       string  `json:"error,omitzero"` // part of the error text, in any case
	Key         *string `json:"key,omitzero"`
	Kind        *string `json:"kind,omitzero"`
	From        int64   `json:"from_ms,omitzero"` // failed at, Unix ms, inclusive
	To          int64   `json:"to_ms,omitzero"`
	FromIndex   uint64  `json:"from_index,omitzero"` // in which entry of the log it failed, inclusive
	ToIndex     uint64  `json:"to_index,omitzero"`
	Fingerprint string  `json:"fingerprint,omitzero"`
}

// Reads reports whether a filter has to read what users wrote.
func (f *Filter) Reads() bool { return f.Error != "" || f.Fingerprint != "" }

// State is what of the live state, or of a past one, is asked here.
type State interface {
	// Dead returns what died in a queue, rising by id, and whether there is more.
	Dead(queue string, f event.DeadFilter) ([]event.MessageView, bool)
	// Queue returns a queue.
	Queue(name string) (event.QueueView, bool)
	// Message returns a live message.
	Message(id event.ID) (event.MessageView, bool)
}

// Contents reads what users wrote in events: as many as it was asked for, nil
// for what was erased or has gone with the history.
type Contents func(refs []event.Ref) ([]*event.Content, error)

// Letter is one dead message and, where it was asked for, its error.
type Letter struct {
	event.MessageView
	Error string
	// Pattern and Fingerprint are set where the filter or the caller wants them.
	Pattern, Fingerprint string
}

// Finder finds dead letters.
type Finder struct {
	State    State
	Contents Contents
}

// Between bounds a search by ids in the dead-letter queue, exclusive; zero is no
// bound.
type Between struct{ After, Before event.ID }

// With says what a search is to fill in.
type With uint8

const (
	WithError   With = 1 << iota // Letter.Error
	WithPattern                  // and Pattern and Fingerprint
)

// perRead is how many dead letters are looked at in one go: nothing is applied
// while the state is read, and their errors are read together.
const perRead = 512

// Select calls fn with each message that died in queue and fits the filter,
// rising by id, until fn returns false. It ends early, with ctx's error, when ctx
// does: who asked has hung up. last is the newest one that was looked at.
func (x *Finder) Select(ctx context.Context, queue string, f *Filter, b Between, with With, fn func(l *Letter) bool) (last event.ID, err error) {
	// The state is asked for all there is and not by the filter: where that takes
	// few, nothing could be applied until they are found, among a million perhaps.
	of := event.DeadFilter{After: b.After, Before: b.Before, To: f.To, Limit: perRead}
	reason, _ := ParseReason(f.Reason)
	if f.Reads() {
		with |= WithError
	}
	if f.Fingerprint != "" {
		with |= WithPattern
	}
	var prints fingerprints
	last = b.After
	for {
		if err := ctx.Err(); err != nil {
			return last, err
		}
		views, more := x.State.Dead(queue, of)
		newest := last
		if len(views) > 0 {
			newest = views[len(views)-1].ID
			of.After = newest
		}
		views = slices.DeleteFunc(views, func(v event.MessageView) bool { return !f.takes(&v, reason) })
		var texts []string
		if with != 0 {
			if texts, err = x.Errors(views); err != nil {
				return last, err
			}
		}
		for i := range views {
			v := &views[i]
			before := last
			last = v.ID
			l := Letter{MessageView: *v}
			if with != 0 {
				l.Error = texts[i]
			}
			if f.Error != "" && !Contains(l.Error, f.Error) {
				continue
			}
			if with&WithPattern != 0 {
				l.Pattern, l.Fingerprint = prints.of(v.Dead.Reason, l.Error)
			}
			if f.Fingerprint != "" && l.Fingerprint != f.Fingerprint {
				continue
			}
			if !fn(&l) {
				return before, nil
			}
		}
		if last = newest; !more {
			return last, nil
		}
	}
}

// takes reports whether a filter takes a message, but for what is in it.
func (f *Filter) takes(v *event.MessageView, reason event.Reason) bool {
	at := event.RefOf(v.ID).Index
	return at >= f.FromIndex && (f.ToIndex == 0 || at <= f.ToIndex) && v.Dead.FailedAt >= f.From &&
		(reason == event.ReasonNone || v.Dead.Reason == reason) && (f.Key == nil || v.Key == *f.Key) && (f.Kind == nil || v.Kind == *f.Kind)
}

// Contains reports whether part stands in an error text, in any case.
func Contains(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// Errors returns the error texts of dead messages. A text is the content of the
// event that moved its message, which is the message's own id; where that is gone
// it was carried forward with the message's content.
func (x *Finder) Errors(views []event.MessageView) ([]string, error) {
	if len(views) == 0 {
		return nil, nil
	}
	refs := make([]event.Ref, len(views))
	for i := range views {
		refs[i] = event.RefOf(views[i].ID)
	}
	found, err := x.Contents(refs)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(views))
	var lost []int
	for i, c := range found {
		if c != nil {
			out[i] = c.Error
		} else {
			lost = append(lost, i)
		}
	}
	if len(lost) == 0 {
		return out, nil
	}
	refs = refs[:0]
	for _, i := range lost {
		refs = append(refs, views[i].Content)
	}
	if found, err = x.Contents(refs); err != nil {
		return nil, err
	}
	for n, c := range found {
		if c != nil {
			out[lost[n]] = c.Error
		}
	}
	return out, nil
}

// ParseReason reads one of the reasons that a message can die of; "" is any.
func ParseReason(s string) (event.Reason, bool) {
	for _, r := range []event.Reason{event.ReasonMaxAttempts, event.ReasonExpired, event.ReasonRejected, event.ReasonKeyDead} {
		if r.String() == s {
			return r, true
		}
	}
	return event.ReasonNone, s == ""
}

// fingerprints remembers the patterns of the texts that it has seen last: the
// same failure mostly comes in the same words.
type fingerprints struct{ seen map[seenText][2]string }

type seenText struct {
	reason event.Reason
	text   string
}

func (p *fingerprints) of(r event.Reason, text string) (pattern, print string) {
	k := seenText{r, cut(text, maxPattern)}
	if v, ok := p.seen[k]; ok {
		return v[0], v[1]
	}
	if p.seen == nil || len(p.seen) >= 1000 {
		p.seen = map[seenText][2]string{}
	}
	pattern = Pattern(text)
	print = Fingerprint(r, pattern)
	p.seen[k] = [2]string{pattern, print}
	return pattern, print
}
