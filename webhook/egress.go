package webhook

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
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// ClientOptions of a Client. The zero value has the defaults.
type ClientOptions struct {
	AllowPrivate bool          // targets on this machine and in private networks, too
	Timeout      time.Duration // of a request that names none; 1 min
	MaxAnswer    int64         // bytes of a body that are kept, of a request that names none; 64 KiB
	UserAgent    string        // "qlogd"

	Resolver *net.Resolver // nil: the system's
	TLS      *tls.Config   // nil: the system's authorities. Tests bring their own
}

// Client sends HTTP requests to addresses that users gave, without giving them a way into
// the node's network (server-side request forgery).
//
// The target of a request is judged twice. CheckURL looks at the text when it is saved,
// so that a mistake is reported to its author. What counts is the second check: of the
// address itself, between its resolution and the connection, so a name that resolves to
// a good address when it is saved and to this machine a moment later (DNS rebinding)
// is refused. Redirects are not followed but are the answer, no proxy of the environment
// is used, and an answer is limited in size and time.
//
// A Client is made by NewClient, is safe for concurrent use, and keeps idle connections.
type Client struct {
	o         ClientOptions
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
func NewClient(o ClientOptions) *Client {
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

// Outgoing is what to send. Method "" is POST.
type Outgoing struct {
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
// ctx or after the timeout. An error is an *RefusedError (errors.As) where the target is
// refused; else the network's, after which the target may or may not have had the
// request (Unsent). No error repeats the URL: its query may be secret; nor what
// the target sent: it may be a server of another kind, whose words are for nobody
// who sees that error.
func (c *Client) Do(ctx context.Context, r Outgoing) (*Answer, error) {
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
		switch err = bare(ctx, err); {
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
		return nil, fmt.Errorf("answer %d broke off: %w", resp.StatusCode, bare(ctx, err))
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
	var refused *RefusedError
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

// bare takes off an error what net/http puts before it: method and URL.
func bare(ctx context.Context, err error) error {
	var refused *RefusedError
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

// MaxURL bounds a URL, in bytes.
const MaxURL = 2048

// CheckURL returns an *RefusedError unless raw may be the address of a target, as far
// as that can be said without asking the network: what its names stand for is
// found out, and judged, each time that it is called (Client.Do). The text of
// the error says what is wrong with "the URL" and repeats no credentials.
func CheckURL(raw string, allowPrivate bool) error {
	_, err := parse(raw, allowPrivate)
	return err
}

func parse(raw string, allowPrivate bool) (*url.URL, error) {
	if raw == "" || len(raw) > MaxURL {
		return nil, refuse("must be an http or https URL of at most %d bytes", MaxURL)
	}
	for _, c := range []byte(raw) {
		if c <= ' ' || c >= 0x7f || c == '\\' {
			return nil, refuse("must not have spaces, backslashes, control or other characters than ASCII; write a name in punycode, all else with %%")
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, refuse("is no URL") // the error of url.Parse repeats it, with what credentials it has
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse("must begin with http:// or https://")
	case u.User != nil:
		return nil, refuse("must not have credentials; use a header")
	case u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return nil, refuse("has no host")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return nil, refuse("must not have a fragment: it would not be sent")
	}
	if p := u.Port(); p != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, refuse("has a port that is none")
		}
	}
	if err := checkHost(u.Hostname(), strings.HasPrefix(u.Host, "["), allowPrivate); err != nil {
		return nil, err
	}
	return u, nil
}

// localNames end the names that only this machine, this link or this cloud's
// machine knows.
var localNames = []string{
	"localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa", "home", "corp", "private",
}

func checkHost(host string, brackets, allowPrivate bool) error {
	if a, err := netip.ParseAddr(host); err == nil {
		if err := CheckAddr(a, allowPrivate); err != nil {
			return refuse("names an address that is refused: %v%s", err, flagHint(!allowPrivate && CheckAddr(a, true) == nil))
		}
		return nil
	}
	if brackets {
		return refuse("has an address in brackets that is none")
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	labels := strings.Split(name, ".")
	if len(name) > 253 {
		return refuse("names a host of more than 253 bytes")
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return refuse("names a host that can't be one")
		}
	}
	// 2130706433, 0x7f.1, 0177.0.0.1, 127.1: some resolvers take them for
	// addresses, and no top-level domain is a number.
	last := labels[len(labels)-1]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return refuse("names a host that ends in a number; write an address as four decimal numbers, or IPv6 in brackets")
	}
	if allowPrivate {
		return nil
	}
	if len(labels) == 1 {
		return refuse("names a host of this network: %.64q has no domain%s", name, flagHint(true))
	}
	for _, l := range localNames {
		if strings.HasSuffix(name, "."+l) {
			return refuse("names a host of this network: .%s%s", l, flagHint(true))
		}
	}
	return nil
}

// flagHint says what would help, where that would.
func flagHint(helps bool) string {
	if !helps {
		return ""
	}
	return " (private targets need serve --push-allow-private)"
}

// network is a range of addresses that nobody on the internet has.
type network struct {
	prefix netip.Prefix
	what   string
	never  bool // not even where private targets are allowed
}

// networks are the special ranges of IANA's registries, and the few addresses
// in ordinary ranges at which clouds serve instances their credentials. The
// first that holds an address counts, so narrower ones stand before wider ones.
//
// What is there for every program on a machine and is nobody's server (this
// host by another name, metadata of clouds, groups of hosts) is refused with
// private targets allowed, too.
var networks = []network{
	never("0.0.0.0/8", "unspecified"),
	never("100.100.100.200/32", "metadata of a cloud"),
	never("168.63.129.16/32", "metadata of a cloud"),
	never("169.254.0.0/16", "link-local"),
	never("224.0.0.0/4", "multicast"),
	never("240.0.0.0/4", "reserved"),
	private("127.0.0.0/8", "loopback"),
	private("10.0.0.0/8", "private"),
	private("172.16.0.0/12", "private"),
	private("192.168.0.0/16", "private"),
	private("100.64.0.0/10", "shared by a provider's customers"),
	private("192.0.0.0/24", "reserved"),
	private("192.0.2.0/24", "for documentation"),
	private("198.51.100.0/24", "for documentation"),
	private("203.0.113.0/24", "for documentation"),
	private("192.88.99.0/24", "a relay of 6to4"),
	private("198.18.0.0/15", "for benchmarks"),

	never("::/128", "unspecified"),
	never("fd00:ec2::254/128", "metadata of a cloud"),
	never("fd20:ce::254/128", "metadata of a cloud"),
	never("fe80::/10", "link-local"),
	never("ff00::/8", "multicast"),
	private("::1/128", "loopback"),
	private("fc00::/7", "private"),
	private("fec0::/10", "private"),
	private("2001::/23", "reserved"), // benchmarks, ORCHID and the like; Teredo is taken apart before
	private("2001:db8::/32", "for documentation"),
	private("3fff::/20", "for documentation"),
}

// unicast is what IPv6 has given out to the public so far.
var unicast = netip.MustParsePrefix("2000::/3")

func never(prefix, what string) network {
	return network{netip.MustParsePrefix(prefix), what, true}
}

func private(prefix, what string) network {
	return network{netip.MustParsePrefix(prefix), what, false}
}

// CheckAddr returns an *RefusedError unless what is sent to the address goes to a host
// on the internet or, with allowPrivate, to one of the private networks or to
// this machine. An address that carries an IPv4 address to some gateway (mapped,
// 6to4, NAT64, Teredo, ISATAP) is refused or, with allowPrivate, as good as the
// one that it carries.
func CheckAddr(a netip.Addr, allowPrivate bool) error {
	if !a.IsValid() {
		return refuse("it is no address")
	}
	if a.Zone() != "" {
		return refuse("%s has a zone", a)
	}
	if inner, how := embedded(a); how != "" {
		if !allowPrivate {
			return refuse("%s is %s", a, how)
		}
		if inner.IsValid() {
			if err := CheckAddr(inner, true); err != nil {
				return refuse("%s is %s: %v", a, how, err)
			}
		}
	}
	for i := range networks {
		if n := &networks[i]; n.prefix.Contains(a) {
			if allowPrivate && !n.never {
				return nil
			}
			return refuse("%s is %s", a, n.what)
		}
	}
	if a.Is6() && !unicast.Contains(a) {
		if allowPrivate {
			return nil
		}
		return refuse("%s is reserved", a)
	}
	return nil
}

// embedded takes an IPv6 address apart that stands for an IPv4 one, and says
// how it does; "" where it is none.
func embedded(a netip.Addr) (inner netip.Addr, how string) {
	if a.Is4() {
		return inner, ""
	}
	b := a.As16()
	v4 := func(at int) netip.Addr { return netip.AddrFrom4([4]byte(b[at : at+4])) }
	zero := func(from, to int) bool {
		for _, c := range b[from:to] {
			if c != 0 {
				return false
			}
		}
		return true
	}
	switch {
	case a.Is4In6():
		return a.Unmap(), "an IPv4 address mapped to IPv6"
	case zero(0, 12) && !zero(12, 15): // not :: and ::1
		return v4(12), "an IPv4-compatible address"
	case zero(0, 8) && b[8] == 0xff && b[9] == 0xff && b[10] == 0 && b[11] == 0:
		return v4(12), "an IPv4-translated address"
	case b[0] == 0x20 && b[1] == 0x02:
		return v4(2), "an address of 6to4"
	case b[0] == 0 && b[1] == 0x64 && b[2] == 0xff && b[3] == 0x9b && zero(4, 12):
		return v4(12), "an address of NAT64"
	case b[0] == 0 && b[1] == 0x64 && b[2] == 0xff && b[3] == 0x9b && b[4] == 0 && b[5] == 1:
		return v4(12), "an address of a local NAT64"
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0:
		for i := 12; i < 16; i++ {
			b[i] = ^b[i] // Teredo turns its client's address over
		}
		return v4(12), "an address of Teredo"
	case b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe:
		return v4(12), "an address of ISATAP"
	}
	return inner, ""
}

// Error says why nothing is sent to an address, whatever the network would do:
// trying again changes nothing.
type RefusedError struct{ why string }

func (e *RefusedError) Error() string { return e.why }

func refuse(format string, args ...any) *RefusedError {
	return &RefusedError{fmt.Sprintf(format, args...)}
}
