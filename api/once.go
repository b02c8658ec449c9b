package api

import (
	"container/list"
	"sync"
	"time"

	"github.com/qlogd/qlogd/event"
)

// How many answers to cluster calls a node keeps, and for how long.
const (
	keepOnce    = 1000
	keepOnceFor = event.KeepAnswersMS * time.Millisecond
)

// onceOnly keeps the answers to cluster calls with an Idempotency-Key. These
// calls change Raft's configuration and no state, so there is no entry that
// could keep the answer with it: each node remembers in memory what it was asked
// itself. That is enough to be safe, for each such call says what is to be in
// the end: to carry it out twice ends where once does.
type onceOnly struct {
	mu    sync.Mutex
	calls map[event.Hash]*onceCall
	order list.List // of *onceCall, oldest first
}

// onceCall is one call: in hand until done is closed, then answered.
type onceCall struct {
	key, body event.Hash
	begun     time.Time
	at        *list.Element
	done      chan struct{}

	// The answer, after done. none: it failed, so the next one tries again.
	none   bool
	status int
	answer any // nil: none to tell
}

func newOnceOnly() *onceOnly { return &onceOnly{calls: map[event.Hash]*onceCall{}} }

// begin returns the call that came under this key before, or a new one with
// first set, which must be ended.
func (o *onceOnly) begin(r *event.Request) (c *onceCall, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.calls[r.Key]; c != nil && time.Since(c.begun) < keepOnceFor {
		return c, false
	}
	c = &onceCall{key: r.Key, body: r.Body, begun: time.Now(), done: make(chan struct{})}
	if old := o.calls[r.Key]; old != nil {
		o.order.Remove(old.at)
	}
	o.calls[r.Key], c.at = c, o.order.PushBack(c)
	for o.order.Len() > keepOnce {
		old := o.order.Remove(o.order.Front()).(*onceCall)
		delete(o.calls, old.key)
	}
	return c, true
}

// end notes the answer. A failed call is forgotten.
func (o *onceOnly) end(c *onceCall, status int, answer any, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c.status, c.answer, c.none = status, answer, err != nil
	if c.none && o.calls[c.key] == c {
		o.order.Remove(c.at)
		delete(o.calls, c.key)
	}
	close(c.done)
}
