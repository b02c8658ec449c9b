package projections

import "github.com/qlogd/qlogd/event"

// pageBits: events of one entry whose numbers differ in the last bits are on one page.
const pageBits = 3

// page has a message for each of the ids that differ in the last bits, 0 for none.
type page [1 << pageBits]handle

// ids finds messages by the ids of events: of the one that enqueued it, and of the one that
// leased it. Ids come in rows, so that a map of pages needs few insertions and deletions.
type ids struct {
	pages  slab[page]
	byID   map[event.ID]handle // by a page's first id
	newest event.ID            // of the page that came last
	at     handle              // that page, 0 none
}

func newIDs() ids { return ids{byID: map[event.ID]handle{}} }

// base returns the first id of a page, and the place of an id on it.
func base(id event.ID) (first event.ID, place byte) {
	place = id[15] % byte(len(page{}))
	id[15] -= place
	return id, place
}

// add adds an id and returns its page, for remove.
func (x *ids) add(id event.ID, h handle) (p handle) {
	first, place := base(id)
	if x.at == 0 || x.newest != first {
		var ok bool
		if x.at, ok = x.byID[first]; !ok {
			x.at, _ = x.pages.alloc()
			x.byID[first] = x.at
		}
		x.newest = first
	}
	x.pages.mut(x.at)[place] = h
	return x.at
}

// find returns the message of an id, 0 for none.
func (x *ids) find(id event.ID) handle {
	first, place := base(id)
	p, ok := x.byID[first]
	if !ok {
		return 0
	}
	return x.pages.get(p)[place]
}

// remove removes an id from its page.
func (x *ids) remove(id event.ID, p handle) {
	first, place := base(id)
	at := x.pages.mut(p)
	if at[place] = 0; *at != (page{}) {
		return
	}
	delete(x.byID, first)
	x.pages.release(p)
	if x.at == p {
		x.at = 0
	}
}

// find returns the live message with an id.
func (s *State) find(id event.ID) (handle, bool) {
	h := s.ids.find(id)
	return h, h != 0 && s.messages.get(h).id == id
}

// findLeased returns the message whose current lease this is.
func (s *State) findLeased(lease event.ID) (handle, bool) {
	has := func(h handle) bool {
		return h != 0 && s.messages.get(h).lease != 0 &&
			s.leases.get(s.messages.get(h).lease).id == lease
	}
	if has(s.near) {
		return s.near, true
	}
	h := s.ids.find(lease)
	return h, has(h)
}
