package peer

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

var (
	errRetired    = errors.New("the connection takes no more calls")
	errTurnedBack = errors.New("the other side did not look at it")
	errBrokenOff  = errors.New("the handler over there broke off")
)

// caller is the end of a wire that calls.
type caller struct {
	*wire
	maxCall int64

	// guarded by wire.mu
	waiting []*call          // no byte of them is in a batch yet
	open    map[uint64]*call // begun, and not settled
	last    uint64
	retired bool // no new ones
}

// call is one that is under way. Its parcel, settled and result are guarded by
// wire.mu; the result may be read when done is closed.
type call struct {
	parcel
	reply   arriving // of who reads the wire
	failed  bool     // reply is an error's
	code    errorCode
	settled bool
	answer  []byte
	err     error
	done    chan struct{}
}

// newCaller begins to speak frames on a connection whose other end offers it.
func newCaller(n *Net, c *conn) (*caller, error) {
	w := &caller{wire: newWire(c), maxCall: n.o.MaxCall, open: map[uint64]*call{}}
	w.ready = append(w.ready, framesPreface...)
	w.take = w.takeLocked
	if !n.spawn(w.listenTo) {
		w.end(errRetired)
		return nil, errRetired
	}
	return w, nil
}

// takeLocked adds calls to a batch.
func (w *caller) takeLocked(b []byte) []byte {
	k := 0
	for ; k < len(w.waiting) && len(w.open) < maxStreams && len(b) < maxBatch; k++ {
		c := w.waiting[k]
		w.last++
		c.id = w.last
		w.open[c.id] = c
		var last bool
		if b, last = c.append(b); !last {
			w.long = append(w.long, &c.parcel)
		}
	}
	w.waiting = slices.Delete(w.waiting, 0, k)
	return b
}

// call makes one call, once. It tells by NotSent whether a handler may have run.
// When it has failed, the body may be read still.
func (w *caller) call(ctx context.Context, name string, body []byte) ([]byte, error) {
	if int64(len(body)) > w.maxCall {
		return nil, tooLargeHere(len(body), w.maxCall)
	}
	if len(name) > maxName {
		return nil, &notSent{&Error{Code: "unknown_call", Detail: fmt.Sprintf("a name of %d bytes", len(name))}}
	}
	c := &call{parcel: parcel{kind: frameCall, name: name, body: body}, done: make(chan struct{})}
	w.mu.Lock()
	if w.retired || w.err != nil {
		defer w.mu.Unlock()
		if w.err != nil {
			return nil, &notSent{w.err}
		}
		return nil, &notSent{errRetired}
	}
	w.waiting = append(w.waiting, c)
	w.kickLocked()
	w.mu.Unlock()
	select {
	case <-c.done:
		return c.answer, c.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !c.settled {
		w.settleLocked(c, nil, w.unknownLocked(c, ctx.Err()))
		if c.id != 0 {
			w.ready = head{kind: frameCancel, id: c.id}.append(w.ready)
			w.kickLocked()
		}
	}
	return c.answer, c.err
}

// unknownLocked marks err unless all of a call is, or may be, over there.
func (w *caller) unknownLocked(c *call, err error) error {
	if !c.more || c.sent < len(c.body) {
		return &notSent{err}
	}
	return err
}

// settleLocked ends a call at this side. Nothing more of it is sent.
func (w *caller) settleLocked(c *call, answer []byte, err error) {
	if c.settled {
		return
	}
	c.settled, c.answer, c.err = true, answer, err
	if c.id == 0 {
		if i := slices.Index(w.waiting, c); i >= 0 {
			w.waiting = slices.Delete(w.waiting, i, i+1)
		}
	} else {
		delete(w.open, c.id)
		if i := slices.Index(w.long, &c.parcel); i >= 0 {
			w.long = slices.Delete(w.long, i, i+1)
		}
	}
	close(c.done)
	if len(w.waiting) > 0 {
		w.kickLocked() // there may be room now
	}
	w.leaveLocked()
}

// leaveLocked closes a retired connection on which nothing is under way.
func (w *caller) leaveLocked() {
	if w.retired && len(w.open)+len(w.waiting) == 0 {
		w.endLocked(errRetired)
	}
}

// retire lets what is under way finish, and takes no more.
func (w *caller) retire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retired = true
	w.leaveLocked()
}

func (w *caller) usable() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.retired && w.err == nil
}

func (w *caller) close() { w.end(errRetired) }

// listenTo reads answers until the connection is over, and settles what is left.
func (w *caller) listenTo() {
	written := make(chan struct{})
	go func() { defer close(written); w.writer() }()
	err := w.answers()
	w.mu.Lock()
	w.endLocked(err)
	err = fmt.Errorf("the connection ended: %w", w.err)
	for _, c := range w.open {
		w.settleLocked(c, nil, w.unknownLocked(c, err))
	}
	for len(w.waiting) > 0 {
		w.settleLocked(w.waiting[0], nil, &notSent{err})
	}
	w.mu.Unlock()
	<-written
}

func (w *caller) answers() error {
	for {
		h, err := w.next()
		if err != nil {
			return err
		}
		switch h.kind {
		case frameAnswer, frameError, frameMore:
			err = w.answered(h)
		case frameBye:
			w.bye(h.id)
		default:
			err = fmt.Errorf("%w: frame of kind %d to who calls", errBroken, h.kind)
		}
		if err != nil {
			return err
		}
	}
}

// bye is the other side's: of what came after the call last it looks at nothing.
func (w *caller) bye(last uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retired = true
	for id, c := range w.open {
		if id > last {
			w.settleLocked(c, nil, &notSent{errTurnedBack})
		}
	}
	for len(w.waiting) > 0 {
		w.settleLocked(w.waiting[0], nil, &notSent{errTurnedBack})
	}
	w.leaveLocked()
}

// answered takes a frame of an answer or an error.
func (w *caller) answered(h head) error {
	w.mu.Lock()
	c := w.open[h.id]
	whole := c != nil && c.more && c.sent == len(c.body)
	w.mu.Unlock()
	size := h.size
	if h.kind != frameMore {
		total, err := w.r.Peek(4)
		if err != nil {
			return err
		}
		n := int64(binary.LittleEndian.Uint32(total))
		w.r.Discard(4)
		size -= 4
		if c == nil {
			return w.skip(size)
		}
		limit := w.maxCall
		if h.kind == frameError {
			limit = 2*limit + (64 << 10) // base64 swells
		} else if !whole {
			return fmt.Errorf("%w: an answer to a call that is not sent yet", errBroken)
		}
		if c.reply.body != nil {
			return fmt.Errorf("%w: a second answer", errBroken)
		}
		if n > limit {
			w.mu.Lock()
			w.settleLocked(c, nil, fmt.Errorf("an answer of more than %d bytes", w.maxCall))
			w.ready = head{kind: frameCancel, id: h.id}.append(w.ready)
			w.kickLocked()
			w.mu.Unlock()
			return w.skip(size)
		}
		c.reply.total, c.failed, c.code = int(n), h.kind == frameError, h.code
	} else if c == nil {
		return w.skip(size)
	} else if c.reply.body == nil {
		return fmt.Errorf("%w: more of what was not begun", errBroken)
	}
	if err := w.read(&c.reply, size); err != nil || !c.reply.whole() {
		return err
	}
	answer, err := c.reply.body, error(nil)
	if c.failed {
		answer, err = nil, failure(c.code, answer)
	}
	w.mu.Lock()
	w.settleLocked(c, answer, err)
	w.mu.Unlock()
	return nil
}

// failure is the error that an error frame carries.
func failure(code errorCode, b []byte) error {
	switch code {
	case turnedBack:
		return &notSent{errTurnedBack}
	case brokenOff:
		return errBrokenOff
	}
	e := &Error{}
	if err := json.Unmarshal(b, e); err != nil || e.Code == "" {
		return errors.New("an error that is none")
	}
	if code == unknownCall || code == tooLarge {
		return &notSent{e}
	}
	return e
}
