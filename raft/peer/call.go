package peer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// After the handshake a connection carries one call at a time, in frames:
//
//	kind         1 byte
//	length of n  1 byte
//	length of b  4 bytes, little-endian
//	n            the call's name
//	b            bytes
//
// The side that has connected sends a call: its name and body. The other side responds with an
// answer, or with an Error as JSON: a failure is the handler's, a refusal says that no handler
// ran. To cancel a call, the connection is closed. Each side sends a beat at intervals, so that
// the other one knows within seconds when it is gone.
const (
	frameBeat byte = iota
	frameCall
	frameAnswer
	frameFailure
	frameRefusal
)

const (
	beatEvery = 1500 * time.Millisecond
	silence   = 3 * beatEvery // after which the other side is gone
	maxIdle   = 8             // connections to one target
)

// allowed is how long a number of bytes may take: silence, and a second for each MB.
func allowed(size int) time.Duration { return silence + time.Duration(size)*time.Microsecond }

type frame struct {
	kind byte
	name string
	body []byte
}

// conn is a connection to another node, in either direction.
type conn struct {
	net.Conn // TLS, or raw itself
	raw      net.Conn
	net      *Net
	peer     Identity

	in      *bufio.Reader
	sending sync.Mutex
	beat    *time.Timer
	// answers, at the side that has connected, gets the response to the call in progress. It
	// is closed with the connection.
	answers chan frame
}

func newConn(n *Net, raw net.Conn) *conn {
	return &conn{Conn: raw, raw: raw, net: n, answers: make(chan frame, 1)}
}

// begin starts to carry frames.
func (c *conn) begin() {
	c.raw.SetDeadline(time.Time{})
	c.in = bufio.NewReader(c.Conn)
	c.sending.Lock()
	defer c.sending.Unlock()
	c.beat = time.AfterFunc(beatEvery, func() {
		if c.send(frame{kind: frameBeat}) == nil {
			c.beat.Reset(beatEvery)
		}
	})
}

// Close closes at once, also where TLS would first send an alert to a peer that does not read.
func (c *conn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.greetedLocked(c)
	c.net.mu.Unlock()
	return c.raw.Close()
}

// send sends a frame. If it fails, the other side does not get the whole of it, and the
// connection is closed.
func (c *conn) send(f frame) error {
	head := binary.LittleEndian.AppendUint32([]byte{f.kind, byte(len(f.name))}, uint32(len(f.body)))
	parts := net.Buffers{append(head, f.name...), f.body}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.raw.SetWriteDeadline(time.Now().Add(allowed(len(f.body))))
	_, err := parts.WriteTo(c.Conn)
	if err != nil {
		c.Close()
	}
	return err
}

// receive reads a frame. Memory grows with what has arrived, not with what was announced.
func (c *conn) receive() (f frame, err error) {
	c.raw.SetReadDeadline(time.Now().Add(silence))
	var head [6]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return f, err
	}
	size := int(binary.LittleEndian.Uint32(head[2:]))
	if size > maxCall {
		return f, tooLarge(size)
	}
	name := make([]byte, head[1])
	if _, err := io.ReadFull(c.in, name); err != nil {
		return f, err
	}
	c.raw.SetReadDeadline(time.Now().Add(allowed(size)))
	b := bytes.NewBuffer(make([]byte, 0, min(size, 1<<20)+bytes.MinRead))
	if _, err := io.CopyN(b, c.in, int64(size)); err != nil {
		return f, err
	}
	return frame{head[0], string(name), b.Bytes()}, nil
}

// Call calls the node at to and waits for its response, until ctx ends or nothing is heard
// from that node for some seconds. It never repeats a request that a handler may have seen:
// see NotSent. from is the node that responded, as far as known.
func (n *Net) Call(
	ctx context.Context, to Target, name string, body []byte,
) (out []byte, from Identity, err error) {
	if len(body) > maxCall {
		err = &notSent{tooLarge(len(body))}
	} else {
		out, from, err = n.call(ctx, to, frame{frameCall, name, body})
	}
	if err != nil {
		return nil, from, fmt.Errorf("call %s at %s: %w", name, to.Addr, err)
	}
	return out, from, nil
}

func (n *Net) call(ctx context.Context, to Target, f frame) ([]byte, Identity, error) {
	c, err := n.connection(ctx, to)
	if err != nil {
		return nil, Identity{}, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	if err := c.send(f); err != nil {
		stop()
		return nil, c.peer, &notSent{outer(ctx, err)}
	}
	a := <-c.answers
	if stop() && a.kind != frameBeat {
		n.release(c, to)
	}
	e := &Error{}
	switch {
	case a.kind == frameAnswer:
		return a.body, c.peer, nil
	case a.kind == frameBeat: // none: answers is closed
		return nil, c.peer, outer(ctx, errors.New("the connection is lost"))
	case json.Unmarshal(a.body, e) != nil || e.Code == "":
		return nil, c.peer, fmt.Errorf("unexpected response of kind %d", a.kind)
	case a.kind == frameRefusal:
		return nil, c.peer, &notSent{e}
	}
	return nil, c.peer, e
}

// connection returns a connection to a node on which no call is in progress. All its errors
// are notSent.
func (n *Net) connection(ctx context.Context, to Target) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, &notSent{err}
	}
	n.mu.Lock()
	for list := n.idle[to]; len(list) > 0; list = n.idle[to] {
		c := list[len(list)-1]
		n.idle[to] = list[:len(list)-1]
		if _, open := n.conns[c]; open {
			n.mu.Unlock()
			return c, nil
		}
	}
	delete(n.idle, to)
	n.mu.Unlock()
	c, err := n.dial(ctx, to, kindRPC)
	if err != nil {
		return nil, err
	}
	c.begin()
	go func() {
		defer close(c.answers)
		defer c.Close()
		for {
			f, err := c.receive()
			if err != nil {
				return
			}
			if f.kind == frameBeat {
				continue
			}
			select {
			case c.answers <- f:
			default:
				return // nobody has asked
			}
		}
	}()
	return c, nil
}

// release keeps a connection for the next call.
func (n *Net) release(c *conn, to Target) {
	n.mu.Lock()
	_, keep := n.conns[c]
	if keep = keep && len(n.idle[to]) < maxIdle; keep {
		n.idle[to] = append(n.idle[to], c)
	}
	n.mu.Unlock()
	if !keep {
		c.Close()
	}
}

// serve answers the calls on a connection until it ends. The context of a call ends with it:
// nobody waits for the answer any more.
func (n *Net) serve(c *conn) {
	ctx, cancel := context.WithCancel(n.ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	c.begin()
	for {
		f, err := c.receive()
		if err != nil {
			return
		}
		if f.kind == frameCall {
			calls.Go(func() { n.answer(ctx, c, f) })
		}
	}
}

// answer answers one call.
func (n *Net) answer(ctx context.Context, c *conn, f frame) {
	n.mu.Lock()
	h := n.handlers[f.name]
	if n.closed {
		h = nil
	} else {
		n.running.Add(1) // under mu, so that Close waits for it
		defer n.running.Done()
	}
	n.mu.Unlock()
	if h == nil {
		detail := fmt.Sprintf("no handler for %.100q", f.name)
		_ = c.send(frame{kind: frameRefusal, body: encode(&Error{"unknown_call", detail})})
		return
	}
	out, err := h(ctx, c.peer, f.body)
	if err == nil && len(out) > maxCall {
		err = tooLarge(len(out))
	}
	a := frame{kind: frameAnswer, body: out}
	if err != nil {
		a = frame{kind: frameFailure, body: encode(err)}
	}
	_ = c.send(a) // the caller sees an error
}

func tooLarge(size int) *Error {
	return &Error{Code: "too_large", Detail: fmt.Sprintf("%d bytes, more than %d", size, maxCall)}
}

// encode returns an Error made of err as JSON.
func encode(err error) []byte {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Code: "internal", Detail: err.Error()}
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings
	}
	return b
}
