package client

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

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
		return nil, fmt.Errorf("address %.64q: wants http://HOST:PORT or https://HOST:PORT", addr)
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
