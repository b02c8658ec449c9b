package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Client sends requests to the nodes of a cluster; any node accepts any request. It
// stays with one and moves to the next if that one can't be reached, does not answer,
// has no leader, or is shutting down. It is safe for use by several goroutines.
type Client struct {
	endpoints []*endpoint
	at        atomic.Uint32 // index of the endpoint that calls begin with
	turns     atomic.Uint32 // of calls that begin anywhere
	leader    atomic.Uint32 // the leader's index plus 1; 0: not known

	http      *http.Client
	transport *http.Transport // its own; nil with WithHTTPClient
	tls       *tls.Config
	more      []string // endpoints
	spread    bool     // every call begins anywhere
	token     string
	agent     string
	retry     Retry
	carries   Propagator // nil: nothing
	hooks     []EnqueueHook
	try       time.Duration // limit of one try; 0: none, < 0: the default
	err       error         // of an option

	sleep func(time.Duration) <-chan time.Time // time.After, but in tests

	lanes   sync.Map        // *lane by laneKey
	ctx     context.Context // ends when the client is closed
	end     context.CancelCauseFunc
	mu      sync.Mutex     // held to start a sender, and to end ctx
	senders sync.WaitGroup // of all lanes; they end with ctx
}

// Retry limits how often a call is repeated if the server asks for it (429, 503) or its outcome is
// unknown. The server's Retry-After goes before the client's own jittered exponential backoff. With
// several endpoints, one attempt is a round: if one endpoint fails the next is asked at once, and
// the wait comes when all have failed.
type Retry struct {
	Attempts int           // in all; 1: no repeat
	Min, Max time.Duration // of the client's own backoff
}

// DefaultRetry is the Retry of a Client without WithRetry.
var DefaultRetry = Retry{Attempts: 6, Min: 50 * time.Millisecond, Max: 5 * time.Second}

// Option configures a Client in New.
type Option func(*Client)

// WithHTTPClient uses h in place of a client of its own. Its Timeout must leave room
// for long polls: better none, and a context's deadline per call.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithEndpoints adds more nodes of the same cluster.
func WithEndpoints(addrs ...string) Option {
	return func(c *Client) { c.more = append(c.more, addrs...) }
}

// WithSpread makes every call begin at the least busy endpoint, so that all nodes
// share the work of a program's own batches. Without it calls stay with one node
// while it works; Enqueue, Settle and Worker choose for each request in any case.
func WithSpread() Option { return func(c *Client) { c.spread = true } }

// WithToken sends a bearer token. It is only as secret as the connection: to another
// machine, use https.
func WithToken(token string) Option { return func(c *Client) { c.token = token } }

// WithTLS configures https, such as client certificates or an own CA. It can't be
// combined with WithHTTPClient.
func WithTLS(t *tls.Config) Option { return func(c *Client) { c.tls = t } }

// WithCACert trusts the authorities in a PEM file and no others.
func WithCACert(file string) Option {
	return func(c *Client) {
		b, err := os.ReadFile(file)
		if err != nil {
			c.err = fmt.Errorf("CA certificate: %w", err)
			return
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(b) {
			c.err = fmt.Errorf("CA certificate: %s holds no PEM certificate", file)
			return
		}
		if c.tls = c.tls.Clone(); c.tls == nil {
			c.tls = &tls.Config{}
		}
		c.tls.RootCAs = pool
	}
}

// WithTryTimeout sets how long one try may go without an answer (beyond the wait that
// the call itself asks for) before it counts as failed; 0 is no limit. The default is
// 20 s with several endpoints, so that a node that hangs is left for another one, and
// no limit with one. A context's deadline applies in any case.
func WithTryTimeout(d time.Duration) Option { return func(c *Client) { c.try = d } }

// WithRetry sets when calls are repeated.
func WithRetry(r Retry) Option { return func(c *Client) { c.retry = r } }

// Propagator carries what is in a context, such as the current span, in headers: with every call to
// the server, and with messages to their workers. Many goroutines use it at once. qlogdotel, a
// module of its own beside this package, has OpenTelemetry's.
type Propagator interface {
	// Inject adds headers by name, in lower case.
	Inject(ctx context.Context, headers map[string]string)
	// Extract returns ctx with what headers, which may be nil, carry.
	Extract(ctx context.Context, headers map[string]string) context.Context
}

// WithPropagator carries the contexts of calls to the server, and to the handlers of the messages
// that they enqueue. A message with one of the headers of its own keeps them all.
func WithPropagator(p Propagator) Option { return func(c *Client) { c.carries = p } }

// EnqueueHook sees every message before it is enqueued, by whichever call. It may change the
// message, such as to add to its headers (never nil here) or to encrypt the payload. If it returns
// an error, the call does, and nothing is sent. Many goroutines call it at once.
type EnqueueHook func(ctx context.Context, queue string, m *NewMessage) error

// WithEnqueueHook adds a hook, which runs after those added before.
func WithEnqueueHook(h EnqueueHook) Option { return func(c *Client) { c.hooks = append(c.hooks, h) } }

// WithUserAgent names the program to the server.
func WithUserAgent(agent string) Option { return func(c *Client) { c.agent = agent } }

// The client's own time limits.
const (
	dialTimeout = 5 * time.Second
	tryTimeout  = 20 * time.Second // a server gives a write 10 s to commit
)

// New returns a client of the node at addr, such as http://127.0.0.1:7070, or of
// several, separated by commas. It does not connect yet.
func New(addr string, opts ...Option) (*Client, error) {
	c := &Client{agent: "qlogd-go-client", retry: DefaultRetry, try: -1, sleep: time.After}
	for _, o := range opts {
		o(c)
	}
	if c.err != nil {
		return nil, c.err
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	scheme := "http://"
	if c.tls != nil {
		scheme = "https://"
	}
	if c.http == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		// Many goroutines may call at once; with the default of two idle connections
		// per host they would dial again after each burst.
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 256
		t.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
		if c.tls != nil {
			t.TLSClientConfig = c.tls
		}
		c.transport, c.http = t, &http.Client{Transport: t}
	}
	for _, a := range append(strings.Split(addr, ","), c.more...) {
		e, err := newEndpoint(strings.TrimSpace(a), scheme)
		if err != nil {
			return nil, err
		}
		c.endpoints = append(c.endpoints, e)
	}
	if c.try < 0 {
		if c.try = 0; len(c.endpoints) > 1 {
			c.try = tryTimeout
		}
	}
	c.retry.Attempts = max(c.retry.Attempts, 1)
	return c, nil
}

// start runs a sender of shared requests, unless the client is closed.
func (c *Client) start(run func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.senders.Go(run)
	return true
}

// Close cancels the shared requests (Enqueue, Settle) in flight: their callers get
// ErrClosed and do not learn the outcome. Then it closes idle connections, if they are
// the client's own. Only programs that create many clients need it; end Workers first.
func (c *Client) Close() {
	c.mu.Lock()
	c.end(ErrClosed)
	c.mu.Unlock()
	c.senders.Wait()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
}

// endpoint is one node and its condition.
type endpoint struct {
	url  *url.URL
	busy atomic.Int32 // requests being processed there
	// until is when an endpoint that failed is tried again (Unix ns); 0 for one that works.
	until atomic.Int64
}

// away is how long an endpoint that failed is passed over.
const away = 5 * time.Second

// newEndpoint reads one address; scheme is used for an address without one.
func newEndpoint(addr, scheme string) (*endpoint, error) {
	if !strings.Contains(addr, "://") {
		addr = scheme + addr
	}
	u, err := url.Parse(addr)
	if err != nil {
		return nil, fmt.Errorf("address %.64q: %w", addr, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("address %.64q must be http://HOST:PORT or https://HOST:PORT", addr)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return &endpoint{url: u}, nil
}

// Addr returns the address of the node that the next call goes to.
func (c *Client) Addr() string { return c.endpoints[c.at.Load()].url.String() }

// leave notes that an endpoint failed, makes calls begin with the one after it, and
// returns that. If several calls fail there at once, one moves on.
func (c *Client) leave(at uint32) uint32 {
	next := (at + 1) % uint32(len(c.endpoints))
	c.endpoints[at].until.Store(time.Now().Add(away).UnixNano())
	c.at.CompareAndSwap(at, next)
	return next
}

// atLeader is how many calls go to the leader for one to each other node while many
// are under way: the leader is the fastest, but has the most other work.
const atLeader = 4

// turn returns the endpoint for a call that may begin anywhere: the leader for a lone call and,
// with many at once, the one with the fewest, so that all nodes share the work. If no leader is
// known they take turns. Endpoints that failed a short while ago are passed over.
func (c *Client) turn() uint32 {
	n := uint32(len(c.endpoints))
	first := c.turns.Add(1) % n
	leader := c.leader.Load() - 1
	now := time.Now().UnixNano()
	best, least := first, int32(-1)
	for i := range n {
		at := (first + i) % n
		e := c.endpoints[at]
		if until := e.until.Load(); until != 0 {
			// It may have recovered. One call finds out while the others pass on.
			if until <= now && e.until.CompareAndSwap(until, now+int64(away)) {
				return at
			}
			continue
		}
		load := (e.busy.Load() + 1) * atLeader
		if at == leader {
			load /= atLeader
		}
		if least < 0 || load < least {
			best, least = at, load
		}
	}
	return best
}

// noteLeader notes the leader that the answer to a write names. A node that names
// nobody leads itself; the named one may have another address here.
func (c *Client) noteLeader(at uint32, h http.Header) {
	if h.Get("X-Qlogd-Index") == "" {
		return
	}
	leader := at + 1
	if name := h.Get("X-Qlogd-Leader"); name != "" {
		leader = 0
		for i, e := range c.endpoints {
			if e.url.Host == name {
				leader = uint32(i) + 1
			}
		}
	}
	c.leader.Store(leader)
}
