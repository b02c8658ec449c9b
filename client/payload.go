package client

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/qlogd/qlogd/api/wire"
)

// payload is a request's body, the same in every try. Its memory is used again
// once nobody reads it any more: net/http may still do so after it has given an
// answer. A nil payload is no body.
type payload struct {
	b      []byte
	packed bool         // msgpack
	users  atomic.Int32 // the call, and each reader that is not closed
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
	p.users.Store(1)
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

func (p *payload) release() {
	if p != nil && p.users.Add(-1) == 0 && cap(p.b) <= maxPooled {
		payloads.Put(p)
	}
}

// open returns one more reader, while the call is in hand.
func (p *payload) open() (io.ReadCloser, error) {
	p.users.Add(1)
	r := &payloadReader{p: p}
	r.b.Reset(p.b)
	return r, nil
}

// payloadReader reads a payload until it is closed: HTTP/2 closes a body while it
// is being read.
type payloadReader struct {
	mu sync.Mutex
	b  bytes.Reader
	p  *payload // nil once it is closed
}

func (r *payloadReader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.p == nil {
		return 0, http.ErrBodyReadAfterClose
	}
	return r.b.Read(b)
}

func (r *payloadReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.p != nil {
		r.b.Reset(nil)
		r.p.release()
		r.p = nil
	}
	return nil
}
