package api

import (
	"context"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/event"
)

// waiters parks long-poll lease requests on the node that accepted them, in arrival order per
// queue.
//
// After each applied batch, dispatch wakes as many waiters of a queue as it has deliverable
// messages that no woken waiter has claimed, oldest first. A woken waiter proposes an ordinary
// lease command. If another node was faster and the lease is empty, it returns to its place. When a
// waiter is done with its claim, or its client disconnects, dispatch runs again, so no wake-up is
// lost and no message waits for a client that is gone.
//
// A produce that this node proposes takes the leases of parked waiters along, in the same batch,
// directly behind it: one commit instead of two (take).
type waiters struct {
	leasable func(queue string, kinds []string) int
	fresh    func(context.Context) error // returns once the state is linearizable, or drain is closed
	drain    <-chan struct{}

	parked atomic.Int64 // if 0, applied and take return at once

	mu    sync.Mutex // held while leasable is called
	next  uint64
	lines map[string][]*line // by queue
}

// line has the waiters of one queue that accept the same kinds. A claim counts against its own line
// only, or a rare kind would starve behind busy ones.
type line struct {
	queue   string
	kinds   []string  // sorted; none: all
	waiters []*waiter // by place
	claims  int       // messages that woken waiters may lease
}

// accepts reports whether the waiters lease messages of a kind.
func (l *line) accepts(kind string) bool {
	return len(l.kinds) == 0 || slices.Contains(l.kinds, kind)
}

// position returns the index of w in the line, or where it belongs.
func (l *line) position(w *waiter) int {
	return sort.Search(len(l.waiters), func(i int) bool { return l.waiters[i].place >= w.place })
}

// waiter is one lease request. Invariant: it is parked in the lines of all of its queues, or in
// none of them and its wake channel has been or will be sent to.
type waiter struct {
	ws     *waiters
	queues []string
	kinds  []string // sorted
	most   int
	// lease proposes a lease, or awaits the answer to a pending one, and returns the number of
	// leased messages.
	lease func(pendingWrite) (int, error)
	// command returns the lease to propose with a produce, or nil if the client has disconnected.
	// Another goroutine calls it, while the waiter's own is parked.
	command func() *event.Command

	place uint64  // arrival order; kept when the waiter parks again
	lines []*line // in which it is parked
	// wake receives nil when there may be work, or the answer to a lease proposed with a produce.
	wake    chan pendingWrite
	claimed *line // nil: no claim
	claim   int
}

// pendingWrite waits for the answer to a command. It is called once.
type pendingWrite = func(context.Context) (event.Result, error)

// add returns a waiter; the caller sets its functions.
func (ws *waiters) add(queues, kinds []string, most int) *waiter {
	kinds = slices.Clone(kinds)
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	return &waiter{
		ws: ws, queues: queues, kinds: kinds, most: most, wake: make(chan pendingWrite, 1),
	}
}

const (
	// checkAfter is how long a waiter waits before it checks that its node is not cut off.
	checkAfter = 100 * time.Millisecond
	// maxPause bounds pauses after empty leases: a message can be leased within 100 ms.
	maxPause = 50 * time.Millisecond
)

// poll leases as soon as there is work, and returns when it has leased messages, wait is over, or
// the server drains. The latter two are no errors. It returns empty-handed only after fresh,
// because this node may be behind.
func (w *waiter) poll(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return w.once(ctx)
	}
	var end, check <-chan time.Time // not needed if there is work at once
	isFresh, start := false, time.Now()
	losses := 0 // empty leases in a row
	for first := true; ctx.Err() == nil; first = false {
		w.park()
		began := time.Now()
		if end == nil && !(first && len(w.wake) > 0) {
			end, check = time.After(wait-began.Sub(start)), time.After(checkAfter)
		}
		for parked := true; parked; {
			select {
			case answer := <-w.wake:
				if n, err := w.take(ctx, answer); err != nil || n > 0 {
					return err
				}
				if time.Since(began) > maxPause {
					losses = 0
				}
				if answer == nil { // another worker was faster
					losses++
				}
				parked = false
			case <-check:
				if err := w.ws.fresh(ctx); err != nil {
					return w.leave(ctx, err)
				}
				isFresh = true
				w.ws.mu.Lock()
				w.ws.dispatchFor(w) // the observer of applied entries may be behind
				w.ws.mu.Unlock()
			case <-end:
				var err error
				if !isFresh {
					err = w.ws.fresh(ctx)
				}
				return w.leave(ctx, err)
			case <-w.ws.drain:
				return w.leave(ctx, nil)
			case <-ctx.Done():
				return w.leave(ctx, ctx.Err())
			}
		}
		if losses > 1 {
			select {
			case <-time.After(min(time.Millisecond<<min(losses, 10), maxPause)):
			case <-w.ws.drain:
			case <-ctx.Done():
			}
		}
	}
	return ctx.Err()
}

// once leases without waiting, if a fresh state shows work.
func (w *waiter) once(ctx context.Context) error {
	work := func(queue string) bool { return w.ws.leasable(queue, w.kinds) > 0 }
	if !slices.ContainsFunc(w.queues, work) {
		if err := w.ws.fresh(ctx); err != nil || !slices.ContainsFunc(w.queues, work) {
			return err
		}
	}
	_, err := w.take(ctx, nil)
	return err
}

// leave ends a parked call. If it was woken meanwhile, or there is work after fresh, it still
// leases.
func (w *waiter) leave(ctx context.Context, err error) error {
	w.ws.mu.Lock()
	if err == nil {
		w.ws.dispatchFor(w)
	}
	parked := w.lines != nil
	if parked {
		w.ws.unpark(w)
	}
	w.ws.mu.Unlock()
	if parked {
		return err
	}
	answer := <-w.wake
	if answer == nil && err != nil { // cut off: a lease would only fail later
		w.done()
		return err
	}
	if n, terr := w.take(ctx, answer); terr != nil || n > 0 {
		return terr // the caller releases the messages if its client has disconnected
	}
	return err
}

// take leases for a waiter that was woken. It waits for a pending answer even if the client has
// disconnected, because the messages must be released.
func (w *waiter) take(ctx context.Context, answer pendingWrite) (n int, err error) {
	defer w.done()
	if err = ctx.Err(); err == nil || answer != nil {
		n, err = w.lease(answer)
	}
	return n, err
}

// park puts w into its queues' lines and dispatches them.
func (w *waiter) park() {
	ws := w.ws
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.place == 0 {
		ws.next++
		w.place = ws.next
	}
	ws.parked.Add(1) // before leasable is asked: see applied
	for _, q := range w.queues {
		sameKinds := func(l *line) bool { return slices.Equal(l.kinds, w.kinds) }
		i := slices.IndexFunc(ws.lines[q], sameKinds)
		if i < 0 {
			i = len(ws.lines[q])
			ws.lines[q] = append(ws.lines[q], &line{queue: q, kinds: w.kinds})
		}
		l := ws.lines[q][i]
		l.waiters = slices.Insert(l.waiters, l.position(w), w)
		w.lines = append(w.lines, l)
	}
	ws.dispatchFor(w)
}

// done releases the claim of a woken waiter and dispatches its queue again.
func (w *waiter) done() {
	w.ws.mu.Lock()
	defer w.ws.mu.Unlock()
	if l := w.claimed; l != nil {
		l.claims -= w.claim
		w.claimed, w.claim = nil, 0
		w.ws.tidy(l)
		w.ws.dispatch(l.queue)
	}
}

// applied dispatches queues that may have work.
func (ws *waiters) applied(queues []string) {
	if len(queues) == 0 || ws.parked.Load() == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, q := range queues {
		ws.dispatch(q)
	}
}

// unpark takes w out of its lines. ws.mu is held.
func (ws *waiters) unpark(w *waiter) {
	ws.parked.Add(-1)
	for _, l := range w.lines {
		i := l.position(w)
		l.waiters = slices.Delete(l.waiters, i, i+1)
		ws.tidy(l)
	}
	w.lines = nil
}

// tidy drops a line that is not used any more. ws.mu is held.
func (ws *waiters) tidy(l *line) {
	if len(l.waiters) > 0 || l.claims > 0 {
		return
	}
	rest := slices.DeleteFunc(ws.lines[l.queue], func(o *line) bool { return o == l })
	if ws.lines[l.queue] = rest; len(rest) == 0 {
		delete(ws.lines, l.queue)
	}
}

// dispatchFor dispatches the queues of a waiter while it is parked. ws.mu is held.
func (ws *waiters) dispatchFor(w *waiter) {
	for _, q := range w.queues {
		if w.lines != nil {
			ws.dispatch(q)
		}
	}
}

// dispatch wakes the oldest waiters of each line of a queue for what they can lease. ws.mu is held.
func (ws *waiters) dispatch(queue string) {
	for _, l := range ws.lines[queue] {
		if len(l.waiters) == 0 {
			continue
		}
		for left := ws.leasable(queue, l.kinds) - l.claims; left > 0 && len(l.waiters) > 0; {
			w := l.waiters[0]
			w.claimed, w.claim = l, min(w.most, left)
			l.claims += w.claim // before unpark, which drops unused lines
			left -= w.claim
			ws.unpark(w)
			w.wake <- nil
		}
	}
}

// take unparks waiters for the messages that a produce is about to add to a queue; adds returns
// their kinds. The caller sends to the wake channel of each.
func (ws *waiters) take(queue string, adds func() (kinds []string)) (out []*waiter) {
	if ws.parked.Load() == 0 {
		return nil
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.lines[queue]) == 0 {
		return nil
	}
	for left := adds(); ; {
		var of *line // of the oldest waiter
		for _, l := range ws.lines[queue] {
			if len(l.waiters) > 0 && (of == nil || l.waiters[0].place < of.waiters[0].place) &&
				slices.ContainsFunc(left, l.accepts) {
				of = l
			}
		}
		if of == nil {
			return out
		}
		w := of.waiters[0]
		n := w.most
		left = slices.DeleteFunc(left, func(kind string) bool {
			takes := n > 0 && of.accepts(kind)
			if takes {
				n--
			}
			return takes
		})
		ws.unpark(w)
		out = append(out, w)
	}
}

// count returns the number of waiters of a queue that accept a kind.
func (ws *waiters) count(queue, kind string) (n int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, l := range ws.lines[queue] {
		if l.accepts(kind) {
			n += int64(len(l.waiters))
		}
	}
	return n
}
