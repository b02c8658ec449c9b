package event

// QueueView is a queue as readers see it.
type QueueView struct {
	Name      string
	Number    uint32
	Policy    Policy
	Revision  uint64 // of the policy: the index of the entry that set it
	Paused    bool
	CreatedAt int64
	UpdatedAt int64
	Stats     Stats
}

// Stats counts what is in a queue and what passed through this incarnation.
//
// Invariant (I8): Enqueued + DeadIn + ReplayedIn + Imported + Resurrected =
// Scheduled + Ready + InFlight + Acked + DeadLettered + Discarded + Replayed.
type Stats struct {
	Ready, Scheduled, InFlight int64
	Held                       int64 // the part of Ready behind an earlier message of its lane, or behind hold_key
	Bytes                      int64
	Oldest                     int64 // when the oldest message came, Unix ms; 0 if empty
	Partitions                 int64

	Enqueued, DeadIn, ReplayedIn, Imported, Resurrected int64
	Acked, DeadLettered, Discarded, Replayed            int64
}

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
}

// DeadView tells where a dead message came from. The error text is the content
// of the event that moved it, which is the message's own id.
type DeadView struct {
	Queue           string
	MessageID       ID
	Reason          Reason
	Attempts        uint32
	FailedAt        int64
	FirstEnqueuedAt int64
	ReplayCount     uint32
}

// MessageFilter selects messages of a queue.
type MessageFilter struct {
	State State   // StateNone: all
	Key   *string // nil: all
	After ID      // only ids above it
	Limit int
}
