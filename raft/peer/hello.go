package peer

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode"
)

// Each side begins with magic, the version (1 byte), a length (2 bytes,
// little-endian) and that many bytes of JSON: a hello of the side that connects,
// an answer of the other. These first bytes mean the same in every version, so
// that another version can be refused in words.
const (
	magic    = "\x89qlogd\r\n"
	version  = 1
	headSize = len(magic) + 3
	maxHello = 4 << 10
)

type kind string

const (
	kindRPC kind = "rpc" // calls
	kindWho kind = "who" // the answer, then closed
)

type hello struct {
	Kind kind     `json:"kind"`
	From Identity `json:"from"`
	// Node and Incarnation are those that it looks for; "" any.
	Node        string `json:"node"`
	Incarnation string `json:"incarnation"`
}

type answer struct {
	From    Identity `json:"from"`
	Refused string   `json:"refused,omitempty"` // why; "" accepted
}

func (i Identity) check() error {
	for _, t := range []string{i.Cluster, i.Node, i.Incarnation, i.Raft, i.HTTP} {
		if strings.ContainsFunc(t, unicode.IsControl) {
			return errors.New("identity with control characters")
		}
	}
	return nil
}

func write(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxHello {
		return fmt.Errorf("identity of more than %d bytes", maxHello)
	}
	head := append([]byte(magic), version)
	head = binary.LittleEndian.AppendUint16(head, uint16(len(b)))
	_, err = w.Write(append(head, b...))
	return err
}

var errUnknown = errors.New("not a node of qlogd")

// versionError is answered to the other side, where it can be read.
type versionError byte

func (v versionError) Error() string {
	return fmt.Sprintf("protocol version %d is not known here, only %d", byte(v), version)
}

// read reads one hello or answer, and not a byte more.
func read(r io.Reader, v any) error {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(r, head); err != nil {
		return err
	}
	if string(head[:len(magic)]) != magic {
		return errUnknown
	}
	if v := head[len(magic)]; v != version {
		return versionError(v)
	}
	size := int(binary.LittleEndian.Uint16(head[headSize-2:]))
	if size > maxHello {
		return fmt.Errorf("%d bytes announced, more than %d", size, maxHello)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// dial opens a connection and does the handshake. All its errors are notSent: nothing was
// requested yet.
func (n *Net) dial(ctx context.Context, to Target, k kind) (_ *conn, err error) {
	defer func() {
		if err != nil {
			if err = outer(ctx, err); n.ctx.Err() != nil {
				err = net.ErrClosed
			}
			err = &notSent{err}
		}
	}()
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := n.o.Dial(dctx, to.Addr)
	if err != nil {
		return nil, err
	}
	c := newConn(n, raw)
	if err := n.enter(c, false); err != nil {
		raw.Close()
		return nil, err
	}
	raw.SetDeadline(time.Now().Add(dialTimeout))
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	err = n.introduce(ctx, c, to, k)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	raw.SetDeadline(time.Time{})
	return c, nil
}

// outer returns an error that wraps that of the caller's context, if it has ended.
func outer(ctx context.Context, err error) error {
	if c := ctx.Err(); c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w (%v)", c, err)
	}
	return err
}

// introduce does the handshake at the side that connects.
func (n *Net) introduce(ctx context.Context, c *conn, to Target, k kind) error {
	if n.o.Client != nil {
		host, _, err := net.SplitHostPort(to.Addr)
		if err != nil {
			return err
		}
		t := tls.Client(c.raw, n.o.Client(host))
		if err := t.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		c.Conn = t
	}
	self := n.Self() // after enter: see conns
	h := hello{Kind: k, From: self, Node: to.Node, Incarnation: to.Incarnation}
	if err := write(c.Conn, h); err != nil {
		return err
	}
	var a answer
	if err := read(c.Conn, &a); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	if a.Refused != "" {
		return &Error{Code: "refused", Detail: a.Refused}
	}
	c.peer = a.From
	return a.From.check()
}

// Hello returns the identity of the node at addr, which may be of another cluster.
func (n *Net) Hello(ctx context.Context, addr string) (Identity, error) {
	c, err := n.dial(ctx, Target{Addr: addr}, kindWho)
	if err != nil {
		return Identity{}, fmt.Errorf("hello to %s: %w", addr, err)
	}
	defer c.Close()
	return c.peer, nil
}

// listen reads the hello of a connection that came in.
func (n *Net) listen(c *conn) (h hello, err error) {
	if n.o.Server != nil {
		t := tls.Server(c.raw, n.o.Server)
		if err := t.HandshakeContext(n.ctx); err != nil {
			return h, fmt.Errorf("TLS: %w", err)
		}
		c.Conn = t
	}
	if err = read(c.Conn, &h); err == nil {
		err = h.From.check()
	}
	if v, ok := errors.AsType[versionError](err); ok {
		_ = write(c.Conn, answer{Refused: v.Error()})
	}
	return h, err
}

// judge returns why a node is refused, or nil.
func judge(self Identity, h hello) error {
	switch h.Kind {
	case kindWho:
		return nil
	case kindRPC:
	default:
		return fmt.Errorf("a connection of kind %q is not known here", h.Kind)
	}
	if self.Cluster != "" && h.From.Cluster != "" && self.Cluster != h.From.Cluster {
		return fmt.Errorf("node %q belongs to cluster %q, node %q to %q",
			self.Node, self.Cluster, h.From.Node, h.From.Cluster)
	}
	if h.Node != "" && h.Node != self.Node {
		return fmt.Errorf("this is node %q, not %q", self.Node, h.Node)
	}
	if h.Incarnation != "" && h.Incarnation != self.Incarnation {
		return fmt.Errorf("node %q is here with another data directory: incarnation %q, not %q",
			self.Node, self.Incarnation, h.Incarnation)
	}
	return nil
}
