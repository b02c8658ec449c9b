package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
)

// server is the end of a wire that answers.
type server struct {
	*wire
	n   *Net
	ctx context.Context // ends with the connection

	// guarded by wire.mu
	calls map[uint64]*incoming // whose handlers have not returned
	last  uint64
	bye   bool // nothing after last is looked at
}

// incoming is a call on its way in, or whose handler runs.
type incoming struct {
	id     uint64
	name   string
	h      Handler
	body   arriving // of who reads the wire, until the handler runs
	ctx    context.Context
	cancel context.CancelFunc
	gone   bool // nobody waits for the answer; guarded by wire.mu
}

// serveFrames answers calls until the connection is over. Handlers may go on
// after it, with a context that has ended.
func (n *Net) serveFrames(c *conn) {
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	w := &server{wire: newWire(c), n: n, ctx: ctx, calls: map[uint64]*incoming{}}
	n.mu.Lock()
	c.server = w
	n.mu.Unlock()
	written := make(chan struct{})
	go func() { defer close(written); w.writer() }()
	err := w.requests()
	w.mu.Lock()
	w.endLocked(err)
	for _, in := range w.calls {
		if !in.body.whole() {
			w.dropLocked(in)
		}
	}
	w.mu.Unlock()
	if errors.Is(err, errBroken) {
		n.strangers.tell(n.logger, "a node broke the protocol of calls", "node", c.peer.Node, "from", c.host, "error", err)
	}
	<-written
}

func (w *server) requests() error {
	for {
		h, err := w.next()
		if err != nil {
			return err
		}
		switch h.kind {
		case frameCall:
			err = w.begin(h)
		case frameMore:
			w.mu.Lock()
			in := w.calls[h.id]
			skip := in == nil || in.gone
			w.mu.Unlock()
			if skip {
				err = w.skip(h.size)
			} else if in.body.whole() {
				err = fmt.Errorf("%w: more of a whole body", errBroken)
			} else {
				err = w.receive(in, h.size)
			}
		case frameCancel:
			w.cancel(h.id)
		default:
			err = fmt.Errorf("%w: frame of kind %d to who answers", errBroken, h.kind)
		}
		if err != nil {
			return err
		}
	}
}

// begin takes a call's first frame.
func (w *server) begin(h head) error {
	b, err := w.r.Peek(4 + h.name)
	if err != nil {
		return err
	}
	total, name := int64(binary.LittleEndian.Uint32(b)), b[4:]
	n := w.n
	n.mu.Lock()
	closed := n.closed
	do := n.handlers[string(name)]
	if !closed && do != nil {
		n.running.Add(1) // under mu, so that Close waits for it
	}
	n.mu.Unlock()
	in := &incoming{id: h.id, name: string(name), h: do}
	in.body.total = int(total)
	w.r.Discard(len(b))
	size := h.size - len(b)

	w.mu.Lock()
	refuse := func(code errorCode, e *Error) error {
		if !closed && do != nil {
			n.running.Done()
		}
		p := &parcel{kind: frameError, code: code, id: h.id}
		if e != nil {
			p.body = marshalError(e)
		}
		err := w.oweLocked(func(b []byte) []byte { b, _ = p.append(b); return b })
		w.mu.Unlock()
		if err != nil {
			return err
		}
		return w.skip(size)
	}
	if h.id <= w.last {
		if !closed && do != nil {
			n.running.Done()
		}
		w.mu.Unlock()
		return fmt.Errorf("%w: call %d after %d", errBroken, h.id, w.last)
	}
	if closed || w.bye || len(w.calls) >= maxStreams || w.owed+len(w.long) >= maxStreams {
		return refuse(turnedBack, nil)
	}
	w.last = h.id
	if do == nil {
		return refuse(unknownCall, &Error{Code: "unknown_call", Detail: fmt.Sprintf("nobody answers %q here", clip(in.name))})
	}
	if total > n.o.MaxCall {
		return refuse(tooLarge, &Error{Code: "too_large", Detail: fmt.Sprintf("%s: a body of more than %d bytes", clip(in.name), n.o.MaxCall)})
	}
	in.ctx, in.cancel = context.WithCancel(w.ctx)
	w.calls[h.id] = in
	w.mu.Unlock()
	return w.receive(in, size)
}

// receive reads some of a body, and calls the handler when that was all.
func (w *server) receive(in *incoming, size int) error {
	if err := w.read(&in.body, size); err != nil {
		return err
	}
	if in.body.whole() {
		go w.run(in)
	}
	return nil
}

// dropLocked forgets a call whose handler has not been called, or has returned.
func (w *server) dropLocked(in *incoming) {
	delete(w.calls, in.id)
	in.cancel()
	w.n.running.Done()
}

// cancel is the caller's: it does not wait any more.
func (w *server) cancel(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.calls[id]
	switch {
	case in == nil:
		// It may have been answered, and some of that not been written yet.
		w.long = slices.DeleteFunc(w.long, func(p *parcel) bool { return p.id == id })
	case !in.body.whole():
		w.dropLocked(in)
	default:
		in.gone = true
		in.cancel()
	}
}

// run calls the handler and answers.
func (w *server) run(in *incoming) {
	p := &parcel{kind: frameError, code: brokenOff, id: in.id}
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler {
			w.n.logger.Error("a call's handler panicked", "call", in.name, "node", w.c.peer.Node, "panic", v, "stack", string(debug.Stack()))
		}
		w.mu.Lock()
		if !in.gone && w.err == nil {
			w.sendLocked(p)
		}
		delete(w.calls, in.id)
		in.cancel()
		w.mu.Unlock()
		w.flush()
		w.n.running.Done()
	}()
	out, err := in.h(in.ctx, w.c.peer, in.body.body)
	if err == nil && int64(len(out)) > w.n.o.MaxCall {
		err = answerTooLarge(in.name, len(out), w.n.o.MaxCall)
	}
	if err != nil {
		p.body = marshalError(err)
		p.code = handlerError
		return
	}
	p.kind, p.code, p.body = frameAnswer, 0, out
}

// leave says that nothing more is looked at. What is returned is closed when all
// that is to be said was written, for now.
func (w *server) leave() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	silent := make(chan struct{})
	if w.bye || w.err != nil {
		close(silent)
		return silent
	}
	w.bye = true
	w.ready = head{kind: frameBye, id: w.last}.append(w.ready)
	w.silent = silent
	w.kickLocked()
	return silent
}
