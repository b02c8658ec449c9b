package fsm

import (
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/projections"
)

// View calls fn with the state as of the newest entry, which fn must not keep.
func (m *Machine) View(fn func(s *projections.State)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	fn(m.state)
}

func view[T any](m *Machine, fn func(s *projections.State) T) (v T) {
	m.View(func(s *projections.State) { v = fn(s) })
	return v
}

// find calls a method of the state that looks something up.
func find[K, V any](m *Machine, fn func(*projections.State, K) (V, bool), key K) (v V, ok bool) {
	m.View(func(s *projections.State) { v, ok = fn(s, key) })
	return v, ok
}

// Index is the newest block's.
func (m *Machine) Index() uint64 { return view(m, (*projections.State).Index) }

// Clock is the log's clock, Unix ms.
func (m *Machine) Clock() int64 { return view(m, (*projections.State).Clock) }

// Digest is the state's.
func (m *Machine) Digest() [16]byte { return view(m, (*projections.State).Digest) }

// Rules is the version of the rules of deciding that is in force.
func (m *Machine) Rules() uint16 { return view(m, (*projections.State).Rules) }

// History is the index below which history may be deleted.
func (m *Machine) History() uint64 { return view(m, (*projections.State).History) }

// NextDue is when something becomes due next, Unix ms.
func (m *Machine) NextDue() (at int64, ok bool) {
	m.View(func(s *projections.State) { at, ok = s.NextDue() })
	return at, ok
}

// NextReady returns when the next scheduled message is due, Unix ms.
func (m *Machine) NextReady() (at int64, ok bool) {
	m.View(func(s *projections.State) { at, ok = s.NextReady() })
	return at, ok
}

// Queue returns a queue as of the newest entry.
func (m *Machine) Queue(name string) (event.QueueView, bool) {
	return find(m, (*projections.State).Queue, name)
}

// Queues returns all queues, sorted by name.
func (m *Machine) Queues() []event.QueueView { return view(m, (*projections.State).Queues) }

// QueueCount returns how many queues there are.
func (m *Machine) QueueCount() int { return view(m, (*projections.State).QueueCount) }

// Webhook returns a webhook as of the newest entry.
func (m *Machine) Webhook(name string) (event.WebhookView, bool) {
	return find(m, (*projections.State).Webhook, name)
}

// Webhooks returns all webhooks, sorted by name.
func (m *Machine) Webhooks() []event.WebhookView { return view(m, (*projections.State).Webhooks) }

// Message returns a live message.
func (m *Machine) Message(id event.ID) (event.MessageView, bool) {
	return find(m, (*projections.State).Message, id)
}

// ByLease returns the message whose current lease this is.
func (m *Machine) ByLease(lease event.ID) (event.MessageView, bool) {
	return find(m, (*projections.State).ByLease, lease)
}

// Dead returns the messages that died in a queue, by id, and whether there are more. The
// queue may be deleted.
func (m *Machine) Dead(queue string, f event.DeadFilter) (v []event.MessageView, more bool) {
	m.View(func(s *projections.State) { v, more = s.Dead(queue, f) })
	return v, more
}

// DeadCount returns how many messages that died in a queue are dead letters.
func (m *Machine) DeadCount(queue string) int64 {
	return view(m, func(s *projections.State) int64 { return s.DeadCount(queue) })
}

// Partition returns a partition, for explaining; false where there is none.
func (m *Machine) Partition(queue, key string) (v event.PartitionView, ok bool) {
	m.View(func(s *projections.State) { v, ok = s.Partition(queue, key) })
	return v, ok
}

// Attention returns what of a queue may need an operator.
func (m *Machine) Attention(queue string) (event.AttentionView, bool) {
	return find(m, (*projections.State).Attention, queue)
}

// Task returns a task that is running or ended recently.
func (m *Machine) Task(id event.ID) (event.TaskView, bool) {
	return find(m, (*projections.State).Task, id)
}

// Tasks returns all tasks that are kept, the newest first.
func (m *Machine) Tasks() []event.TaskView { return view(m, (*projections.State).Tasks) }

// Leasable returns how many messages could be leased now.
func (m *Machine) Leasable(queue string, kinds []string) int {
	return view(m, func(s *projections.State) int { return s.Leasable(queue, kinds) })
}

// Freeze returns the state as of now, for writing beside Apply. The caller must Release
// it.
func (m *Machine) Freeze() checkpoint.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &frozen{Frozen: m.state.Freeze(), m: m}
}

// frozen is a state at one instant.
type frozen struct {
	*projections.Frozen
	m        *Machine
	released bool
}

// Release allows the machine to write in place again. Only the first call counts: a
// second one would let the machine write into chunks that another checkpoint reads.
func (f *frozen) Release() {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if !f.released {
		f.released = true
		f.Frozen.Release()
	}
}

// DedupFloor and AnswerFloor are the indexes below which the log must be asked
// for deduplication hashes and for answers to requests.
func (m *Machine) DedupFloor() uint64 { return view(m, (*projections.State).DedupFloor) }

// Duplicate returns the message that has taken a deduplication hash.
func (m *Machine) Duplicate(hash event.Hash) (event.ID, bool) {
	return find(m, (*projections.State).Duplicate, hash)
}

// Deleting reports whether the events of messages that were deleted from a queue are pending.
func (m *Machine) Deleting(queue string) bool {
	return view(m, func(s *projections.State) bool { return s.Deleting(queue) })
}

// AnswerFloor: see DedupFloor.
func (m *Machine) AnswerFloor() uint64 { return view(m, (*projections.State).AnswerFloor) }

// searchStep is how many messages Messages examines under one lock: about a tenth of a
// millisecond.
const searchStep = 4096

// Messages returns a queue's messages by id, and whether there are more. It searches in steps, so
// that finding a few among millions does not delay Apply: it waits for one step at most.
func (m *Machine) Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool) {
	var w projections.Walk
	for done := false; !done; {
		m.View(func(s *projections.State) { done = w.Messages(s, queue, f, searchStep) })
	}
	return w.Found, w.More
}
