package projections

import "github.com/qlogd/qlogd/event"

// message is a live message: about 100 bytes without pointers. Rarely used fields are in
// an extra, those of leased messages in a lease.
type message struct {
	id        event.ID
	due       int64  // scheduled: when it becomes ready; else since when it is
	lastIndex uint64 // its newest event (the back-pointer of its next one)
	lastNum   uint32
	size      uint32
	attempt   uint32
	backlog   uint32
	partition handle // its key; 0 where an unordered queue's message has none
	kind      handle
	lease     handle
	extra     handle
	page      handle // that of its id
	order     link   // in its partition, or among an unordered queue's ready ones
	kindOrder link
	all       link // Invariant: a backlog's all list rises by id
	state     event.State
	priority  uint8
	place     event.Place // where it goes when due; placeApart
	returned  bool        // it returned to the front: stays before those that did not, by orderOf
}

// extra has the fields that few messages need.
type extra struct {
	used     bool
	expires  int64           // end of its ttl, 0 never
	timer    int64           // when its timerExpiry comes due, 0 none
	content  event.Ref       // the event with its payload, if not its own
	dead     *event.DeadView // where a dead message came from; never changed once set
	origin   *origin         // of a replayed or resurrected one; never changed once set
	holds    string          // the key that it blocks in queue holdsIn
	holdsIn  uint32          // 0: none
	key      string          // of a fifo queue's message, whose partition has none
	sourceID string
	// of one leased behind others whose order is higher: the highest of them. By it, it keeps its
	// place behind them
	follows event.ID

	deadOrder link // among the dead ones (listDead)
}

// origin is where a replayed or resurrected message came from.
type origin struct {
	event.OriginView
	// it was put behind those that waited: ordered by its own id, not by its first one
	behind bool
}

// lease is the current lease of a message.
type lease struct {
	id      event.ID
	expires int64
	page    handle // that of its id
}

func (m *message) last() event.Ref     { return event.Ref{Index: m.lastIndex, Number: m.lastNum} }
func (m *message) setLast(r event.Ref) { m.lastIndex, m.lastNum = r.Index, r.Number }

// created returns when the message entered its queue.
func (m *message) created() int64 { return event.ClockOf(m.id) }

func (s *State) contentOf(m *message) event.Ref {
	if m.extra != 0 {
		if x := s.extras.get(m.extra); !x.content.IsZero() {
			return x.content
		}
	}
	return event.RefOf(m.id)
}

// extraOf returns a message's extra for writing, and creates it if there is none.
func (s *State) extraOf(h handle) *extra {
	m := s.messages.mut(h)
	if m.extra == 0 {
		x, p := s.extras.alloc()
		p.used = true
		m.extra = x
		return p
	}
	return s.extras.mut(m.extra)
}

// open removes a message from the digest before a change; close adds it again.
func (s *State) open(h handle) *message {
	m := s.messages.mut(h)
	s.sum.sub(s.hashMessage(m))
	return m
}

func (s *State) close(h handle) { s.sum.add(s.hashMessage(s.messages.get(h))) }

// subject finds the message that an event is about.
func (s *State) subject(e *event.Event) handle {
	h := s.near
	if h == 0 || s.messages.get(h).id != e.Subject {
		var ok bool
		if h, ok = s.find(e.Subject); !ok {
			s.impossible(e, "message %s is not there", e.Subject)
		}
	}
	s.near = s.messages.get(h).order.next
	return h
}

// add puts a new message into a backlog; the caller sets the remaining fields and then
// calls arrive.
func (s *State) add(e *event.Event, b *backlog, key, kind string) (handle, *message) {
	if e.ID.Compare(s.lastID) > 0 { // as always: ids rise
		s.lastID = e.ID
	} else if _, ok := s.find(e.ID); ok {
		s.impossible(e, "message %s is there already", e.ID)
	}
	h, m := s.messages.alloc()
	m.id = e.ID
	m.setLast(event.RefOf(e.ID))
	m.backlog = b.number
	m.kind = s.kinds.take(kind)
	m.partition = s.takePartition(b, key)
	if key != b.ordering.PartitionKey(key) {
		s.extraOf(h).key = key
	}
	m.page = s.ids.add(e.ID, h)
	insert[messageAll](s, &b.all, h, 0)
	return h, m
}

// arrive schedules a new message, or makes it ready if it is due.
func (s *State) arrive(h handle, due int64) {
	s.count(h)
	if due > s.clock {
		s.schedule(h, due, event.PlaceTail)
	} else {
		s.ready(h, event.PlaceTail)
	}
	s.close(h)
}

// count adds a new message to the counts of its backlog and of the log.
func (s *State) count(h handle) {
	m := s.messages.get(h)
	b := s.backlogs[m.backlog]
	b.bytes += int64(m.size)
	s.contents[bucket(s.contentOf(m).Index)]++
	if b.cursor == 0 {
		s.setCursor(b, h)
	}
	if m.extra != 0 && s.extras.get(m.extra).sourceID != "" {
		s.listSource(b, h)
	}
	s.armExpiry(h)
}

// schedule makes a message wait until due. A blocking one takes its place at once: its
// partition waits with it.
func (s *State) schedule(h handle, due int64, place event.Place) {
	m := s.messages.mut(h)
	b := s.backlogs[m.backlog]
	if place == event.PlaceBlock && b.ordering == event.Unordered {
		place = event.PlaceHead // a salvage has lost the ordering
	}
	m.state, m.due, m.place = event.StateScheduled, due, place
	b.scheduled++
	s.countTried(b, m, 1)
	if place == event.PlaceBlock {
		s.intoPartition(b, h, inFront)
	}
	s.waiting.push(s, timer{at: due, id: m.id, h: h, kind: timerReady})
}

// becomeReady makes a scheduled message that is due ready.
func (s *State) becomeReady(h handle) {
	m := s.open(h)
	if s.deleted(m) {
		m.due = 0 // a loaded state must not arm its timer again (I5)
		s.close(h)
		return
	}
	b := s.backlogs[m.backlog]
	b.scheduled--
	if m.place != event.PlaceBlock {
		s.countTried(b, m, -1) // ready counts it again
		s.ready(h, m.place)
	} else {
		s.unblock(b, m)
	}
	s.close(h)
}

// unblock makes a message ready that waited at its place, and its partition with it.
func (s *State) unblock(b *backlog, m *message) {
	b.ready++
	m.state = event.StateReady
	s.partitions.mut(m.partition).ready++
	s.refresh(b, m.partition)
}

// rescheduled changes the time or the priority of a waiting message, or both. With another time it
// is placed like a new one, unless its partition waits for its retry. Another priority alone moves
// it only where priority orders messages: behind the ready ones of the same priority.
func (s *State) rescheduled(e *event.Event) {
	h := s.subject(e)
	m := s.open(h)
	if m.state != event.StateReady && m.state != event.StateScheduled {
		s.impossible(e, "message %s is %s", m.id, m.state)
	}
	m.setLast(event.RefOf(e.ID))
	b := s.backlogs[m.backlog]
	lane, scheduled := b.ordering != event.Unordered, m.state == event.StateScheduled
	switch {
	case e.Due == 0 && (lane || scheduled), scheduled && m.place == event.PlaceBlock:
		m.priority = e.Priority
		if e.Due != 0 {
			s.wait(b, h, e.Due)
		}
		if lane {
			s.refresh(b, m.partition)
		}
	default:
		s.unready(h)
		s.follow(h, 0)
		m.state, m.priority = event.StateNone, e.Priority
		if e.Due > s.clock {
			s.schedule(h, e.Due, event.PlaceTail)
		} else {
			s.ready(h, event.PlaceTail)
		}
	}
	s.close(h)
}

// wait changes the due time of a message that waits at its place.
func (s *State) wait(b *backlog, h handle, due int64) {
	m := s.messages.mut(h)
	if m.due = due; due > s.clock {
		s.waiting.push(s, timer{at: due, id: m.id, h: h, kind: timerReady})
		return
	}
	b.scheduled--
	s.unblock(b, m)
}

// ready makes a message leasable, or puts it into its partition.
func (s *State) ready(h handle, place event.Place) {
	m := s.messages.mut(h)
	to := behind
	if place == event.PlaceHead || place == event.PlaceBlock {
		to = inFront
	}
	if m.state != event.StateScheduled && (m.state != event.StateLeased || to != inFront) {
		// available from now on; one that was scheduled, or is released, keeps its time
		m.due = s.clock
	}
	m.place = place
	s.enter(h, to)
}

// enter makes a message ready, at its place among the waiting ones.
func (s *State) enter(h handle, to where) {
	m := s.messages.mut(h)
	b := s.backlogs[m.backlog]
	m.state = event.StateReady
	b.ready++
	s.countTried(b, m, 1)
	switch {
	case b.ordering != event.Unordered:
		s.intoPartition(b, h, to)
	case !b.deleted:
		s.intoReady(b, h, to)
	}
}

// unready removes a ready or scheduled message from the list that it waits in.
func (s *State) unready(h handle) {
	m := s.messages.mut(h)
	b := s.backlogs[m.backlog]
	s.countTried(b, m, -1)
	gone := s.deleted(m) // its counts and its queue's lists went with the tombstone
	inPartition := b.ordering != event.Unordered && (m.state == event.StateReady ||
		m.place == event.PlaceBlock)
	switch {
	case gone:
	case m.state == event.StateScheduled:
		b.scheduled--
	default:
		b.ready--
	}
	switch {
	case inPartition:
		s.outOfPartition(b, h)
	case m.state == event.StateReady && !gone:
		s.outOfReady(b, h)
	}
}

// drop removes a message that is in no waiting list any more.
func (s *State) drop(h handle) {
	m := s.messages.mut(h)
	b := s.backlogs[m.backlog]
	if m.state == event.StateLeased || !s.deleted(m) {
		b.bytes -= int64(m.size)
	}
	s.uncount(s.contentOf(m).Index)
	if m.extra != 0 {
		x := s.extras.get(m.extra)
		if x.dead != nil {
			s.unlistDead(b, h)
		}
		if x.sourceID != "" {
			s.unlistSource(b, h)
		}
		if x.holdsIn != 0 {
			s.releaseKey(x.holdsIn, x.holds, m.id)
		}
		s.extras.release(m.extra)
	}
	if b.cursor == h {
		s.setCursor(b, m.all.next)
	}
	remove[messageAll](s, &b.all, h)
	s.ids.remove(m.id, m.page)
	if s.near == h {
		s.near = 0
	}
	s.kinds.give(m.kind)
	s.releasePartition(b, m.partition)
	s.messages.release(h)
}

// bucketBits: contents are counted by buckets of 64 log indexes, so that history is kept
// little longer than live messages need it, and the map stays small.
const bucketBits = 6

func bucket(index uint64) uint64 { return index >> bucketBits }

func (s *State) uncount(index uint64) {
	k := bucket(index)
	if s.contents[k]--; s.contents[k] == 0 {
		delete(s.contents, k)
	}
}

// Needed returns the lowest log index that may hold the content of a live message, or of a running
// task's creation: history from there on must stay. Without either it is the next index.
func (s *State) Needed() uint64 {
	lowest := s.index + 1
	for k := range s.contents { // order does not matter: the minimum is the same
		lowest = min(lowest, k<<bucketBits)
	}
	for _, t := range s.tasks { // order does not matter: as above
		if !t.ended() {
			lowest = min(lowest, s.keeps(t))
		}
	}
	return lowest
}

// enqueued adds a message.
func (s *State) enqueued(e *event.Event) {
	q := s.mustQueue(e, e.Queue)
	h, m := s.add(e, q.backlog, e.Key, e.Kind)
	m.priority, m.size = e.Priority, e.Size
	if e.Expires != 0 {
		s.extraOf(h).expires = e.Expires
	}
	if e.SourceID != "" {
		s.extraOf(h).sourceID = e.SourceID
		q.Stats.Imported++
	} else {
		q.Stats.Enqueued++
	}
	s.remember(e)
	s.arrive(h, e.Due)
}

func (s *State) contentCarried(e *event.Event) {
	h := s.subject(e)
	m := s.open(h)
	s.uncount(s.contentOf(m).Index)
	x := s.extraOf(h)
	x.content = event.RefOf(e.ID)
	s.contents[bucket(x.content.Index)]++
	m.setLast(event.RefOf(e.ID))
	s.close(h)
}
