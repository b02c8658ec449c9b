package raft

import (
	"log/slog"
	"time"

	waltypes "github.com/hashicorp/raft-wal/types"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft/peer"
)

// Machine is what a replica drives: the state and the event log, as one.
//
// Apply, Tip, Freeze, NextDue, Clock and Rules are never called at the same time; Sync,
// ChainAt and the methods of a checkpoint.State may be called beside any of them.
type Machine interface {
	// Apply executes an entry and returns one result for each of its commands.
	// An index at or below the head was executed before: it is skipped, and the
	// results are nil. An error means that this replica cannot continue.
	Apply(index uint64, entry []byte) ([]event.Result, error)
	// Tip returns the newest block's index and the chain there; 0 for none.
	Tip() (index uint64, chain [32]byte)
	// Sync makes the event log durable up to the last Apply before the call.
	Sync() error
	// Freeze returns the state as of the last Apply, to be written while Apply
	// continues. It must take well below 10 ms.
	Freeze() checkpoint.State
	// ChainAt returns the event log's chain at an index up to the tip, or log.ErrGone where
	// history is deleted.
	ChainAt(index uint64) ([32]byte, error)
	// NextDue returns the log time at which something happens without a command.
	NextDue() (ms int64, ok bool)
	// Clock returns the log's clock, Unix ms; 0 for an empty log.
	Clock() int64
	// Rules returns the version of the rules of deciding that is in force.
	Rules() uint16
}

// Metrics records what a replica and its stores measure. Names are in snake_case without a prefix.
// hashicorp/raft reports to the global sink of go-metrics instead.
type Metrics interface {
	Count(name string, n float64)
	Gauge(name string, v float64)
	Observe(name string, v float64) // one sample: seconds if the name ends in _seconds
}

type noMetrics struct{}

func (noMetrics) Count(string, float64)   {}
func (noMetrics) Gauge(string, float64)   {}
func (noMetrics) Observe(string, float64) {}

// Options of a replica. What is zero gets its default. Callbacks must not block; OnJoined
// and OnFatal must be set.
type Options struct {
	datadir.Node            // the identity of the directory
	Dir           string    // of the Raft log and the votes
	CheckpointDir string    // of the checkpoints
	FS            vfs.FS    // default: the operating system's
	Net           *peer.Net // to other nodes
	Logger        *slog.Logger
	Machine       Machine
	Metrics       Metrics
	Wall          func() time.Time // default time.Now
	// Contacts are Raft addresses to ask for admission while this node is in no configuration.
	Contacts []string
	// AnnouncedOnly has this node, while it leads, admit only nodes that AddMember announced.
	AnnouncedOnly bool
	// Witness holds the directory's high-water mark; nil: there is none.
	Witness *witness.File
	// OnJoined is called, once, when the configuration has this node for the first time. It
	// must set Node.Joined, durably.
	OnJoined func()
	// OnFatal is called, once, when the replica cannot continue. It must end the process
	// without calling back: the outcome of unanswered writes is unknown to the clients. Only after
	// ErrRolledBack may it continue, with Shutdown and then as a new incarnation.
	OnFatal func(error)
	// Changed, of capacity one, is sent to after each batch that is applied, and when this
	// node begins or ceases to lead. nil: it is not.
	Changed chan struct{}

	// A checkpoint is written after this number of entries, or bytes of them that are also
	// as many as the last one has, or at this interval if anything was applied since.
	SnapshotThreshold uint64        // default 100,000
	SnapshotBytes     uint64        // default 256 MiB
	SnapshotInterval  time.Duration // default 10 min; negative: never
	// TrailingLogs are kept in the Raft log behind a checkpoint, so that a
	// replica that was away for a moment needs no snapshot.
	TrailingLogs    uint64 // default 4096
	KeepCheckpoints int    // default checkpoint.Keep

	HeartbeatTimeout   time.Duration // and that of elections; default 700 ms
	LeaderLeaseTimeout time.Duration // default 500 ms
	CommitTimeout      time.Duration // default 50 ms
	LeaderWait         time.Duration // how long a request waits for a leader, default 3 s
	SegmentBytes       int           // of the Raft log's files, default 32 MiB
	// The process ends when a write has taken this long, default 30 s: see disk.
	DiskTimeout time.Duration

	Limits Limits

	// Rules is the newest version of the rules that the Machine knows, default event.Rules.
	Rules uint16
	// A mark is proposed after this number of entries, or at this interval if anything
	// else was applied since the last.
	MarkEntries  uint64        // default 1000
	MarkInterval time.Duration // default 10 s
	// FreeBytes returns the free space on the disk; nil: there is always enough. Below
	// ReserveBytes produce is refused with insufficient_storage, below a half of it leases
	// too, below a quarter everything: a disk that is really full ends the process.
	FreeBytes    func() (uint64, error)
	ReserveBytes uint64 // default 256 MiB

	// Health returns what is known of the files, for the other members; nil: nothing is.
	Health func() datadir.Health

	// For tests on a simulated disk: OpenKV opens a small durable store by name in place of
	// a bbolt file in Dir; BeforeStore is called as part of each write of the Raft log.
	OpenKV      func(name string) (waltypes.MetaStore, error)
	BeforeStore func()
}

// Limits bound the batcher: overloaded is answered before memory grows.
type Limits struct {
	GroupBytes    int // of one entry, default 1 MiB; a larger command goes alone
	GroupCommands int // of one entry, default 1024
	GroupWeight   int // messages, leases and settles of one entry, default 16,384
	Entries       int // in flight, default 32; well below TrailingLogs
	Bytes         int // in flight, default 8 MiB
	Waiting       int // commands, default 32,768
	WaitingBytes  int // default 128 MiB
	CommandBytes  int // of one command, default 48 MiB (raft-wal takes 64 MiB)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o Options) withDefaults() Options {
	if o.Wall == nil {
		o.Wall = time.Now
	}
	if o.BeforeStore == nil {
		o.BeforeStore = func() {}
	}
	if o.Health == nil {
		o.Health = func() datadir.Health { return datadir.Health{} }
	}
	def[vfs.FS](&o.FS, vfs.OS{})
	def(&o.Logger, slog.New(slog.DiscardHandler))
	def[Metrics](&o.Metrics, noMetrics{})
	def(&o.Rules, event.Rules)
	def(&o.MarkEntries, 1000)
	def(&o.MarkInterval, 10*time.Second)
	def(&o.SnapshotThreshold, 100_000)
	def(&o.SnapshotBytes, 256<<20)
	def(&o.SnapshotInterval, 10*time.Minute)
	def(&o.TrailingLogs, 4096)
	def(&o.KeepCheckpoints, checkpoint.Keep)
	def(&o.HeartbeatTimeout, 700*time.Millisecond)
	def(&o.LeaderLeaseTimeout, min(o.HeartbeatTimeout, 500*time.Millisecond))
	def(&o.CommitTimeout, 50*time.Millisecond)
	def(&o.DiskTimeout, 30*time.Second)
	def(&o.LeaderWait, 3*time.Second)
	def(&o.SegmentBytes, 32<<20)
	def(&o.ReserveBytes, 256<<20)
	l := &o.Limits
	def(&l.GroupBytes, 1<<20)
	def(&l.GroupCommands, 1024)
	def(&l.GroupWeight, 16<<10)
	def(&l.Entries, 32)
	def(&l.Bytes, 8<<20)
	def(&l.Waiting, 32<<10)
	def(&l.WaitingBytes, 128<<20)
	def(&l.CommandBytes, 48<<20)
	return o
}
