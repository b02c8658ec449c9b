package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft/peer"
)

// keepOperations is the minimum number of finished writes with an Idempotency-Key that a node
// remembers; the read models have older ones.
const keepOperations = 10_000

// tracker records this node's writes. Of finished ones without an Idempotency-Key it keeps only
// totals.
type tracker struct {
	mu      sync.Mutex
	pending map[*operation]struct{}
	done    []*operation // the newest finished ones with an Idempotency-Key
	stats   map[statKey]stat
	latency [event.Classes]float64 // ms, moving average
}

// operation is one write. Fields that change when it ends are guarded by tracker.mu.
type operation struct {
	statKey
	key          operationKey
	begun, ended time.Time
	err          string
	index        uint64
}

// operationKey is an Idempotency-Key, "" for none, and the actor who sent it.
type operationKey struct {
	Actor string `json:"actor"`
	Key   string `json:"key"`
}

type statKey struct {
	kind   string
	class  event.Class
	status string
}

type stat struct {
	count          int64
	oldest, newest time.Time
	latency        time.Duration // sum
}

func (st stat) add(begun time.Time, took time.Duration) stat {
	if st.count == 0 || begun.Before(st.oldest) {
		st.oldest = begun
	}
	if begun.After(st.newest) {
		st.newest = begun
	}
	st.count++
	st.latency += took
	return st
}

// Statuses of an operation.
const (
	opPending   = "pending"
	opCompleted = "completed"
	opFailed    = "failed"
)

var classNames = [event.Classes]string{"settle", "produce", "lease", "background"}

func newTracker() *tracker {
	return &tracker{pending: map[*operation]struct{}{}, stats: map[statKey]stat{}}
}

// commandKind names what a client's command does.
func commandKind(c *event.Command) string {
	switch {
	case c.Produce != nil:
		return "produce"
	case c.Lease != nil:
		return "lease"
	case c.Settle != nil:
		return "settle"
	case c.Transaction != nil:
		return "transaction"
	case c.PutQueue != nil:
		return "put_queue"
	case c.DeleteQueue != nil:
		return "delete_queue"
	case c.PurgeQueue != nil:
		return "purge_queue"
	case c.PauseQueue != nil && c.PauseQueue.Paused:
		return "pause_queue"
	case c.PauseQueue != nil:
		return "resume_queue"
	case c.Delete != nil:
		return "delete_message"
	case c.Reschedule != nil:
		return "reschedule_message"
	}
	return "other"
}

// begin records a write; the caller must call end or drop. key is its Idempotency-Key, "" for none.
func (t *tracker) begin(key string, c *event.Command) *operation {
	op := &operation{
		statKey: statKey{commandKind(c), c.Class(), opPending},
		key:     operationKey{c.Actor, key}, begun: time.Now(),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pending[op] = struct{}{}
	return op
}

// drop forgets a write that has had no effect.
func (t *tracker) drop(op *operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, op)
}

// end records how a write ended and returns how long it took.
func (t *tracker) end(op *operation, index uint64, err error) time.Duration {
	took := time.Since(op.begun)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, op)
	op.ended, op.index, op.status = op.begun.Add(took), index, opCompleted
	if err != nil {
		op.status, op.err = opFailed, codeInternal
		if p, ok := errors.AsType[*event.Problem](err); ok {
			op.err = p.Code
		}
	}
	t.latency[op.class] += (float64(took.Microseconds())/1000 - t.latency[op.class]) / 16
	t.stats[op.statKey] = t.stats[op.statKey].add(op.begun, took)
	if op.key.Key != "" {
		if t.done = append(t.done, op); len(t.done) == 2*keepOperations {
			t.done = slices.Delete(t.done, 0, keepOperations)
		}
	}
	return took
}

// find returns the writes of a key, oldest first.
func (t *tracker) find(key operationKey) []wire.Operation {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := slices.AppendSeq(slices.Clone(t.done), maps.Keys(t.pending))
	found = slices.DeleteFunc(found, func(op *operation) bool { return op.key != key })
	slices.SortFunc(found, func(a, b *operation) int { return a.begun.Compare(b.begun) })
	out := make([]wire.Operation, len(found))
	for i, op := range found {
		out[i] = wire.Operation{
			Key: key.Key, Type: op.kind, Status: op.status, Priority: classNames[op.class],
			CreatedAt: wire.TimeOf(op.begun), Error: nilIfZero(op.err),
			Index: nilIfZero(op.index),
		}
		if op.status == opPending {
			out[i].Position, out[i].EstimatedWaitMS = t.ahead(op)
		} else {
			out[i].ProcessedAt = wire.TimeOf(op.ended)
			out[i].LatencyMS = new(op.ended.Sub(op.begun).Milliseconds())
		}
	}
	return out
}

// ahead returns how many of this node's writes precede a pending one, and its estimated wait in ms.
func (t *tracker) ahead(op *operation) (position, wait *int64) {
	var n int64
	for o := range t.pending {
		if o.class < op.class || o.class == op.class && o.begun.Before(op.begun) {
			n++
		}
	}
	return &n, new(max(0, int64(t.latency[op.class])-time.Since(op.begun).Milliseconds()))
}

// summary returns the totals of all writes since the node started.
func (t *tracker) summary() wire.OperationStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := wire.OperationStats{SystemHealth: wire.SystemHealth{Waiting: int64(len(t.pending))}}
	sums := maps.Clone(t.stats)
	for op := range t.pending {
		sums[op.statKey] = sums[op.statKey].add(op.begun, 0)
	}
	for k, st := range sums {
		o := wire.OperationStat{
			Type: k.kind, Priority: classNames[k.class], Status: k.status, Count: st.count,
			Oldest: wire.TimeOf(st.oldest), Newest: wire.TimeOf(st.newest),
		}
		if k.status != opPending {
			o.AvgLatencyMS = new(float64(st.latency.Microseconds()) / 1000 / float64(st.count))
		}
		out.Stats = append(out.Stats, o)
	}
	slices.SortFunc(out.Stats, func(a, b wire.OperationStat) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Priority, b.Priority),
			cmp.Compare(a.Status, b.Status))
	})
	return out
}

// operations answers GET /v1/operations/{idempotency_key} from the nodes' memories and the log.
func (s *Server) operations(q *request) error {
	key := operationKey{q.actor(), q.PathValue("idempotency_key")}
	if !visible(key.Key, 255) {
		q.refuse("idempotency_key", "idempotency_key must be 1 to 255 visible ASCII characters")
	}
	q.read("consistency").stale() // the answer is the same: it reads the nodes' memories
	if q.err != nil {
		return q.err
	}
	q.setAppliedIndex()
	// Ask the others first, so that a write which completes meanwhile is not missed.
	lists := askOthers[[]wire.Operation](q.Context(), s, askOperations, key)
	all := slices.Concat(append(lists, s.ops.find(key))...)
	slices.SortStableFunc(all, func(a, b wire.Operation) int {
		return cmp.Compare(a.CreatedAt, b.CreatedAt)
	})
	remembered := map[uint64]bool{}
	for _, o := range all {
		remembered[deref(o.Index)] = true
	}
	// The read models know in which entries the log keeps answers.
	prefix := keyPrefix(key.Actor, key.Key)
	found := get(q, func() ([]store.Operation, error) {
		return s.deps.Models.OperationsWith(prefix[:])
	})
	slices.SortFunc(found, func(a, b store.Operation) int { return cmp.Compare(a.Index, b.Index) })
	var out wire.OperationList
	for _, f := range found {
		e := get(q, func() (*event.Event, error) {
			return s.find(f.Key, f.Index, event.AnswerKept)
		})
		if e == nil || remembered[event.RefOf(e.ID).Index] {
			continue // or deleted with the history
		}
		out.Operations = append(out.Operations, get(q, func() (wire.Operation, error) {
			return keptOperation(key.Key, e)
		}))
	}
	out.Operations = append(out.Operations, all...)
	return q.answer(http.StatusOK, &out)
}

// keptOperation describes a write from its answer in the log.
func keptOperation(key string, e *event.Event) (wire.Operation, error) {
	at, index := wire.Time(event.ClockOf(e.ID)), event.RefOf(e.ID).Index
	o := wire.Operation{
		Key: key, Type: "write", Status: opCompleted, Priority: classNames[event.ClassSettle],
		CreatedAt: at, ProcessedAt: at, Index: &index,
	}
	c, err := eventContent(e)
	if err != nil || c == nil {
		return o, err
	}
	res, err := event.DecodeResult(c.Answer)
	if err != nil {
		return o, err
	}
	switch {
	case len(res.Produced) > 0 && len(res.Settled) > 0:
		o.Type = "transaction"
	case len(res.Produced) > 0:
		o.Type, o.Priority = "produce", classNames[event.ClassProduce]
	case len(res.Settled) > 0:
		o.Type = "settle"
	}
	return o, nil
}

// The queries to other nodes' Servers, with their arguments and answers.
const (
	askOperations = "api.operations" // an operationKey: the []wire.Operation it received
	askWaiters    = "api.waiters"    // a queue and a kind: the number of leases that wait
	askDeliveries = "api.deliveries" // a webhook: the []wire.WebhookDelivery to it
	askRefused    = "api.refused"    // times of refused requests by webhook
	askPush       = "api.push"       // to the leader, a queue: its *wire.PushReason
)

// Answers returns the handlers of the queries from other nodes' Servers, by name.
func (s *Server) Answers() map[string]peer.Handler {
	return map[string]peer.Handler{
		askOperations: answering(s.ops.find),
		askWaiters:    answering(func(of [2]string) int64 { return s.waiters.count(of[0], of[1]) }),
		askDeliveries: answering(s.deliveries.to),
		askRefused:    answering(s.deliveries.refused),
		askPush:       answering(s.deps.Push.Reason),
	}
}

// answering wraps answer in a handler whose arguments and answers are JSON.
func answering[Q, A any](answer func(Q) A) peer.Handler {
	return func(_ context.Context, _ peer.Identity, b []byte) ([]byte, error) {
		var question Q
		if err := wire.Unmarshal(b, &question); err != nil {
			return nil, err
		}
		return wire.Marshal(answer(question))
	}
}

// othersWithin bounds the wait for the other nodes' answers.
const othersWithin = time.Second

// askOthers queries the other nodes and returns the answers that arrive in time.
func askOthers[A any](ctx context.Context, s *Server, name string, question any) (out []A) {
	b, _ := wire.Marshal(question) // no error: it is valid UTF-8
	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()
	for _, b := range s.deps.Node.AskOthers(ctx, name, b) {
		var a A
		if err := wire.Unmarshal(b, &a); err != nil {
			s.log.Warn("cannot decode another node's answer", "question", name, "error", err)
			continue
		}
		out = append(out, a)
	}
	return out
}

// operationStats answers GET /v1/operations/stats: this node's writes since it started.
func (s *Server) operationStats(q *request) error {
	q.read("consistency").stale()
	out := s.ops.summary()
	waiting, utilization := s.deps.Node.Load()
	out.SystemHealth.Utilization, out.SystemHealth.QueueDepth = utilization, int64(waiting)
	return q.answer(http.StatusOK, &out)
}
