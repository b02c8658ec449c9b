package crashtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Outcome is what a client knows of its request.
type Outcome string

const (
	OK      Outcome = "ok"      // answered with success
	Fail    Outcome = "fail"    // surely not done
	Unknown Outcome = "unknown" // done, or not, or still to come
)

// Kind is what a client asked.
type Kind string

const (
	Produce    Kind = "produce"
	Lease      Kind = "lease"
	Ack        Kind = "ack"
	Retry      Kind = "retry"
	Release    Kind = "release"
	Extend     Kind = "extend"
	DeadLetter Kind = "dead_letter"
	// of one dead letter to its place: Message is its id there, Found what it became
	Replay  Kind = "replay"
	Purge   Kind = "purge"   // of one dead letter
	Pause   Kind = "pause"   // of one key
	Resume  Kind = "resume"  // of one key
	Peek    Kind = "peek"    // all of a queue, while no client was at work
	Get     Kind = "get"     // of one message
	Stale   Kind = "stale"   // the same with consistency=stale
	Fault   Kind = "fault"   // something was done to one node or its lines; Error says what
	Crash   Kind = "crash"   // at Return none of the program's processes was alive
	Barrier Kind = "barrier" // a write after a crash
)

// Op is one request and its answer; a settle of several leases is one Op each.
type Op struct {
	Client  int     `json:"client"`
	Kind    Kind    `json:"kind"`
	Queue   string  `json:"queue,omitempty"`
	Key     string  `json:"key,omitempty"` // Pause and Resume
	Invoke  int64   `json:"invoke"`        // ns since the history began, by a monotonic clock
	Return  int64   `json:"return"`
	Outcome Outcome `json:"outcome,omitempty"`
	Error   string  `json:"error,omitempty"`

	// Who answered, in which of its lives, and the entry that it named
	// (X-Qlogd-Index), if any.
	Node  string `json:"node,omitempty"`
	Life  int    `json:"life,omitempty"`
	Index uint64 `json:"index,omitempty"`

	// Produce, Replay and Purge. Attempts with the same Request (its
	// Idempotency-Key) are repeats of one another.
	Request  string    `json:"request,omitempty"`
	Messages []Message `json:"messages,omitempty"`

	// Lease, Peek, Get and Stale. A message that is not there has the State
	// Absent.
	Found []Found `json:"found,omitempty"`

	// Settles, Replay and Purge. Status is the answer's, when there was one: of a
	// dead letter that was passed over "rejected".
	Lease   string `json:"lease,omitempty"`
	Message string `json:"message,omitempty"`
	Status  string `json:"status,omitempty"`
	Expires int64  `json:"expires,omitempty"` // extended to, Unix ms
}

// Absent is the State of a message that a node does not know.
const Absent = "absent"

// Message is one that a client produced. UID is the client's own name for it,
// in its payload; ID is the answer's.
type Message struct {
	UID string `json:"uid"`
	Key string `json:"key"`
	ID  string `json:"id,omitempty"`
}

// Found is a message that the program showed: leased or peeked.
type Found struct {
	ID      string `json:"id"`
	UID     string `json:"uid"` // "" where the payload is not one of ours, or damaged
	Key     string `json:"key"`
	Lease   string `json:"lease,omitempty"`
	Attempt int64  `json:"attempt,omitempty"`
	Expires int64  `json:"expires,omitempty"` // Unix ms
	State   string `json:"state,omitempty"`   // of a peeked one
	DeadID  string `json:"dead_id,omitempty"` // in a dead-letter queue: the id that it died under
}

// History records what happens. It may be used by several goroutines.
type History struct {
	start time.Time
	last  atomic.Int64 // of Now
	mu    sync.Mutex
	ops   []Op
	grown chan struct{}
}

// NewHistory returns an empty one.
func NewHistory() *History { return &History{start: time.Now(), grown: make(chan struct{})} }

// Now is the history's clock. It never returns the same time twice, also where
// time is simulated.
func (h *History) Now() int64 {
	for {
		last := h.last.Load()
		now := max(last+1, int64(time.Since(h.start)))
		if h.last.CompareAndSwap(last, now) {
			return now
		}
	}
}

// Add records what happened.
func (h *History) Add(ops ...Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, ops...)
	close(h.grown)
	h.grown = make(chan struct{})
}

// Ops returns all so far.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ops[:len(h.ops):len(h.ops)]
}

// Len returns how many there are.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// Wait waits until ok, which it asks whenever the history has grown. It returns
// false when it is not within that time.
func (h *History) Wait(within time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		h.mu.Lock()
		grown := h.grown
		h.mu.Unlock()
		if ok() {
			return true
		}
		select {
		case <-grown:
		case <-deadline.C:
			return false
		}
	}
}

// Save writes the history as one JSON object a line.
func (h *History) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for _, op := range h.Ops() {
		if err := enc.Encode(op); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// FirstWrite returns when the first write ended that was begun at or after a
// time, 0 if there is none yet.
func (h *History) FirstWrite(since int64) int64 {
	// Operations are added as they end, so those that count are at the end.
	ops, first := h.Ops(), int64(0)
	for i := len(ops) - 1; i >= 0 && ops[i].Return >= since; i-- {
		op := &ops[i]
		if op.Outcome == OK && op.Invoke >= since && (op.Kind == Produce || isSettle(op.Kind)) &&
			(first == 0 || op.Return < first) {
			first = op.Return
		}
	}
	return first
}

// Payload is what the campaign's messages carry. It shows whether it is whole.
type Payload struct {
	UID  string `json:"uid"`
	Key  string `json:"key"`
	Fill string `json:"fill"`
	Sum  uint32 `json:"sum"`
}

func newPayload(uid, key, fill string) Payload {
	p := Payload{UID: uid, Key: key, Fill: fill}
	p.Sum = p.sum()
	return p
}

func (p *Payload) sum() uint32 {
	return crc32.ChecksumIEEE(fmt.Appendf(nil, "%q%q%q", p.UID, p.Key, p.Fill))
}

// UIDOf returns the name in a payload, or "" if it is not one of ours as it was
// sent.
func UIDOf(b []byte, key string) string {
	var p Payload
	if json.Unmarshal(b, &p) != nil || p.Sum != p.sum() || p.Key != key {
		return ""
	}
	return p.UID
}
