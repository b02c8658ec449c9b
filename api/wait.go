package api

import (
	"container/list"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Leases wait here, in memory, at the node that has the client. A lease is
// proposed only when there is something ready, for as many waiters as there is
// work, in the order in which they came.
//
// Work that has been promised to a waiter and not yet leased is a claim. What
// can be promised is what can be leased, less the claims; it grows when an
// entry is applied, when a claim is given up, and never otherwise. After each
// of these the oldest waiters are served (kick). So a waiter that hangs up or
// takes less than it claimed passes the baton on, and no wake-up is lost.
//
// Invariant: a waiter is in its lanes' lists or granted, never both.
type waits struct {
	leasable func(queue string, kinds []string) int

	waiting atomic.Int64 // waiters in lists, and losers; 0 makes applied free

	dirtyMu sync.Mutex // held for a few instructions only: applied may be called under the state's lock
	dirty   map[string]struct{}
	bell    chan struct{}

	mu    sync.Mutex // held while leasable is called
	lanes map[string]map[string]*waitLane
	next  uint64
	// losers are the waiters, by queue, that leased nothing when it was their
	// turn: between two turns they are in no line, and are to hear of new work.
	losers map[string]map[*waiter]struct{}
}

// waitLane is the waiters of one queue with one wish for kinds. Claims of other
// lanes of the queue do not count against it: that would starve a rare kind
// behind busy ones.
type waitLane struct {
	kinds   []string
	waiters list.List // of *waiter, in the order of their places
	claims  int

	// of the kick in hand
	room    int
	counted bool
}

// waiter is one lease call.
type waiter struct {
	queues []string
	kinds  []string
	sig    string
	most   int

	place   uint64 // when it came; kept when it waits again
	wake    chan struct{}
	touched chan struct{}   // of a loser: an entry has changed one of its queues
	at      []*list.Element // by queue, while it waits
	granted bool
	lane    *waitLane // of the grant
	queue   string
	claim   int
}

func newWaits(leasable func(string, []string) int) *waits {
	return &waits{
		leasable: leasable, dirty: map[string]struct{}{}, bell: make(chan struct{}, 1),
		lanes: map[string]map[string]*waitLane{}, losers: map[string]map[*waiter]struct{}{},
	}
}

func newWaiter(queues, kinds []string, most int) *waiter {
	w := &waiter{queues: queues, kinds: kinds, most: most, wake: make(chan struct{}, 1), touched: make(chan struct{}, 1)}
	if len(kinds) > 0 {
		sorted := slices.Clone(kinds)
		slices.Sort(sorted)
		w.sig = strings.Join(slices.Compact(sorted), "\x00")
	}
	return w
}

// applied marks queues that may have work, for run to look at.
func (ws *waits) applied(queues []string) {
	if len(queues) == 0 || ws.waiting.Load() == 0 {
		return
	}
	ws.dirtyMu.Lock()
	for _, q := range queues {
		ws.dirty[q] = struct{}{}
	}
	ws.dirtyMu.Unlock()
	select {
	case ws.bell <- struct{}{}:
	default: // rung already
	}
}

// run serves waiters of queues that applied marked, until closed.
func (ws *waits) run(closed <-chan struct{}) {
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
			for w := range ws.losers[q] {
				select {
				case w.touched <- struct{}{}:
				default: // it knows
				}
			}
			ws.kick(q)
		}
		ws.mu.Unlock()
	}
}

// lease calls take when there is work for w, until take gets some, wait is
// over, or the server drains; both of the latter are no error. take is not
// called for a client that has hung up. fresh is called once, before a queue is
// believed to be empty: this node may be behind.
func (ws *waits) lease(ctx context.Context, w *waiter, wait time.Duration, drain <-chan struct{}, fresh func() error, take func() (int, error)) error {
	var over <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		over = t.C
	}
	asked := false
	for empty := 0; ; empty++ {
		if empty == 1 {
			ws.lose(w)
			defer ws.forget(w)
		}
		if empty > 1 && !pause(ctx, backoff(empty), w.touched, over, drain) {
			return ctx.Err()
		}
		ws.enter(w)
		if !ws.isGranted(w) && !asked {
			asked = true
			if err := fresh(); err != nil {
				ws.abandon(w)
				return err
			}
			ws.again(w)
		}
		switch {
		case ws.isGranted(w):
		case wait <= 0:
			// Claims of others may cover all there is and still be given up:
			// who does not wait asks the log itself.
			if !ws.leave(w) && !ws.any(w) {
				return nil
			}
		default:
			select {
			case <-w.wake:
			case <-over:
				if !ws.leave(w) {
					return nil
				}
			case <-drain:
				ws.abandon(w)
				return nil
			case <-ctx.Done():
				ws.abandon(w)
				return ctx.Err()
			}
		}
		if err := ctx.Err(); err != nil {
			ws.abandon(w)
			return err
		}
		n, err := take()
		ws.abandon(w)
		if err != nil || n > 0 || wait <= 0 {
			return err
		}
		// Another one was faster. Its turn is kept, but not hot.
	}
}

// shortest is how long a waiter pauses that was touched: nodes race for each
// message, and who loses must not be deaf to the next one, which is to be
// leased within 100 ms, nor ask the leader without end.
const shortest = 20 * time.Millisecond

// backoff is the pause before the nth try after empty ones.
func backoff(n int) time.Duration {
	return min(time.Millisecond<<min(n, 10), time.Second)
}

// pause waits for d, or for touched but then not less than shortest; false where
// the call is over before.
func pause(ctx context.Context, d time.Duration, touched chan struct{}, over <-chan time.Time, drain <-chan struct{}) bool {
	t := time.NewTimer(min(d, shortest))
	defer t.Stop()
	for heard := (<-chan struct{})(nil); ; {
		select {
		case <-t.C:
			if heard != nil || d <= shortest {
				select {
				case <-touched: // of what it lost, or will see in a moment
				default:
				}
				return true
			}
			t.Reset(d - shortest)
			heard = touched
		case <-heard:
			return true
		case <-over:
			return false
		case <-drain:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// lose has w told of what happens to its queues, until it is forgotten.
func (ws *waits) lose(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.waiting.Add(1) // applied is to tell
	for _, q := range w.queues {
		if ws.losers[q] == nil {
			ws.losers[q] = map[*waiter]struct{}{}
		}
		ws.losers[q][w] = struct{}{}
	}
}

func (ws *waits) forget(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.waiting.Add(-1)
	for _, q := range w.queues {
		if delete(ws.losers[q], w); len(ws.losers[q]) == 0 {
			delete(ws.losers, q)
		}
	}
}

// enter puts w in line and serves whoever can be.
func (ws *waits) enter(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	select {
	case <-w.wake:
	default:
	}
	if w.place == 0 {
		ws.next++
		w.place = ws.next
	}
	ws.waiting.Add(1) // before leasable is asked: see applied
	w.at = w.at[:0]
	for _, q := range w.queues {
		l := ws.lane(q, w)
		w.at = append(w.at, l.insert(w))
	}
	for _, q := range w.queues {
		if w.granted {
			return
		}
		ws.kick(q)
	}
}

// again serves the queues of w once more.
func (ws *waits) again(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, q := range w.queues {
		if w.granted {
			return
		}
		ws.kick(q)
	}
}

func (ws *waits) isGranted(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.granted
}

// leave takes w out of line; true where it was granted before, and still is.
func (ws *waits) leave(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !w.granted {
		ws.remove(w)
	}
	return w.granted
}

// abandon takes w out of line or gives up its claim, and passes the baton on.
func (ws *waits) abandon(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !w.granted {
		ws.remove(w)
		return
	}
	w.granted = false
	if w.lane.claims -= w.claim; w.lane.waiters.Len() == 0 && w.lane.claims == 0 {
		ws.tidy(w.queue, w.sig)
	}
	ws.kick(w.queue)
}

// any reports whether there is something to lease, claimed or not.
func (ws *waits) any(w *waiter) bool {
	for _, q := range w.queues {
		if ws.leasable(q, w.kinds) > 0 {
			return true
		}
	}
	return false
}

// kick promises a queue's work to the oldest waiters. ws.mu is held.
func (ws *waits) kick(queue string) {
	lanes := ws.lanes[queue]
	for {
		var l *waitLane
		for _, c := range lanes {
			if c.waiters.Len() == 0 || c.counted && c.room <= 0 {
				continue
			}
			if l == nil || c.head().place < l.head().place {
				l = c
			}
		}
		if l == nil {
			break
		}
		if !l.counted {
			l.room, l.counted = ws.leasable(queue, l.kinds)-l.claims, true
			continue // it may have no room
		}
		w := l.head()
		w.granted, w.lane, w.queue, w.claim = true, l, queue, min(w.most, l.room)
		l.claims += w.claim
		l.room -= w.claim
		ws.remove(w)
		w.wake <- struct{}{} // empty: w is granted once between two enters
	}
	for _, l := range lanes {
		l.room, l.counted = 0, false
	}
}

// remove takes w out of its lanes' lists. ws.mu is held.
func (ws *waits) remove(w *waiter) {
	if len(w.at) == 0 {
		return
	}
	for i, q := range w.queues {
		l := ws.lanes[q][w.sig]
		l.waiters.Remove(w.at[i])
		if l.waiters.Len() == 0 && l.claims == 0 {
			ws.tidy(q, w.sig)
		}
	}
	w.at = w.at[:0]
	ws.waiting.Add(-1)
}

func (ws *waits) lane(queue string, w *waiter) *waitLane {
	lanes := ws.lanes[queue]
	if lanes == nil {
		lanes = map[string]*waitLane{}
		ws.lanes[queue] = lanes
	}
	l := lanes[w.sig]
	if l == nil {
		l = &waitLane{kinds: w.kinds}
		lanes[w.sig] = l
	}
	return l
}

func (ws *waits) tidy(queue, sig string) {
	lanes := ws.lanes[queue]
	if delete(lanes, sig); len(lanes) == 0 {
		delete(ws.lanes, queue)
	}
}

func (l *waitLane) head() *waiter { return l.waiters.Front().Value.(*waiter) }

// insert puts w where it stood: a new one at the end, one that comes again
// before those that came after it.
func (l *waitLane) insert(w *waiter) *list.Element {
	for e := l.waiters.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).place < w.place {
			return l.waiters.InsertAfter(w, e)
		}
	}
	return l.waiters.PushFront(w)
}
