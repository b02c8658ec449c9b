package client

import (
	"bytes"
	"io"

	"github.com/qlogd/qlogd/api/wire"
)

// payload is a request's body, the same in every try. A nil payload is no body.
type payload []byte

// newPayload encodes a call's body.
func newPayload(q *call) (payload, error) {
	if q.body == nil {
		return nil, nil
	}
	b, err := wire.Marshal(q.body)
	if err != nil {
		return nil, &encodeError{q.method + " " + q.path, err}
	}
	return b, nil
}

// open returns a new reader. It is of a type for which net/http does not send the
// head of the request alone before the body.
func (p payload) open() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(p)), nil
}
