package peer

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/qlogd/qlogd/internal/sharedsecret"
)

// A connection begins with one HTTP/1.1 request for what it is to carry, and the response. Each of
// them has a hello in a header:
//
//	GET /calls  204  calls follow
//	GET /raft   101  the stream of hashicorp/raft's NetworkTransport follows
//	            403  refused; the connection is closed
//
// With a shared secret there are two requests, the response to the first being a 401: see
// internal/sharedsecret.
//
// Only TLS protects what follows the hello. Without it, an attacker on the network path can read
// and change everything. Relaying a hello from another address does not work: the hello names the
// address that was dialed, and a node with a secret refuses any but its own.
const (
	pathCalls   = "/calls"
	pathRaft    = "/raft"
	helloHeader = sharedsecret.HelloHeader
	version     = 1
	maxHello    = 4 << 10 // bytes of all headers
)

// hello is what each side says first, as JSON. Version and Refused mean the same in every version,
// so that another version can be refused in words.
type hello struct {
	Version int      `json:"version"`
	From    Identity `json:"from"`
	// Node and Incarnation are, in a request, those that it looks for; "" any.
	Node        string `json:"node,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	Addr        string `json:"addr,omitempty"`    // in a request: where it was sent to
	Refused     string `json:"refused,omitempty"` // in a response: why; "" accepted
}

func (h *hello) put(into http.Header) {
	b, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings
	}
	into.Set(helloHeader, string(b))
}

func readHello(from http.Header) (h hello, err error) {
	text := from.Get(helloHeader)
	if text == "" {
		return h, errors.New("not a node of qlogd")
	}
	err = json.Unmarshal([]byte(text), &h)
	switch {
	case err != nil:
	case h.Refused != "":
		err = &Error{Code: "refused", Detail: h.Refused}
	case h.Version != version:
		err = fmt.Errorf("protocol version %d is not known here, only %d", h.Version, version)
	default:
		err = h.From.check()
	}
	return h, err
}

func (i Identity) check() error {
	all := i.Cluster + i.Node + i.Incarnation + i.Raft + i.HTTP
	if strings.ContainsFunc(all, unicode.IsControl) {
		return errors.New("identity with control characters")
	}
	return nil
}

// dial opens a connection, for calls or a layer of Raft's, and says hello. It returns the
// other node's identity if it is known, even if that node refuses. All errors are notSent, since no
// request was made yet.
func (n *Net) dial(ctx context.Context, to Target, layer *RaftLayer) (
	_ net.Conn, from Identity, err error) {
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			if err = outer(ctx, err); n.ctx.Err() != nil {
				err = net.ErrClosed
			}
			err = &notSent{err}
		}
	}()
	if n.o.Closed != "" {
		return nil, from, errors.New(n.o.Closed)
	}
	raw, err := n.o.Dial(limited, to.Addr)
	if err != nil {
		return nil, from, err
	}
	c := &conn{Conn: raw, raw: raw, net: n, layer: layer, greeted: true}
	if err := n.enter(c); err != nil {
		raw.Close()
		return nil, from, err
	}
	stop := context.AfterFunc(limited, func() { raw.SetDeadline(time.Unix(1, 0)) })
	err = n.introduce(limited, c, to)
	if !stop() && err == nil {
		err = limited.Err()
	}
	if err != nil {
		c.Close()
		return nil, c.peer, err
	}
	return c, c.peer, nil
}

// outer returns an error that wraps that of the caller's context, if it has ended.
func outer(ctx context.Context, err error) error {
	if c := ctx.Err(); c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w (%v)", c, err)
	}
	return err
}

// introduce says hello on an outgoing connection.
func (n *Net) introduce(ctx context.Context, c *conn, to Target) error {
	var session *tls.ConnectionState
	if n.o.TLS != nil {
		host, _, err := net.SplitHostPort(to.Addr)
		if err != nil {
			return err
		}
		t := tls.Client(c.raw, n.o.TLS.Client(host))
		if err := t.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		c.Conn, session = t, new(t.ConnectionState())
	}
	r, err := http.NewRequest(http.MethodGet, anyHost+pathCalls, nil)
	if err != nil {
		return err
	}
	if c.layer != nil {
		r.URL.Path = pathRaft
		upgrade(r.Header)
	}
	self := n.Self() // after enter: see conns
	said := hello{version, self, to.Node, to.Incarnation, to.Addr, ""}
	said.put(r.Header)
	// No bytes are lost in the reader: the other side waits for what follows.
	in := bufio.NewReader(io.LimitReader(c, 4*maxHello))
	ask := func() (answer http.Header, h hello, err error) {
		if err := r.Write(c); err != nil {
			return nil, h, err
		}
		resp, err := http.ReadResponse(in, r)
		if err != nil {
			return nil, h, fmt.Errorf("answer: %w", err)
		}
		h, err = readHello(resp.Header)
		return resp.Header, h, err
	}
	if n.o.Secret != nil {
		n.o.Secret.Begin(r)
		answer, _, err := ask()
		if err != nil {
			return err
		}
		n.o.Secret.Prove(r, answer, session)
	}
	answer, h, err := ask()
	if unproven := n.o.Secret.Confirmed(r, answer, session); unproven != nil {
		return cmp.Or(err, unproven) // an unproven identity is ignored
	}
	c.peer = h.From
	return err
}

func upgrade(h http.Header) {
	h.Set("Connection", "Upgrade")
	h.Set("Upgrade", "raft")
}

// Hello returns the identity of the node at addr, which may be of another cluster.
func (n *Net) Hello(ctx context.Context, addr string) (Identity, error) {
	c, is, err := n.dial(ctx, Target{Addr: addr}, nil)
	if c != nil {
		c.Close()
	}
	if err != nil && is == (Identity{}) {
		return is, fmt.Errorf("hello to %s: %w", addr, err)
	}
	return is, nil
}

// greet answers the first request of an incoming connection, and the second one where there is a
// secret.
func (n *Net) greet(w http.ResponseWriter, r *http.Request, c *conn) {
	_ = c.SetWriteDeadline(allowed(maxHello))
	a := hello{Version: version}
	h, err := readHello(r.Header)
	proven := false
	if err != nil {
		n.warn("connection from an unknown host refused", "from", r.RemoteAddr, "error", err)
	} else {
		a.From = n.Self()
		a.put(w.Header())
		if c.challenge == "" && n.o.Secret.Begins(r) {
			c.challenge = n.o.Secret.Challenge(w.Header())
			w.WriteHeader(http.StatusUnauthorized)
			// net/http would wait for the second request as long as for a call.
			time.AfterFunc(greetTimeout, func() {
				n.closeConns(func(o *conn) bool { return o == c && !o.greeted })
			})
			return
		}
		if err = n.o.Secret.Check(r, c.challenge, w.Header()); err == nil {
			proven = n.o.Secret != nil
			a.From, err = n.admit(c, h, r.URL.Path)
		}
		if err != nil {
			n.warn("node refused", "node", h.From.Node, "incarnation", h.From.Incarnation,
				"cluster", h.From.Cluster, "from", r.RemoteAddr, "error", err)
		}
	}
	if err != nil {
		a.Refused = err.Error()
	}
	a.put(w.Header())
	if proven {
		n.o.Secret.Confirm(r, w.Header())
	}
	switch {
	case err != nil:
		w.Header().Set("Connection", "close")
		_ = c.SetReadDeadline(allowed(0)) // net/http waits for a body before it closes
		w.WriteHeader(http.StatusForbidden)
	case c.layer == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		upgrade(w.Header())
		w.WriteHeader(http.StatusSwitchingProtocols)
		stream, buffered, err := http.NewResponseController(w).Hijack()
		if err == nil {
			err = buffered.Flush()
		}
		if err != nil {
			c.Close()
			return
		}
		select {
		case c.layer.conns <- stream:
		case <-c.layer.ctx.Done():
			c.Close()
		}
	}
}

// admit accepts an incoming connection or returns why it is refused, and this node's identity.
func (n *Net) admit(c *conn, h hello, path string) (self Identity, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	self, from := n.self, h.From
	switch {
	case !slices.Contains(n.conns, c):
		err = net.ErrClosed // meanwhile
	case n.o.Closed != "":
		err = errors.New(n.o.Closed)
	case path != pathCalls && path != pathRaft:
		err = fmt.Errorf("connections for %.100q are not known here", path)
	case path == pathRaft && (self.Cluster == "" || from.Cluster == ""):
		err = errors.New("no Raft between nodes that do not both belong to a cluster")
	case self.Cluster != "" && from.Cluster != "" && self.Cluster != from.Cluster:
		err = fmt.Errorf("node %q belongs to cluster %q, node %q to %q",
			self.Node, self.Cluster, from.Node, from.Cluster)
	case n.o.Secret != nil && n.o.TLS == nil && h.Addr != self.Raft:
		err = fmt.Errorf("node %q was looked for at %.100q, but advertises %s: join must name it so",
			self.Node, h.Addr, self.Raft)
	case h.Node != "" && h.Node != self.Node:
		err = fmt.Errorf("this is node %q, not %q", self.Node, h.Node)
	case h.Incarnation != "" && h.Incarnation != self.Incarnation:
		err = fmt.Errorf("node %q is here with another data directory: incarnation %q, not %q",
			self.Node, self.Incarnation, h.Incarnation)
	case path == pathRaft && n.raft == nil:
		err = errors.New("no replica runs here yet")
	default:
		c.greeted, c.peer = true, from
		if path == pathRaft {
			c.layer = n.raft
		}
	}
	return self, err
}
