package client

import (
	"fmt"
	"net/http"
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

	busy atomic.Int32 // calls under way here, of those that may begin anywhere
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

// atLeader is how many calls there are at the leader for one at each other node,
// where many are under way: what goes to another node costs both of them more, but
// a leader has the most to do already.
const atLeader = 4

// turn returns the endpoint for a call that may begin anywhere, but for those
// that failed a short while ago: the leader for a lone call, which is answered
// soonest there, and with many at once the one with the fewest, so that all nodes
// share the work. Where no leader is known they take turns.
func (c *Client) turn() uint32 {
	n := uint32(len(c.endpoints))
	if n == 1 {
		return 0
	}
	first := c.turns.Add(1) % n
	leader := c.leader.Load() - 1
	now := time.Now().UnixNano()
	best, least := first, int32(-1)
	for i := range n {
		at := (first + i) % n
		e := c.endpoints[at]
		if until := e.away.Load(); until != 0 {
			// It may have recovered. One call finds out; the others pass on
			// meanwhile, which swapping the time sees to.
			if until <= now && e.away.CompareAndSwap(until, now+int64(awayFirst)) {
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

// heard notes who leads, as the answer to a write tells.
func (c *Client) heard(at uint32, h http.Header) {
	if len(c.endpoints) == 1 || len(h["X-Qlogd-Index"]) == 0 {
		return
	}
	leader := at + 1 // who names nobody leads
	if named := h["X-Qlogd-Leader"]; len(named) > 0 {
		if leader = c.leader.Load(); leader > 0 && c.endpoints[leader-1].url.Host == named[0] {
			return
		}
		leader = 0 // it may have another name there than here
		for i, e := range c.endpoints {
			if e.url.Host == named[0] {
				leader = uint32(i) + 1
			}
		}
	}
	if c.leader.Load() != leader {
		c.leader.Store(leader)
	}
}
