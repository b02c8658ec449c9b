package api

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/event"
)

// waiters parks long-poll lease requests on the node that accepted them, in
// arrival order per queue.
//
// After each applied batch, dispatch wakes as many waiters of a queue as it has
// deliverable messages that no woken waiter has claimed, oldest first. A woken
// waiter proposes an ordinary lease command. If another node was faster and the
// lease is empty, it returns to its place. When a waiter is done with its claim,
// or its client disconnects, dispatch runs again, so no wake-up is lost and no
// message waits for a client that is gone.
//
// A produce that this node proposes takes the leases of parked waiters along, in
// the same batch, directly behind it: one commit instead of two (take).
type waiters struct {
	leasable func(queue string, kinds []string) int

	parked atomic.Int64 // 0 makes applied free

	dirtyMu sync.Mutex // held for a few instructions only
	dirty   map[string]struct{}
	bell    chan struct{} // of capacity one

	mu   sync.Mutex // held while leasable is called
	next uint64
	// lines holds the waiters of each queue by the kinds that they accept. A claim
	// counts against its own line only, or a rare kind would starve behind busy
	// ones.
	lines map[string]map[string]*line
}

// line is the waiters of one queue that accept the same kinds.
type line struct {
	kinds   []string
	waiters []*waiter // by place
	claims  int       // messages that woken waiters may lease
}

// waiter is one lease request. Invariant: it is parked in the lines of all of its
// queues, or in none of them and its wake channel has been or will be sent to.
type waiter struct {
	queues []string
	kinds  []string
	sig    string // of kinds
	most   int
	// command returns the lease to take along with a produce, or nil if the client
	// has gone. Another goroutine calls it, while the waiter's own is parked.
	command func() *event.Command

	place  uint64 // arrival order; kept when the waiter parks again
	parked bool
	// wake receives nil when there may be work, or the pending answer of a lease
	// that went along with a produce.
	wake  chan pendingWrite
	claim int
	queue string // of the claim
}

// pendingWrite waits for the answer to a command. It is called once.
type pendingWrite = func(context.Context) (event.Result, error)

func newWaiters(leasable func(string, []string) int) *waiters {
	return &waiters{
		leasable: leasable, dirty: map[string]struct{}{}, bell: make(chan struct{}, 1),
		lines: map[string]map[string]*line{},
	}
}

func newWaiter(queues, kinds []string, most int, command func() *event.Command) *waiter {
	return &waiter{
		queues: queues, kinds: kinds, most: most, command: command, wake: make(chan pendingWrite, 1),
		sig: strings.Join(slices.Compact(slices.Sorted(slices.Values(kinds))), "\x00"),
	}
}

// applied marks queues that may have work. It never blocks.
func (ws *waiters) applied(queues []string) {
	if len(queues) == 0 || ws.parked.Load() == 0 {
		return
	}
	ws.dirtyMu.Lock()
	for _, q := range queues {
		ws.dirty[q] = struct{}{}
	}
	ws.dirtyMu.Unlock()
	select {
	case ws.bell <- struct{}{}:
	default:
	}
}

// run dispatches marked queues until closed.
func (ws *waiters) run(closed <-chan struct{}) {
	for {
		select {
		case <-closed:
			return
		case <-ws.bell:
		}
		ws.dirtyMu.Lock()
		dirty := ws.dirty
		ws.dirty = map[string]struct{}{}
		ws.dirtyMu.Unlock()
		ws.mu.Lock()
		for q := range dirty {
			ws.dispatch(q)
		}
		ws.mu.Unlock()
	}
}

const (
	// checkAfter is when a waiter without work makes sure that this node is not cut
	// off from the cluster.
	checkAfter = 100 * time.Millisecond
	// maxPause bounds the pause of a waiter whose leases were empty: a message can
	// be leased within 100 ms.
	maxPause = 50 * time.Millisecond
)

// longPoll is one lease call.
type longPoll struct {
	waiters *waiters
	w       *waiter
	drain   <-chan struct{}
	// fresh returns once this node's state is linearizable.
	fresh func(context.Context) error
	// lease proposes a lease, or waits for the answer to one that was proposed, and
	// returns the number of messages.
	lease func(pendingWrite) (int, error)
}

// wait leases as soon as there is work for the waiter, until it gets some, wait is
// over, or the server drains; neither of the latter is an error. An empty answer
// is given only after fresh: this node may be behind.
func (p *longPoll) wait(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return p.once(ctx)
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	checked := make(chan error, 1)
	check := time.AfterFunc(min(wait, checkAfter), func() { checked <- p.fresh(ctx) })
	defer check.Stop()
	isFresh, over := false, false
	losses := 0 // empty leases in a row
	for {
		p.waiters.park(p.w)
		began := time.Now()
		var err error
		for parked := true; parked; {
			select {
			case answer := <-p.w.wake:
				if time.Since(began) > maxPause {
					losses = 0
				}
				n, err := p.take(ctx, answer)
				if err != nil || n > 0 || over {
					return err
				}
				if answer == nil { // another worker was faster
					losses++
				}
				parked = false
				continue
			case err = <-checked:
				if isFresh = err == nil; isFresh && !over {
					p.waiters.retry(p.w) // what was applied may not have been marked yet
					continue
				}
			case <-end.C:
				if over = true; !isFresh {
					continue // the check decides
				}
			case <-p.drain:
			case <-ctx.Done():
				err = ctx.Err()
			}
			return p.leave(ctx, err)
		}
		if losses > 1 {
			select {
			case <-time.After(min(time.Millisecond<<min(losses, 10), maxPause)):
			case <-p.drain:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// once leases without waiting, if there is work as far as a fresh state tells.
func (p *longPoll) once(ctx context.Context) error {
	work := func() bool {
		return slices.ContainsFunc(p.w.queues, func(q string) bool { return p.waiters.leasable(q, p.w.kinds) > 0 })
	}
	if !work() {
		if err := p.fresh(ctx); err != nil || !work() {
			return err
		}
	}
	_, err := p.take(ctx, nil)
	return err
}

// leave ends a call that was parked. A waiter that was woken meanwhile, or finds
// work in what fresh has brought, still leases.
func (p *longPoll) leave(ctx context.Context, err error) error {
	if err == nil {
		p.waiters.retry(p.w)
	}
	if p.waiters.remove(p.w) {
		return err
	}
	answer := <-p.w.wake
	if answer == nil && err != nil {
		p.waiters.done(p.w)
		return err
	}
	n, terr := p.take(ctx, answer)
	if terr != nil || n > 0 { // the caller releases messages if its client has gone
		return terr
	}
	return err
}

// take leases for a waiter that was woken. An answer that is pending is waited for
// whatever has happened to the client: its messages must be given back.
func (p *longPoll) take(ctx context.Context, answer pendingWrite) (n int, err error) {
	defer p.waiters.done(p.w)
	if err = ctx.Err(); err == nil || answer != nil {
		n, err = p.lease(answer)
	}
	return n, err
}

// park puts w into its queues' lines and dispatches them.
func (ws *waiters) park(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.place == 0 {
		ws.next++
		w.place = ws.next
	}
	ws.parked.Add(1) // before leasable is asked: see applied
	w.parked = true
	for _, q := range w.queues {
		if ws.lines[q] == nil {
			ws.lines[q] = map[string]*line{}
		}
		if ws.lines[q][w.sig] == nil {
			ws.lines[q][w.sig] = &line{kinds: w.kinds}
		}
		l := ws.lines[q][w.sig]
		l.waiters = slices.Insert(l.waiters, l.position(w), w)
	}
	ws.dispatchAll(w)
}

// retry dispatches the queues of w again.
func (ws *waiters) retry(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.dispatchAll(w)
}

func (ws *waiters) dispatchAll(w *waiter) {
	for _, q := range w.queues {
		if w.parked {
			ws.dispatch(q)
		}
	}
}

// remove unparks w. It returns false if w was woken before: then wake receives.
func (ws *waiters) remove(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !w.parked {
		return false
	}
	ws.unpark(w)
	return true
}

// done releases the claim of a woken waiter, for others.
func (ws *waiters) done(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.claim == 0 {
		return
	}
	ws.lines[w.queue][w.sig].claims -= w.claim
	w.claim = 0
	ws.tidy(w.queue, w.sig)
	ws.dispatch(w.queue)
}

// dispatch wakes the oldest waiters of each line of a queue for what they can lease.
// ws.mu is held.
func (ws *waiters) dispatch(queue string) {
	for _, l := range ws.lines[queue] {
		if len(l.waiters) == 0 {
			continue
		}
		for left := ws.leasable(queue, l.kinds) - l.claims; left > 0 && len(l.waiters) > 0; {
			w := l.waiters[0]
			w.queue, w.claim = queue, min(w.most, left)
			l.claims += w.claim
			left -= w.claim
			ws.unpark(w)
			w.wake <- nil
		}
	}
}

// take unparks waiters for what a produce is about to add to a queue: messages by
// kind. The caller sends to the wake channel of each.
func (ws *waiters) take(queue string, adds func() map[string]int) (out []*waiter) {
	if ws.parked.Load() == 0 {
		return nil
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.lines[queue]) == 0 {
		return nil
	}
	for left := adds(); ; {
		var oldest *waiter
		for _, l := range ws.lines[queue] {
			if len(l.waiters) > 0 && (oldest == nil || l.waiters[0].place < oldest.place) && hasKind(left, l.kinds) {
				oldest = l.waiters[0]
			}
		}
		if oldest == nil {
			return out
		}
		subtract(left, oldest.kinds, oldest.most)
		ws.unpark(oldest)
		out = append(out, oldest)
	}
}

func hasKind(left map[string]int, kinds []string) bool {
	if len(kinds) == 0 {
		return len(left) > 0
	}
	return slices.ContainsFunc(kinds, func(k string) bool { return left[k] > 0 })
}

// subtract removes up to n messages of some kinds; none means all.
func subtract(left map[string]int, kinds []string, n int) {
	for k, have := range left {
		if len(kinds) > 0 && !slices.Contains(kinds, k) {
			continue
		}
		m := min(have, n)
		n -= m
		if left[k] = have - m; left[k] == 0 {
			delete(left, k)
		}
	}
}

// count returns the number of waiters of a queue that accept a kind.
func (ws *waiters) count(queue, kind string) int64 {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n := 0
	for _, l := range ws.lines[queue] {
		if len(l.kinds) == 0 || slices.Contains(l.kinds, kind) {
			n += len(l.waiters)
		}
	}
	return int64(n)
}

// unpark takes w out of its lines. ws.mu is held.
func (ws *waiters) unpark(w *waiter) {
	w.parked = false
	ws.parked.Add(-1)
	for _, q := range w.queues {
		l := ws.lines[q][w.sig]
		i := l.position(w)
		l.waiters = slices.Delete(l.waiters, i, i+1)
		ws.tidy(q, w.sig)
	}
}

// tidy drops a line that nobody uses.
func (ws *waiters) tidy(queue, sig string) {
	if l := ws.lines[queue][sig]; len(l.waiters) > 0 || l.claims > 0 {
		return
	}
	if delete(ws.lines[queue], sig); len(ws.lines[queue]) == 0 {
		delete(ws.lines, queue)
	}
}

// position returns the index of w in the line, or where it belongs.
func (l *line) position(w *waiter) int {
	i, _ := slices.BinarySearchFunc(l.waiters, w.place, func(o *waiter, place uint64) int { return cmp.Compare(o.place, place) })
	return i
}
