// Package client is the Go client of qlogd.
//
//	c, err := client.New("http://127.0.0.1:7070")
//	_, err = c.Enqueue(ctx, "jobs", client.JSON(map[string]any{"hello": "world"}))
//
//	err = client.NewWorker(c, "jobs", func(ctx context.Context, m *client.Message) error {
//		return work(ctx, m.Bytes())
//	}, client.WorkerOptions{}).Run(ctx)
//
// Enqueue and Settle are for many goroutines at once: what they hand in one by
// one shares requests, and each gets its own answer. A Worker leases ahead,
// extends leases by itself and settles in the same way. Produce, Lease, Ack and
// the others are the calls of the API as they are.
//
// Requests and answers are the types of package wire. Every write but a lease
// carries an Idempotency-Key, so that a write whose outcome was not learnt is
// repeated safely: the client does it by itself, as often as its Retry allows.
// docs/go-client.md tells what can be relied on, what is in order and what is
// not, and what is repeated when.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Client talks to the nodes of a cluster; any node takes any request. It stays
// with one and goes to the next where that one can't be reached, does not answer,
// has no leader, or is about to end. It is safe for use by several goroutines.
type Client struct {
	endpoints []*endpoint
	at        atomic.Uint32 // index of the endpoint that calls begin with
	turns     atomic.Uint32 // of calls that go round
	leader    atomic.Uint32 // the leader's index and 1; 0: not known
	spread    bool          // all do

	http      *http.Client
	transport *http.Transport // of its own; nil with WithHTTPClient
	tls       *tls.Config
	token     string
	agent     string
	retry     Retry
	try       time.Duration // how long one try may go without an answer; 0 for ever

	// Shared requests: *lane by what they gather. The goroutines that send them
	// live while there is something to send, and end with ctx.
	lanes   sync.Map
	ctx     context.Context
	end     context.CancelCauseFunc
	mu      sync.Mutex
	closed  bool
	senders sync.WaitGroup
	sharing atomic.Int32 // how many senders there are, of all lanes

	more []string // of WithEndpoints
	err  error    // of an option

	// sleep is time.After but for tests.
	sleep func(time.Duration) <-chan time.Time
}

// Retry says how often and how long a call is repeated where the server asks
// for it (429, 503) or its outcome was not learnt. The server's Retry-After
// goes before the client's own jittered exponential backoff. Where there are
// several endpoints, one attempt is a round: where one endpoint fails the next is
// asked at once, and the wait comes when all have.
type Retry struct {
	Attempts int           // in all; 1: never again
	Min, Max time.Duration // of the client's own backoff
}

// DefaultRetry is what New starts from.
var DefaultRetry = Retry{Attempts: 6, Min: 50 * time.Millisecond, Max: 5 * time.Second}

// Option changes a Client at its making.
type Option func(*Client)

// WithHTTPClient uses h in place of a client of its own. Its Timeout must
// leave room for long polls: better none, and a context's deadline per call.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithEndpoints adds more nodes of the same cluster to go to.
func WithEndpoints(addrs ...string) Option {
	return func(c *Client) { c.more = append(c.more, addrs...) }
}

// WithSpread lets every call begin at the endpoint with least to do, so that all nodes
// share the work of a program's own batches. Without it calls stay with one node
// while it does; Enqueue, Settle and Worker choose for each request in any case.
func WithSpread() Option { return func(c *Client) { c.spread = true } }

// WithToken sends a bearer token. It is only as secret as the connection: off
// this machine, use https.
func WithToken(token string) Option { return func(c *Client) { c.token = token } }

// WithTLS sets how https is spoken, such as client certificates or a CA of one's
// own. It does not go with WithHTTPClient.
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

// WithTryTimeout sets how long one try may go without an answer (beyond what the
// call itself asks to wait) before it counts as failed; 0 is for ever. By default
// that is 20 s where there are several endpoints, so that a node that hangs is
// left for another one, and for ever where there is one. What a context says
// comes first in any case.
func WithTryTimeout(d time.Duration) Option { return func(c *Client) { c.try = d } }

// WithRetry sets when calls are repeated.
func WithRetry(r Retry) Option { return func(c *Client) { c.retry = r } }

// WithUserAgent names the program to the server.
func WithUserAgent(agent string) Option { return func(c *Client) { c.agent = agent } }

// The client's own time limits.
const (
	dialTimeout = 5 * time.Second
	tryTimeout  = 20 * time.Second // more than the 10 s that a server gives a write to commit
)

// New returns a client of the node at addr, such as http://127.0.0.1:7070, or of
// several, separated by commas. It does not connect yet.
func New(addr string, opts ...Option) (*Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// Many goroutines may call at once; the default of two idle connections a
	// host would make them dial anew after each burst.
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 256
	// A batch is written, and an answer to a lease read, in few system calls.
	transport.WriteBufferSize, transport.ReadBufferSize = 128<<10, 32<<10
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	own := &http.Client{Transport: transport}
	c := &Client{
		http:  own,
		agent: "qlogd-go-client",
		retry: DefaultRetry,
		try:   -1,
		sleep: time.After,
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	for _, o := range opts {
		o(c)
	}
	if c.err != nil {
		return nil, c.err
	}
	if c.http == own {
		c.transport = transport
	}
	scheme := "http://"
	if c.tls != nil {
		transport.TLSClientConfig = c.tls
		scheme = "https://"
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
	if c.closed {
		return false
	}
	c.senders.Go(run)
	return true
}

// Close ends what shared requests (Enqueue, Settle) are under way: who waits for
// one gets ErrClosed, and does not know its outcome. Then it closes idle
// connections, if they are the client's own. Nothing needs it but programs that
// make many clients; end Workers first.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end(ErrClosed)
	c.senders.Wait()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
}
