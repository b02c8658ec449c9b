package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Limits of a shared request: the server refuses more messages, and more bytes than
// fit into one entry of the log gain nothing.
const (
	maxItems = 1000
	maxBytes = 1 << 20
)

// worthAnother is how many items must wait for a second request at the same time,
// and slowAfter how long a request may take before the next one no longer waits for
// it: it may be at a node that hangs.
const (
	worthAnother = 256
	slowAfter    = 250 * time.Millisecond
)

// gatherTurns is how often a sender yields after an answer, so that callers that
// were just answered can add their next item to the next request.
const gatherTurns = 8

// laneKey names a lane by its queue and kind of request.
type laneKey struct {
	queue string
	verb  Verb
}

// laneOf returns the client's lane of a key, made by create if there is none.
func laneOf[L any](c *Client, key laneKey, create func() *L) *L {
	v, ok := c.lanes.Load(key)
	if !ok {
		v, _ = c.lanes.LoadOrStore(key, create())
	}
	return v.(*L)
}

// lane gathers items that many goroutines hand in one by one, such as messages for
// one queue, into shared requests, and hands each its own answer.
//
// An item leaves at once if no request is in flight. Otherwise it waits for the answer
// to that request, or until worthAnother items or maxBytes wait. The items of a request
// have the order in which they came; requests in flight at once have none.
type lane[I, O any] struct {
	c    *Client
	send func(ctx context.Context, items []I) ([]O, error) // one request and its repeats
	list string                                            // the name of its items, in problems

	mu      sync.Mutex
	waiting []*ticket[I, O]
	bytes   int // of waiting
	senders int // goroutines that send, but for those that are slow
}

// ticket is one item and its answer.
type ticket[I, O any] struct {
	item I
	size int
	then func(O, error) // takes the answer, and must be quick; nil: out and err do

	out  O
	err  error
	done chan struct{} // closed once out and err are set
}

func (t *ticket[I, O]) answer(out O, err error) {
	if t.then != nil {
		t.then(out, err)
		return
	}
	t.out, t.err = out, err
	close(t.done)
}

// do hands in one item and waits for its answer, or for the end of ctx. If ctx ends
// after the item was sent, the error is also ErrOutcomeUnknown.
func (l *lane[I, O]) do(ctx context.Context, item I, size int) (none O, err error) {
	if err := ctx.Err(); err != nil {
		return none, err
	}
	t := &ticket[I, O]{item: item, size: size, done: make(chan struct{})}
	l.add(t)
	select {
	case <-t.done:
		return t.out, t.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, t); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.bytes -= t.size
		return none, ctx.Err()
	}
	return none, unknown(ctx.Err())
}

// add hands in an item.
func (l *lane[I, O]) add(t *ticket[I, O]) {
	l.mu.Lock()
	l.waiting = append(l.waiting, t)
	l.bytes += t.size
	l.mu.Unlock()
	l.start()
}

// start starts a sender if what waits is worth it. A closed client answers all that wait.
func (l *lane[I, O]) start() {
	var refused []*ticket[I, O]
	l.mu.Lock()
	switch {
	case !l.due(l.senders + 1):
	case l.c.start(l.run):
		l.senders++
	default:
		refused, l.waiting, l.bytes = l.waiting, nil, 0
	}
	l.mu.Unlock()
	fail(refused, ErrClosed)
}

// due reports whether the n-th sender has something to send. l.mu is held.
func (l *lane[I, O]) due(n int) bool {
	many := len(l.waiting) >= worthAnother || l.bytes >= maxBytes
	return len(l.waiting) > 0 && (n == 1 || n == 2 && many)
}

// run sends requests while there is something to send.
func (l *lane[I, O]) run() {
	for {
		tickets := l.take()
		if tickets == nil {
			return
		}
		l.start() // what is left may be worth another sender
		slow := time.AfterFunc(slowAfter, func() {
			l.mu.Lock()
			l.senders--
			l.mu.Unlock()
			l.start()
		})
		_ = l.ask(tickets, 0)
		if !slow.Stop() {
			return // another sender has its place
		}
		for range gatherTurns {
			runtime.Gosched()
		}
	}
}

// take returns the items of the next request; if there are none the sender ends.
func (l *lane[I, O]) take() []*ticket[I, O] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.due(l.senders) {
		l.senders--
		return nil
	}
	n, size := 0, 0
	for n < min(len(l.waiting), maxItems) && (n == 0 || size+l.waiting[n].size <= maxBytes) {
		size += l.waiting[n].size
		n++
	}
	taken := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.bytes -= size
	return taken
}

// maxNamed is how many items that the server names as bad are taken out of a request
// one after the other, before it is halved.
const maxNamed = 4

// ask sends items and hands out the answers. A request that is refused because of
// one item is taken apart, so that each item gets its own answer; named counts the
// items taken out so far. If the queue has no room left it returns that error.
func (l *lane[I, O]) ask(tickets []*ticket[I, O], named int) (full error) {
	n := len(tickets)
	if n == 0 {
		return nil
	}
	items := make([]I, n)
	for i, t := range tickets {
		items[i] = t.item
	}
	out, err := l.send(l.c.ctx, items)
	out, err = answered(out, n, l.list, err)
	if err == nil {
		for i, t := range tickets {
			t.answer(out[i], nil)
		}
		return nil
	}
	var e *Error
	refused := errors.As(err, &e)
	switch {
	case l.c.ctx.Err() != nil:
		fail(tickets, fmt.Errorf("%w: %w", ErrClosed, err))
	case errors.Is(err, ErrOutcomeUnknown) || refused && !aboutOne(e) ||
		!refused && !errors.As(err, new(*encodeError)):
		fail(tickets, err)
	case n == 1:
		if refused {
			err = alone(e, l.list)
		}
		fail(tickets, err)
		if errors.Is(err, ErrQueueFull) {
			return err
		}
	case refused && e.Problem.Index != nil && *e.Problem.Index >= 0 && *e.Problem.Index < n &&
		named < maxNamed:
		at := *e.Problem.Index
		fail(tickets[at:at+1], alone(e, l.list))
		return l.ask(append(tickets[:at:at], tickets[at+1:]...), named+1)
	default:
		if full := l.ask(tickets[:n/2], named); full != nil {
			fail(tickets[n/2:], full)
			return full
		}
		return l.ask(tickets[n/2:], named)
	}
	return nil
}

func fail[I, O any](tickets []*ticket[I, O], err error) {
	for _, t := range tickets {
		var none O
		t.answer(none, err)
	}
}

// aboutOne reports whether a refusal may be due to one item, or to the size, so that
// other items would have been accepted.
func aboutOne(e *Error) bool {
	switch e.Problem.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return true
	}
	return e.Problem.Index != nil || errors.Is(e, ErrQueueFull)
}

// alone returns a problem as a request with only this item would have got it.
func alone(e *Error, list string) error {
	if e.Problem.Index == nil {
		return e
	}
	out, zero := *e, 0
	out.Problem.Detail = strings.ReplaceAll(out.Problem.Detail,
		fmt.Sprintf("%s[%d]", list, *e.Problem.Index), list+"[0]")
	out.Problem.Index = &zero
	return &out
}
