// Package peer is the network between the nodes of a cluster: one port for all
// (serve --raft-addr), on which each connection begins with a hello that says
// who connects and whom it looks for. After that it carries either hashicorp/raft's
// own streams (RaftLayer) or HTTP/2: calls, and files for nodes that catch up.
package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Identity is who a node says it is.
type Identity struct {
	Cluster     string `json:"cluster"`     // "" while it belongs to none
	Node        string `json:"node"`        // the operator's name for it: n1
	Incarnation string `json:"incarnation"` // of its data directory
	Raft        string `json:"raft"`        // addresses at which others reach it (host:port)
	HTTP        string `json:"http"`
}

// Target is whom to reach: at Addr must be that Node in that Incarnation, else
// the other side refuses. "" is any.
type Target struct{ Addr, Node, Incarnation string }

// Options of a node's network.
type Options struct {
	// Listener is where others come in. Net closes it.
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

// Bounds that keep strangers, and nodes that hang, from taking all there is.
const (
	dialTimeout  = 2 * time.Second // for a connection, and again for its handshake
	greetTimeout = 5 * time.Second // for a stranger to say who it is
	maxGreeting  = 256             // strangers at a time; the oldest gives way
	maxConns     = 1024            // connections of nodes that have been let in
	maxCall      = 80 << 20        // bytes of a call's body, and of its answer
)

// Handler answers a call. An error becomes an *Error at the other side.
type Handler func(ctx context.Context, from Identity, body []byte) ([]byte, error)

// Error is what a handler, or the other side's handshake, answered.
type Error struct {
	Code   string // "refused" by the handshake, "unknown_call", else the handler's
	Detail string
	Body   []byte // more that the handler wants to say
}

func (e *Error) Error() string { return e.Code + ": " + e.Detail }

// NotSent reports whether a call surely did not reach a handler, so that it can
// be made again, here or elsewhere, without being done twice: there was no
// connection, the other side refused it, or has no handler of that name.
func NotSent(err error) bool {
	_, ok := errors.AsType[*notSent](err)
	return ok
}

// notSent marks an error. The mark is a type and not an Error's code: a handler
// may pass on the refusal of a third node.
type notSent struct{ err error }

func (n *notSent) Error() string { return n.err.Error() }
func (n *notSent) Unwrap() error { return n.err }

// HandleFiles lets h answer the Gets of other nodes; nil: nobody does.
func (n *Net) HandleFiles(h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files = h
}

// Handle makes h answer the calls of that name, in place of an older one. nil:
// nobody does. What an older one has begun goes on.
func (n *Net) Handle(name string, h Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handlers[name] = h
}
