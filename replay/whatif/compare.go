package whatif

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// compare tells message by message where the play differs from reality.
func (s *stage) compare() (*Summary, error) {
	out := &Summary{FirstIndex: s.first, LastIndex: s.last, Queues: map[string]*Counts{}, LateSettles: s.late}
	out.All.Effects = map[Effect]int64{}
	for _, w := range s.waiting {
		out.Unserved += int64(len(w))
	}
	for _, l := range s.lives {
		f := &s.o.Filter
		if f.Queue != "" && l.queue != f.Queue || f.Message != (event.ID{}) && l.id != f.Message {
			continue
		}
		if l.back && l.playID == (event.ID{}) && len(l.play) == 0 {
			out.Unneeded++ // what became of the message itself is told of that
			continue
		}
		q := out.Queues[l.queue]
		if q == nil {
			q = &Counts{Effects: map[Effect]int64{}}
			out.Queues[l.queue] = q
		}
		d, delay, same := s.difference(l)
		for _, c := range []*Counts{&out.All, q} {
			c.Messages++
			if l.assumed {
				c.Assumed++
			}
			if d == nil {
				c.Same++
				continue
			}
			c.Effects[d.Effect]++
			if same {
				c.delays = append(c.delays, delay)
			}
		}
		if d != nil && s.o.Tell != nil {
			if err := s.o.Tell(d); err != nil {
				return nil, err
			}
		}
	}
	out.All.sum()
	for _, q := range out.Queues {
		q.sum()
	}
	return out, nil
}

func (c *Counts) sum() {
	if len(c.delays) == 0 {
		return
	}
	slices.Sort(c.delays)
	c.DelayMedianMS, c.DelayMaxMS = c.delays[len(c.delays)/2], c.delays[len(c.delays)-1]
	c.delays = nil
}

// difference returns what is different in a message's life, nil if nothing is.
// delay is by how long it ends later, if it ends the same way.
func (s *stage) difference(l *life) (d *Difference, delay int64, sameEnd bool) {
	at := -1
	for i := range max(len(l.real), len(l.play)) {
		if i >= len(l.real) || i >= len(l.play) || s.differ(&l.real[i], &l.play[i]) {
			at = i
			break
		}
	}
	if at < 0 {
		return nil, 0, false
	}
	d = &Difference{Message: l.id, Queue: l.queue, Key: l.key, At: at, RealEnd: endOf(l.real), WhatIfEnd: endOf(l.play)}
	if at < len(l.real) {
		d.Real = &l.real[at]
	}
	if at < len(l.play) {
		d.WhatIf = &l.play[at]
	}
	d.WhatIfEnd.Assumed = l.assumed
	d.Effect, sameEnd = s.effect(&d.RealEnd, &d.WhatIfEnd)
	return d, d.WhatIfEnd.Time - d.RealEnd.Time, sameEnd
}

func (s *stage) differ(a, b *Step) bool {
	if a.Type != b.Type || a.Refused != b.Refused || a.Reason != b.Reason || a.ToQueue != b.ToQueue || a.Attempt != b.Attempt {
		return true
	}
	return a.Time-b.Time > s.o.ToleranceMS || b.Time-a.Time > s.o.ToleranceMS
}

// endOf says how a life ended, or where it stood.
func endOf(steps []Step) End {
	e := End{State: "waiting"}
	for i := range steps {
		st := &steps[i]
		e.Time, e.Reason = st.Time, st.Reason
		switch {
		case st.Refused == string(Duplicate):
			e.State = string(Duplicate)
		case st.Refused != "":
			e.State = string(Refused)
		case st.Type == event.Leased:
			e.State = "leased"
			e.Attempts++
		case st.Type == event.Acked, st.Type == event.DeadLettered, st.Type == event.Discarded, st.Type == event.Replayed:
			e.State = st.Type.String()
		default:
			e.State = "waiting"
		}
	}
	return e
}

// effect says in a word what became of a message; same is true where both end
// the same way, for good.
func (s *stage) effect(real, play *End) (_ Effect, same bool) {
	lost := func(e *End) bool {
		return e.State == "dead_lettered" || e.State == "discarded" && e.Reason != event.ReasonDeleted && e.Reason != event.ReasonPurged && e.Reason != event.ReasonQueueDeleted
	}
	over := func(e *End) bool { return e.State != "waiting" && e.State != "leased" }
	switch {
	case play.State == string(Refused):
		return Refused, false
	case play.State == string(Duplicate):
		return Duplicate, false
	case lost(play) && (!lost(real) || play.State != real.State):
		return Effect(play.State), false
	case lost(real) && !lost(play):
		return Spared, false
	case over(real) && !over(play):
		return Delayed, false
	case !over(real) && over(play):
		return Sooner, false
	case play.Time-real.Time > s.o.ToleranceMS:
		return Delayed, over(play) && play.State == real.State
	case real.Time-play.Time > s.o.ToleranceMS:
		return Sooner, over(play) && play.State == real.State
	}
	return Otherwise, false
}
