package event

import "strings"

// QueueView is a queue as readers see it.
type QueueView struct {
	Name     string
	Number   uint32
	Policy   Policy
	Revision uint64 // of the policy: the index of the entry that set it
	Paused   bool
	// of which nothing is leased, sorted; never changed in place
	PausedKeys []string
	MayLease   int   // how many more leases its state and limits allow now
	RefillsAt  int64 // when rate_limit allows the next lease, Unix ms; 0: now
	CreatedAt  int64
	UpdatedAt  int64
	LeasedAt   int64 // when its newest lease was given; 0: none yet
	Stats      Stats
}

// Stats counts what is in a queue and what passed through this incarnation.
//
// Invariant (I8): Enqueued + DeadIn + ReplayedIn + Imported + Resurrected =
// Scheduled + Ready + InFlight + Acked + DeadLettered + Discarded + Replayed.
type Stats struct {
	Ready, Scheduled, InFlight int64
	// the part of Ready behind an earlier message of its partition, or whose key is paused or held
	Held       int64
	Bytes      int64
	Oldest     int64 // when the oldest message came, Unix ms; 0 if empty
	Partitions int64

	Enqueued, DeadIn, ReplayedIn, Imported, Resurrected int64
	Acked, DeadLettered, Discarded, Replayed            int64
}

// Messages is how many messages are in the queue.
func (s *Stats) Messages() int64 { return s.Ready + s.Scheduled + s.InFlight }

// MessageView is a live message as readers see it.
type MessageView struct {
	ID             ID
	Queue          string
	Key            string
	Kind           string
	State          State
	Held           bool
	Priority       uint8
	Attempt        uint32
	Size           uint32
	EnqueuedAt     int64
	Due            int64 // when it can be (or could be) leased
	Expires        int64 // end of its ttl; 0 never
	Lease          ID    // its current lease
	LeaseExpiresAt int64
	Content        Ref // the event that holds its payload
	Last           Ref // its newest event
	Dead           *DeadView
	Origin         *OriginView
	SourceID       string
}

// DiedIn reports whether it is a dead letter that died in a queue.
func (v *MessageView) DiedIn(queue string) bool {
	return v.Dead != nil && v.Dead.Queue == queue && v.State.Live()
}

// OriginView says where a message that was replayed or resurrected came from.
type OriginView struct {
	First   ID     // the id under which it was first enqueued
	From    ID     // the id that it had before
	Replays uint32 // how often it was replayed
}

// DeadView says where a dead message came from. The error text is the content
// of the event that moved it, which is the message's own id.
type DeadView struct {
	Queue           string
	MessageID       ID
	Reason          Reason
	Attempts        uint32
	FailedAt        int64
	FirstEnqueuedAt int64
	First           ID // the id under which it was first enqueued
	ReplayCount     uint32
}

// DeadFilter selects what died in a queue. Times are Unix ms, inclusive.
type DeadFilter struct {
	To     int64 // failed at; 0: no limit
	Before ID    // only ids below it; zero: all
	After  ID    // only ids above it
	Limit  int
}

// AttentionView has the facts of a queue that may need an operator. Times are Unix ms.
type AttentionView struct {
	QueueView
	NewestAt int64 // when the newest of its messages came; 0 without any

	HeldKeys int64  // keys that hold_key blocks
	HeldKey  string // the one blocked for the longest time
	HeldBy   ID     // the dead message that blocked it: its id in the dead-letter queue

	// Messages that could be leased, and since when nothing was, though some could be and neither
	// the policy nor a pause has changed.
	Leasable, LeasableSince int64
	// Waiting messages that failed and have one attempt left, and since when there are any.
	LastAttempt, LastAttemptSince int64
}

// PartitionView is a partition, for explaining.
type PartitionView struct {
	Waiting int64        // how many wait in it
	Head    *MessageView // the first of them
	Leased  *MessageView // the first of those that are leased
	Batch   int64        // how many are leased
	HeldBy  int64        // dead messages that hold the key and are not resolved (hold_key)
	Since   ID           // the first of these: its id in the dead-letter queue
}

// TaskView is a task as readers see it. Times are Unix ms.
type TaskView struct {
	ID        ID // of the task_created event, whose content has the spec
	Kind      TaskKind
	Queue     string
	Status    TaskStatus
	Sealed    bool
	Actor     string
	CreatedAt int64
	UpdatedAt int64
	EndedAt   int64 // 0: has not ended
	Total     int64 // about how many messages, when it began
	Done      int64
	Skipped   int64
	KeepFrom  uint64     // undo: the first index that may still be read when it begins
	End       Ref        // task_ended, whose content has the error of a failed one
	Nodes     []TaskNode // erase: that have carried it out; verify: the one that does
}

// TaskOf returns a task as its creation leaves it.
func TaskOf(created *Event) TaskView {
	at := ClockOf(created.ID)
	v := TaskView{
		ID: created.ID, Kind: created.TaskKind, Queue: created.Queue, Actor: created.Actor,
		CreatedAt: at, UpdatedAt: at, Total: created.Count,
	}
	if created.Node != "" {
		v.Nodes = []TaskNode{{Node: created.Node}}
	}
	return v
}

// Verifies reports whether the task verifies the files of a member, and runs.
func (t *TaskView) Verifies(member string) bool {
	return t.Kind == TaskVerify && t.Status == TaskRunning && t.Nodes[0].Node == member
}

// MayVerify returns a problem if a verification of a member runs already.
func MayVerify(member string, tasks []TaskView) *Problem {
	for i := range tasks {
		if t := &tasks[i]; t.Verifies(member) {
			node, _, _ := strings.Cut(member, "/")
			return Problemf(CodeConflict, "id", "node %s is being verified by task %s", node, t.ID)
		}
	}
	return nil
}

// MayResume returns a problem if a task cannot be resumed: a verification cannot, because the files
// that it has read may have changed since.
func (t *TaskView) MayResume() *Problem {
	if t.Kind == TaskVerify {
		return Problemf(CodeConflict, "id", "task %s is a verification: start another one", t.ID)
	}
	return nil
}

// TaskNode is a node that carries a task out, or has done so.
type TaskNode struct {
	Node string // the member: its id and incarnation
	At   int64  // when it has; 0: of a verification, whose end says it
}

// WebhookView is a webhook as readers see it.
type WebhookView struct {
	Name       string
	Queue      string
	Definition []byte
	Sum        [32]byte // SHA-256 of Definition
	Revision   uint64   // index of the entry that set it
	CreatedAt  int64
	UpdatedAt  int64
}

// MessageFilter selects messages of a queue.
type MessageFilter struct {
	State State   // StateNone: all
	Key   *string // nil: all
	After ID      // only ids above it
	Limit int
}
