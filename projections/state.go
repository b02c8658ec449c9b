// Package projections folds events into the live state of the queues. It is
// pure: no clock, randomness, goroutines or I/O, and nothing depends on the
// order of a map (I5). The live node, time travel and `qlogd replay` are three
// callers of the same fold.
package projections

import (
	"fmt"

	"github.com/qlogd/qlogd/event"
)

// dueReadyPerEntry bounds how many scheduled messages become ready in one
// entry, so that a million due at once do not stall the others.
const dueReadyPerEntry = 4096

// State is the fold of the log up to Index. Folding needs exclusive access; the read
// methods may run concurrently with each other.
type State struct {
	index uint64
	clock int64  // Invariant: the maximum of the stamps so far; never goes back (I10)
	rules uint16 // of deciding, in force. Invariant: only rises, and by an event (I19)

	queues     map[string]*queue   // by name: those that can be used
	numbers    map[uint32]*queue   // by number, including deleted ones whose events are pending
	backlogs   map[uint32]*backlog // by number
	next       uint32              // last number given to a queue or a backlog
	tombstones []*tombstone        // deletions whose events are pending, oldest first
	// where messages lie that died in the queue of this name. Invariant: all backlogs that list
	// such, but for deleted ones
	died     map[string][]*backlog
	webhooks map[string]event.WebhookView // by name
	tasks    map[event.ID]*task           // running ones, and the newest that ended
	ended    []*task                      // in the order in which they ended

	messages   slab[message]
	leases     slab[lease]
	extras     slab[extra]
	partitions slab[partition]
	kinds      kindTable

	ids    ids
	lastID event.ID // Invariant: no live message has a higher one
	// a guess at the next event's message, 0 none: the one behind the last event's,
	// because leases are taken and settled in a row. It may have been freed or reused
	near handle

	waiting   timers // scheduled messages
	deadlines timers // ends of leases and messages, ages of backlogs
	// of empty buckets. Invariant: behind the clock, except within Advance
	refills timers

	dedup   table
	answers table
	raised  table // resurrections, by the id under which the message had left
	// number of live messages by the bucket of log indexes that holds their content
	contents map[uint64]int64
	history  uint64 // history below it may be deleted

	sum     digest // of all live messages, independent of order
	touched []*queue

	separations []*backlog // that may have messages to separate, by number
	separated   int        // messages examined for that in this entry
}

// New returns the state before the first event.
func New() *State {
	s := &State{
		rules:  1,
		queues: map[string]*queue{}, numbers: map[uint32]*queue{}, backlogs: map[uint32]*backlog{},
		webhooks: map[string]event.WebhookView{}, died: map[string][]*backlog{},
		tasks: map[event.ID]*task{}, contents: map[uint64]int64{},
	}
	s.kinds.byName = map[string]handle{}
	s.ids, s.dedup, s.answers, s.raised = newIDs(), newTable(), newTable(), newTable()
	s.raised.most = raisedMost
	return s
}

// Index is the Raft index of the newest block folded.
func (s *State) Index() uint64 { return s.index }

// Clock is the log's clock, Unix ms.
func (s *State) Clock() int64 { return s.clock }

// Rules is the version of the rules of deciding that is in force.
func (s *State) Rules() uint16 { return s.rules }

// History is the index below which history may have been deleted.
func (s *State) History() uint64 { return s.history }

// Fold folds a whole block. It cannot fail: an impossible event is a panic that names the
// event and the state.
func (s *State) Fold(b *event.Block) {
	s.Begin(b.Index, b.Time)
	for i := range b.Events {
		s.Apply(&b.Events[i])
	}
}

// Begin starts the block of the entry at index with its time: the clock advances, messages
// scheduled up to then become ready, and separations continue.
func (s *State) Begin(index uint64, time int64) {
	if index <= s.index {
		panic(fmt.Sprintf("fold: block %d after block %d", index, s.index))
	}
	s.index = index
	s.sweep()
	s.separated = 0
	s.separate()
	s.Advance(time)
}

// Advance moves the clock to an instant at which there may be no block.
func (s *State) Advance(clock int64) {
	s.clock = max(s.clock, clock)
	s.forgetTasks()
	for range dueReadyPerEntry {
		t, ok := s.firstValid(&s.waiting)
		if !ok || t.at > s.clock {
			break
		}
		s.waiting.pop()
		s.becomeReady(t.h)
	}
	s.refill()
	s.prune()
}

// folds has what folds each type of events.
var folds = [event.NumTypes]func(*State, *event.Event){
	event.QueueCreated:   (*State).queueCreated,
	event.QueueUpdated:   (*State).queueUpdated,
	event.QueueDeleted:   (*State).queueDeleted,
	event.QueuePaused:    (*State).queuePaused,
	event.QueueResumed:   (*State).queuePaused,
	event.QueuePurged:    (*State).queuePurged,
	event.Enqueued:       (*State).enqueued,
	event.Leased:         (*State).leased,
	event.LeaseExtended:  (*State).leaseExtended,
	event.LeaseExpired:   (*State).leaseReturned,
	event.Retried:        (*State).leaseReturned,
	event.Released:       (*State).leaseReturned,
	event.Returned:       (*State).leaseReturned,
	event.Rescheduled:    (*State).rescheduled,
	event.Acked:          (*State).left,
	event.Discarded:      (*State).left,
	event.DeadLettered:   (*State).deadLettered,
	event.Replayed:       (*State).replayed,
	event.AnswerKept:     (*State).answerKept,
	event.ContentCarried: (*State).contentCarried,
	event.HistoryDeleted: (*State).historyDeleted,
	event.RulesChanged:   (*State).rulesChanged,
	event.Resurrected:    (*State).resurrected,
	event.TaskCreated:    (*State).taskCreated,
	event.TaskCancelled:  (*State).taskChanged,
	event.TaskResumed:    (*State).taskChanged,
	event.TaskSealed:     (*State).taskChanged,
	event.TaskReported:   (*State).taskChanged,
	event.TaskEnded:      (*State).taskChanged,
	event.Erased:         (*State).erased,
	event.WebhookCreated: (*State).webhookPut,
	event.WebhookUpdated: (*State).webhookPut,
	event.WebhookDeleted: (*State).webhookDeleted,
}

// Apply folds one event of the block begun.
func (s *State) Apply(e *event.Event) {
	if e.Type == event.TypeNone || e.Type >= event.NumTypes {
		panic(fmt.Sprintf("fold: event %s has type %d, which this program does not know", e.ID,
			e.Type))
	}
	folds[e.Type](s, e)
	if !e.Task.IsZero() {
		s.taskDid(e)
	}
	s.prune()
}

func (s *State) historyDeleted(e *event.Event) { s.history = max(s.history, e.Before) }

// rulesChanged folds a change of the rules of deciding. Folding depends on events alone,
// so it works under rules that this binary does not know.
func (s *State) rulesChanged(e *event.Event) {
	if e.Rules <= s.rules {
		s.impossible(e, "rules %d are in force, %d would change nothing", s.rules, e.Rules)
	}
	s.rules = e.Rules
}

// impossible panics: the log contradicts the state, so one of the two is wrong, and
// continuing would spread the error.
func (s *State) impossible(e *event.Event, format string, args ...any) {
	panic(impossibleError(fmt.Sprintf("fold: %s event %s at index %d: %s", e.Type, e.ID, s.index,
		fmt.Sprintf(format, args...))))
}

type impossibleError string

func (e impossibleError) Error() string { return string(e) }

// Try applies an event of a log in which others are missing, and reports whether it is possible.
// Invariant: an event that is not has changed nothing.
func (s *State) Try(e *event.Event) (possible bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(impossibleError); !ok {
				panic(r)
			}
		}
	}()
	s.Apply(e)
	return true
}

// TakeTouched returns the queues in which something became leasable since the
// last call.
func (s *State) TakeTouched() []string {
	if len(s.touched) == 0 {
		return nil
	}
	names := make([]string, 0, len(s.touched))
	for _, q := range s.touched {
		q.touched = false
		names = append(names, q.Name)
	}
	s.touched = s.touched[:0]
	return names
}

func (s *State) touch(q *queue) {
	if !q.touched {
		q.touched = true
		s.touched = append(s.touched, q)
	}
}
