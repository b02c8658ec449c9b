package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Queue is one of the campaign's queues, with what it promises.
type Queue struct {
	Name     string
	Attempts int64 // of a message, at most; 0: no limit
	Rules
}

// queues are what clients produce into and work off.
var queues = []Queue{
	{"ordered", 0, Rules{PerKey: true}},
	{"batched", 0, Rules{PerKey: true, Batch: maxBatch}},
	{"pool", 0, Rules{Rate: 10, PerMS: 50}},
	{"flaky", 3, Rules{PerKey: true, DeadLetters: "flaky.dlq"}},
	{held, 2, Rules{PerKey: true, Batch: 3, DeadLetters: held + ".dlq", Held: true}},
}

const (
	held    = "held"
	barrier = "barrier" // gets a message after each crash; nobody reads it
)

// Conn is one node of the program, as a client reaches it.
type Conn interface {
	PutQueue(ctx context.Context, q Queue, lease time.Duration) error
	// Produce returns the ids of the messages. A repeat has the same request.
	Produce(ctx context.Context, queue, request string, ms []Payload) ([]string, error)
	Lease(ctx context.Context, queue string, most int, wait time.Duration) ([]Found, error)
	// Settle settles the leases of some messages, extending them to extend.
	Settle(ctx context.Context, kind Kind, queue string, fs []Found,
		extend time.Duration) ([]Settled, error)
	// Get returns the state of a message, Absent if there is none. kind is Get or Stale.
	Get(ctx context.Context, kind Kind, id string) (state string, err error)
	Peek(ctx context.Context, queue string) ([]Found, error)
	Dead(ctx context.Context, queue string, most int) ([]Found, error)
	// Revive replays or purges dead messages and returns the new ids of those
	// it was done to, by their old ones; a purged message has none. Some are
	// replayed with another payload.
	Revive(ctx context.Context, kind Kind, queue, request string, ids []string,
		edits map[string]Payload) (map[string]string, error)
	// Pause pauses or resumes (Resume) a key, and Paused returns those that are paused.
	Pause(ctx context.Context, kind Kind, queue, key string) error
	Paused(ctx context.Context, queue string) ([]string, error)
	// Left returns how many messages of a queue are not settled yet.
	Left(ctx context.Context, queue string) (int, error)
}

// Settled is the answer about one lease.
type Settled struct {
	Status  string
	Expires int64 // Unix ms, of an extended one
}

// Options of a Driver.
type Options struct {
	Seed  uint64
	Nodes int
	// Call runs do with a connection to a node. It returns the outcome and who
	// answered; the Driver adds the rest.
	Call func(ctx context.Context, node int, do func(context.Context, Conn) error) Op
	// Pause is how long a client waits between two requests, at most.
	Pause time.Duration
	Lease time.Duration // of the queues
	// KeyAge is how many answers a key is used for. What is never known of one
	// request multiplies the orders to be tried for its lane, so lanes are short.
	KeyAge int
}

// Driver runs the campaign's clients. Half of them stay with one node, the
// others use any, and all repeat elsewhere what a node did not do.
type Driver struct {
	Options
	History *History

	// gate is held for reading by a client that is at work, and for writing
	// while the program restarts.
	gate sync.RWMutex
	stop atomic.Bool
	wg   sync.WaitGroup
	// waiting is about how many messages wait: nobody produces above limit.
	waiting atomic.Int64
}

const limit = 600

// NewDriver returns a Driver without clients.
func NewDriver(o Options) *Driver { return &Driver{Options: o, History: NewHistory()} }

// Setup creates the queues.
func (d *Driver) Setup(ctx context.Context) error {
	r := d.rand(7)
	for _, q := range append(queues[:len(queues):len(queues)], Queue{Name: barrier}) {
		for {
			op := d.call(ctx, -1, 0, func(ctx context.Context, c Conn) error {
				return c.PutQueue(ctx, q, d.Lease)
			})
			if op.Outcome == OK {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("create queue %s: %s", q.Name, op.Error)
			}
			d.pause(r)
		}
	}
	return nil
}

// Go starts clients.
func (d *Driver) Go(clients int) {
	for id := range clients {
		d.wg.Go(func() { (&worker{d: d, id: id, r: d.rand(id)}).work() })
	}
}

// Halt waits until no client is at work and lets none start. The program must
// be dead or in good health, else that takes its time.
func (d *Driver) Halt() { d.gate.Lock() }

// Resume lets the clients continue.
func (d *Driver) Resume() { d.gate.Unlock() }

// Stop ends the clients.
func (d *Driver) Stop() {
	d.stop.Store(true)
	d.wg.Wait()
}

func (d *Driver) rand(id int) *rand.Rand { return rand.New(rand.NewPCG(d.Seed, uint64(100+id))) }

func (d *Driver) pause(r *rand.Rand) {
	time.Sleep(d.Pause/20 + time.Duration(r.Int64N(int64(d.Pause))))
}

// call runs one request at a node.
func (d *Driver) call(ctx context.Context, id, node int, do func(context.Context, Conn) error) Op {
	invoke := d.History.Now()
	op := d.Call(ctx, node, do)
	op.Client, op.Invoke, op.Return = id, invoke, d.History.Now()
	return op
}

// Cross makes sure that what is asked from now on comes after all that was asked
// before a crash and may still have been on its way: it has one write done.
func (d *Driver) Cross(ctx context.Context) error {
	r := d.rand(d.History.Len())
	for {
		op := d.call(ctx, -1, r.IntN(d.Nodes), func(ctx context.Context, c Conn) error {
			_, err := c.Produce(ctx, barrier, "", []Payload{newPayload("barrier", "", "")})
			return err
		})
		if op.Outcome == OK {
			op.Kind, op.Queue = Barrier, barrier
			d.History.Add(op)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no write is done: %s", op.Error)
		}
		d.pause(r)
	}
}

// Peek records what is in every queue, as one of the nodes shows it. No client
// may be at work.
func (d *Driver) Peek(ctx context.Context) error {
	waiting := 0
	node := d.History.Len() % d.Nodes
	for _, q := range queues {
		for _, name := range []string{q.Name, q.DeadLetters} { // in this order
			if name == "" {
				continue
			}
			var found []Found
			op := d.call(ctx, -1, node, func(ctx context.Context, c Conn) (err error) {
				found, err = c.Peek(ctx, name)
				return err
			})
			if op.Outcome != OK {
				return fmt.Errorf("peek %s: %s", name, op.Error)
			}
			op.Kind, op.Queue, op.Found = Peek, name, found
			d.History.Add(op)
			if name == q.Name {
				waiting += len(found)
			}
		}
	}
	d.waiting.Store(int64(waiting))
	return nil
}

// Drain works off all that is left, with that many clients. What they can't
// until ctx ends stays, and Check finds it stuck.
func (d *Driver) Drain(ctx context.Context, clients int) error {
	d.stop.Store(false)
	for i := range clients {
		d.wg.Go(func() {
			w := &worker{d: d, id: 1000 + i, r: d.rand(1000 + i)}
			for ctx.Err() == nil && !w.empty(ctx) {
				w.mend()
				for _, q := range queues {
					w.resume(q.Name)
					if got := w.lease(q.Name, 50, d.Lease/4); len(got) > 0 {
						w.settle(Ack, q.Name, got...)
					}
				}
				d.pause(w.r)
			}
		})
	}
	d.wg.Wait()
	return d.Peek(context.WithoutCancel(ctx))
}

// worker is one client.
type worker struct {
	d    *Driver
	id   int
	r    *rand.Rand
	n    int // messages and requests so far
	late []overdue
}

// overdue is a lease that a client lets run out, to ack it too late.
type overdue struct {
	queue string
	at    time.Time
	Found
}

func (w *worker) work() {
	for !w.d.stop.Load() {
		w.d.pause(w.r)
		if len(w.late) > 0 && time.Now().After(w.late[0].at) {
			w.settle(Ack, w.late[0].queue, w.late[0].Found)
			w.late = w.late[1:]
		}
		switch n := w.r.IntN(12); {
		case n < 4:
			if w.d.waiting.Load() < limit {
				w.produce()
			}
		case n == 4:
			w.mend()
		default:
			w.consume(queues[w.r.IntN(len(queues))])
		}
	}
}

// where picks the node for a request.
func (w *worker) where(repeat bool) int {
	if w.id%2 == 0 && !repeat {
		return w.id / 2 % w.d.Nodes
	}
	return w.r.IntN(w.d.Nodes)
}

func (w *worker) call(node int, do func(context.Context, Conn) error) Op {
	w.d.gate.RLock()
	defer w.d.gate.RUnlock()
	return w.d.call(context.Background(), w.id, node, do)
}

// repeat runs one request until its outcome is known, or the client gives up,
// and records each attempt. about adds what the request was about.
func (w *worker) repeat(do func(context.Context, Conn) error, about func(Op) []Op) {
	giveUp := w.r.IntN(20) == 0
	for again := false; ; again = true {
		op := w.call(w.where(again), do)
		w.d.History.Add(about(op)...)
		switch {
		case op.Outcome == OK && w.r.IntN(20) > 0:
			return // else once more, to see whether the answer is the same
		case w.d.stop.Load(), giveUp && op.Outcome == Unknown:
			return
		case op.Outcome != OK:
			w.d.pause(w.r)
			giveUp = giveUp || w.r.IntN(100) == 0
		}
	}
}

// request returns a name for a request and its repeats.
func (w *worker) request() string {
	w.n++
	return fmt.Sprintf("%d-%d-%d", w.d.Seed, w.id, w.n)
}

func (w *worker) produce() {
	queue := queues[max(0, w.r.IntN(len(queues)+1)-1)].Name // ordered twice as often
	key := fmt.Sprintf("k%d-%d", w.id, w.r.IntN(3))
	if w.r.IntN(3) == 0 {
		key = fmt.Sprintf("shared-%d", w.r.IntN(3))
	}
	key += fmt.Sprintf(".%d", w.d.History.Len()/w.d.KeyAge)
	size := 1
	if w.r.IntN(3) == 0 {
		size += w.r.IntN(8)
	}
	request := w.request()
	var ms []Payload
	var sent []Message
	for range size {
		w.n++
		p := newPayload(fmt.Sprintf("c%d-%d", w.id, w.n), key, strings.Repeat("x", w.r.IntN(2000)))
		ms, sent = append(ms, p), append(sent, Message{UID: p.UID, Key: key})
	}
	w.d.waiting.Add(int64(size))
	var ids []string
	var first Found
	w.repeat(func(ctx context.Context, c Conn) (err error) {
		ids, err = c.Produce(ctx, queue, request, ms)
		return err
	}, func(op Op) []Op {
		op.Kind, op.Queue, op.Request, op.Messages = Produce, queue, request, slices.Clone(sent)
		if op.Outcome == OK {
			for i := range op.Messages {
				op.Messages[i].ID = ids[i]
			}
			first = Found{ID: ids[0], UID: sent[0].UID, Key: key}
		}
		return []Op{op}
	})
	if first.ID != "" {
		w.look(queue, first)
	}
	if w.r.IntN(8) == 0 {
		w.pause(Pause, queue, key)
		w.d.pause(w.r)
		w.pause(Resume, queue, key)
	}
}

// pause pauses or resumes a key.
func (w *worker) pause(kind Kind, queue, key string) {
	w.repeat(func(ctx context.Context, c Conn) error {
		return c.Pause(ctx, kind, queue, key)
	}, func(op Op) []Op {
		op.Kind, op.Queue, op.Key = kind, queue, key
		return []Op{op}
	})
}

// resume resumes the keys of a queue that clients have left paused.
func (w *worker) resume(queue string) {
	var keys []string
	w.call(w.where(true), func(ctx context.Context, c Conn) (err error) {
		keys, err = c.Paused(ctx, queue)
		return err
	})
	for _, key := range keys {
		w.pause(Resume, queue, key)
	}
}

func (w *worker) consume(q Queue) {
	var acks []Found
	for _, f := range w.lease(q.Name, 1+w.r.IntN(8),
		time.Duration(w.r.IntN(100))*time.Millisecond) {
		switch n := w.r.IntN(100); {
		case n < 73:
			acks = append(acks, f)
		case n < 81:
			w.settle(Retry, q.Name, f)
		case n < 86:
			w.settle(Release, q.Name, f)
		case n < 91:
			w.settle(Extend, q.Name, f)
			w.settle(Ack, q.Name, f)
		case n < 94 && q.DeadLetters != "":
			w.settle(DeadLetter, q.Name, f)
		case n < 97:
			w.late = append(w.late, overdue{q.Name, time.Now().Add(w.d.Lease + w.d.Lease/16), f})
		default: // forgotten
		}
	}
	if len(acks) > 0 {
		w.settle(Ack, q.Name, acks...)
		w.look(q.Name, acks[0])
	}
}

// look sometimes asks any node for a message that was just written, now and then
// for what that node knows without asking the others.
func (w *worker) look(queue string, f Found) {
	kind := Get
	switch n := w.r.IntN(6); {
	case n > 2 || queue == held: // its messages get new ids
		return
	case n == 2:
		kind = Stale
	}
	var state string
	op := w.call(w.r.IntN(w.d.Nodes), func(ctx context.Context, c Conn) (err error) {
		state, err = c.Get(ctx, kind, f.ID)
		return err
	})
	if op.Outcome == OK {
		op.Kind, op.Queue, op.Found = kind, queue, []Found{{ID: f.ID, UID: f.UID, Key: f.Key,
			State: state}}
		w.d.History.Add(op)
	}
}

func (w *worker) lease(queue string, most int, wait time.Duration) []Found {
	var got []Found
	op := w.call(w.where(false), func(ctx context.Context, c Conn) (err error) {
		got, err = c.Lease(ctx, queue, most, wait)
		return err
	})
	if op.Outcome != OK {
		got = nil
	}
	op.Kind, op.Queue, op.Found = Lease, queue, got
	if op.Outcome != OK || len(got) > 0 {
		w.d.History.Add(op)
	}
	return got
}

// settle settles leases in one request.
func (w *worker) settle(kind Kind, queue string, fs ...Found) {
	var got []Settled
	w.repeat(func(ctx context.Context, c Conn) (err error) {
		got, err = c.Settle(ctx, kind, queue, fs, 2*w.d.Lease)
		return err
	}, func(op Op) (ops []Op) {
		for i, f := range fs {
			op.Kind, op.Queue, op.Lease, op.Message = kind, queue, f.Lease, f.ID
			if op.Outcome == OK {
				op.Status, op.Expires = got[i].Status, got[i].Expires
				if kind == Ack && op.Status == "acked" {
					w.d.waiting.Add(-1)
				}
			}
			ops = append(ops, op)
		}
		return ops
	})
}

// mend does what an operator does with dead messages: looks at some, and has
// them replayed to their place, some with another payload, or purges one.
func (w *worker) mend() {
	var dead []Found
	op := w.call(w.where(false), func(ctx context.Context, c Conn) (err error) {
		dead, err = c.Dead(ctx, held, 1+w.r.IntN(8))
		return err
	})
	if op.Outcome != OK || len(dead) == 0 {
		return
	}
	kind := Replay
	if w.r.IntN(6) == 0 {
		kind, dead = Purge, dead[:1]
	}
	request := w.request()
	var ids []string
	edits := map[string]Payload{}
	for _, m := range dead {
		ids = append(ids, m.ID)
		if kind == Replay && w.r.IntN(4) == 0 {
			edits[m.ID] = newPayload(m.UID, m.Key, strings.Repeat("y", w.r.IntN(2000)))
		}
	}
	var became map[string]string
	w.repeat(func(ctx context.Context, c Conn) (err error) {
		became, err = c.Revive(ctx, kind, held, request, ids, edits)
		return err
	}, func(op Op) (ops []Op) {
		for _, m := range dead {
			op.Kind, op.Queue, op.Request, op.Message = kind, held, request, m.ID
			f := Found{UID: m.UID, Key: m.Key}
			if op.Outcome == OK {
				op.Status = "rejected"
				if to, done := became[m.ID]; done {
					op.Status, f.ID = "done", to
					if kind == Purge {
						w.d.waiting.Add(-1)
					}
				}
			}
			op.Found = []Found{f}
			ops = append(ops, op)
		}
		return ops
	})
}

// empty reports whether nothing is left to work off.
func (w *worker) empty(ctx context.Context) bool {
	left := 0
	op := w.d.call(ctx, w.id, w.where(true), func(ctx context.Context, c Conn) error {
		for _, q := range queues {
			names := []string{q.Name}
			if q.Held {
				names = append(names, q.DeadLetters)
			}
			for _, name := range names {
				n, err := c.Left(ctx, name)
				if err != nil {
					return err
				}
				left += n
			}
		}
		return nil
	})
	return op.Outcome == OK && left == 0
}
