package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// dialTimeout bounds how long it may take until a connection is open, and then
// again until the other side has answered the hello.
const dialTimeout = 2 * time.Second

// Hello asks who is at addr. Whoever it is answers, also of another cluster.
func (n *Net) Hello(ctx context.Context, addr string) (Identity, error) {
	c, err := n.dial(ctx, Target{Addr: addr}, kindWho)
	if err != nil {
		return Identity{}, fmt.Errorf("ask who is at %s: %w", addr, err)
	}
	defer c.Close()
	return c.peer, nil
}

// dial opens a connection that has passed the handshake. All its errors are
// notSent: whatever they are, nothing was asked yet.
func (n *Net) dial(ctx context.Context, to Target, k kind) (*conn, error) {
	c, err := n.reach(ctx, to, k)
	if err != nil {
		if n.ctx.Err() != nil {
			err = net.ErrClosed
		}
		return nil, &notSent{err}
	}
	return c, nil
}

func (n *Net) reach(ctx context.Context, to Target, k kind) (*conn, error) {
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	raw, err := n.o.Dial(dctx, to.Addr)
	cancel()
	if err != nil {
		return nil, outer(ctx, err)
	}
	c := &conn{Conn: raw, raw: raw, net: n}
	if err := n.enter(c); err != nil {
		raw.Close()
		return nil, err
	}
	raw.SetDeadline(time.Now().Add(min(dialTimeout, n.o.HandshakeTimeout)))
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	err = n.introduce(ctx, c, to, k)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Close()
		return nil, outer(ctx, err)
	}
	raw.SetDeadline(time.Time{})
	return c, nil
}

// outer says that it was the caller's context, if it was.
func outer(ctx context.Context, err error) error {
	if c := ctx.Err(); c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w (%v)", c, err)
	}
	return err
}

// introduce does the handshake at the side of who connects.
func (n *Net) introduce(ctx context.Context, c *conn, to Target, k kind) error {
	if n.o.Client != nil {
		t := tls.Client(c.raw, clientConfig(n.o.Client, to.Addr))
		if err := t.HandshakeContext(ctx); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		c.Conn = t
	}
	self := n.Self() // after enter: see conns
	b, err := hello{kind: k, from: self, target: to}.encode()
	if err != nil {
		return err
	}
	if _, err := c.Conn.Write(b); err != nil {
		return err
	}
	a, err := readAnswer(c.Conn)
	if err != nil {
		return err
	}
	if a.refused {
		return &Error{Code: "refused", Detail: a.reason}
	}
	c.peer = a.from
	if k == kindWho {
		return nil
	}
	// It should have seen that itself.
	if err := fits(a.from, to); err != nil {
		return &Error{Code: "refused", Detail: err.Error()}
	}
	if err := together(self, a.from, k); err != nil {
		return &Error{Code: "refused", Detail: err.Error()}
	}
	return nil
}

// clientConfig is base for the host of addr, whose name the certificate must
// have. crypto/tls tells VerifyConnection the name that it sent, and it sends
// none for an IP address; base's own check must know it too.
func clientConfig(base *tls.Config, addr string) *tls.Config {
	c := base.Clone()
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		c.ServerName = host
	}
	if verify := base.VerifyConnection; verify != nil {
		c.VerifyConnection = func(s tls.ConnectionState) error {
			s.ServerName = c.ServerName
			return verify(s)
		}
	}
	return c
}
