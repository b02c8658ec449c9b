package client

import (
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// endpoint is one node and how it does.
type endpoint struct {
	url *url.URL

	// Where calls go round, the endpoint is passed over until then (Unix ns),
	// longer each time that it fails again; one that does is 0.
	away     atomic.Int64
	failures atomic.Int32
}

// How long an endpoint that failed is passed over: the first time, and at most.
const (
	awayFirst = time.Second
	awayMost  = 30 * time.Second
)

// newEndpoint reads one address; scheme is that of an address without.
func newEndpoint(addr, scheme string) (*endpoint, error) {
	if !strings.Contains(addr, "://") {
		addr = scheme + addr
	}
	u, err := url.Parse(addr)
	if err != nil {
		return nil, fmt.Errorf("address %.64q: %w", addr, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("address %.64q: wants http://HOST:PORT or https://HOST:PORT", addr)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return &endpoint{url: u}, nil
}

// did notes that the endpoint answered.
func (e *endpoint) did() {
	if e.failures.Load() != 0 {
		e.failures.Store(0)
		e.away.Store(0)
	}
}

// failed notes that it did not, or has no leader, or is about to end.
func (e *endpoint) failed(now time.Time) {
	n := e.failures.Add(1)
	e.away.Store(now.Add(min(awayFirst<<min(n-1, 10), awayMost)).UnixNano())
}

// Addr returns the address of the node that the next call goes to.
func (c *Client) Addr() string { return c.endpoints[c.at.Load()].url.String() }

// leave lets calls begin with the endpoint after this one. Of several that fail
// at one endpoint at once, one moves on.
func (c *Client) leave(at uint32) {
	c.endpoints[at].failed(time.Now())
	c.at.CompareAndSwap(at, c.after(at))
}

// after returns the endpoint that follows one.
func (c *Client) after(at uint32) uint32 { return (at + 1) % uint32(len(c.endpoints)) }

// turn returns the endpoint whose turn it is for a call that may begin anywhere:
// one after the other, so that all nodes share the work, but for those that
// failed a short while ago.
func (c *Client) turn() uint32 {
	n := uint32(len(c.endpoints))
	if n == 1 {
		return 0
	}
	first := c.turns.Add(1) % n
	now := time.Now().UnixNano()
	for i := range n {
		at := (first + i) % n
		e := c.endpoints[at]
		until := e.away.Load()
		if until == 0 {
			return at
		}
		// It may have recovered. One call finds out; the others pass on
		// meanwhile, which swapping the time sees to.
		if until <= now && e.away.CompareAndSwap(until, now+int64(awayFirst)) {
			return at
		}
	}
	return first
}
