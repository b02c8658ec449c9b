package fsm

import "github.com/qlogd/qlogd/event"

// news is what Apply collects for other goroutines. They poll it, so that their work is not
// on the write path.
type news struct {
	counts    [event.NumTypes]uint64
	discarded map[Discard]Discarded
	erased    uint64
}

// Discard is the queue in which messages were discarded, and why.
type Discard struct {
	Queue  string
	Reason event.Reason
}

// Discarded is the number of discarded messages, and the last of them.
type Discarded struct {
	Count int
	Last  event.ID
}

func (n *news) note(index uint64, events []event.Event) {
	for i := range events {
		e := &events[i]
		n.counts[e.Type]++
		switch e.Type {
		case event.Erased:
			if n.erased == 0 {
				n.erased = index
			}
		case event.Discarded:
			switch e.Reason {
			case event.ReasonMaxAttempts, event.ReasonExpired, event.ReasonRejected,
				event.ReasonKeyDead:
				if n.discarded == nil {
					n.discarded = map[Discard]Discarded{}
				}
				k := Discard{e.Queue, e.Reason}
				n.discarded[k] = Discarded{n.discarded[k].Count + 1, e.Subject}
			}
		}
	}
}

// Counts returns how many events of each type this machine has applied.
func (m *Machine) Counts() [event.NumTypes]uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.news.counts
}

// TakeLeasable returns the queues in which something became leasable since the last call.
func (m *Machine) TakeLeasable() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.TakeTouched()
}

// TakeDiscarded returns what was discarded since the last call because there was no
// dead-letter queue, not on request.
func (m *Machine) TakeDiscarded() map[Discard]Discarded {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.news.discarded
	m.news.discarded = nil
	return d
}

// TakeErased returns the first block since the last call that has an `erased` event, 0 for none,
// and the index of the newest applied block.
func (m *Machine) TakeErased() (first, upTo uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, m.news.erased = m.news.erased, 0
	return first, m.state.Index()
}
