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

// Each side begins with the kind of connection (1 byte), magic, the version (1 byte), a length
// (2 bytes, little-endian) and that many bytes of JSON: a hello of the side that connects, an
// answer of the other. The bytes up to the version mean the same in every version, so that
// another version can be refused in words.
const (
	magic     = "qlogd\r\n"
	version   = 1
	versionAt = 1 + len(magic)
	headSize  = versionAt + 3
	maxHello  = 4 << 10
)

// kind is the first byte of a connection: what it carries after the handshake.
type kind byte

const (
	kindRaft kind = 1 + iota // what hashicorp/raft's NetworkTransport sends
	kindHTTP                 // calls
	kindWho                  // nothing: it is closed
)

type hello struct {
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

func write(w io.Writer, k kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(b) > maxHello {
		return fmt.Errorf("identity of more than %d bytes", maxHello)
	}
	head := append(append([]byte{byte(k)}, magic...), version)
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
func read(r io.Reader, v any) (kind, error) {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, err
	}
	k := kind(head[0])
	if string(head[1:versionAt]) != magic {
		return k, errUnknown
	}
	if v := head[versionAt]; v != version {
		return k, versionError(v)
	}
	size := int(binary.LittleEndian.Uint16(head[versionAt+1:]))
	if size > maxHello {
		return k, fmt.Errorf("%d bytes announced, more than %d", size, maxHello)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return k, err
	}
	return k, json.Unmarshal(b, v)
}

// dial opens a connection and does the handshake. All its errors are notSent: nothing was
// requested yet.
func (n *Net) dial(ctx context.Context, to Target, k kind) (_ net.Conn, err error) {
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
	c := &conn{Conn: raw, raw: raw, net: n, kind: k}
	if err := n.enter(c, false); err != nil {
		raw.Close()
		return nil, err
	}
	raw.SetDeadline(time.Now().Add(dialTimeout))
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	err = n.introduce(ctx, c, to)
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
func (n *Net) introduce(ctx context.Context, c *conn, to Target) error {
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
	h := hello{From: self, Node: to.Node, Incarnation: to.Incarnation}
	if err := write(c.Conn, c.kind, h); err != nil {
		return err
	}
	var a answer
	if _, err := read(c.Conn, &a); err != nil {
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
	return c.(*conn).peer, nil
}

// listen reads the hello of a connection that came in.
func (n *Net) listen(c *conn) (k kind, h hello, err error) {
	if n.o.Server != nil {
		t := tls.Server(c.raw, n.o.Server)
		if err := t.HandshakeContext(n.ctx); err != nil {
			return k, h, fmt.Errorf("TLS: %w", err)
		}
		c.Conn = t
	}
	if k, err = read(c.Conn, &h); err == nil {
		err = h.From.check()
	}
	if v, ok := errors.AsType[versionError](err); ok {
		_ = write(c.Conn, k, answer{Refused: v.Error()})
	}
	return k, h, err
}

// judge returns why a node is refused, or nil.
func judge(self Identity, k kind, h hello) error {
	switch {
	case k == kindWho:
		return nil
	case k != kindRaft && k != kindHTTP:
		return fmt.Errorf("a connection of kind %d is not known here", k)
	case k == kindRaft && (self.Cluster == "" || h.From.Cluster == ""):
		return errors.New("no Raft between nodes that do not both belong to a cluster")
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
