package projections

import "github.com/qlogd/qlogd/event"

// where is the place that a message takes among those that wait.
type where uint8

const (
	behind where = iota // behind all
	// before all that did not return to the front, in the order of those that did
	inFront
	byOrder // a replayed one: before the first that comes after it in the original order
)

// orderOf returns the id that a message is ordered by (I20): the id under which it was first
// enqueued if it was replayed to its original place, else its own, or that of the message that it
// follows.
func (s *State) orderOf(m *message) event.ID {
	if f := s.follows(m); f != (event.ID{}) {
		return f
	}
	return s.ownOrder(m)
}

func (s *State) ownOrder(m *message) event.ID {
	if m.extra != 0 {
		if o := s.extras.get(m.extra).origin; o != nil && !o.behind {
			return o.First
		}
	}
	return m.id
}

func (s *State) follows(m *message) (f event.ID) {
	if m.extra != 0 {
		f = s.extras.get(m.extra).follows
	}
	return f
}

// follow makes a message that is leased keep its place behind the one leased ahead of it in its
// batch, 0 none: a delay, on_retry tail or a replay can have put it behind one of a higher order.
func (s *State) follow(h, ahead handle) {
	m, f := s.messages.get(h), event.ID{}
	if ahead != 0 {
		if o := s.orderOf(s.messages.get(ahead)); o.Compare(s.ownOrder(m)) > 0 {
			f = o
		}
	}
	if s.follows(m) != f {
		s.extraOf(h).follows = f
	}
}

// ahead reports whether m comes before o in the original order. Neither does if one follows the
// other, or both a third: then the one that is put back later comes first, as batches are put back
// from behind.
func (s *State) ahead(m, o *message) bool {
	if c := s.orderOf(m).Compare(s.orderOf(o)); c != 0 {
		return c < 0
	}
	none := event.ID{}
	return m.id.Compare(o.id) < 0 && s.follows(m) == none && s.follows(o) == none
}

// links of messages, for reading.
func orderLink(m *message) link { return m.order }
func kindLink(m *message) link  { return m.kindOrder }

// others returns the first message of a list that did not return to the front.
func (s *State) others(l *list, of func(*message) link) handle {
	if l.front == 0 {
		return l.head
	}
	return of(s.messages.get(l.front)).next
}

// spotReturned finds the message before which a returning one belongs. It searches from
// both ends in turn: released messages belong to the front, and those that come due or
// are replayed mostly arrive in order, behind those that returned before.
func (s *State) spotReturned(l *list, m *message, of func(*message) link) handle {
	at, back := l.head, l.front
	for at != 0 {
		o := s.messages.get(at)
		if !o.returned || !s.ahead(o, m) {
			break
		}
		at = of(o).next
		if o = s.messages.get(back); s.ahead(o, m) {
			return of(o).next
		}
		back = of(o).prev
	}
	return at
}

// insertReturned inserts a message among those that returned to the front.
func insertReturned[L links](s *State, l *list, h handle, of func(*message) link) {
	s.messages.mut(h).returned = true
	at := s.spotReturned(l, s.messages.get(h), of)
	insert[L](s, l, h, at)
	if at == 0 || !s.messages.get(at).returned {
		l.front = h
	}
}

// leads reports whether a message replayed in the original order belongs among those that
// returned to the front, or directly behind them: then it counts as one of them.
func (s *State) leads(l *list, m *message, before func(m, o *message) bool) bool {
	if l.front != 0 && !s.ahead(s.messages.get(l.front), m) {
		return true
	}
	first := s.others(l, orderLink)
	return first == 0 || before(m, s.messages.get(first))
}

// spotOriginal finds the message of a partition before which a replayed one
// belongs: the first of the others that comes after it.
func (s *State) spotOriginal(l *partition, m *message) handle {
	at := s.others(&l.waiting, orderLink)
	if l.placed != 0 {
		if o := s.messages.get(l.placed); s.ahead(o, m) {
			at = o.order.next
		}
	}
	for at != 0 {
		o := s.messages.get(at)
		if s.ahead(m, o) {
			break
		}
		at = o.order.next
	}
	return at
}

// intoReady makes a message of an unordered queue leasable, at its place.
func (s *State) intoReady(b *backlog, h handle, to where) {
	if m := s.messages.mut(h); s.keptApart(b, m, to) {
		m.place = placeApart
	}
	s.insertReady(b, h, to)
	s.touch(b.queue)
}

// insertReady inserts a message into the ready list of an unordered queue, and into that of its
// kind.
func (s *State) insertReady(b *backlog, h handle, to where) {
	m := s.messages.mut(h)
	lists, before := s.readyList(b, m, 0), handle(0)
	returned := to == inFront && s.orderOf(m) != m.id || to == byOrder && s.leadsReady(lists, m)
	if !returned {
		var found bool
		before, found = s.spot(lists, m, orderLink, to)
		// Too deep to search for: then before all, in order with the other replayed ones.
		returned = !found
	}
	if returned {
		insertReturned[messageOrder](s, lists, h, orderLink)
	} else {
		insert[messageOrder](s, lists, h, before)
	}
	if m.kind != 0 {
		kinds := s.readyList(b, m, m.kind)
		if returned {
			insertReturned[messageKind](s, kinds, h, kindLink)
		} else {
			before, _ = s.spot(kinds, m, kindLink, to)
			insert[messageKind](s, kinds, h, before)
		}
	}
	if m.place == placeApart {
		s.apartChanged(b, m, 1)
	}
}

// leadsReady is leads for an unordered queue. One that leads the messages of its own key need not
// lead the others: where it is kept apart, it goes by its time unless it goes before one that
// returned.
func (s *State) leadsReady(l *list, m *message) bool {
	if m.place == placeApart && (l.front == 0 || s.ahead(s.messages.get(l.front), m)) {
		return false
	}
	return s.leads(l, m, func(m, o *message) bool { return later(o, m) })
}

// outOfReady takes a message out of the lists that insertReady put it into.
func (s *State) outOfReady(b *backlog, h handle) {
	m := s.messages.mut(h)
	if b.separate == h {
		b.separateFrom(m.priority, m.order.next)
	}
	remove[messageOrder](s, s.readyList(b, m, 0), h)
	if m.kind != 0 {
		remove[messageKind](s, s.readyList(b, m, m.kind), h)
	}
	m.returned = false
	if m.place == placeApart {
		m.place = event.PlaceAny
		s.apartChanged(b, m, -1)
	} else if m.kind != 0 {
		b.dropKind(m.kind)
	}
}

// nearFront bounds the search for the place of a released message, which was at the front
// when it was leased. A call can release MaxBatch in a row.
const nearFront = 1024

// spot finds the message of an unordered queue's list before which m belongs by (availability, id),
// 0 the end. In front that is among the first of those that did not return there. In the original
// order it is searched from both ends; found is false if it is too deep for that.
func (s *State) spot(l *list, m *message, of func(*message) link, to where) (at handle, found bool) {
	if to == behind {
		return 0, true
	}
	at = s.others(l, of)
	for i := 0; i < nearFront && at != 0; i++ {
		o := s.messages.get(at)
		if later(o, m) {
			return at, true
		}
		at = of(o).next
	}
	if to == inFront || at == 0 {
		return at, true
	}
	back, at := l.tail, handle(0)
	for range nearFront {
		o := s.messages.get(back)
		if o.returned || !later(o, m) {
			return at, true
		}
		at, back = back, of(o).prev
	}
	return at, false
}

// behindIt reports whether o is leased after m in an unordered queue, both being
// ready in it with the same priority.
func (s *State) behindIt(o, m *message) bool {
	switch {
	case o.returned != m.returned:
		return m.returned
	case m.returned:
		return s.ahead(m, o)
	}
	return later(o, m)
}

// later reports whether o became available after m.
func later(o, m *message) bool {
	return o.due > m.due || (o.due == m.due && o.id.Compare(m.id) > 0)
}
