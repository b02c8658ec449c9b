package api

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// Proposer gets commands decided.
type Proposer interface {
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
}

// Barrier makes reads linearizable.
type Barrier interface {
	// Barrier returns when this node has applied all that was committed before
	// the call.
	Barrier(ctx context.Context) error
}

// State is the live state, or a past one.
type State interface {
	Queue(name string) (event.QueueView, bool)
	Queues() []event.QueueView // sorted by name
	Webhook(name string) (event.WebhookView, bool)
	Webhooks() []event.WebhookView // sorted by name
	Message(id event.ID) (event.MessageView, bool)
	// Messages returns live messages in the order of their ids; false where
	// there is no such queue.
	Messages(queue string, f event.MessageFilter) ([]event.MessageView, bool)
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

// Now is what a live State may have beside: the log's time at this instant,
// Unix ms, which goes on while nothing happens and need not be this machine's.
type Now interface {
	Now() int64
}

// Log reads the event log.
type Log interface {
	Event(ref event.Ref) (*event.Event, error)
	Content(ref event.Ref) (*event.Content, error)
	// Contents returns as many as it was asked for, in that order, or an error.
	Contents(refs []event.Ref) ([]*event.Content, error)
	// History returns all events of a message, through moves both ways, oldest
	// first; none where it never was.
	History(ctx context.Context, id event.ID) ([]event.Event, error)
	// EndOf returns the event that ended a lease.
	EndOf(ctx context.Context, lease event.ID) (*event.Event, error)
	// Blocks reads from an index on, or from the first one after it that is
	// kept; next returns io.EOF at the head.
	Blocks(from uint64) (next func(context.Context) (*event.Block, error), closeBlocks func())
	Head() uint64
	// DeletedBefore reports whether retention has deleted the log's beginning,
	// and the index of the newest block that is gone.
	DeletedBefore() (index uint64, deleted bool)
	// Wait returns when the head is above index.
	Wait(ctx context.Context, index uint64) error
	// From and To resolve instants to the first and the last index of a range;
	// an instant that is not of this log is an error for which
	// LogErrors.Range is true.
	From(at event.Instant) (uint64, error)
	To(at event.Instant) (uint64, error)
}

// LogErrors are what the Log's errors are (errors.Is); a nil one never
// happens.
type LogErrors struct {
	Gone     error // deleted by retention
	Erased   error // content erased
	NotFound error
	// Range reports whether an error says that an instant is not one of the
	// log's: a user's mistake, whose text may be told.
	Range func(error) bool
}

// Past gives the state as it was.
type Past interface {
	// At returns the state after the whole entry that the instant falls on.
	// release is called once, also when nothing was read. Errors are an
	// *event.Problem or as LogErrors says.
	At(ctx context.Context, at event.Instant) (state State, release func(), err error)
}

// Readiness says whether this node can serve.
type Readiness interface {
	Ready() (ok bool, reasons []string)
}

// Rates are the per-minute rates that follow behind the log.
type Rates interface {
	MessagesPerMinute(queue string) (float64, bool)
}

// Load tells how full the proposer is.
type Load interface {
	// Load returns the share of its room that is taken, 0 to 1, and how many
	// commands wait.
	Load() (utilization float64, depth int64)
}

// OperationsStore finds writes that were executed long ago, on any node.
type OperationsStore interface {
	// Operations returns the answer_kept events whose Alias begins with prefix
	// (8 bytes: the Idempotency-Key's half of it, see requestKey), oldest first.
	Operations(prefix [8]byte) ([]event.Event, error)
}

// Cluster shows the cluster and changes it. Errors are an *event.Problem
// (no_leader, conflict, node_not_found, invalid_argument); its Unknown says that
// the change may still come.
type Cluster interface {
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

// Counts are the read models of queues, which follow about a second behind the
// log and can be counted anew from it.
type Counts interface {
	// QueueTotals returns a queue's events by type, and DeadLetters its dead ones
	// by reason, since it was made.
	QueueTotals(queue string) (map[string]uint64, error)
	DeadLetters(queue string) (map[event.Reason]uint64, error)
	// Minutes returns those that begin from from to before to (Unix ms), oldest
	// first, without those in which nothing happened. A day is kept.
	Minutes(queue string, from, to int64) ([]wire.Minute, error)
	// Position returns the index up to which is counted, and the log's clock there.
	Position() (index uint64, clock int64)
	// Rebuild throws all of it away; it is counted anew in the background.
	Rebuild() error
}

// Deps is what the API stands on. Push, Rates, Load, Counts, Operations, Floors, Past, Proof,
// Cluster, Age, Leader, AskOthers, AskLeader, Secrets, Forward and Registry may be nil.
type Deps struct {
	Proposer  Proposer
	Barrier   Barrier
	State     State
	Log       Log
	LogErrors LogErrors
	Past      Past
	Proof     Proof
	Ready     Readiness
	// EventCounts tells how many events of each type this node has applied; nil: nobody counts.
	EventCounts func() [event.NumTypes]uint64
	Rates       Rates
	Load        Load
	Counts      Counts
	Operations  OperationsStore
	Replays     Replays // nil: the log is read from its beginning
	Floors      Floors
	Finder      Finder // needed with Floors
	Cluster     Cluster
	Push        Push // nil: push is taken as it is, and nobody delivers
	Eraser      Eraser
	// Age tells how old a stale read from this node is; false where nobody knows.
	Age func() (time.Duration, bool)
	// Leader returns the HTTP address of the leader where that is another node,
	// else "". It is called for each write.
	Leader func() string
	// AskOthers puts a question to all other nodes and returns the answers of
	// those that gave one in time. What answers is the other nodes' Server: the
	// name is one of the Ask constants.
	AskOthers func(ctx context.Context, name string, body []byte) [][]byte
	// AskLeader puts a question to the leader where that is another node, and
	// waits for the answer as long as it leads; else it is an error. What answers
	// is the leader's Server: the name is one of the Ask constants.
	AskLeader func(ctx context.Context, name string, body []byte) ([]byte, error)
	Secrets   Secrets   // nil: webhooks that are signed are turned away
	Forward   Forwarder // nil: webhooks have no targets
	Logger    *slog.Logger
	Registry  *prometheus.Registry // nil: an own one
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
