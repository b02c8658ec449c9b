// Package egress sends HTTP requests to addresses that users gave, without
// becoming their way into the network that the node stands in (server-side
// request forgery): what a queue is pushed to, and what a webhook forwards to.
//
// Where a request goes is judged twice. CheckURL looks at what was written,
// when it is saved, so that a mistake is told to who makes it. What counts is
// the second look: at the address itself, between its resolution and the
// connection, so a name that stands for a good address when it is saved and for
// this machine a moment later (DNS rebinding) helps nobody. Redirects are not
// followed but are the answer, no proxy of the environment is used, and an
// answer is bounded in size and time.
package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Options of a Client. The zero value has the defaults.
type Options struct {
	AllowPrivate bool          // targets on this machine and in private networks, too
	Timeout      time.Duration // of a request that names none; 1 min
	MaxAnswer    int64         // bytes of a body that are kept, of a request that names none; 64 KiB
	UserAgent    string        // "qlogd"

	Resolver *net.Resolver // nil: the system's
	TLS      *tls.Config   // nil: the system's authorities. Tests bring their own
}

// Client sends requests. It is made by New, used by many goroutines, and keeps
// connections that wait for the next request.
type Client struct {
	o         Options
	transport *http.Transport
	http      *http.Client
}

const (
	dialTimeout      = 10 * time.Second
	maxHeaderBytes   = 64 << 10
	idleConns        = 512
	idleConnsPerHost = 64
	idleTimeout      = 90 * time.Second
)

// New returns a client.
func New(o Options) *Client {
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.MaxAnswer <= 0 {
		o.MaxAnswer = 64 << 10
	}
	if o.UserAgent == "" {
		o.UserAgent = "qlogd"
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		conf = o.TLS.Clone()
	}
	c := &Client{o: o}
	dialer := &net.Dialer{
		Timeout: dialTimeout, KeepAlive: 30 * time.Second, Resolver: o.Resolver,
		// Called for each address that a name stands for, after it was resolved
		// and before anything is sent to it.
		ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			return c.check(network, address)
		},
	}
	c.transport = &http.Transport{
		Proxy:       nil, // one of the environment would be asked to connect, and judge nothing
		DialContext: dialer.DialContext, TLSClientConfig: conf, TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        idleConns,
		MaxIdleConnsPerHost: idleConnsPerHost, IdleConnTimeout: idleTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		ExpectContinueTimeout:  time.Second,
		// A small answer can be unpacked to a large one: none is asked for.
		DisableCompression: true,
	}
	c.http = &http.Client{
		Transport:     c.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// AllowPrivate reports whether private targets are allowed.
func (c *Client) AllowPrivate() bool { return c.o.AllowPrivate }

// Close closes the connections that wait.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// check judges an address that is about to be connected to.
func (c *Client) check(network, address string) error {
	if !strings.HasPrefix(network, "tcp") {
		return refuse("%s is no network of targets", network)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return refuse("%s is no address", address)
	}
	return CheckAddr(ap.Addr(), c.o.AllowPrivate)
}

// Request is what to send. Method "" is POST.
type Request struct {
	Method string
	URL    string
	Header http.Header // not changed; those of ReservedHeader are passed over
	Body   []byte

	Timeout   time.Duration // until the answer is here; 0: the client's
	MaxAnswer int64         // bytes of the answer that are kept; 0: the client's
}

// Answer is what a target answered, redirects included.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte // its beginning, where Cut
	Cut    bool   // there was more
}

// Do sends a request and returns the answer, whatever its status. It ends with
// ctx or after the timeout. An error is an *Error (errors.As) where the target is
// refused; else the network's, after which the target may or may not have had the
// request (Unsent). No error repeats the URL: its query may be secret; nor what
// the target sent: it may be a server of another kind, whose words are for nobody
// who sees that error.
func (c *Client) Do(ctx context.Context, r Request) (*Answer, error) {
	u, err := parse(r.URL, c.o.AllowPrivate)
	if err != nil {
		return nil, err
	}
	timeout, most := r.Timeout, r.MaxAnswer
	if timeout <= 0 {
		timeout = c.o.Timeout
	}
	if most <= 0 {
		most = c.o.MaxAnswer
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var connected, heard atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { connected.Store(true) },
		GotFirstResponseByte: func() { heard.Store(true) },
	})
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, refuse("can't be asked: %v", err)
	}
	for name, values := range r.Header {
		if !ReservedHeader(name) {
			req.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", c.o.UserAgent)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		switch err = plain(ctx, err); {
		case !connected.Load():
			err = &unsent{err}
		case heard.Load() && !ofNetwork(err):
			err = errNotHTTP
		}
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, fmt.Errorf("answer %d broke off: %w", resp.StatusCode, plain(ctx, err))
	}
	a := &Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}
	if int64(len(body)) > most {
		a.Body, a.Cut = body[:most], true
	}
	return a, nil
}

// unsent is an error before anything was sent.
type unsent struct{ error }

func (e *unsent) Unwrap() error { return e.error }

// Unsent reports whether an error of Do says that the target surely has not had
// the request: there was no connection to it.
func Unsent(err error) bool {
	var u *unsent
	var refused *Error
	return errors.As(err, &u) || errors.As(err, &refused)
}

var (
	errTimeout = errors.New("no answer in time")
	errNotHTTP = errors.New("the answer is not HTTP that can be understood, or its headers are too large")
)

// ofNetwork reports whether an error is about the connection or the time, and
// not about what came over it.
func ofNetwork(err error) bool {
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errTimeout) || errors.Is(err, context.Canceled)
}

// plain takes off an error what net/http puts before it: method and URL.
func plain(ctx context.Context, err error) error {
	var refused *Error
	if errors.As(err, &refused) {
		return refused
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return errTimeout
	}
	var told *url.Error
	for errors.As(err, &told) {
		err = told.Err
	}
	return err
}

// reserved are the headers that say how a request is carried, not what it is,
// or for whom: to change them is to send another request.
var reserved = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Keep-Alive": true, "Proxy-Connection": true,
	"Proxy-Authorization": true, "Te": true, "Trailer": true, "Upgrade": true, "Expect": true, "Http2-Settings": true,
	"Accept-Encoding": true,
}

// ReservedHeader reports whether a header can't be given: the client sets it.
func ReservedHeader(name string) bool { return reserved[http.CanonicalHeaderKey(name)] }

// ValidHeader reports whether a header's name is a token and its value has
// neither control characters nor line ends.
func ValidHeader(name, value string) bool {
	if name == "" {
		return false
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
