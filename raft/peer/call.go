package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"
)

// A call is one HTTP/1.1 request: POST /NAME with its bytes. The response is 200 and the
// handler's bytes, or one of these and an Error as JSON:
//
//	404  there is no handler of that name: nothing was done
//	500  the handler returned an error
//
// To cancel a call, its connection is closed. While one takes long, the other node is called in
// between: it may be gone, or the line cut, without the connection showing it.
const (
	callPing    = "ping"
	anyHost     = "http://node" // of a URL: the connection goes to a target's address, as it is
	pingEvery   = 1500 * time.Millisecond
	pingTimeout = 2 * pingEvery
	maxIdle     = 8 // connections to one target
	// keepIdle is how long the side that has connected keeps them. The other one keeps them
	// longer: it must not close a connection on which a call is just being sent.
	keepIdle = time.Minute
)

// allowed returns a deadline for a number of bytes: a second for each MB, and some.
func allowed(size int64) time.Time {
	return time.Now().Add(greetTimeout + time.Duration(size)*time.Microsecond)
}

// client returns what keeps the connections to a target.
func (n *Net) client(to Target) *http.Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.clients[to]
	if c == nil {
		c = &http.Transport{
			// Not with the request's context: others may wait for the connection too.
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				c, _, err := n.dial(n.ctx, to, nil)
				return c, err
			},
			MaxIdleConnsPerHost: maxIdle,
			IdleConnTimeout:     keepIdle,
			DisableCompression:  true,
		}
		n.clients[to] = c
	}
	return c
}

// Call calls the node at to and waits for its response, until ctx ends or that node does not
// answer anything for some seconds. It never repeats a request that a handler may have seen:
// see NotSent. from is the node that responded, as far as known.
func (n *Net) Call(ctx context.Context, to Target, name string, body []byte) (
	out []byte, from Identity, err error) {
	if len(body) > maxCall {
		err = &notSent{tooLarge(int64(len(body)))}
	} else {
		watched, cancel := context.WithCancelCause(ctx)
		watch := time.AfterFunc(pingEvery, func() { cancel(n.watch(watched, to)) })
		out, from, err = n.call(watched, to, name, body)
		watch.Stop()
		cancel(nil)
		err = outer(ctx, err)
	}
	if err != nil {
		return nil, from, fmt.Errorf("call %s at %s: %w", name, to.Addr, err)
	}
	return out, from, nil
}

// Caller is the part of a Net that calls.
type Caller interface {
	Call(ctx context.Context, to Target, name string, body []byte) ([]byte, Identity, error)
}

// Ask is a call in JSON. It returns which node answered.
func Ask(ctx context.Context, n Caller, to Target, name string, ask, answer any) (
	from Identity, err error) {
	b, err := json.Marshal(ask)
	if err == nil {
		b, from, err = n.Call(ctx, to, name, b)
	}
	if err == nil {
		err = json.Unmarshal(b, answer)
	}
	return from, err
}

// Answer is the handler of such calls.
func Answer[Q, A any](h func(context.Context, Identity, Q) (A, error)) Handler {
	return func(ctx context.Context, from Identity, body []byte) ([]byte, error) {
		var q Q
		if err := json.Unmarshal(body, &q); err != nil {
			return nil, err
		}
		a, err := h(ctx, from, q)
		if err != nil {
			return nil, err
		}
		return json.Marshal(a)
	}
}

// watch returns an error when the node at to does not answer any more, or nil when ctx ends.
func (n *Net) watch(ctx context.Context, to Target) error {
	for ctx.Err() == nil {
		ping, cancel := context.WithTimeout(ctx, pingTimeout)
		_, _, err := n.call(ping, to, callPing, nil)
		cancel()
		if err != nil {
			return fmt.Errorf("no answer any more: %v", err) // NotSent is of the ping
		}
		select {
		case <-ctx.Done():
		case <-time.After(pingEvery):
		}
	}
	return nil
}

func (n *Net) call(ctx context.Context, to Target, name string, body []byte) (
	out []byte, from Identity, err error) {
	connected := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			connected, from = true, i.Conn.(*conn).peer
		},
	})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, anyHost+"/"+name,
		bytes.NewReader(body))
	if err != nil {
		return nil, from, &notSent{err}
	}
	resp, err := n.client(to).RoundTrip(r)
	if err != nil && !connected && !NotSent(err) {
		err = &notSent{err}
	}
	if err != nil {
		return nil, from, err
	}
	defer resp.Body.Close()
	b, err := readAll(resp.Body, resp.ContentLength)
	e := &Error{}
	switch {
	case err != nil:
		return nil, from, err
	case resp.StatusCode == http.StatusOK:
		return b, from, nil
	case json.Unmarshal(b, e) != nil || e.Code == "":
		return nil, from, fmt.Errorf("unexpected response with status %d", resp.StatusCode)
	case resp.StatusCode == http.StatusNotFound:
		return nil, from, &notSent{e}
	}
	return nil, from, e
}

// serve answers one call, or the hello before. The context of a call ends with the connection:
// nobody waits for the answer any more.
func (n *Net) serve(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
	if !c.greeted {
		n.greet(w, r, c)
		return
	}
	_ = c.SetReadDeadline(allowed(r.ContentLength))
	body, err := readAll(r.Body, r.ContentLength)
	if err != nil {
		panic(http.ErrAbortHandler) // without the whole body nothing happens
	}
	_ = c.SetReadDeadline(time.Time{})
	name := strings.TrimPrefix(r.URL.Path, "/")
	n.mu.Lock()
	h, known := n.handlers[name]
	n.mu.Unlock()
	var out []byte
	status := http.StatusOK
	if !known || h.ctx.Err() != nil || r.Method != http.MethodPost {
		status = http.StatusNotFound
		err = &Error{"unknown_call", fmt.Sprintf("no handler for %.100q", name)}
	} else if out, err = h.Handler(r.Context(), c.peer, body); err != nil {
		status = http.StatusInternalServerError
	} else if len(out) > maxCall {
		status, err = http.StatusInternalServerError, tooLarge(int64(len(out)))
	}
	if err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			e = &Error{Code: "internal", Detail: err.Error()}
		}
		out, _ = json.Marshal(e) // strings
	}
	_ = c.SetWriteDeadline(allowed(int64(len(out))))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	w.WriteHeader(status)
	_, _ = w.Write(out) // the caller sees an error
}

func tooLarge(size int64) *Error {
	return &Error{Code: "too_large", Detail: fmt.Sprintf("%d bytes, more than %d", size, maxCall)}
}

// readAll reads size bytes. Memory grows with what has arrived, not with what was announced.
func readAll(r io.Reader, size int64) ([]byte, error) {
	if size < 0 || size > maxCall {
		return nil, tooLarge(size)
	}
	b := bytes.NewBuffer(make([]byte, 0, min(size, 1<<20)+bytes.MinRead))
	_, err := io.CopyN(b, r, size)
	return b.Bytes(), err
}
