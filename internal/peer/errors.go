package peer

import "errors"

// NotSent tells that a call surely did not reach a handler, so that it can be
// made again, here or elsewhere, without being done twice. False means that it
// is not known: the request, or a part of it that may have been all, was
// written.
func NotSent(err error) bool {
	var n *notSent
	return errors.As(err, &n)
}

// notSent marks an error. It is told by its type and not by an Error's code:
// a handler may pass on the refusal of a third node.
type notSent struct{ err error }

func (n *notSent) Error() string { return n.err.Error() }
func (n *notSent) Unwrap() error { return n.err }
