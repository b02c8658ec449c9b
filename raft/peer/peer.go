// Package peer is the network between the nodes of a cluster: one port for all of it
// (serve --raft-addr), on which each connection begins with a hello that says which node
// connects and which one it looks for. After that it carries calls.
package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"
)

// Identity is what a node says of itself.
type Identity struct {
	Cluster     string `json:"cluster"`     // "" while it belongs to none
	Node        string `json:"node"`        // its name: n1
	Incarnation string `json:"incarnation"` // of its data directory
	Raft        string `json:"raft"`        // addresses at which others reach it (host:port)
	HTTP        string `json:"http"`
}

// Target is a node to reach: at Addr must be that Node in that Incarnation, else the other
// side refuses. "" is any.
type Target struct{ Addr, Node, Incarnation string }

// Options of a node's network.
type Options struct {
	// Listener accepts the connections of other nodes. Net closes it.
	Listener net.Listener
	// Dial opens a plain connection; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Server, and Client for a connection to a host, are set together: mutual TLS
	// on every connection.
	Server *tls.Config
	Client func(host string) *tls.Config
	Self   Identity
	Logger *slog.Logger
}

// Bounds that keep unknown hosts, and nodes that hang, from using up all resources.
const (
	dialTimeout  = 2 * time.Second // for a connection, and again for its handshake
	greetTimeout = 5 * time.Second // for a hello to arrive
	maxGreeting  = 256             // connections before their hello; the oldest is closed
	maxConns     = 1024            // connections after their hello
	maxCall      = 80 << 20        // bytes of a call's body, and of its response
)

// Handler answers a call. An error becomes an *Error at the other side.
type Handler func(ctx context.Context, from Identity, body []byte) ([]byte, error)

// Error is the response of a handler, or of the other side's handshake.
type Error struct {
	Code   string // "refused" by the handshake, "unknown_call", else the handler's
	Detail string
}

func (e *Error) Error() string { return e.Code + ": " + e.Detail }

// NotSent reports whether a call certainly did not reach a handler, so that it can be
// repeated, here or elsewhere, without being carried out twice: there was no connection, the
// other side refused it, or has no handler of that name.
func NotSent(err error) bool {
	_, ok := errors.AsType[*notSent](err)
	return ok
}

// notSent marks an error. The mark is a type and not an Error's code, because a handler may
// pass on the refusal of a third node.
type notSent struct{ err error }

func (n *notSent) Error() string { return n.err.Error() }
func (n *notSent) Unwrap() error { return n.err }

// Handle makes h serve the calls of that name, in place of an older one; nil: none are served.
// Calls that an older one has begun continue.
func (n *Net) Handle(name string, h Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handlers[name] = h
}
