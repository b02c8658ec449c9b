package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// Message is a message leased by a Worker.
type Message struct {
	LeasedMessage
}

// Bytes returns the payload: JSON, or the bytes that were produced. It must not be changed.
func (m *Message) Bytes() []byte {
	if m.PayloadBytes != nil {
		return m.PayloadBytes
	}
	return m.Payload
}

// Decode reads a JSON payload into v.
func (m *Message) Decode(v any) error {
	if err := wire.Unmarshal(m.Bytes(), v); err != nil {
		return fmt.Errorf("payload of %s: %w", m.ID, err)
	}
	return nil
}

// Handler processes one message. nil acks it; an error returns it for another try by
// the queue's policy, with the error's text, unless it is a RetryAfter or DeadLetter. A
// panic is an error with the panic's text.
//
// The context ends when the lease is lost (its cause is ErrLeaseLost): then another
// worker gets the message, and the handler's result changes nothing. It also ends when
// the worker's grace is over (ErrStopping): then the message is released without
// counting the attempt, unless the handler returns nil.
type Handler func(ctx context.Context, m *Message) error

// Middleware wraps a Handler, such as to log, to measure or to trace.
type Middleware func(Handler) Handler

// Typed is a Handler of messages whose payload is the JSON of a T. Any other payload
// is dead-lettered: another try would not help.
func Typed[T any](h func(ctx context.Context, v T, m *Message) error) Handler {
	return func(ctx context.Context, m *Message) error {
		var v T
		if err := m.Decode(&v); err != nil {
			return DeadLetter(err)
		}
		return h(ctx, v, m)
	}
}

// byKind returns a Handler that calls the one of a message's kind, or other.
func byKind(handlers map[string]Handler, other Handler) Handler {
	return func(ctx context.Context, m *Message) error {
		if h, ok := handlers[m.Kind]; ok {
			return h(ctx, m)
		}
		return other(ctx, m)
	}
}

// RetryAfter is a handler's error that returns the message for another try after d
// instead of the policy's backoff. Its text is that of the errors, if any.
func RetryAfter(d time.Duration, errs ...error) error {
	return &retryError{max(d, 0), errors.Join(errs...)}
}

type retryError struct {
	after time.Duration
	err   error
}

func (e *retryError) Error() string {
	if e.err == nil {
		return "retry after " + e.after.String()
	}
	return e.err.Error()
}
func (e *retryError) Unwrap() error { return e.err }

// Snooze is a handler's error that returns the message for after d, as if it had not been leased:
// it is not this message's time, and no attempt has failed.
func Snooze(d time.Duration) error { return snooze(max(d, 0)) }

type snooze time.Duration

func (e snooze) Error() string { return "snoozed for " + time.Duration(e).String() }

// DeadLetter is a handler's error that ends the message without another try. It moves
// to the queue's dead-letter queue with the error's text; without one it is discarded.
func DeadLetter(err error) error { return &deadError{err} }

type deadError struct{ err error }

func (e *deadError) Error() string {
	if e.err == nil {
		return "given up"
	}
	return e.err.Error()
}
func (e *deadError) Unwrap() error { return e.err }

// ErrStopping is the cause of a handler's context that ends because the worker's grace is over.
var ErrStopping = errors.New("the worker stops")

// panicError is a handler's panic. Its stack stays here.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprint("panic: ", e.value) }

// maxError is how many bytes of an error the server keeps.
const maxError = 64 << 10

// settlement returns how a lease is settled after its handler returned err. An error
// whose Error method panics, such as a nil pointer, is an error all the same.
func settlement(lease string, err error, stopping bool) (s Settlement) {
	s = Settlement{LeaseID: lease, Do: DoAck}
	if err == nil {
		return s
	}
	defer func() {
		if v := recover(); v != nil {
			text := fmt.Sprintf("%T, whose text is a panic: %v", err, v)
			s = Settlement{LeaseID: lease, Do: DoRetry, Error: strings.ToValidUTF8(text, "")}
		}
	}()
	if stopping {
		s.Do = DoRelease
		return s
	}
	if e, ok := errors.AsType[snooze](err); ok {
		s.Do, s.Delay = DoRelease, new(time.Duration(e))
		return s
	}
	s.Do = DoRetry
	if retry, ok := errors.AsType[*retryError](err); ok {
		s.Delay = &retry.after
	}
	if _, ok := errors.AsType[*deadError](err); ok {
		s.Do, s.Delay = DoDeadLetter, nil
	}
	s.Error = err.Error()
	s.Error = strings.ToValidUTF8(s.Error[:min(len(s.Error), maxError)], "")
	return s
}
