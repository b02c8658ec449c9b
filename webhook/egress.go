package webhook

import (
	"bytes"
	"cmp"
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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Client sends HTTP requests to URLs that users configure, and protects the node's network from
// server-side request forgery.
//
// The target of a request is checked twice. CheckURL checks the text when it is saved, so that a
// mistake is reported to its author. The second check is decisive: it checks the address itself,
// between its resolution and the connection, so a name that resolves to an allowed address when it
// is saved and to this machine a moment later (DNS rebinding) is refused. Redirects are returned,
// not followed; proxies of the environment are not used; an answer is limited in size and time.
//
// A Client is safe for concurrent use and keeps idle connections.
type Client struct {
	allowPrivate bool
	userAgent    string
	dialer       *net.Dialer
	slots        chan struct{}   // one for each open connection
	transport    *http.Transport // used without an http.Client, which would follow redirects
}

const dialTimeout = 10 * time.Second

// NewClient returns a client. With allowPrivate, targets may also be on this machine and in private
// networks. At most maxConns connections are open; further requests wait for one.
func NewClient(allowPrivate bool, userAgent string, maxConns int) *Client {
	dialer := &net.Dialer{
		Timeout: dialTimeout, KeepAlive: 30 * time.Second,
		// Called for each address that a name has, before anything is sent to it.
		ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil || !strings.HasPrefix(network, "tcp") {
				return refuse("%s of network %s is no address of targets", address, network)
			}
			return CheckAddr(ap.Addr(), allowPrivate)
		},
	}
	c := &Client{allowPrivate, userAgent, dialer, make(chan struct{}, maxConns), nil}
	c.transport = &http.Transport{
		Proxy:       nil, // one of the environment would connect for us, and check nothing
		DialContext: c.dial, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
		MaxIdleConns: 512, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, ExpectContinueTimeout: time.Second,
		DisableCompression: true, // a small answer can be unpacked to a large one
	}
	return c
}

// dial opens a connection once it has a slot.
func (c *Client) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := c.takeSlot(ctx); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { <-c.slots })
	open, err := c.dialer.DialContext(ctx, network, addr)
	if err != nil {
		release()
		return nil, err
	}
	return &outgoing{open, release}, nil
}

func (c *Client) takeSlot(ctx context.Context) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	default:
	}
	for {
		c.transport.CloseIdleConnections()
		select {
		case c.slots <- struct{}{}:
			return nil
		case <-time.After(100 * time.Millisecond): // others may be idle by now
		case <-ctx.Done():
			return fmt.Errorf("%d connections to targets are open: %w", cap(c.slots), ctx.Err())
		}
	}
}

// outgoing is a connection that gives its slot back when it is closed.
type outgoing struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (o *outgoing) Close() error {
	defer o.release()
	return o.Conn.Close()
}

// AllowPrivate reports whether private targets are allowed.
func (c *Client) AllowPrivate() bool { return c.allowPrivate }

// Close closes the idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Outgoing is a POST request to a target.
type Outgoing struct {
	URL    string
	Header http.Header // not changed; those of ReservedHeader are left out
	Body   []byte

	Timeout   time.Duration // until the answer is complete; 0: a minute
	MaxAnswer int64         // bytes of the answer that are kept; 0: 64 KiB
}

// Answer is a target's answer, redirects included.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte // its beginning, if Cut
	Cut    bool   // there was more
}

// Do sends a request and returns the answer, whatever its status. It ends with ctx or after the
// timeout. An error is a *RefusedError (errors.As) if the target is refused; else it is a network
// error, after which the target may or may not have received the request (Unsent). No error
// contains the URL, whose query may be secret, or bytes that the target sent: the target may be an
// internal server whose answers must not be disclosed.
func (c *Client) Do(ctx context.Context, r Outgoing) (*Answer, error) {
	u, err := parse(r.URL, c.allowPrivate)
	if err != nil {
		return nil, err
	}
	most := cmp.Or(r.MaxAnswer, 64<<10)
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Timeout, time.Minute))
	defer cancel()
	var connected, heard atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { connected.Store(true) },
		GotFirstResponseByte: func() { heard.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(),
		bytes.NewReader(r.Body))
	if err != nil {
		return nil, refuse("can't be asked: %v", err)
	}
	for name, values := range r.Header {
		if !ReservedHeader(name) {
			req.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", c.userAgent)
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		switch refused, ok := errors.AsType[*RefusedError](err); {
		case ok:
			return nil, refused
		case !connected.Load():
			return nil, &unsent{inTime(ctx, err)}
		case heard.Load() && !ofNetwork(err):
			return nil, errors.New("the answer is not valid HTTP, or its headers are too large")
		}
		return nil, inTime(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, fmt.Errorf("answer %d broke off: %w", resp.StatusCode, inTime(ctx, err))
	}
	kept := min(int64(len(body)), most)
	return &Answer{resp.StatusCode, resp.Header, body[:kept], kept < int64(len(body))}, nil
}

// unsent is an error before anything was sent.
type unsent struct{ error }

func (e *unsent) Unwrap() error { return e.error }

// Unsent reports whether an error of Do means that the target has certainly not received the
// request: there was no connection to it.
func Unsent(err error) bool {
	_, never := errors.AsType[*unsent](err)
	_, refused := errors.AsType[*RefusedError](err)
	return never || refused
}

// inTime replaces a timeout error by a readable one.
func inTime(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return errors.New("no answer in time")
	}
	return err
}

// ofNetwork reports whether an error is about the connection or the time, not about the bytes that
// came over it.
func ofNetwork(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.Canceled)
}

// ofConnection are the headers that say how a request is sent, not what it is, or for whom: to
// change them is to send another request.
var ofConnection = []string{
	"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer",
	"upgrade", "expect", "http2-settings", "proxy-connection", "proxy-authorization",
}

// ReservedHeader reports whether only the client may set a header.
func ReservedHeader(name string) bool {
	name = strings.ToLower(name)
	return name == "accept-encoding" || slices.Contains(ofConnection, name)
}

// ValidHeader reports whether a header's name is a token and its value has no control characters.
func ValidHeader(name, value string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	}) && !strings.ContainsFunc(value, func(r rune) bool {
		return r < ' ' && r != '\t' || r == 0x7f
	})
}

// MaxURL bounds a URL, in bytes.
const MaxURL = 2048

// CheckURL returns a *RefusedError unless raw may be the address of a target, as far as that can be
// said without the network: what its names resolve to is checked at each request (Client.Do). The
// text of the error completes "the URL" and repeats no credentials.
func CheckURL(raw string, allowPrivate bool) error {
	_, err := parse(raw, allowPrivate)
	return err
}

func parse(raw string, allowPrivate bool) (*url.URL, error) {
	if raw == "" || len(raw) > MaxURL {
		return nil, refuse("must be an http or https URL of at most %d bytes", MaxURL)
	}
	if strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }) {
		return nil, refuse("must not have spaces, backslashes, control or other characters " +
			"than ASCII; write a name in punycode, all else with %%")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, refuse("is no URL") // the error of url.Parse repeats it, with its credentials
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse("must begin with http:// or https://")
	case u.User != nil:
		return nil, refuse("must not have credentials; use a header")
	case u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return nil, refuse("has no host")
	case strings.Contains(raw, "#"):
		return nil, refuse("must not have a fragment: it would not be sent")
	}
	if p := u.Port(); p != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, refuse("has an invalid port")
		}
	}
	return u, checkHost(u.Hostname(), strings.HasPrefix(u.Host, "["), allowPrivate)
}

// localNames end the names that only this machine, this network or this cloud resolves.
var localNames = []string{
	"localhost", "localdomain", "local", "internal", "intranet", "lan", "home.arpa",
	"home", "corp", "private",
}

// flagHint is appended where the flag would help.
const flagHint = " (private targets need serve --push-allow-private)"

func checkHost(host string, brackets, allowPrivate bool) error {
	if a, err := netip.ParseAddr(host); err == nil {
		if err := CheckAddr(a, allowPrivate); err != nil {
			return refuse("names an address that is refused: %v", err)
		}
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	labels := strings.Split(name, ".")
	invalid := func(l string) bool {
		return l == "" || len(l) > 63 ||
			strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != ""
	}
	if brackets || len(name) > 253 || slices.ContainsFunc(labels, invalid) {
		return refuse("names an invalid host")
	}
	// 2130706433, 0x7f.1, 0177.0.0.1, 127.1: some resolvers read these as addresses, and no
	// top-level domain is a number.
	last := labels[len(labels)-1]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil ||
		strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return refuse("names a host that ends in a number; " +
			"write an address as four decimal numbers, or IPv6 in brackets")
	}
	local := func(l string) bool { return strings.HasSuffix(name, "."+l) }
	if !allowPrivate && (len(labels) == 1 || slices.ContainsFunc(localNames, local)) {
		return refuse("names %.64q, a host of this network%s", name, flagHint)
	}
	return nil
}

// network is ranges of addresses that nobody on the internet has.
type network struct {
	private  bool // allowed with private targets
	what     string
	prefixes []netip.Prefix
}

func prefixes(text string) (out []netip.Prefix) {
	for p := range strings.FieldsSeq(text) {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// networks are the special ranges of IANA's registries, and the few addresses in ordinary ranges at
// which clouds give instances their credentials. The first that contains an address decides, so
// narrower ones are before wider ones.
//
// What every program on a machine reaches and is nobody's server (this host by another name,
// clouds' metadata, multicast) is refused also with private targets allowed, and so are the ways to
// put an IPv4 address into an IPv6 one that are out of use.
var networks = []network{
	{false, "metadata of a cloud",
		prefixes("100.100.100.200/32 168.63.129.16/32 fd00:ec2::254/128 fd20:ce::254/128")},
	{false, "unspecified", prefixes("0.0.0.0/8 ::/128")},
	{false, "link-local", prefixes("169.254.0.0/16 fe80::/10")},
	{false, "multicast", prefixes("224.0.0.0/4 ff00::/8")},
	{false, "reserved", prefixes("240.0.0.0/4")},
	{true, "loopback", prefixes("127.0.0.0/8 ::1/128")},
	{true, "private", prefixes("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10")},
	{true, "shared by a provider's customers", prefixes("100.64.0.0/10")},
	{true, "for documentation",
		prefixes("192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20")},
	{true, "a relay of 6to4", prefixes("192.88.99.0/24")},
	{true, "for benchmarks", prefixes("198.18.0.0/15")},
	{false, "an IPv4-compatible or IPv4-translated address", prefixes("::/96 ::ffff:0:0:0/96")},
	{false, "an address of 6to4 or Teredo", prefixes("2002::/16 2001::/32")},
	{true, "reserved", prefixes("192.0.0.0/24 2001::/23")}, // of 2001: benchmarks, ORCHID …
}

var (
	unicast = netip.MustParsePrefix("2000::/3") // of IPv6, assigned to the public so far
	// carriers are IPv6 addresses that end in the IPv4 address which they mean: those that are
	// mapped, and of NAT64.
	carriers = prefixes("::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48")
)

// CheckAddr returns a *RefusedError unless what is sent to the address goes to a host on the
// internet or, with allowPrivate, to a private network or this machine. An address of carriers is
// refused or, with allowPrivate, as good as the IPv4 address.
func CheckAddr(a netip.Addr, allowPrivate bool) error {
	b := a.As16()
	switch {
	case !a.IsValid() || a.Zone() != "":
		return refuse("%s is no address, or has a zone", a)
	case within(a, carriers):
		v4 := netip.AddrFrom4([4]byte(b[12:]))
		if !allowPrivate {
			return refuse("%s embeds the IPv4 address %s", a, v4)
		}
		if err := CheckAddr(v4, true); err != nil {
			return refuse("%s embeds an address that is refused: %v", a, err)
		}
		return nil
	case a.Is6() && b[8]&^0x02 == 0 && string(b[9:12]) == "\x00\x5e\xfe":
		return refuse("%s is an address of ISATAP", a)
	}
	for _, n := range networks {
		switch {
		case !within(a, n.prefixes):
		case !n.private:
			return refuse("%s is %s", a, n.what)
		case !allowPrivate:
			return refuse("%s is %s%s", a, n.what, flagHint)
		default:
			return nil
		}
	}
	if a.Is6() && !unicast.Contains(a) && !allowPrivate {
		return refuse("%s is reserved", a)
	}
	return nil
}

// RefusedError is why nothing is sent to an address. Retrying does not help.
type RefusedError struct{ why string }

func (e *RefusedError) Error() string { return e.why }

func refuse(format string, args ...any) *RefusedError {
	return &RefusedError{fmt.Sprintf(format, args...)}
}
