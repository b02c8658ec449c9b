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
)

// The campaign's queues.
const (
	ordered = "ordered" // per key; messages stay until they are acked
	pool    = "pool"    // unordered; the same
	flaky   = "flaky"   // per key; three attempts, then to flaky.dlq
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
}

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

// Driver sends the campaign's clients.
type Driver struct {
	History *History
	client  *client.Client
	seed    uint64

	// gate is held for reading by a client that is at work, and for writing
	// while the server is exchanged.
	gate sync.RWMutex
	stop atomic.Bool
	wg   sync.WaitGroup
	// waiting is about how many messages wait: producers pause above limit.
	waiting atomic.Int64
	limit   int64
}

// NewDriver prepares clients of one node. c must not repeat by itself.
func NewDriver(c *client.Client, seed uint64) *Driver {
	return &Driver{History: NewHistory(), client: c, seed: seed, limit: 600}
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
	} {
		if _, _, err := d.client.PutQueue(ctx, q.name, q.policy); err != nil {
			return fmt.Errorf("make queue %s: %w", q.name, err)
		}
	}
	return nil
}

// Go sends producers and consumers to work.
func (d *Driver) Go(producers, consumers int) {
	for i := range producers + consumers {
		r := rand.New(rand.NewPCG(d.seed, uint64(i)))
		d.wg.Add(1)
		go func() {
			defer d.wg.Done()
			if i < producers {
				d.produce(i, r)
			} else {
				d.consume(i, r)
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

// call runs one request and classifies its error: what reached a connection
// may have been done unless the server says that it was not.
func (d *Driver) call(fn func(context.Context) error) (invoke, ret int64, o Outcome, text string) {
	var sent atomic.Bool
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	d.gate.RLock()
	defer d.gate.RUnlock()
	invoke = d.History.Now()
	err := fn(ctx)
	ret = d.History.Now()
	if err == nil {
		return invoke, ret, OK, ""
	}
	var e *client.Error
	switch {
	case errors.As(err, &e) && e.Problem.Outcome != wire.Unknown && e.Problem.Status != 0:
		o = Fail
	case !sent.Load():
		o = Fail
	default:
		o = Unknown
	}
	return invoke, ret, o, err.Error()
}

// pause keeps a client from spinning while the server is away or has nothing.
func (d *Driver) pause(r *rand.Rand) { time.Sleep(time.Duration(1+r.IntN(10)) * time.Millisecond) }

// repeat calls fn until its outcome is known, or the client gives up.
func (d *Driver) repeat(r *rand.Rand, giveUp bool, fn func() Outcome) {
	for {
		o := fn()
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
		queue := []string{ordered, ordered, pool, flaky}[r.IntN(4)]
		key := fmt.Sprintf("k%d-%d", id, r.IntN(3))
		if r.IntN(3) == 0 {
			key = fmt.Sprintf("shared-%d", r.IntN(3))
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
		d.repeat(r, r.IntN(20) == 0, func() Outcome {
			op := Op{Client: id, Kind: Produce, Queue: queue, Request: name, Messages: slices.Clone(uids)}
			var got []wire.Produced
			op.Invoke, op.Return, op.Outcome, op.Error = d.call(func(ctx context.Context) (err error) {
				got, err = d.client.ProduceAll(ctx, queue, request, client.WithIdempotencyKey(name))
				return err
			})
			if op.Outcome == OK {
				for i := range op.Messages {
					if i < len(got) {
						op.Messages[i].ID = got[i].ID
					}
				}
			}
			d.History.Add(op)
			return op.Outcome
		})
	}
}

// held is a lease that a consumer lets run out, to ack it too late.
type held struct {
	queue string
	Found
}

func (d *Driver) consume(id int, r *rand.Rand) {
	var late []held
	for !d.stop.Load() {
		for len(late) > 0 && (len(late) > 20 || late[0].Expires < time.Now().UnixMilli()-50) {
			h := late[0]
			late = late[1:]
			d.settle(id, r, Ack, h.queue, []Found{h.Found})
		}
		queue := []string{ordered, pool, flaky}[r.IntN(3)]
		got := d.lease(id, queue, 1+r.IntN(10), time.Duration(r.IntN(100))*time.Millisecond)
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
			case n < 94 && queue == flaky:
				d.settle(id, r, DeadLetter, queue, []Found{f})
			case n < 97:
				late = append(late, held{queue, f})
			default: // forgotten
			}
		}
		if len(acks) > 0 {
			d.settle(id, r, Ack, queue, acks)
		}
	}
}

func (d *Driver) lease(id int, queue string, most int, wait time.Duration) []Found {
	op := Op{Client: id, Kind: Lease, Queue: queue}
	var got []wire.LeasedMessage
	op.Invoke, op.Return, op.Outcome, op.Error = d.call(func(ctx context.Context) (err error) {
		got, err = d.client.Lease(ctx, queue, client.LeaseOptions{Max: most, Wait: wait, Worker: fmt.Sprint("client-", id)})
		return err
	})
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
	d.repeat(r, r.IntN(20) == 0, func() Outcome {
		var got []wire.SettleResult
		invoke, ret, outcome, text := d.call(func(ctx context.Context) (err error) {
			got, err = d.send(ctx, kind, queue, fs)
			return err
		})
		for i, f := range fs {
			op := Op{
				Client: id, Kind: kind, Queue: queue, Invoke: invoke, Return: ret, Outcome: outcome, Error: text,
				Lease: f.Lease, Message: f.ID,
			}
			if outcome == OK && i < len(got) {
				op.Status = got[i].Status
				op.Expires = int64(got[i].LeaseExpiresAt)
				if kind == Ack && op.Status == "acked" {
					d.waiting.Add(-1)
				}
			}
			d.History.Add(op)
		}
		return outcome
	})
}

func (d *Driver) send(ctx context.Context, kind Kind, queue string, fs []Found) ([]wire.SettleResult, error) {
	switch kind {
	case Retry:
		return d.client.Retry(ctx, queue, items(fs, func(l string) wire.RetryItem { return wire.RetryItem{LeaseID: l, Error: "not today"} }))
	case DeadLetter:
		return d.client.DeadLetter(ctx, queue, items(fs, func(l string) wire.DeadLetterItem { return wire.DeadLetterItem{LeaseID: l, Error: "never"} }))
	case Extend:
		return d.client.Extend(ctx, queue, items(fs, func(l string) wire.ExtendItem { return wire.ExtendItem{LeaseID: l, LeaseMS: 2 * leaseMS} }))
	case Release:
		return d.client.Release(ctx, queue, items(fs, func(l string) string { return l })...)
	}
	return d.client.Ack(ctx, queue, items(fs, func(l string) string { return l })...)
}

func items[T any](fs []Found, of func(lease string) T) []T {
	out := make([]T, len(fs))
	for i, f := range fs {
		out[i] = of(f.Lease)
	}
	return out
}

// Peek writes down what is in every queue. No client may be at work.
func (d *Driver) Peek(ctx context.Context) error {
	waiting := 0
	for _, q := range queues {
		op := Op{Client: -1, Kind: Peek, Queue: q.name, Invoke: d.History.Now(), Outcome: OK}
		for after := ""; ; {
			page, err := d.client.Messages(ctx, q.name, client.MessageQuery{Limit: 200, After: after})
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
		if q.name != flaky+".dlq" {
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
			for ctx.Err() == nil && !d.empty(ctx) {
				for _, q := range queues[:3] {
					if got := d.lease(1000+i, q.name, 50, leaseMS*time.Millisecond/4); len(got) > 0 {
						d.settle(1000+i, r, Ack, q.name, got)
					}
				}
			}
		}()
	}
	wg.Wait()
	return d.Peek(context.WithoutCancel(ctx))
}

// empty reports whether nothing is left to work off.
func (d *Driver) empty(ctx context.Context) bool {
	for _, q := range queues[:3] {
		v, err := d.client.Queue(ctx, q.name)
		if err != nil || v.Stats.Depth+v.Stats.Scheduled+v.Stats.InFlight > 0 {
			return false
		}
	}
	return true
}
