// Package client is the Go client of qlogd.
//
//	c, err := client.New("http://127.0.0.1:7070")
//	_, err = c.Produce(ctx, "jobs", client.JSON(map[string]any{"hello": "world"}))
//	messages, err := c.Lease(ctx, "jobs", client.LeaseOptions{Max: 10, Wait: 30 * time.Second})
//	for _, m := range messages {
//		_, err = c.Ack(ctx, "jobs", m.LeaseID)
//	}
//
// Requests and answers are the types of package wire. Every write but a lease
// carries an Idempotency-Key, so that a write whose outcome was not learnt is
// repeated safely: the client does it by itself, as often as its Retry allows.
package client

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client talks to one node of a cluster; any node takes any request. It is
// safe for use by several goroutines.
type Client struct {
	base  *url.URL
	http  *http.Client
	token string
	agent string
	retry Retry

	// sleep is time.After but for tests.
	sleep func(time.Duration) <-chan time.Time
}

// Retry says how often and how long a call is repeated where the server asks
// for it (429, 503) or its outcome was not learnt. The server's Retry-After
// goes before the client's own jittered exponential backoff.
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

// WithToken sends a bearer token.
func WithToken(token string) Option { return func(c *Client) { c.token = token } }

// WithRetry sets when calls are repeated.
func WithRetry(r Retry) Option { return func(c *Client) { c.retry = r } }

// WithUserAgent names the program to the server.
func WithUserAgent(agent string) Option { return func(c *Client) { c.agent = agent } }

// New returns a client of the node at addr, such as http://127.0.0.1:7070. It
// does not connect yet.
func New(addr string, opts ...Option) (*Client, error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil {
		return nil, fmt.Errorf("address %.64q: %w", addr, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("address %.64q: wants http://HOST:PORT or https://HOST:PORT", addr)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	// A worker holds several long polls at once; the default of two idle
	// connections a host would make it dial anew after each.
	transport.MaxIdleConnsPerHost = 64
	c := &Client{
		base:  u,
		http:  &http.Client{Transport: transport},
		agent: "qlogd-go-client",
		retry: DefaultRetry,
		sleep: time.After,
	}
	for _, o := range opts {
		o(c)
	}
	c.retry.Attempts = max(c.retry.Attempts, 1)
	return c, nil
}

// Addr returns the node's address.
func (c *Client) Addr() string { return c.base.String() }
