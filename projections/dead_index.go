package projections

import (
	"slices"

	"github.com/qlogd/qlogd/event"
)

// listDead puts a dead message, newer than all others, among those of its backlog that
// died in the same queue. Invariant: backlog.dead lists all that did, by id.
func (s *State) listDead(b *backlog, h handle) {
	name := s.extras.get(s.messages.get(h).extra).dead.Queue
	l, ok := b.dead[name]
	if !ok {
		l = &list{}
		b.dead[name] = l
		if !b.deleted {
			s.died[name] = append(s.died[name], b)
		}
	}
	insert[deadOrder](s, l, h, 0)
}

// unlistDead takes a dead message out of its list.
func (s *State) unlistDead(b *backlog, h handle) {
	name := s.extras.get(s.messages.get(h).extra).dead.Queue
	l := b.dead[name]
	if remove[deadOrder](s, l, h); l.n > 0 {
		return
	}
	delete(b.dead, name)
	if !b.deleted {
		s.forgetDied(name, b)
	}
}

func (s *State) forgetDied(name string, b *backlog) {
	i := slices.Index(s.died[name], b)
	if s.died[name] = slices.Delete(s.died[name], i, i+1); len(s.died[name]) == 0 {
		delete(s.died, name)
	}
}

// byAge sorts messages by id.
func (s *State) byAge(ms []handle) []handle {
	slices.SortFunc(ms, func(a, b handle) int {
		return s.messages.get(a).id.Compare(s.messages.get(b).id)
	})
	return ms
}

// DeadCount returns how many live messages died in the queue of this name,
// whichever queues they are in.
func (s *State) DeadCount(queue string) int64 {
	n := int64(0)
	for _, b := range s.died[queue] {
		n += int64(b.dead[queue].n)
	}
	for _, g := range s.tombstones {
		if g.partition == 0 || s.backlogs[s.partitions.get(g.partition).backlog].deleted {
			continue // none of them is counted above
		}
		for h := s.partitions.get(g.partition).waiting.head; h != 0; h = s.messages.get(
			h).order.next {
			if s.diedIn(h, queue) {
				n--
			}
		}
	}
	return n
}

// Dead returns the messages that died in the queue of this name, by id, at most f.Limit
// of those that match the filter (0: all), and whether there are more. The queue may be
// deleted.
func (s *State) Dead(queue string, f event.DeadFilter) (out []event.MessageView, more bool) {
	for _, b := range s.died[queue] { // most often one
		h := b.dead[queue].head
		if after, ok := s.find(f.After); ok && s.diedIn(after, queue) &&
			s.messages.get(after).backlog == b.number {
			h = s.nextDead(after)
		}
		begin := len(out)
		for ; h != 0 && (f.Limit == 0 || len(out)-begin <= f.Limit); h = s.nextDead(h) {
			m := s.messages.get(h)
			failed := s.extras.get(m.extra).dead.FailedAt
			if f.Before != (event.ID{}) && m.id.Compare(f.Before) >= 0 ||
				f.To != 0 && failed > f.To {
				break // so are all that follow: an id says when it failed
			}
			if m.id.Compare(f.After) > 0 && !s.deleted(m) {
				out = append(out, s.viewMessage(h))
			}
		}
	}
	slices.SortFunc(out, func(a, b event.MessageView) int { return a.ID.Compare(b.ID) })
	if f.Limit > 0 && len(out) > f.Limit {
		return out[:f.Limit], true
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
