package peer

import (
	"context"
	"net"
	"time"
)

// RaftLayer is what package raft's network listens and dials on. What comes over
// its connections is as the other node has sent it, and is not to be believed;
// who that is, each of them tells: Peer.
type RaftLayer struct {
	net  *Net
	feed *feed
}

// Raft makes the layer on which Raft's connections come in from now on. An
// older one is closed.
func (n *Net) Raft() *RaftLayer {
	l := &RaftLayer{net: n, feed: newFeed(n.o.Listener.Addr())}
	n.mu.Lock()
	old := n.raft
	n.raft = l
	closed := n.closed
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
	if !l.own(c) {
		c.Close()
		return
	}
	l.feed.deliver(c)
}

// own makes a connection end with the layer, unless that has ended: the
// goroutine that serves it in package raft ends only so.
func (l *RaftLayer) own(c *conn) bool {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	c.layer = l
	select {
	case <-l.feed.done:
		return false
	default:
		return true
	}
}

// Accept waits for the next connection of another node's Raft.
func (l *RaftLayer) Accept() (net.Conn, error) { return l.feed.Accept() }

// Addr is where the others come in.
func (l *RaftLayer) Addr() net.Addr { return l.feed.addr }

// Dial opens a connection to another node's Raft. It takes at most timeout,
// and never much longer than it takes to see that nobody answers.
func (l *RaftLayer) Dial(t Target, timeout time.Duration) (net.Conn, error) {
	ctx := l.net.ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	c, err := l.net.dial(ctx, t, kindRaft)
	if err != nil {
		return nil, err
	}
	if !l.own(c) {
		c.Close()
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
	var open []*conn
	for c := range n.conns {
		if c.layer == l {
			open = append(open, c)
		}
	}
	n.mu.Unlock()
	closeAll(open)
	return nil
}
