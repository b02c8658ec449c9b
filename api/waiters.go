package api

import (
	"container/list"
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
	waiters list.List // of *waiter, by place
	claims  int       // messages that woken waiters may lease
}

// waiter is one lease request. Invariant: it is parked in the lines of all of its
// queues, or in none of them and its wake channel has been or will be sent to.
type waiter struct {
	queues []string
	kinds  []string
	sig    string
	most   int
	// command returns the lease to take along with a produce, or nil if the client
	// has gone. Another goroutine calls it, while the waiter's own is parked.
	command func() *event.Command

	place uint64 // arrival order; kept when the waiter parks again
	at    []*list.Element
	// wake receives nil when there may be work, or the pending answer of a lease
	// that went along with a produce.
	wake    chan pendingWrite
	claimed *line // nil: none
	claim   int
	queue   string // of the claim
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
	w := &waiter{queues: queues, kinds: kinds, most: most, command: command, wake: make(chan pendingWrite, 1)}
	if len(kinds) > 0 {
		sorted := slices.Clone(kinds)
		slices.Sort(sorted)
		w.sig = strings.Join(slices.Compact(sorted), "\x00")
	}
	return w
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

// wait leases at once, or waits for work.
func (p *longPoll) wait(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return p.once(ctx)
	}
	return p.run(ctx, wait)
}

// run leases as soon as there is work for the waiter, until it gets some, wait is
// over, or the server drains; neither of the latter is an error. An empty answer
// is given only after fresh: this node may be behind.
func (p *longPoll) run(ctx context.Context, wait time.Duration) error {
	end := time.NewTimer(wait)
	defer end.Stop()
	check := time.NewTimer(min(wait, checkAfter))
	defer check.Stop()
	checked := make(chan error, 1)
	isFresh, over := false, false
	for losses := 0; ; {
		p.waiters.park(p.w)
		began := time.Now()
		var err error
		for parked := true; parked; {
			select {
			case answer := <-p.w.wake:
				n, err := p.take(ctx, answer)
				if err != nil || n > 0 || over {
					return err
				}
				parked = false
				if time.Since(began) > maxPause {
					losses = 0
				}
				if answer == nil { // another worker was faster
					losses++
				}
				continue
			case <-check.C:
				check.Stop()
				go func() { checked <- p.fresh(ctx) }()
				continue
			case err = <-checked:
				isFresh = err == nil
				if isFresh && !over {
					// What was applied may not have been marked yet.
					p.waiters.retry(p.w)
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
		if !p.pause(ctx, losses) {
			return ctx.Err()
		}
	}
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

// pause waits a little after the second empty lease in a row and later ones. It returns false when the client has
// gone.
func (p *longPoll) pause(ctx context.Context, losses int) bool {
	if losses < 2 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(min(time.Millisecond<<min(losses, 10), maxPause))
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.drain:
	case <-ctx.Done():
		return false
	}
	return true
}

// once leases without waiting.
func (p *longPoll) once(ctx context.Context) error {
	ws := p.waiters
	ws.park(p.w)
	if ws.remove(p.w) { // not woken
		if err := p.fresh(ctx); err != nil {
			return err
		}
		// Other waiters may have claimed all there is, and not use it: a caller that
		// does not wait asks the log itself.
		if !slices.ContainsFunc(p.w.queues, func(q string) bool { return ws.leasable(q, p.w.kinds) > 0 }) {
			return nil
		}
		_, err := p.take(ctx, nil)
		return err
	}
	_, err := p.take(ctx, <-p.w.wake)
	return err
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
	w.at = w.at[:0]
	for _, q := range w.queues {
		w.at = append(w.at, ws.line(q, w).insert(w))
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
		if len(w.at) == 0 {
			return
		}
		ws.dispatch(q)
	}
}

// remove unparks w. It returns false if w was woken before: then wake receives.
func (ws *waiters) remove(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(w.at) == 0 {
		return false
	}
	ws.unpark(w)
	return true
}

// done releases the claim of a woken waiter, for others.
func (ws *waiters) done(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l := w.claimed
	if l == nil {
		return
	}
	w.claimed = nil
	l.claims -= w.claim
	ws.tidy(w.queue, w.sig, l)
	ws.dispatch(w.queue)
}

// dispatch wakes the oldest waiters of a queue for what can be leased. ws.mu is
// held.
func (ws *waiters) dispatch(queue string) {
	room := map[*line]int{}
	for {
		var oldest *line
		for _, l := range ws.lines[queue] {
			left, counted := room[l]
			if l.waiters.Len() == 0 || counted && left <= 0 {
				continue
			}
			if oldest == nil || l.head().place < oldest.head().place {
				oldest = l
			}
		}
		if oldest == nil {
			return
		}
		left, counted := room[oldest]
		if !counted {
			room[oldest] = ws.leasable(queue, oldest.kinds) - oldest.claims
			continue
		}
		w := oldest.head()
		w.claimed, w.queue, w.claim = oldest, queue, min(w.most, left)
		oldest.claims += w.claim
		room[oldest] = left - w.claim
		ws.unpark(w)
		w.wake <- nil
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
		var oldest *line
		for _, l := range ws.lines[queue] {
			if l.waiters.Len() > 0 && (oldest == nil || l.head().place < oldest.head().place) &&
				hasKind(left, l.kinds) {
				oldest = l
			}
		}
		if oldest == nil {
			return out
		}
		w := oldest.head()
		subtract(left, w.kinds, w.most)
		ws.unpark(w)
		out = append(out, w)
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
			n += l.waiters.Len()
		}
	}
	return int64(n)
}

// unpark takes w out of its lines. ws.mu is held.
func (ws *waiters) unpark(w *waiter) {
	for i, q := range w.queues {
		l := ws.lines[q][w.sig]
		l.waiters.Remove(w.at[i])
		ws.tidy(q, w.sig, l)
	}
	w.at = w.at[:0]
	ws.parked.Add(-1)
}

func (ws *waiters) line(queue string, w *waiter) *line {
	lines := ws.lines[queue]
	if lines == nil {
		lines = map[string]*line{}
		ws.lines[queue] = lines
	}
	l := lines[w.sig]
	if l == nil {
		l = &line{kinds: w.kinds}
		lines[w.sig] = l
	}
	return l
}

// tidy drops a line that nobody uses.
func (ws *waiters) tidy(queue, sig string, l *line) {
	if l.waiters.Len() > 0 || l.claims > 0 || ws.lines[queue][sig] != l {
		return
	}
	if delete(ws.lines[queue], sig); len(ws.lines[queue]) == 0 {
		delete(ws.lines, queue)
	}
}

func (l *line) head() *waiter { return l.waiters.Front().Value.(*waiter) }

// insert puts w behind the waiters that came before it.
func (l *line) insert(w *waiter) *list.Element {
	for e := l.waiters.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).place < w.place {
			return l.waiters.InsertAfter(w, e)
		}
	}
	return l.waiters.PushFront(w)
}
