package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"
)

// What a shared request holds at most: more messages than the server takes are
// refused, and more bytes than go into one entry of the log gain nothing.
const (
	maxItems = 1000
	maxBytes = 1 << 20
)

// maxRequests is how many requests of one lane are under way at once. In a crowd
// there is another one only if it is worthwhile, by its number of items: a request
// costs three nodes as much CPU as some fifty messages. Where one node is asked,
// and for nothing else, it has the time: while it is at one request's disk it
// takes another.
const (
	maxRequests     = 3
	worthwhile      = 256
	worthwhileAlone = 32
)

// lane gathers what many goroutines ask for one by one, such as to enqueue a
// message into one queue, into shared requests, and hands each its own answer.
//
// A request leaves as soon as nothing is under way. While something is, the next
// gather: another one leaves once they are their share of all that wait and are
// under way, and at the latest when the last comes back. So a lone call waits for
// nothing, and many calls fill requests by themselves, without a delay. Of a few
// each leaves at once if it comes by itself; where they come one behind the other's
// answer, as often as they are answered, they meet, and then share each request.
// A request that takes long is a stray: the others do as if there were none.
//
// Requests under way at once are in no order. Within one, the items have the
// order in which they came.
type lane[I, O any] struct {
	c    *Client
	send func(ctx context.Context, items []I) ([]O, error) // one request, repeated as the rules say
	list string                                            // the name of its list of items, in problems

	tickets sync.Pool // of *ticket[I, O]

	mu      sync.Mutex
	waiting []*ticket[I, O]
	bytes   int // of waiting
	away    int // items under way
	senders int // goroutines, each with one request
	gathers int // of them, those that let items gather
	crowd   int // how many items there were at once, of late
	// meet gets a value when the sender that waits there for the others need not
	// do so any more; nil: none waits.
	meet   chan struct{}
	joined bool // somebody has come meanwhile behind his answer
	rush   int  // how many times none is to wait, since one did in vain
	vain   int  // how many times that was, the last time

	requests int // under way
	strays   int // of them, those that nobody waits for any more
	strayed  int // how often there were new ones
	late     *time.Timer
}

// ticket is one item and, in the end, its answer.
type ticket[I, O any] struct {
	item I
	size int
	out  O
	err  error

	// Where then is nil, done gets a value when the answer is there; its
	// capacity of one lets nobody wait for a caller that has left.
	done chan struct{}
	then answerer[O]

	batch *batch // nil until it is under way; guarded by lane.mu
	left  bool   // nobody waits any more; guarded by lane.mu
}

// answerer gets an answer that nobody waits for. It must be quick.
type answerer[O any] interface{ answered(out O, err error) }

// batch is a request's callers: when the last one that has no answer has left, it
// ends.
type batch struct {
	callers int // guarded by lane.mu
	cancel  context.CancelFunc
	strayed int // lane.strayed when it left
}

// without counts n callers less. lane.mu is held.
func (b *batch) without(n int) {
	if b.callers -= n; b.callers == 0 {
		b.cancel()
	}
}

// do hands in one item and waits for its answer, or for the end of ctx. If that
// comes while the item is under way, what becomes of it is unknown.
func (l *lane[I, O]) do(ctx context.Context, item I, size int) (out O, err error) {
	if err := ctx.Err(); err != nil {
		return out, err
	}
	t, _ := l.tickets.Get().(*ticket[I, O])
	if t == nil {
		t = &ticket[I, O]{done: make(chan struct{}, 1)}
	}
	t.item, t.size = item, size
	if err := l.add(t); err != nil {
		return out, err
	}
	if end := ctx.Done(); end == nil {
		<-t.done
	} else {
		select {
		case <-t.done:
		case <-end:
			if err := l.leave(t, ctx); err != nil {
				return out, err
			}
		}
	}
	out, err = t.out, t.err
	*t = ticket[I, O]{done: t.done}
	l.tickets.Put(t)
	return out, err
}

// add hands in an item.
func (l *lane[I, O]) add(t *ticket[I, O]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, t)
	l.bytes += t.size
	if l.meet != nil {
		l.joined = l.joined || l.gathers > 0
		if l.gathers == 0 || !l.few() || l.bytes >= maxBytes {
			l.met()
		}
	} else if l.counted() == 0 || l.worthAnother() {
		if !l.start() {
			l.waiting, l.bytes = l.waiting[:len(l.waiting)-1], l.bytes-t.size
			return ErrClosed
		}
	}
	return nil
}

// start starts a sender, unless the client is closed or there are very many.
func (l *lane[I, O]) start() bool {
	if l.senders >= maxRequests+maxStrays {
		return true // one of them comes back
	}
	if !l.c.start(l.run) {
		return false
	}
	l.sends(1)
	return true
}

// sends counts senders. l.mu is held.
func (l *lane[I, O]) sends(n int) {
	l.senders += n
	l.c.sharing.Add(int32(n))
	if l.senders == 0 && l.late != nil {
		l.late.Stop()
	}
}

// counted is how many senders there are but for strays.
func (l *lane[I, O]) counted() int { return l.senders - l.strays }

// leave takes back an item whose caller does not wait any more. It returns nil
// where the answer has come after all.
func (l *lane[I, O]) leave(t *ticket[I, O], ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-t.done:
		return nil
	default:
	}
	if b := t.batch; b != nil {
		t.left = true
		b.without(1)
		return &unknownError{ctx.Err()}
	}
	for i, w := range l.waiting {
		if w == t {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			l.bytes -= t.size
		}
	}
	return ctx.Err()
}

// all is how many items there are at once.
func (l *lane[I, O]) all() int { return max(l.crowd, len(l.waiting)+l.away) }

// few tells whether they are so few that each may have a request.
func (l *lane[I, O]) few() bool { return l.all() <= maxRequests }

// share is how many items a request takes: all that there are make maxRequests
// of them, or fewer that are worthwhile. A few go together if they wait together.
func (l *lane[I, O]) share() int {
	if l.few() {
		return maxItems
	}
	least := worthwhile
	if len(l.c.endpoints) == 1 && int(l.c.sharing.Load()) == l.senders {
		least = worthwhileAlone
	}
	return min(max((l.all()+maxRequests-1)/maxRequests, least), maxItems)
}

// worth tells whether what waits is worth another request beside those under
// way.
func (l *lane[I, O]) worth() bool {
	n := len(l.waiting)
	return n > 0 && (l.gathers == 0 && l.few() || n >= l.share() || l.bytes >= maxBytes)
}

// worthAnother tells whether it is, and another one may be.
func (l *lane[I, O]) worthAnother() bool { return l.counted() < maxRequests && l.worth() }

// run sends requests while there is something to send.
func (l *lane[I, O]) run() {
	var tickets []*ticket[I, O]
	var items []I
	for {
		ctx, cancel := context.WithCancel(l.c.ctx)
		b := &batch{cancel: cancel}
		if tickets = l.take(tickets[:0], b); len(tickets) == 0 {
			cancel()
			return
		}
		began, n := time.Now(), len(tickets)
		items = l.ask(ctx, tickets, items)
		cancel()
		clear(tickets)
		clear(items)
		answered := time.Now()
		l.gather(n, answered)
		if !l.awaits(b, answered.Sub(began)) {
			return
		}
	}
}

// gather lets those who just got their answers, n of them, hand in what they have
// next: what comes together costs the servers one entry. It yields until all have,
// or for a few turns nobody did, and at most for gatherFor: in a busy program a
// turn can be long.
func (l *lane[I, O]) gather(n int, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away -= n
	l.gathers++
	defer func() { l.gathers-- }()
	before := len(l.waiting)
	for all, idle := before+n, 0; idle < gatherTurns && time.Since(began) < gatherFor; {
		l.mu.Unlock()
		runtime.Gosched()
		l.mu.Lock()
		switch now := len(l.waiting); {
		case now >= all:
			return
		case now == before:
			idle++
		default:
			before, idle = now, 0
		}
	}
}

// awaits has what a few callers handed in behind their answers, of b, wait for
// those whose answers are under way, so that they go on together: no longer than the
// request took, and rarely where nobody came. It reports false where another sender
// waits: that one goes on.
func (l *lane[I, O]) awaits(b *batch, took time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests--
	if b.strayed < l.strayed {
		l.strays--
	}
	if l.meet != nil {
		l.ends()
		return false
	}
	if len(l.waiting) == 0 || !l.few() || l.counted() == 1 {
		return true
	}
	if l.rush > 0 {
		l.rush--
		return true
	}
	meet := make(chan struct{}, 1)
	l.meet, l.joined = meet, false
	l.mu.Unlock()
	patience := time.NewTimer(min(took, awaitsFor))
	inTime := true
	select {
	case <-meet:
	case <-patience.C:
		inTime = false
	}
	patience.Stop()
	l.mu.Lock()
	l.meet = nil
	if !inTime {
		l.stray()
	}
	if l.joined {
		l.vain = 0
	} else {
		l.vain = min(max(2*l.vain, minRush), maxRush)
		l.rush = l.vain
	}
	return true
}

const (
	awaitsFor        = 20 * time.Millisecond // for a request may be long because it was repeated
	minRush, maxRush = 16, 1024
)

// strayAfter is how long a request may be under way until the others do not wait
// for it any more; maxStrays bounds how many may be so.
const (
	strayAfter = 250 * time.Millisecond
	maxStrays  = maxRequests
)

// stray has nobody wait any more for what is under way. l.mu is held.
func (l *lane[I, O]) stray() {
	l.strayed++
	l.strays = l.requests
}

// overdue is called where no request has left for strayAfter.
func (l *lane[I, O]) overdue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requests == l.strays {
		return
	}
	l.stray()
	if l.meet != nil {
		l.met()
	} else if len(l.waiting) > 0 {
		l.start() // a closed client answers those who wait
	}
}

// ends counts a sender less. l.mu is held.
func (l *lane[I, O]) ends() {
	l.sends(-1)
	if l.meet != nil && l.counted() == 1 {
		l.met()
	}
}

// met ends a sender's wait for the others. l.mu is held.
func (l *lane[I, O]) met() {
	select {
	case l.meet <- struct{}{}:
	default:
	}
}

const (
	gatherTurns = 8
	gatherFor   = 100 * time.Microsecond
)

// take returns the items of the next request; where there is none the sender
// ends.
func (l *lane[I, O]) take(tickets []*ticket[I, O], b *batch) []*ticket[I, O] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 || l.meet != nil || l.counted() > 1 && !l.worth() {
		l.ends()
		return nil
	}
	now := len(l.waiting) + l.away
	l.crowd = max(now, l.crowd-(l.crowd+7)/8)
	most := l.share()
	size := 0
	for _, t := range l.waiting {
		if n := len(tickets); n > 0 && (n >= most || size+t.size > maxBytes) {
			break
		}
		size += t.size
		t.batch = b
		tickets = append(tickets, t)
	}
	n := len(tickets)
	b.callers = n
	l.waiting = append(l.waiting[:0], l.waiting[n:]...)
	clear(l.waiting[len(l.waiting) : len(l.waiting)+n])
	l.bytes -= size
	l.away += n
	l.requests++
	b.strayed = l.strayed
	if l.late == nil {
		l.late = time.AfterFunc(strayAfter, l.overdue)
	} else {
		l.late.Reset(strayAfter)
	}
	if l.worthAnother() {
		l.start()
	}
	return tickets
}

// ask sends items and hands out the answers. A request that is refused for one
// item's sake is taken apart, so that each gets its own answer. It returns items,
// for reuse.
func (l *lane[I, O]) ask(ctx context.Context, tickets []*ticket[I, O], items []I) []I {
	parts := [][]*ticket[I, O]{tickets} // still to be sent, the last one first
	var full error                      // there was no room for one item alone
	for named := 0; len(parts) > 0; {
		part := parts[len(parts)-1]
		parts = parts[:len(parts)-1]
		if full != nil {
			failAll(part, full)
			continue
		}
		items = items[:0]
		for _, t := range part {
			items = append(items, t.item)
		}
		out, err := l.send(ctx, items)
		n := len(part)
		if err == nil && len(out) != n {
			err = wrongAnswer("%d answers to %d of %s", len(out), n, l.list)
		}
		if err == nil {
			for i, t := range part {
				l.answer(t, out[i], nil, len(parts) > 0)
			}
			continue
		}
		var e *Error
		isProblem := errors.As(err, &e)
		isUnknown := errors.As(err, new(*unknownError))
		switch {
		case l.c.ctx.Err() != nil:
			failAll(part, fmt.Errorf("%w: %w", ErrClosed, err))
		case ctx.Err() != nil || isUnknown || isProblem && !aboutOne(e):
			failAll(part, err)
		case n == 1:
			if isProblem {
				err = alone(e, l.list)
			}
			l.answer(part[0], out1[O](), err, len(parts) > 0)
			if errors.Is(err, ErrQueueFull) {
				full = err
			}
		case isProblem && e.Problem.Index != nil && *e.Problem.Index >= 0 && *e.Problem.Index < n && named < maxNamed:
			named++
			at := *e.Problem.Index
			l.answer(part[at], out1[O](), alone(e, l.list), true)
			parts = append(parts, append(part[:at:at], part[at+1:]...))
		case isProblem || errors.As(err, new(*encodeError)):
			parts = append(parts, part[n/2:], part[:n/2])
		default: // nobody answered
			failAll(part, err)
		}
	}
	return items
}

// maxNamed is how many items that the server names as bad are taken out of a
// request one after the other, before it is halved.
const maxNamed = 4

func out1[O any]() (zero O) { return zero }

func failAll[I, O any](tickets []*ticket[I, O], err error) {
	for _, t := range tickets {
		t.answer(out1[O](), err)
	}
}

// answer hands out an answer. more says that others of the request have none yet:
// when they have left, it ends.
func (l *lane[I, O]) answer(t *ticket[I, O], out O, err error, more bool) {
	if !more || t.then != nil { // who does not wait does not leave
		t.answer(out, err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !t.left {
		t.batch.without(1)
	}
	t.answer(out, err) // before it can leave
}

// answer hands out an answer.
func (t *ticket[I, O]) answer(out O, err error) {
	if t.then != nil {
		t.then.answered(out, err)
		return
	}
	t.out, t.err = out, err
	t.done <- struct{}{}
}

// aboutOne reports whether a refusal may be one item's fault, or its size, and
// others would have been taken.
func aboutOne(e *Error) bool {
	switch e.Problem.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return true
	}
	return e.Problem.Index != nil || errors.Is(e, ErrQueueFull)
}

// alone is a problem as it had been told to a request of this item only.
func alone(e *Error, list string) error {
	if e.Problem.Index == nil {
		return e
	}
	out, zero := *e, 0
	out.Problem.Detail = strings.ReplaceAll(out.Problem.Detail, fmt.Sprintf("%s[%d]", list, *e.Problem.Index), list+"[0]")
	out.Problem.Index = &zero
	return &out
}
