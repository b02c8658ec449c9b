package peer

import "errors"

// NotSent tells that a call surely did not reach a handler, so that it can be
// made again, here or elsewhere, without being done twice: there was no
// connection, the other side refused it, or has no handler of that name. False
// means that it is not known, as the request was written, or nil.
func NotSent(err error) bool {
	var n *notSent
	return errors.As(err, &n)
}

// notSent marks an error. It is told by its type and not by an Error's code:
// a handler may pass on the refusal of a third node.
type notSent struct{ err error }

func (n *notSent) Error() string { return n.err.Error() }
func (n *notSent) Unwrap() error { return n.err }

// streamError has the shape of net/http's own error for a stream, which turns
// itself into any struct of this shape (its method As).
type streamError struct {
	StreamID uint32
	Code     streamCode
	Cause    error
}

func (e streamError) Error() string { return "stream reset" }

type streamCode uint32

const refusedStream streamCode = 7 // RFC 9113, section 7

// goneAway is what net/http says to a request that the other side's GOAWAY
// does not cover. It has no type; should the words change, TestTurnedBack
// tells, and until then such calls count as possibly sent.
const goneAway = "http2: Transport received Server's graceful shutdown GOAWAY"

// unprocessed tells that the other side has said that it did not look at a
// request, though it may have got all of it (RFC 9113, section 8.7).
func unprocessed(err error) bool {
	var s streamError
	if errors.As(err, &s) {
		return s.Code == refusedStream
	}
	return err.Error() == goneAway
}
