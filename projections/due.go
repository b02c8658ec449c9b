package projections

import "github.com/qlogd/qlogd/event"

// Due is an event that is due because of its time, or because of an earlier deletion.
type Due struct {
	Kind    DueKind
	Message event.MessageView
	Reason  event.Reason // DueDeleted
	Queue   string       // DueDeleted: the queue's name when it was decided
	To      string       // DueDeleted: the dead-letter queue, "" discards
}

// DueKind says what is due.
type DueKind uint8

const (
	DueNothing DueKind = iota
	DueLease           // the message's lease has run out
	DueExpiry          // the message is too old
	DueDeleted         // the message is deleted already, and its event is pending
)

// Overdue returns the first thing that is due by the clock, ordered by (due, id), then the
// messages that are deleted already. Timers that need no event are removed on the way.
func (s *State) Overdue() Due {
	for {
		t, ok := s.firstValid(&s.deadlines)
		if !ok || t.at > s.clock {
			return s.nextDeleted()
		}
		if t.kind == timerAge {
			b := s.backlogs[uint32(t.h)]
			m := s.messages.get(b.cursor)
			if m.state == event.StateLeased || s.deleted(m) {
				s.setCursor(b, m.all.next) // its lease's end sets a timer of its own
				continue
			}
			return Due{Kind: DueExpiry, Message: s.viewMessage(b.cursor)}
		}
		m := s.messages.get(t.h)
		switch {
		case s.deleted(m) && t.kind == timerLease:
			s.deadlines.pop()
		case t.kind == timerLease:
			return Due{Kind: DueLease, Message: s.viewMessage(t.h)}
		case s.deleted(m), m.state == event.StateLeased: // its lease's end sets it again
			s.extraOf(t.h).timer = 0
		case s.expiresAt(m) > s.clock || s.expiresAt(m) == 0: // the policy has changed
			s.extraOf(t.h).timer = 0
			s.armExpiry(t.h)
		default:
			return Due{Kind: DueExpiry, Message: s.viewMessage(t.h)}
		}
	}
}

// NextDue returns when something becomes due next, Unix ms: at once if there is something
// left to carry out. It may run beside other readers, so it relies on prune.
func (s *State) NextDue() (int64, bool) {
	if len(s.tombstones) > 0 || len(s.separations) > 0 {
		return s.clock, true
	}
	at, ok := int64(0), false
	for _, q := range []*timers{&s.waiting, &s.deadlines, &s.refills} {
		if t, there := q.first(); there && (!ok || t.at < at) {
			at, ok = t.at, true
		}
	}
	return at, ok
}

// NextReady returns when the next scheduled message is due, Unix ms.
func (s *State) NextReady() (at int64, ok bool) {
	t, ok := s.waiting.first()
	return t.at, ok
}

// Expired reports whether a message that is not leased has expired.
func (s *State) Expired(m *event.MessageView) bool {
	return m.Expires != 0 && m.Expires <= s.clock && m.State != event.StateLeased
}
