// Package peer is the inside of a cluster: how its nodes reach one another.
//
// A node has one port for the others (serve --raft-addr). Whoever connects says
// first who he is and whom he looks for; only then is anything else read. Of
// the connections that pass there are two kinds:
//
//	raft  streams for package raft, one request at a time on each
//	rpc   calls over HTTP/2, any number at a time on one connection; bulk data
//	      is streamed over connections of its own
//
// It does not know what is said: names and bytes; but for CallInvite, which two
// of the packages that speak must read alike. It is a leaf of the house.
package peer

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"time"
)

// Identity is who a node says it is.
type Identity struct {
	Cluster     string // "" while it belongs to none
	Node        string // the operator's name for it: n1
	Incarnation string // of its data directory
	Raft, HTTP  string // addresses at which others reach it (host:port)
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
	// Server and Client are set together: mutual TLS on every connection.
	Server, Client *tls.Config
	Self           Identity
	Logger         *slog.Logger
	// MaxCall bounds a call's body and its answer, in bytes; default 80 MiB.
	MaxCall int64
	// MaxConns bounds the connections of other nodes that have been let in and
	// are open at a time, default 1024.
	MaxConns int
	// MaxGreeting bounds those that have not yet said who they are, all of them
	// (default 256) and from one address (32).
	MaxGreeting, MaxGreetingFrom int
	// HandshakeTimeout is how long a stranger may take to say who he is; 5 s.
	HandshakeTimeout time.Duration
}

// Handler answers a call. An error becomes an *Error at the other side.
type Handler func(ctx context.Context, from Identity, body []byte) ([]byte, error)

// StreamHandler answers with as many bytes as it likes. An error before the
// first byte becomes an *Error at the other side, a later one breaks the stream.
type StreamHandler func(ctx context.Context, from Identity, body []byte, w io.Writer) error

// Error is what a handler, or the other side's handshake, answered.
type Error struct {
	Code   string // "refused" by the handshake, "unknown_call", else the handler's
	Detail string
	Body   []byte // more that the handler wants to tell
}

func (e *Error) Error() string { return e.Code + ": " + e.Detail }
