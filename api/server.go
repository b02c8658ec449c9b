// Package api is qlogd's HTTP interface: routes, limits, problems. It makes no decisions: it checks
// requests, proposes commands and returns their results; reads go to the state and the event log.
//
// Invariant: a request refused here is never proposed, so bad input leaves no entry in the log.
package api

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
	"github.com/qlogd/qlogd/webhook"
)

// Server serves the HTTP API. It is created by New and ended by Drain.
type Server struct {
	deps       Deps
	opts       Options
	log        *slog.Logger
	slow       *rate.Limiter // of slow requests' lines in the log
	routes     *http.ServeMux
	rules      map[string]access // by pattern
	waiters    *waiters
	schemas    cache[*schema]
	hooks      cache[*compiledWebhook]
	ops        *tracker
	deliveries deliveries
	once       *lru.Cache[event.Hash, *onceCall] // by Idempotency-Key
	metrics    *metrics
	openapi    func() []byte // JSON, built on the first call

	started   time.Time
	begun     atomic.Uint64   // requests
	creating  atomic.Int64    // queues that commands in flight create
	undrained context.Context // ended by Drain
	drainNow  context.CancelFunc
}

// New returns a server.
func New(deps Deps, opts Options) *Server {
	s := &Server{
		deps: deps, opts: opts, log: deps.Logger,
		slow:  rate.NewLimiter(maxSlowLogged, maxSlowLogged),
		rules: map[string]access{}, ops: newTracker(), started: time.Now(),
		deliveries: deliveries{of: map[string]*delivered{}},
		schemas:    newCache[*schema](), hooks: newCache[*compiledWebhook](),
	}
	s.once, _ = lru.New[event.Hash, *onceCall](keepOnce) // fails only for a size below one
	s.undrained, s.drainNow = context.WithCancel(context.Background())
	s.waiters = &waiters{
		leasable: deps.State.Leasable, fresh: s.freshOrDraining, drain: s.undrained.Done(),
		lines: map[string][]*line{},
	}
	s.metrics = newMetrics(s)
	s.openapi = sync.OnceValue(func() []byte { return openAPI(opts.Version) })
	s.routes = s.mux()
	return s
}

// Applied wakes waiters of queues in which something became leasable.
func (s *Server) Applied(queues []string) { s.waiters.applied(queues) }

// Drain begins the shutdown: /readyz is not ready, waiting leases answer empty, streams end, new
// leases get 503 shutting_down. Other requests are still served.
func (s *Server) Drain() { s.drainNow() }

// A draining server is quiet after quietFor without a request, or after quietWithin at the latest.
const (
	quietFor    = 100 * time.Millisecond
	quietWithin = 500 * time.Millisecond
)

// Quiesce waits, after Drain, until no request has arrived for a moment. Call it before the
// http.Server's Shutdown, which closes connections that are idle at that instant: a request in
// flight on one of them would be lost, and its client would not know whether it was executed.
func (s *Server) Quiesce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietWithin)
	defer cancel()
	for before := s.begun.Load() + 1; before != s.begun.Load(); {
		before = s.begun.Load()
		select {
		case <-time.After(quietFor):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) draining() bool { return s.undrained.Err() != nil }

// HTTPServer returns an http.Server with timeouts and limits suited to untrusted clients, behind a
// Guard. Every listener for clients has one. It speaks HTTP/1.1 and HTTP/2, also without TLS (prior
// knowledge). The handler may switch from one Server's to another's.
func HTTPServer(h http.Handler, g Guard, conns *Conns, logger *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:   conns.wrap(g.wrap(h)),
		Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			SendPingTimeout:      30 * time.Second, PingTimeout: 15 * time.Second,
		},
		ConnContext:       conns.enter,
		ConnState:         conns.changed,
		ReadHeaderTimeout: 5 * time.Second, // slow headers
		// From the end of the headers to the end of the answer: body, the longest wait, commit, and
		// 30 s to receive the answer. Streams extend it.
		WriteTimeout: bodyTimeout + event.MaxWaitMS*time.Millisecond + writeTimeout +
			30*time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 16 << 10, // more: 431
		ErrorLog:       slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// barrier returns nil when the reads that follow are linearizable. It waits at most writeTimeout.
func (s *Server) barrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return s.deps.Node.Barrier(ctx)
}

// Node is the replica under a Server. *raft.Replica is one and describes the methods.
type Node interface {
	// Propose returns when the command is committed and applied on this node, so that the answer
	// can be read from here. An error is an *event.Problem; its Unknown says that the command may
	// still be committed. A user's mistake is in the Result. c must not be changed afterwards.
	Propose(ctx context.Context, c *event.Command) (event.Result, error)
	Begin(c *event.Command, along []*event.Command) []func(context.Context) (event.Result, error)
	Barrier(ctx context.Context) error
	Ready() (ok bool, reasons []string)
	Load() (waiting int, utilization float64)
	Clock() int64 // Unix ms
	Age() (time.Duration, bool)
	LeaderHTTP() string // called for each write
	// AskLeader and AskOthers query other nodes' Servers; the names are those of Answers.
	AskLeader(ctx context.Context, name string, ask, answer any) error
	AskOthers(ctx context.Context, name string, body []byte) [][]byte

	Status() raft.Status
	Members() []raft.MemberStatus
	RefreshMembers(ctx context.Context)
	// Changes of the cluster return an *event.Problem (no_leader, conflict, node_not_found,
	// invalid_argument); its Unknown says that the change may still be made.
	AddMember(ctx context.Context, m raft.Member) error
	RemoveMember(ctx context.Context, id string, force bool) error
	TransferLeadership(ctx context.Context, to string) error
	SnapshotAll(ctx context.Context) (map[string]uint64, error)
}

// State is the live state, or a past one. *projections.State describes the methods.
type State interface {
	Queue(name string) (event.QueueView, bool)
	Queues() []event.QueueView // sorted by name
	Webhook(name string) (event.WebhookView, bool)
	Webhooks() []event.WebhookView // sorted by name
	Message(id event.ID) (event.MessageView, bool)
	Messages(queue string, f event.MessageFilter) (views []event.MessageView, more bool)
	Leasable(queue string, kinds []string) int // called often and under a lock: must be cheap
	Dead(queue string, f event.DeadFilter) (views []event.MessageView, more bool)
	DeadCount(queue string) int64
	Partition(queue, key string) (event.PartitionView, bool)
	Task(id event.ID) (event.TaskView, bool)
	Tasks() []event.TaskView // the newest first
	Clock() int64            // Unix ms
	Index() uint64
}

// Live is the live state: *fsm.Machine is one.
type Live interface {
	State
	QueueCount() int
	Attention(queue string) (event.AttentionView, bool)
	NextReady() (at int64, ok bool)
	// The floors are the indexes from which on the state remembers deduplication hashes and
	// requests; below, the log must be searched. 0: the state remembers all.
	DedupFloor() uint64
	AnswerFloor() uint64
	Duplicate(hash event.Hash) (event.ID, bool)
	ByLease(lease event.ID) (event.MessageView, bool)
	Deleting(queue string) bool
	// Counts returns how many events of each type this node has applied.
	Counts() [event.NumTypes]uint64
}

// Log reads the event log. *log.Log is one and describes the methods.
type Log interface {
	Event(ref event.Ref) (*event.Event, error)
	Content(ref event.Ref) (*event.Content, error)
	History(ctx context.Context, id event.ID) ([]event.Event, error)
	Find(alias event.Hash, from uint64) (*event.Event, error)
	EndOf(ctx context.Context, lease event.ID) (*event.Event, error)
	Blocks(ctx context.Context, from, to uint64, whole ...event.Type) iter.Seq2[
		*event.Block, error]
	Events(ctx context.Context, from, to uint64) iter.Seq2[*event.Event, error]
	Head() uint64
	Begins() (index uint64, clock int64)
	Wait(ctx context.Context, index uint64) error // returns nil once the head is above index
	From(at event.Instant) (uint64, error)
	To(at event.Instant) (uint64, error)
}

// Push delivers the queues whose policy has push. *push.Engine is one and describes the methods.
type Push interface {
	// Check returns an *event.Problem, whose field begins with "push", unless p can be delivered;
	// it fills in defaults.
	Check(p *wire.Push) error
	Reason(queue string) *wire.PushReason // only the leader knows the target's state
	Unready() []string
}

// Models are the read models, which lag about a second behind the log and can be rebuilt from it.
// *store.Store is one and describes the methods.
type Models interface {
	MessagesPerMinute(queue string, now int64) (int64, error)
	QueueTotals(queue string) (map[string]uint64, error)
	DeadLetters(queue string) (map[string]uint64, error)
	LeasesExpired(queues []event.QueueView) ([]uint64, error)
	Minutes(queue string, from, to int64) ([]store.Minute, error)
	Replayed(queue string, after event.ID, limit int) ([]store.Replayed, error)
	OperationsWith(prefix []byte) ([]store.Operation, error)
	Workers(now int64) ([]store.Worker, error)
	Dying(now int64) (map[string]store.Counted, error)
	Expiring(created func(queue string) int64) (map[string]*store.Expiring, error)
	Position() (index uint64, clock int64)
	Wait(ctx context.Context, index uint64) error
	Rebuild() error
}

// Deps are a Server's dependencies. All but the Tracer are required.
type Deps struct {
	Node   Node
	State  Live
	Log    Log
	Models Models
	// Past returns the state after the whole entry that an instant falls on.
	// Errors are an *event.Problem or the log's.
	Past func(ctx context.Context, at event.Instant) (State, error)
	// HeadAt returns the newest block up to an index of the log. Errors are the log's.
	HeadAt      func(index uint64) (wire.LogHead, error)
	LogSegments func() wire.LogSegments // oldest first
	Push        Push
	Eraser      *erasure.Eraser
	Secrets     *webhook.Secrets
	Forward     Forwarder // to the targets of webhooks
	Logger      *slog.Logger
	Registry    *prometheus.Registry
	Tracer      trace.Tracer // nil: no spans
}

// Options are the API's limits and settings.
type Options struct {
	MaxPayload       int64          // bytes of one payload
	MaxRequest       int64          // bytes of one request
	HistoryRetention time.Duration  // the longest deduplication window; 0: no limit
	AutoCreateQueues bool           // produce creates queues
	MaxQueues        int            // more are not created
	Version          string         // in the OpenAPI document
	Auth             *Auth          // nil: everybody may do everything
	TrustedProxies   []netip.Prefix // whose X-Forwarded-For is believed
	OpenMetrics      bool           // with Auth: /metrics needs no token
	Console          bool           // the node serves one at /ui/
	Conns            *Conns         // of all HTTPServers
}

const (
	bodyTimeout  = 30 * time.Second // to receive a body
	writeTimeout = 10 * time.Second // to commit a write, before its outcome is unknown
)
