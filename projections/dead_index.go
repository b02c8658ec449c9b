package projections

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// deadList holds those messages of a backlog that died in one queue, by id.
//
// Invariant: all of the backlog with that dead.Queue are in it; gone counts those
// of them that were decided to be gone with their partition (buryLane).
type deadList struct {
	list
	gone  uint32
	lanes map[handle]uint32 // how many of them wait in each partition that is not gone
}

// listDead puts a dead message, newer than all others, into its list.
func (s *State) listDead(b *backlog, h handle) {
	name := s.extras.get(s.messages.get(h).extra).dead.Queue
	l, ok := b.dead[name]
	if !ok {
		l = &deadList{lanes: map[handle]uint32{}}
		b.dead[name] = l
		if !b.grave {
			s.died[name] = append(s.died[name], b)
		}
	}
	insert[deadOrder](s, &l.list, h, 0)
}

// unlistDead takes a dead message, which waits in no partition any more, out of
// its list.
func (s *State) unlistDead(b *backlog, h handle) {
	m := s.messages.get(h)
	name := s.extras.get(m.extra).dead.Queue
	l := b.dead[name]
	remove[deadOrder](s, &l.list, h)
	if !b.grave && s.buried(m) {
		l.gone--
	}
	if l.n == 0 {
		delete(b.dead, name)
		if !b.grave {
			s.forgetDied(name, b)
		}
	}
}

func (s *State) forgetDied(name string, b *backlog) {
	i := slices.Index(s.died[name], b)
	if s.died[name] = slices.Delete(s.died[name], i, i+1); len(s.died[name]) == 0 {
		delete(s.died, name)
	}
}

// countDead counts a message that comes into a partition, or leaves it.
func (s *State) countDead(b *backlog, h, lh handle, by int) {
	x := s.messages.get(h).extra
	if x == 0 || s.lanes.get(lh).grave {
		return
	}
	dead := s.extras.get(x).dead
	if dead == nil {
		return
	}
	l := b.dead[dead.Queue]
	if l.lanes[lh] += uint32(by); l.lanes[lh] == 0 {
		delete(l.lanes, lh)
	}
}

// buryDead lets all that waits in a partition be gone from the lists' counts.
func (b *backlog) buryDead(lh handle) {
	for _, l := range b.dead { // order does not matter: each for itself
		l.gone += l.lanes[lh]
		delete(l.lanes, lh)
	}
}

// reindexDead builds the lists again from all dead messages.
func (s *State) reindexDead(dead []handle) {
	for _, h := range s.byAge(dead) {
		m := s.messages.get(h)
		b := s.backlogs[m.backlog]
		s.listDead(b, h)
		switch waits := m.state == event.StateReady || m.state == event.StateScheduled &&
			m.place == event.PlaceBlock; {
		case b.ordering == event.Unordered || !waits:
		case s.lanes.get(m.lane).grave:
			b.dead[s.extras.get(m.extra).dead.Queue].gone++
		default:
			s.countDead(b, h, m.lane, 1)
		}
	}
}

// byAge sorts messages by id.
func (s *State) byAge(ms []handle) []handle {
	slices.SortFunc(ms, func(a,
		b handle) int {
		return s.messages.get(a).id.Compare(s.messages.get(b).id)
	})
	return ms
}

// DeadCount returns how many live messages died in the queue of this name,
// wherever they lie.
func (s *State) DeadCount(queue string) int64 {
	n := int64(0)
	for _, b := range s.died[queue] {
		l := b.dead[queue]
		n += int64(l.n - l.gone)
	}
	return n
}

// Dead returns the messages that died in the queue of this name, by id, at most
// f.Limit of those that the filter takes (0: all), and whether there are more.
// The queue need not be there any more.
func (s *State) Dead(queue string, f event.DeadFilter) (out []event.MessageView, more bool) {
	var heads []handle // of the lists, most often one
	for _, b := range s.died[queue] {
		h := b.dead[queue].head
		if after, ok := s.byID[f.After]; ok && s.diedIn(after, queue) &&
			s.messages.get(after).backlog == b.number {
			h = s.nextDead(after)
		}
		if h != 0 {
			heads = append(heads, h)
		}
	}
	for len(heads) > 0 {
		i := 0
		for j := range heads {
			if s.messages.get(heads[j]).id.Compare(s.messages.get(heads[i]).id) < 0 {
				i = j
			}
		}
		h := heads[i]
		if heads[i] = s.nextDead(h); heads[i] == 0 {
			heads = slices.Delete(heads, i, i+1)
		}
		m := s.messages.get(h)
		d := s.extras.get(m.extra).dead
		if f.Before != (event.ID{}) && m.id.Compare(f.Before) >= 0 || f.To != 0 &&
			d.FailedAt > f.To {
			break // so are all that follow: an id says when it failed
		}
		if m.id.Compare(f.After) <= 0 || s.buried(m) || d.FailedAt < f.From ||
			f.Reason != event.ReasonNone && d.Reason != f.Reason ||
			f.Key != nil && s.keyOf(m) != *f.Key || f.Kind != nil &&
			s.kinds.name(m.kind) != *f.Kind {
			continue
		}
		if f.Limit > 0 && len(out) == f.Limit {
			return out, true
		}
		out = append(out, s.viewMessage(h))
	}
	return out, false
}

func (s *State) diedIn(h handle, queue string) bool {
	x := s.messages.get(h).extra
	if x == 0 {
		return false
	}
	d := s.extras.get(x).dead
	return d != nil && d.Queue == queue
}

func (s *State) nextDead(h handle) handle {
	return s.extras.get(s.messages.get(h).extra).deadOrder.next
}
