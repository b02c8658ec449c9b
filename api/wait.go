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

// Leases wait here, in memory, at the node that has the client. A lease is
// proposed only when there is something ready, for as many waiters as there is
// work, in the order in which they came.
//
// Work that has been granted to a waiter and not yet leased is a claim. What
// can be granted is what can be leased, less the claims; it grows when an
// entry is applied, when a claim is given up, and never otherwise. After each
// of these the oldest waiters are served (kick). So a waiter that hangs up or
// takes less than it claimed passes the baton on, and no wake-up is lost.
//
// What a client of this node produces is given to waiters of this node before
// it is there: their leases go along with it into the same entry, behind it
// (send). Then a message is delivered after one commit, not two, and no other
// node hears of work that is gone. Such a waiter claims nothing of what can be
// leased. Where its lease finds nothing (the produce was refused, an earlier
// message of the key is in the way), it is back in line where it stood.
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
	// losers are the waiters, by queue, that were granted work and leased nothing,
	// again and again: they pause, in no line, and are to hear of new work.
	losers map[string]map[*waiter]struct{}
	away   map[string]int       // waiters that wait at the leader, by queue
	worked map[string]time.Time // when queues with waiters were last applied to
	// missed are the queues whose newest produces brought nothing to lease.
	missed map[string]missed
}

// missed says how often in a row leases were sent along in vain, and how many
// produces are to go without before it is tried again.
type missed struct{ times, skip int }

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
	lane    *waitLane // of the grant; nil where its lease is sent along
	queue   string
	claim   int
	unsure  bool // of the queue sent for: it has lanes
	// sent is what waits for the answer to a lease that was sent along: set
	// before wake is told, by whoever took the waiter out of line for that.
	sent pendingWrite
	// ask returns the lease to send along, nil to send none. It is called by
	// others than the waiter's own goroutine, which waits meanwhile.
	ask func() *event.Command
}

// pendingWrite waits for the answer to a command. It is called once.
type pendingWrite = func(context.Context) (event.Result, error)

func newWaits(leasable func(string, []string) int) *waits {
	return &waits{
		leasable: leasable, dirty: map[string]struct{}{}, bell: make(chan struct{}, 1),
		lanes: map[string]map[string]*waitLane{}, losers: map[string]map[*waiter]struct{}{},
		away: map[string]int{}, worked: map[string]time.Time{}, missed: map[string]missed{},
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
		now := time.Now()
		for q := range dirty {
			if ws.lanes[q] != nil {
				ws.worked[q] = now
			}
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

const (
	// settleIn is when a waiter that has got nothing settles in for longer: it
	// waits at the leader, or makes sure that this node is not cut off. Where
	// something was applied to its queue in as long, neither is worth its work: it
	// looks again after settleBusy.
	settleIn   = 5 * time.Millisecond
	settleBusy = 20 * time.Millisecond
	// settleAgain doubles up to a second where the leader has sent it away.
	settleAgain = 50 * time.Millisecond
	// maxAway is how many waiters of a queue wait at the leader. Each is a call
	// of its own; more are needed only where nothing is produced at this node.
	maxAway = 4
)

// waiting is one lease call while it lasts.
type waiting struct {
	ws    *waits
	w     *waiter
	drain <-chan struct{}
	fresh func() error
	take  func(pendingWrite) (int, error)
	// away has the lease wait at the leader in place of here, as long as wait.
	// ended says that the leader has answered, and not before the wait was over.
	// nil: it waits here.
	away func(ctx context.Context, wait time.Duration) (n int, ended bool, err error)

	soon, end *time.Timer
	deadline  time.Time
	known     chan error // what fresh returned
	asking    bool       // fresh was called
	asked     bool       // and has returned
	over      bool       // end has come
	back      int        // how often it came back from the leader
	stays     bool       // and does not go again yet
}

// turn is how standing in line ended.
type turn int

const (
	turnEnded   turn = iota // with the call
	turnGranted             // it is w's turn
	turnAway                // w is to wait at the leader
)

// lease calls take when there is work for w, until take gets some, wait is
// over, or the server drains; both of the latter are no error. take leases or,
// where that is under way, waits for the answer: then it is called whatever has
// happened meanwhile, else not for a client that has hung up. fresh is called
// before a queue is told to be empty: this node may be behind.
func (c *waiting) lease(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return c.once(ctx)
	}
	c.deadline = time.Now().Add(wait)
	c.end, c.soon, c.known = time.NewTimer(wait), time.NewTimer(min(wait, settleIn)), make(chan error, 1)
	defer c.end.Stop()
	defer c.soon.Stop()
	for losses := 0; ; {
		// Granted at once after it lost, again and again: not hot. Else it is
		// granted only what is new.
		if !c.ws.enter(c.w) {
			losses = 0
		} else if losses > 1 {
			c.ws.abandon(c.w)
			if !c.pause(ctx, backoff(losses)) {
				return ctx.Err()
			}
			c.ws.enter(c.w)
		}
		var n int
		turn, err := c.stand(ctx)
		switch turn {
		case turnEnded:
			return err
		case turnAway:
			var ended bool
			n, ended, err = c.away(ctx, time.Until(c.deadline))
			c.ws.backFromAway(c.w)
			if ended {
				return err
			}
			c.stays = true
			c.back++
			c.soon.Reset(0)
		case turnGranted:
			var sent bool
			if sent, n, err = c.serve(ctx); !sent {
				losses++ // unless it got some; else another one was faster
			}
		}
		if err != nil || n > 0 || c.over {
			return err
		}
	}
}

// stand waits in line until it is w's turn, or it is to go away, or else for the
// call's end and its error.
func (c *waiting) stand(ctx context.Context) (turn, error) {
	leave := func(err error) (turn, error) {
		if c.ws.leave(c.w) {
			return turnGranted, nil
		}
		return turnEnded, err
	}
	for {
		select {
		case <-c.w.wake:
			return turnGranted, nil
		case <-c.soon.C:
			if !c.over && c.ws.busy(c.w) {
				c.soon.Reset(settleBusy)
				continue
			}
			if c.away != nil && !c.over && !c.stays && c.ws.goAway(c.w) {
				return turnAway, nil
			}
			if !c.asking {
				c.asking = true
				go func() { c.known <- c.fresh() }()
			}
			if c.stays {
				c.stays = false
				c.soon.Reset(min(settleAgain<<min(c.back, 10), time.Second))
			}
		case err := <-c.known:
			if c.asked = true; err != nil {
				return leave(err)
			}
			c.ws.again(c.w) // what was applied may not have been told yet
			if c.over {
				return leave(nil)
			}
		case <-c.end.C:
			if c.over = true; c.asked {
				return leave(nil)
			}
			c.soon.Reset(0)
		case <-c.drain:
			return leave(nil)
		case <-ctx.Done():
			return leave(ctx.Err())
		}
	}
}

// once is for a call that does not wait.
func (c *waiting) once(ctx context.Context) error {
	if c.ws.enter(c.w) {
		<-c.w.wake
	} else {
		err := c.fresh()
		if err == nil {
			c.ws.again(c.w)
		}
		// Claims of others may cover all there is and still be given up: who
		// does not wait asks the log itself.
		if !c.ws.leave(c.w) && (err != nil || !c.ws.any(c.w)) {
			return err
		}
	}
	_, _, err := c.serve(ctx)
	return err
}

// serve has w take what it was granted. sent tells that its lease was under way
// already.
func (c *waiting) serve(ctx context.Context) (sent bool, n int, err error) {
	answer := c.ws.answerTo(c.w)
	if err = ctx.Err(); err == nil || answer != nil {
		n, err = c.take(answer)
	}
	if answer != nil && err == nil && (n > 0 || c.w.unsure) { // else another took it, too
		c.ws.sentFor(c.w.queue, n)
	}
	c.ws.abandon(c.w)
	return answer != nil, n, err
}

// shortest is how long a waiter pauses that was touched: nodes race for what is
// produced elsewhere, and who loses must not be deaf to the next message, which is
// to be leased within 100 ms, nor ask the leader without end.
const shortest = 20 * time.Millisecond

// backoff is the pause before the nth try after empty ones.
func backoff(n int) time.Duration {
	return min(time.Millisecond<<min(n, 10), time.Second)
}

// pause keeps w out of line for d, or until one of its queues is touched but then
// not less than shortest; false where the call is over before.
func (c *waiting) pause(ctx context.Context, d time.Duration) bool {
	c.ws.lose(c.w)
	defer c.ws.forget(c.w)
	t := time.NewTimer(min(d, shortest))
	defer t.Stop()
	for heard := (<-chan struct{})(nil); ; {
		select {
		case <-t.C:
			if heard != nil || d <= shortest {
				select {
				case <-c.w.touched: // of what it lost, or will see in a moment
				default:
				}
				return true
			}
			t.Reset(d - shortest)
			heard = c.w.touched
		case <-heard:
			return true
		case <-c.end.C:
			return false
		case <-c.drain:
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

// enter puts w in line and serves whoever can be; true where that is w.
func (ws *waits) enter(w *waiter) bool {
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
			break
		}
		ws.kick(q)
	}
	return w.granted
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

// leave takes w out of line; true where it was granted before, and still is:
// then it returns when wake was told.
func (ws *waits) leave(w *waiter) bool {
	ws.mu.Lock()
	granted := w.granted
	if !granted {
		ws.remove(w)
	}
	ws.mu.Unlock()
	if granted {
		<-w.wake
	}
	return granted
}

// busy tells whether one of w's queues was applied to of late.
func (ws *waits) busy(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return slices.ContainsFunc(w.queues, func(q string) bool { return time.Since(ws.worked[q]) < settleIn })
}

// goAway takes w out of line to wait at the leader, if it was not granted before
// and there is a place.
func (ws *waits) goAway(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	q := w.queues[0]
	if w.granted || len(w.queues) > 1 || ws.away[q] >= maxAway {
		return false
	}
	ws.remove(w)
	ws.away[q]++
	return true
}

// backFromAway gives the place free that goAway took.
func (ws *waits) backFromAway(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	q := w.queues[0]
	if ws.away[q]--; ws.away[q] == 0 {
		delete(ws.away, q)
	}
}

// answerTo returns what waits for the answer to a lease that was sent for w; nil:
// none was. wake has been told.
func (ws *waits) answerTo(w *waiter) pendingWrite {
	answer := w.sent
	w.sent = nil
	return answer
}

// send takes waiters out of line for what a produce is about to bring to a
// queue: messages by kind, and whether it is unsure that they can be leased. Each
// waiter must be told by wake, after sent is set.
func (ws *waits) send(queue string, brings func() (byKind map[string]int, unsure bool)) (out []*waiter) {
	if ws.waiting.Load() == 0 {
		return nil
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	lanes := ws.lanes[queue]
	if len(lanes) == 0 {
		return nil
	}
	if m := ws.missed[queue]; m.skip > 0 {
		m.skip--
		ws.missed[queue] = m
		return nil
	}
	for left, unsure := brings(); ; {
		var l *waitLane
		for _, c := range lanes {
			if c.waiters.Len() > 0 && (l == nil || c.head().place < l.head().place) && some(left, c.kinds, 1, false) > 0 {
				l = c
			}
		}
		if l == nil {
			return out
		}
		w := l.head()
		some(left, l.kinds, w.most, true)
		w.granted, w.lane, w.queue, w.claim, w.unsure = true, nil, queue, 0, unsure
		ws.remove(w)
		out = append(out, w)
	}
}

// some counts, up to n, messages of these kinds (none: all), and takes them out.
func some(left map[string]int, kinds []string, n int, out bool) (got int) {
	count := func(kind string) {
		m := min(left[kind], n-got)
		if got += m; out && m > 0 {
			left[kind] -= m
		}
	}
	for _, k := range kinds {
		count(k)
	}
	if len(kinds) == 0 {
		for k := range left {
			count(k)
		}
	}
	return got
}

// sentFor notes how many messages leases got that were sent along.
func (ws *waits) sentFor(queue string, n int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n > 0 {
		delete(ws.missed, queue)
		return
	}
	if len(ws.missed) >= maxMissed {
		clear(ws.missed)
	}
	m := ws.missed[queue]
	m.times = min(m.times+1, 6)
	m.skip = 1<<m.times - 1
	ws.missed[queue] = m
}

// maxMissed bounds what is remembered of queues that may be gone.
const maxMissed = 1000

// abandon takes w out of line or gives up its claim, and passes the baton on.
func (ws *waits) abandon(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !w.granted {
		ws.remove(w)
		return
	}
	w.granted = false
	if w.lane == nil {
		return // it claimed nothing
	}
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
		w.wake <- struct{}{} // has room: w is granted once between two enters
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
		delete(ws.worked, queue)
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
