package peer

import (
	"context"
	"net"
	"time"
)

// RaftLayer is what package raft's network listens and dials on.
type RaftLayer struct {
	*feed
	net *Net
}

// Raft returns the layer on which Raft's connections arrive from now on. An older one is closed.
func (n *Net) Raft() *RaftLayer {
	l := &RaftLayer{net: n, feed: newFeed(n.o.Listener.Addr())}
	n.mu.Lock()
	old, closed := n.raft, n.closed
	n.raft = l
	n.mu.Unlock()
	if old != nil {
		old.Close()
	}
	if closed {
		l.Close()
	}
	return l
}

func (l *RaftLayer) deliver(c *conn) {
	if l.own(c) {
		l.feed.deliver(c)
	}
}

// own makes a connection end with the layer, or at once if that has ended: the goroutine that
// serves it in package raft ends only then.
func (l *RaftLayer) own(c *conn) bool {
	l.net.mu.Lock()
	c.layer = l
	l.net.mu.Unlock()
	select {
	case <-l.done:
		c.Close()
		return false
	default:
		return true
	}
}

// Dial opens a connection to another node's Raft. It takes at most timeout.
func (l *RaftLayer) Dial(t Target, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.net.ctx, timeout)
	defer cancel()
	c, err := l.net.dial(ctx, t, kindRaft)
	if err != nil {
		return nil, err
	}
	if !l.own(c) {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close ends Accept and closes all of the layer's connections, in both
// directions.
func (l *RaftLayer) Close() error {
	n := l.net
	n.mu.Lock()
	l.feed.Close()
	if n.raft == l {
		n.raft = nil
	}
	n.mu.Unlock()
	n.closeConns(func(c *conn) bool { return c.layer == l })
	return nil
}
