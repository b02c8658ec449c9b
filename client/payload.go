package client

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"

	"github.com/qlogd/qlogd/api/wire"
)

// payload is a request's body, the same in every try. Its memory is used again
// where net/http has read all that it opened: it may still do so after it has given
// an answer. A nil payload is no body.
type payload struct {
	b      []byte
	packed bool // msgpack
	// What the tries have done: bodies opened, connections got, requests written.
	opened, conns, wrote atomic.Int32
}

var payloads = sync.Pool{New: func() any { return new(payload) }}

// maxPooled bounds the memory that is kept for bodies to come.
const maxPooled = 4 << 20

// newPayload writes a call's body down.
func newPayload(q *call, packed bool) (*payload, error) {
	if q.body == nil {
		return nil, nil
	}
	p := payloads.Get().(*payload)
	p.packed = packed
	p.opened.Store(0)
	p.conns.Store(0)
	p.wrote.Store(0)
	var err error
	if packed {
		p.b, err = wire.AppendMsgpack(p.b[:0], q.body)
	} else {
		p.b, err = wire.Marshal(q.body)
	}
	if err != nil {
		p.b = nil
		p.release()
		return nil, &encodeError{q.method + " " + q.path, err}
	}
	return p, nil
}

// release ends the use of a payload by its call.
func (p *payload) release() {
	if p != nil && p.read() && cap(p.b) <= maxPooled {
		payloads.Put(p)
	}
}

// read reports whether nobody reads what was opened any more. Where there were
// more connections than bodies, a request without one may have been written in
// place of one with: a redirect's, or one that the transport makes by the way.
func (p *payload) read() bool {
	opened := p.opened.Load()
	return p.wrote.Load() == opened && p.conns.Load() == opened
}

// connected notes that a request has a connection.
func (p *payload) connected() {
	if p != nil {
		p.conns.Add(1)
	}
}

// written notes that a request was written with all of its body.
func (p *payload) written() {
	if p != nil {
		p.wrote.Add(1)
	}
}

// open returns one more reader, while the call is in hand. It is of a type for which
// net/http does not send the head of the request alone before the body.
func (p *payload) open() (io.ReadCloser, error) {
	p.opened.Add(1)
	return io.NopCloser(bytes.NewReader(p.b)), nil
}
