package client

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/qlogd/qlogd/api/wire"
)

// Error is a problem that the server answered with. Its code is stable:
//
//	if errors.Is(err, client.ErrLeaseLost) { … }
//	var e *client.Error
//	if errors.As(err, &e) { log.Print(e.Problem.Field) }
type Error struct {
	Problem   Problem
	RequestID string
}

func (e *Error) Error() string {
	s := e.Problem.Detail
	if s == "" {
		s = e.Problem.Title
	}
	return fmt.Sprintf("%s (%d %s)", s, e.Problem.Status, e.Problem.Code)
}

// Is matches the code's sentinel, and ErrOutcomeUnknown where the server says
// that the write may still be committed.
func (e *Error) Is(target error) bool {
	if target == ErrOutcomeUnknown {
		return e.Problem.Outcome == wire.Unknown
	}
	c, ok := target.(code)
	return ok && string(c) == e.Problem.Code
}

// code is a sentinel for one of the codes of the API.
type code string

func (c code) Error() string { return string(c) }

// The codes that programs distinguish; others are in Error.Problem.Code.
const (
	ErrInvalidArgument     = code("invalid_argument")
	ErrSchemaMismatch      = code("schema_mismatch")
	ErrUnauthenticated     = code("unauthenticated")
	ErrForbidden           = code("forbidden")
	ErrQueueNotFound       = code("queue_not_found")
	ErrMessageNotFound     = code("message_not_found")
	ErrTaskNotFound        = code("task_not_found")
	ErrNodeNotFound        = code("node_not_found")
	ErrNodeUnreachable     = code("node_unreachable")
	ErrLeaseLost           = code("lease_lost")
	ErrWrongQueue          = code("wrong_queue")
	ErrQueueInUse          = code("queue_in_use")
	ErrConflict            = code("conflict")
	ErrHistoryExpired      = code("history_expired")
	ErrPayloadTooLarge     = code("payload_too_large")
	ErrIdempotencyKey      = code("idempotency_key_reused")
	ErrQueueFull           = code("queue_full")
	ErrOverloaded          = code("overloaded")
	ErrNoLeader            = code("no_leader")
	ErrShuttingDown        = code("shutting_down")
	ErrInsufficientStorage = code("insufficient_storage")
)

// ErrOutcomeUnknown marks a write that may or may not have been committed. Repeating it
// with the same WithIdempotencyKey is safe.
var ErrOutcomeUnknown = errors.New("outcome unknown")

// ErrClosed is what calls that share requests get once the client is closed.
var ErrClosed = errors.New("the client is closed")

// unknown adds to an error that the write may have been committed.
func unknown(err error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err) }

// encodeError is a request that can't be encoded, such as a payload that is not
// JSON: it has not been sent.
type encodeError struct{ error }

func (e *encodeError) Unwrap() error { return e.error }

// wrongAnswer is an answer with success that can't be understood: the outcome is unknown.
func wrongAnswer(format string, args ...any) *Error {
	return &Error{Problem: Problem{
		Status: http.StatusOK, Code: "bad_answer", Outcome: wire.Unknown,
		Detail: "the server's answer is not understood: " + fmt.Sprintf(format, args...),
	}}
}

// answered returns the answers to n items; another number of them is a wrong answer.
func answered[T any](answers []T, n int, list string, err error) ([]T, error) {
	if err == nil && len(answers) != n {
		err = wrongAnswer("%d answers to %d of %s", len(answers), n, list)
	}
	return answers, err
}
