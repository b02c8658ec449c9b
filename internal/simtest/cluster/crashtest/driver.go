package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// The campaign's queues.
const (
	ordered = "ordered" // per key; messages stay until they are acked
	pool    = "pool"    // unordered; the same
	flaky   = "flaky"   // per key; three attempts, then to flaky.dlq
	held    = "held"    // per key; two attempts, then to held.dlq, and its key stops until that is mended
	barrier = "barrier" // takes a message behind each crash; nobody looks at it
)

// queues are their policies, in the order in which they are peeked: a queue
// before its dead letters.
var queues = []struct {
	name  string
	rules Rules
}{
	{ordered, Rules{PerKey: true}},
	{pool, Rules{}},
	{flaky, Rules{PerKey: true, DeadLetters: flaky + ".dlq"}},
	{flaky + ".dlq", Rules{}},
	{held, Rules{PerKey: true, DeadLetters: held + ".dlq", Held: true}},
	{held + ".dlq", Rules{}},
}

// worked are those that clients produce into and work off.
var worked = []string{ordered, pool, flaky, held}

func rulesOf() map[string]Rules {
	out := map[string]Rules{}
	for _, q := range queues {
		if !strings.HasSuffix(q.name, ".dlq") {
			out[q.name] = q.rules
		}
	}
	return out
}

const leaseMS = 700

func policy(ordering string, attempts int64, dlq string) wire.PolicyUpdate {
	p := wire.PolicyUpdate{}
	_ = wire.Unmarshal(fmt.Appendf(nil, `{"ordering":%q,"delivery":{"lease_ms":%d,"max_attempts":%d,
		"initial_backoff_ms":20,"max_backoff_ms":200%s}}`, ordering, leaseMS, attempts, dlq), &p)
	return p
}

// Driver sends the campaign's clients. Some of them are bound to a node, the
// others go where they like, and all repeat elsewhere what a node did not do.
type Driver struct {
	History *History
	nodes   []*client.Client // of one node each; none repeats by itself
	seed    uint64
	timeout time.Duration // of one call

	// gate is held for reading by a client that is at work, and for writing
	// while the server is exchanged.
	gate sync.RWMutex
	stop atomic.Bool
	wg   sync.WaitGroup
	// waiting is about how many messages wait: producers pause above limit.
	waiting atomic.Int64
	limit   int64
}

// NewDriver prepares clients of these nodes.
func NewDriver(seed uint64, nodes ...*cluster.Node) *Driver {
	d := &Driver{History: NewHistory(), seed: seed, limit: 600, timeout: 30 * time.Second}
	for _, n := range nodes {
		d.nodes = append(d.nodes, n.Client(client.WithRetry(client.Retry{Attempts: 1})))
	}
	if len(nodes) > 1 {
		// A node that is paused or cut off does not answer for a while.
		d.timeout = 10 * time.Second
	}
	return d
}

// Setup makes the queues.
func (d *Driver) Setup(ctx context.Context) error {
	for _, q := range []struct {
		name   string
		policy wire.PolicyUpdate
	}{
		{ordered, policy("per_key", 0, "")},
		{pool, policy("unordered", 0, "")},
		{flaky, policy("per_key", 3, `,"dead_letter_queue":"auto"`)},
		{held, policy("per_key", 2, `,"dead_letter_queue":"auto","on_dead":"hold_key"`)},
		{barrier, policy("unordered", 0, "")},
	} {
		if _, _, err := d.nodes[0].PutQueue(ctx, q.name, q.policy); err != nil {
			return fmt.Errorf("make queue %s: %w", q.name, err)
		}
	}
	return nil
}

// Go sends producers and consumers to work, and an operator who minds the dead.
func (d *Driver) Go(producers, consumers int) {
	for i := range producers + consumers + 1 {
		r := rand.New(rand.NewPCG(d.seed, uint64(i)))
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			switch {
			case i < producers:
				d.produce(i, r)
			case i < producers+consumers:
				d.consume(i, r)
			default:
				d.operate(i, r)
			}
		}()
	}
}

// Halt waits until no client is at work and lets none begin. The server must
// be dead or in good health, else that takes its time.
func (d *Driver) Halt() { d.gate.Lock() }

// Resume lets the clients go on.
func (d *Driver) Resume() { d.gate.Unlock() }

// Stop ends the clients; each has learnt by then what became of its requests,
// but for those it gave up.
func (d *Driver) Stop() {
	d.stop.Store(true)
	d.wg.Wait()
}

// where picks the node for a client's request: every other client stays with
// one, unless it is a repeat.
func (d *Driver) where(id int, r *rand.Rand, repeat bool) int {
	if id%2 == 0 && !repeat {
		return id / 2 % len(d.nodes)
	}
	return r.IntN(len(d.nodes))
}

// call runs one request at a node and classifies its error: what reached a
// connection may have been done unless the server says that it was not. It
// returns what is to be told of it, but for its content.
func (d *Driver) call(id, node int, fn func(context.Context, *client.Client) error) Op {
	d.gate.RLock()
	defer d.gate.RUnlock()
	op := d.callUngated(context.Background(), node, fn)
	op.Client = id
	return op
}

// callUngated is call while the clients are halted.
func (d *Driver) callUngated(ctx context.Context, node int, fn func(context.Context, *client.Client) error) Op {
	var sent atomic.Bool
	var a cluster.Answer
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	ctx = cluster.WithAnswer(ctx, &a)
	op := Op{Client: -1, Outcome: OK, Invoke: d.History.Now()}
	err := fn(ctx, d.nodes[node])
	op.Return = d.History.Now()
	op.Life, op.Index = a.Starts, a.Index
	if a.Node != nil {
		op.Node = a.Node.Name()
	}
	if err == nil {
		return op
	}
	op.Error = err.Error()
	var e *client.Error
	switch {
	case errors.As(err, &e) && e.Problem.Outcome != wire.Unknown && e.Problem.Status != 0:
		op.Outcome = Fail
	case !sent.Load():
		op.Outcome = Fail
	default:
		op.Outcome = Unknown
	}
	return op
}

// pause keeps a client from spinning while the server is away or has nothing.
func (d *Driver) pause(r *rand.Rand) { time.Sleep(time.Duration(1+r.IntN(10)) * time.Millisecond) }

// repeat calls fn until its outcome is known, or the client gives up.
func (d *Driver) repeat(id int, r *rand.Rand, giveUp bool, fn func(node int) Outcome) {
	for again := false; ; again = true {
		o := fn(d.where(id, r, again))
		if o == OK && r.IntN(20) > 0 {
			return // else once more, to see whether it is answered the same
		}
		if giveUp && o == Unknown || o == Fail && d.stop.Load() {
			return
		}
		if o != OK {
			d.pause(r)
			giveUp = giveUp || r.IntN(200) == 0
		}
	}
}

func (d *Driver) produce(id int, r *rand.Rand) {
	for n := 0; !d.stop.Load(); {
		if d.waiting.Load() > d.limit {
			d.pause(r)
			continue
		}
		queue := []string{ordered, ordered, pool, flaky, held}[r.IntN(5)]
		// Keys live for a while only: what is never learnt of one request makes
		// the orders to be tried for its lane many, so lanes are to be short.
		age := d.History.Len() / 3000
		key := fmt.Sprintf("k%d-%d.%d", id, r.IntN(3), age)
		if r.IntN(3) == 0 {
			key = fmt.Sprintf("shared-%d.%d", r.IntN(3), age)
		}
		size := 1
		if r.IntN(3) == 0 {
			size = 1 + r.IntN(10)
		}
		var request []wire.NewMessage
		var uids []Message
		for range size {
			n++
			uid := fmt.Sprintf("c%d-%d", id, n)
			p := newPayload(uid, key, strings.Repeat("x", r.IntN(2000)))
			m := client.JSON(p)
			m.Key = key
			request = append(request, m)
			uids = append(uids, Message{UID: uid, Key: key})
		}
		name := fmt.Sprintf("%d-%d-%d", d.seed, id, n)
		d.waiting.Add(int64(size))
		var made Message
		d.repeat(id, r, r.IntN(20) == 0, func(node int) Outcome {
			var got []wire.Produced
			op := d.call(id, node, func(ctx context.Context, c *client.Client) (err error) {
				got, err = c.ProduceAll(ctx, queue, request, client.WithIdempotencyKey(name))
				return err
			})
			op.Kind, op.Queue, op.Request, op.Messages = Produce, queue, name, slices.Clone(uids)
			if op.Outcome == OK {
				for i := range op.Messages {
					if i < len(got) {
						op.Messages[i].ID = got[i].ID
					}
				}
				made = op.Messages[0]
			}
			d.History.Add(op)
			return op.Outcome
		})
		if made.ID != "" {
			d.look(id, r, queue, made)
		}
	}
}

// overdue is a lease that a consumer lets run out, to ack it too late.
type overdue struct {
	queue string
	Found
}

func (d *Driver) consume(id int, r *rand.Rand) {
	var late []overdue
	for !d.stop.Load() {
		for len(late) > 0 && (len(late) > 20 || late[0].Expires < time.Now().UnixMilli()-50) {
			h := late[0]
			late = late[1:]
			d.settle(id, r, Ack, h.queue, []Found{h.Found})
		}
		queue := worked[r.IntN(len(worked))]
		got := d.lease(id, d.where(id, r, false), queue, 1+r.IntN(10), time.Duration(r.IntN(100))*time.Millisecond)
		if len(got) == 0 {
			d.pause(r)
		}
		var acks []Found
		for _, f := range got {
			switch n := r.IntN(100); {
			case n < 75:
				acks = append(acks, f)
			case n < 83:
				d.settle(id, r, Retry, queue, []Found{f})
			case n < 88:
				d.settle(id, r, Release, queue, []Found{f})
			case n < 92:
				d.settle(id, r, Extend, queue, []Found{f})
				d.settle(id, r, Ack, queue, []Found{f})
			case n < 94 && (queue == flaky || queue == held):
				d.settle(id, r, DeadLetter, queue, []Found{f})
			case n < 97:
				late = append(late, overdue{queue, f})
			default: // forgotten
			}
		}
		if len(acks) > 0 {
			d.settle(id, r, Ack, queue, acks)
			d.look(id, r, queue, Message{UID: acks[0].UID, Key: acks[0].Key, ID: acks[0].ID})
		}
	}
}

// look now and then asks any node for a message that was just written, or has
// it told what it thinks without asking the others.
func (d *Driver) look(id int, r *rand.Rand, queue string, m Message) {
	var opts []client.CallOption
	kind := Get
	switch n := r.IntN(20); {
	case n > 2 || queue == held: // its messages go on under other ids
		return
	case n == 2:
		kind, opts = Stale, append(opts, client.Stale())
	}
	f := Found{ID: m.ID, UID: m.UID, Key: m.Key}
	op := d.call(id, r.IntN(len(d.nodes)), func(ctx context.Context, c *client.Client) error {
		got, err := c.Message(ctx, m.ID, opts...)
		switch {
		case err == nil:
			f.State, f.Attempt = got.State, got.Attempt
		case errors.Is(err, client.ErrMessageNotFound):
			f.State, err = absent, nil
		}
		return err
	})
	if op.Outcome == OK {
		op.Kind, op.Queue, op.Found = kind, queue, []Found{f}
		d.History.Add(op)
	}
}

func (d *Driver) lease(id, node int, queue string, most int, wait time.Duration) []Found {
	var got []wire.LeasedMessage
	op := d.call(id, node, func(ctx context.Context, c *client.Client) (err error) {
		got, err = c.Lease(ctx, queue, client.LeaseOptions{Max: most, Wait: wait, Worker: fmt.Sprint("client-", id)})
		return err
	})
	op.Kind, op.Queue = Lease, queue
	for _, m := range got {
		op.Found = append(op.Found, Found{
			ID: m.ID, UID: uidOf(m.Payload, m.Key), Key: m.Key, Lease: m.LeaseID, Attempt: m.Attempt,
			Expires: int64(m.LeaseExpiresAt),
		})
	}
	if op.Outcome != OK || len(got) > 0 {
		d.History.Add(op)
	}
	return op.Found
}

// settle settles leases in one call, and repeats it until its outcome is known.
func (d *Driver) settle(id int, r *rand.Rand, kind Kind, queue string, fs []Found) {
	d.repeat(id, r, r.IntN(20) == 0, func(node int) Outcome {
		var got []wire.SettleResult
		op := d.call(id, node, func(ctx context.Context, c *client.Client) (err error) {
			got, err = send(ctx, c, kind, queue, fs)
			return err
		})
		for i, f := range fs {
			op := op
			op.Kind, op.Queue, op.Lease, op.Message = kind, queue, f.Lease, f.ID
			if op.Outcome == OK && i < len(got) {
				op.Status = got[i].Status
				op.Expires = int64(got[i].LeaseExpiresAt)
				if kind == Ack && op.Status == "acked" {
					d.waiting.Add(-1)
				}
			}
			d.History.Add(op)
		}
		return op.Outcome
	})
}

func send(ctx context.Context, c *client.Client, kind Kind, queue string, fs []Found) ([]wire.SettleResult, error) {
	switch kind {
	case Retry:
		return c.Retry(ctx, queue, items(fs, func(l string) wire.RetryItem { return wire.RetryItem{LeaseID: l, Error: "not today"} }))
	case DeadLetter:
		return c.DeadLetter(ctx, queue, items(fs, func(l string) wire.DeadLetterItem { return wire.DeadLetterItem{LeaseID: l, Error: "never"} }))
	case Extend:
		return c.Extend(ctx, queue, items(fs, func(l string) wire.ExtendItem { return wire.ExtendItem{LeaseID: l, LeaseMS: 2 * leaseMS} }))
	case Release:
		return c.Release(ctx, queue, items(fs, func(l string) string { return l })...)
	}
	return c.Ack(ctx, queue, items(fs, func(l string) string { return l })...)
}

func items[T any](fs []Found, of func(lease string) T) []T {
	out := make([]T, len(fs))
	for i, f := range fs {
		out[i] = of(f.Lease)
	}
	return out
}

// Cross makes sure that what is asked from now on comes after all that was asked
// before a crash and may still have been on its way: it has one write done.
func (d *Driver) Cross(ctx context.Context) error {
	r := rand.New(rand.NewPCG(d.seed, uint64(d.History.Len())))
	for {
		var got []wire.Produced
		op := d.callUngated(ctx, r.IntN(len(d.nodes)), func(ctx context.Context, c *client.Client) (err error) {
			got, err = c.Produce(ctx, barrier, client.JSON("behind it"))
			return err
		})
		if op.Outcome == OK && len(got) == 1 {
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

// Peek writes down what is in every queue, as any of the nodes tells it. No
// client may be at work.
func (d *Driver) Peek(ctx context.Context) error {
	waiting := 0
	c := d.nodes[d.History.Len()%len(d.nodes)]
	for _, q := range queues {
		op := Op{Client: -1, Kind: Peek, Queue: q.name, Invoke: d.History.Now(), Outcome: OK}
		for after := ""; ; {
			page, err := c.Messages(ctx, q.name, client.MessageQuery{Limit: 200, After: after})
			if err != nil {
				return fmt.Errorf("peek %s: %w", q.name, err)
			}
			for _, m := range page.Messages {
				f := Found{ID: m.ID, UID: uidOf(m.Payload, m.Key), Key: m.Key, State: m.State, Attempt: m.Attempt}
				if m.Dead != nil {
					f.DeadID = m.Dead.MessageID
				}
				op.Found = append(op.Found, f)
			}
			if after = page.NextCursor; after == "" {
				break
			}
		}
		op.Return = d.History.Now()
		d.History.Add(op)
		if !strings.HasSuffix(q.name, ".dlq") {
			waiting += len(op.Found)
		}
	}
	d.waiting.Store(int64(waiting))
	return nil
}

// Drain works off all that is left; what it can't within the deadline stays,
// and Check finds it stuck.
func (d *Driver) Drain(ctx context.Context, clients int) error {
	var wg sync.WaitGroup
	for i := range clients {
		r := rand.New(rand.NewPCG(d.seed, uint64(1000+i)))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; ctx.Err() == nil && !d.empty(ctx, i); n++ {
				d.mend(1000+i, r, n)
				for _, q := range worked {
					if got := d.lease(1000+i, i%len(d.nodes), q, 50, leaseMS*time.Millisecond/4); len(got) > 0 {
						d.settle(1000+i, r, Ack, q, got)
					}
				}
			}
		}()
	}
	wg.Wait()
	return d.Peek(context.WithoutCancel(ctx))
}

// empty reports whether nothing is left to work off.
func (d *Driver) empty(ctx context.Context, i int) bool {
	for _, q := range append(worked[:len(worked):len(worked)], held+".dlq") {
		v, err := d.nodes[i%len(d.nodes)].Queue(ctx, q)
		if err != nil || v.Stats.Depth+v.Stats.Scheduled+v.Stats.InFlight > 0 {
			return false
		}
	}
	return true
}
