package projections

// link makes an element part of a doubly linked list.
type link struct{ prev, next handle }

// list is a doubly linked list through links that live in the elements.
type list struct {
	head, tail handle
	n          uint32
	// of waiting messages: the last of those that returned to the front
	// (message.returned)
	front handle
}

// links returns an element's link for writing.
type links interface {
	link(s *State, h handle) *link
}

type (
	// a partition's messages, or an unordered queue's ready ones of one priority
	messageOrder   struct{}
	messageKind    struct{} // an unordered queue's ready ones of one priority and kind
	messageAll     struct{} // all of a backlog, by id
	deadOrder      struct{} // those of a backlog that died in one queue, by id
	partitionOrder struct{} // partitions whose head can be leased, of one priority
	partitionKind  struct{} // the same, of one priority and kind
)

func (messageOrder) link(s *State, h handle) *link { return &s.messages.mut(h).order }
func (messageKind) link(s *State, h handle) *link  { return &s.messages.mut(h).kindOrder }
func (messageAll) link(s *State, h handle) *link   { return &s.messages.mut(h).all }
func (deadOrder) link(s *State, h handle) *link {
	return &s.extras.mut(s.messages.get(h).extra).deadOrder
}
func (partitionOrder) link(s *State, h handle) *link { return &s.partitions.mut(h).order }
func (partitionKind) link(s *State, h handle) *link  { return &s.partitions.mut(h).kindOrder }

// insert puts h before at, or at the end if at is 0.
func insert[L links](s *State, l *list, h, at handle) {
	var k L
	me := k.link(s, h)
	if at == 0 {
		me.prev, me.next = l.tail, 0
		if l.tail != 0 {
			k.link(s, l.tail).next = h
		} else {
			l.head = h
		}
		l.tail = h
	} else {
		next := k.link(s, at)
		me.prev, me.next = next.prev, at
		if next.prev != 0 {
			k.link(s, next.prev).next = h
		} else {
			l.head = h
		}
		next.prev = h
	}
	l.n++
}

func remove[L links](s *State, l *list, h handle) {
	var k L
	me := k.link(s, h)
	if me.prev != 0 {
		k.link(s, me.prev).next = me.next
	} else {
		l.head = me.next
	}
	if me.next != 0 {
		k.link(s, me.next).prev = me.prev
	} else {
		l.tail = me.prev
	}
	if l.front == h {
		l.front = me.prev // those that came back are before all others
	}
	*me = link{}
	l.n--
}
