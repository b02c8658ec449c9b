package api

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
)

// Node is the replica under a Server; *raft.Replica is one.
type Node interface {
	// Propose returns when the command is committed and applied on this node,
	// so that the answer can be read from here. An error is an *event.Problem
	// (no_leader, overloaded, shutting_down, insufficient_storage); its Unknown
	// says that the command may still be committed. A user's mistake is in the
	// Result. c must not be changed afterwards.
	Propose(ctx context.Context, c *event.Command) (event.Result, error)
	// Begin is Propose for a command and some that go along with it: they come
	// to stand in one entry, in the order of their classes, if it has room for
	// them. It does not block, and returns a function for each that waits for its
	// answer, to be called once. Where the first command is refused, the others
	// are not proposed.
	Begin(c *event.Command, along []*event.Command) []func(context.Context) (event.Result, error)
	// Barrier returns when this node has applied all that was committed before
	// the call.
	Barrier(ctx context.Context) error
	// Ready says whether this node can serve, and if not, why.
	Ready() (ok bool, reasons []string)
	// Load says how full the proposer is.
	Load() raft.Load
	// Clock is the log's time at this instant, Unix ms: it goes on while nothing
	// happens, and in a copy of the past lies behind the wall's.
	Clock() int64
	// Age says how old a stale read from this node is; false where nobody knows.
	Age() (time.Duration, bool)
	// LeaderHTTP returns the HTTP address of the leader where that is another
	// node, else "". It is called for each write.
	LeaderHTTP() string
	// AskLeader puts a question to the leader where that is another node, and
	// waits for the answer as long as it leads; else it is an error. What answers
	// is the leader's Server: the name is one of the Ask constants.
	AskLeader(ctx context.Context, name string, body []byte) ([]byte, error)
	// AskOthers puts a question to all other nodes and returns the answers of
	// those that gave one in time.
	AskOthers(ctx context.Context, name string, body []byte) [][]byte
}

// State is the live state, or a past one.
type State interface {
	Queue(name string) (event.QueueView, bool)
	Queues() []event.QueueView // sorted by name
	Webhook(name string) (event.WebhookView, bool)
	Webhooks() []event.WebhookView // sorted by name
	Message(id event.ID) (event.MessageView, bool)
	// Messages returns live messages in the order of their ids, and whether there
	// are more.
	Messages(queue string, f event.MessageFilter) (views []event.MessageView, more bool)
	// Leasable returns how many messages of these kinds (none: all) a lease
	// could take now, 0 for a paused or missing queue. It may stop counting at
	// some bound. It is called often and under a lock: it must be cheap and
	// must not call the Server.
	Leasable(queue string, kinds []string) int
	// Dead returns live messages that died in a queue, wherever they are now,
	// rising by id, and whether there is more. The queue may be gone.
	Dead(queue string, f event.DeadFilter) (views []event.MessageView, more bool)
	// DeadCount returns how many these are.
	DeadCount(queue string) int64
	// Lane returns a partition of a queue; false where there is none: nothing of
	// the key waits, is leased, or holds it.
	Lane(queue, key string) (event.LaneView, bool)
	Task(id event.ID) (event.TaskView, bool)
	Tasks() []event.TaskView // the newest first
	Clock() int64            // the log's clock, Unix ms
	Index() uint64
}

// Live is the live state: *fsm.Machine is one.
type Live interface {
	State
	// The floors say from which index on the state remembers deduplication
	// hashes and requests; below, the log must be asked. 0: it remembers all.
	DedupFloor() uint64
	AnswerFloor() uint64
	// Counts returns how many events of each type this node has applied.
	Counts() [event.NumTypes]uint64
}

// Log reads the event log: *log.Log is one.
type Log interface {
	Event(ref event.Ref) (*event.Event, error)
	Content(ref event.Ref) (*event.Content, error)
	// Contents returns as many as it was asked for, in that order, or an error.
	Contents(refs []event.Ref) ([]*event.Content, error)
	// History returns all events of a message, through moves both ways, oldest
	// first; none where it never was.
	History(ctx context.Context, id event.ID) ([]event.Event, error)
	// Find returns the newest event with an alias at index from or later, or nil.
	Find(alias event.Hash, from uint64) (*event.Event, error)
	// EndOf returns the event that ended a lease.
	EndOf(ctx context.Context, lease event.ID) (*event.Event, error)
	// Block returns the block at an index.
	Block(index uint64) (*event.Block, error)
	// Blocks reads from an index on, or from the first one after it that is
	// kept; next returns io.EOF at the head.
	Blocks(from uint64) (next func(context.Context) (*event.Block, error))
	Head() uint64
	// DeletedBefore reports whether retention has deleted the log's beginning,
	// and the index of the newest block that is gone.
	DeletedBefore() (index uint64, deleted bool)
	// Wait returns when the head is above index.
	Wait(ctx context.Context, index uint64) error
	// From and To resolve instants to the first and the last index of a range;
	// an instant that is not of this log is an error of log.IsRange.
	From(at event.Instant) (uint64, error)
	To(at event.Instant) (uint64, error)
}

// Cluster shows the cluster and changes it. Errors are an *event.Problem
// (no_leader, conflict, node_not_found, invalid_argument); its Unknown says that
// the change may still come.
type Cluster interface {
	// Refresh asks the nodes that have not answered for a moment, and returns when
	// they have, or soon.
	Refresh(ctx context.Context)
	// View returns what this node knows now, nodes by id. It asks nobody and
	// works without a leader.
	View() wire.Cluster
	// Add takes a node in, or does nothing where it is in with the same data.
	// Another node with its id or address is a conflict. It returns when the
	// configuration is committed; catching up comes after.
	Add(ctx context.Context, n wire.Node) error
	// Remove takes a node out; without force not one whose going would leave the
	// voters without a majority that can be reached, never the last voter.
	Remove(ctx context.Context, id string, force bool) error
	// Transfer hands leadership over, to the voter named or, for "", to the one
	// that is furthest.
	Transfer(ctx context.Context, to string) error
	// Snapshot lets every node take a checkpoint and returns their indexes.
	Snapshot(ctx context.Context) (map[string]uint64, error)
}

// Push delivers for the queues whose policy has push.
type Push interface {
	// Check returns an *event.Problem, whose field begins with "push", unless p
	// can be delivered by; it puts defaults into what was left out.
	Check(p *wire.Push) error
	// Reason says why a queue's messages are not delivered, nil where push has
	// nothing against it. How the target is only the leader knows.
	Reason(queue string) *wire.PushReason
	// Unready says what this node lacks to deliver.
	Unready() []string
}

// Models are the read models, which follow about a second behind the log and can
// be counted again from it: *store.Store is one.
type Models interface {
	// MessagesPerMinute returns a queue's rate as of now, Unix ms.
	MessagesPerMinute(queue string, now int64) (int64, error)
	// QueueTotals returns a queue's events by type, and DeadLetters its dead ones
	// by reason, since it was made.
	QueueTotals(queue string) (map[string]uint64, error)
	DeadLetters(queue string) (map[event.Reason]uint64, error)
	// Minutes returns those that begin from from to before to (Unix ms), oldest
	// first, without those in which nothing happened. A day is kept.
	Minutes(queue string, from, to int64) ([]store.Minute, error)
	// Replayed returns the replays of what had died in a queue, above after,
	// rising, at most limit. History may have deleted the events.
	Replayed(queue string, after event.ID, limit int) ([]store.Replayed, error)
	// OperationsWith returns the writes whose request key begins with prefix
	// (8 bytes: the Idempotency-Key's half of it, see requestKey).
	OperationsWith(prefix []byte) ([]store.Operation, error)
	// Position returns the index up to which is counted, and the log's clock there.
	Position() (index uint64, clock int64)
	// Rebuild throws all of it away; it is counted again in the background.
	Rebuild() error
}

// Deps is what a Server runs on. Models, Past, Proof, Cluster, Push, Secrets, Forward, Logger and
// Registry may be nil.
type Deps struct {
	Node   Node
	State  Live
	Log    Log
	Models Models
	// Past returns the state after the whole entry that an instant falls on.
	// Errors are an *event.Problem or as the log's.
	Past     func(ctx context.Context, at event.Instant) (State, error)
	Proof    Proof
	Cluster  Cluster
	Push     Push // nil: push is taken as it is, and nobody delivers
	Eraser   *erasure.Carrier
	Secrets  Secrets   // nil: webhooks that are signed are turned away
	Forward  Forwarder // nil: webhooks have no targets
	Logger   *slog.Logger
	Registry *prometheus.Registry // nil: an own one
}

// Options are the API's limits. The zero value has the defaults.
type Options struct {
	MaxPayload       int64          // bytes of one payload; 1 MiB
	MaxRequest       int64          // bytes of one request; 16 MiB
	BodyTimeout      time.Duration  // to receive a body; 30 s
	WriteTimeout     time.Duration  // to commit a write, before its outcome is unknown; 10 s
	Heartbeat        time.Duration  // of streams; 15 s
	HistoryRetention time.Duration  // the longest deduplication window; 0: no limit
	AutoCreateQueues bool           // produce makes queues
	Version          string         // told in the OpenAPI document
	Auth             *Auth          // nil: everybody may do everything
	TrustedProxies   []netip.Prefix // whose X-Forwarded-For is believed
	OpenMetrics      bool           // with Auth: /metrics needs no token
}

func (o *Options) defaults() {
	set := func(v *int64, def int64) {
		if *v <= 0 {
			*v = def
		}
	}
	dur := func(v *time.Duration, def time.Duration) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&o.MaxPayload, 1<<20)
	set(&o.MaxRequest, 16<<20)
	dur(&o.BodyTimeout, 30*time.Second)
	dur(&o.WriteTimeout, 10*time.Second)
	dur(&o.Heartbeat, 15*time.Second)
	if o.Version == "" {
		o.Version = "dev"
	}
}
