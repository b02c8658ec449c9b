package api

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/event"
)

// keepOperations is how many finished writes with an Idempotency-Key this node
// remembers; older ones are in the OperationsStore.
const keepOperations = 10_000

// tracker knows what becomes of this node's writes.
type tracker struct {
	mu      sync.Mutex
	next    uint64
	pending map[uint64]*operation
	done    list.List                     // of *operation, finished, oldest first
	byKey   map[operationKey][]*operation // with an Idempotency-Key
	stats   map[statKey]*stat
	latency [event.Classes]float64 // ms, moving average
}

// operation is one write. Fields after begun are guarded by the tracker.
type operation struct {
	seq    uint64
	key    operationKey // zero: it had none
	kind   string
	class  event.Class
	begun  time.Time
	ended  time.Time
	status string
	err    string
	index  uint64
}

// operationKey is an Idempotency-Key and whose it is.
type operationKey struct{ actor, key string }

type statKey struct {
	kind, status string
	class        event.Class
}

type stat struct {
	count          int64
	oldest, newest time.Time
	latency        time.Duration // sum
}

var classNames = [event.Classes]string{"settle", "produce", "lease", "background"}

func newTracker() *tracker {
	return &tracker{pending: map[uint64]*operation{}, byKey: map[operationKey][]*operation{}, stats: map[statKey]*stat{}}
}

// commandKind names what a command does.
func commandKind(c *event.Command) string {
	switch {
	case c.PutQueue != nil:
		return "put_queue"
	case c.DeleteQueue != nil:
		return "delete_queue"
	case c.PauseQueue != nil && c.PauseQueue.Paused:
		return "pause_queue"
	case c.PauseQueue != nil:
		return "resume_queue"
	case c.PurgeQueue != nil:
		return "purge_queue"
	case c.Produce != nil:
		return "produce"
	case c.Lease != nil:
		return "lease"
	case c.Settle != nil:
		return "settle"
	case c.Transaction != nil:
		return "transaction"
	case c.Delete != nil:
		return "delete_message"
	}
	return "other"
}

// begin notes a write; key is its Idempotency-Key, "" none.
func (t *tracker) begin(key string, c *event.Command) *operation {
	op := &operation{key: operationKey{c.Actor, key}, kind: commandKind(c), class: c.Class(), begun: time.Now(), status: "pending"}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	op.seq = t.next
	t.pending[op.seq] = op
	if key != "" {
		t.byKey[op.key] = append(t.byKey[op.key], op)
	}
	return op
}

// end notes how a write ended and returns how long it took.
func (t *tracker) end(op *operation, index uint64, err error) time.Duration {
	now := time.Now()
	took := now.Sub(op.begun)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, op.seq)
	op.ended, op.index, op.status = now, index, "completed"
	if err != nil {
		op.status, op.err = "failed", codeInternal
		var p *event.Problem
		if errors.As(err, &p) {
			op.err = p.Code
		}
	}
	t.latency[op.class] += (float64(took.Microseconds())/1000 - t.latency[op.class]) / 16
	k := statKey{op.kind, op.status, op.class}
	st := t.stats[k]
	if st == nil {
		st = &stat{oldest: op.begun}
		t.stats[k] = st
	}
	st.count++
	st.newest = op.begun
	st.latency += took
	if op.key.key == "" {
		return took
	}
	t.done.PushBack(op)
	for t.done.Len() > keepOperations {
		old := t.done.Remove(t.done.Front()).(*operation)
		ops := t.byKey[old.key]
		for i := range ops {
			if ops[i] == old {
				ops = append(ops[:i], ops[i+1:]...)
				break
			}
		}
		if t.byKey[old.key] = ops; len(ops) == 0 {
			delete(t.byKey, old.key)
		}
	}
	return took
}

// find returns the writes of a key, oldest first.
func (t *tracker) find(key operationKey) []wire.Operation {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []wire.Operation{}
	for _, op := range t.byKey[key] {
		o := wire.Operation{
			Key: key.key, Type: op.kind, Status: op.status, Priority: classNames[op.class],
			CreatedAt: wire.TimeOf(op.begun), Error: unlessZero(op.err), Index: unlessZero(op.index),
		}
		if op.ended.IsZero() {
			o.Position, o.EstimatedWaitMS = t.ahead(op)
		} else {
			ms := op.ended.Sub(op.begun).Milliseconds()
			o.ProcessedAt, o.LatencyMS = wire.TimeOf(op.ended), &ms
		}
		out = append(out, o)
	}
	return out
}

// unlessZero is null in an answer where there is nothing to tell.
func unlessZero[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// ahead tells how many of this node's writes go before a pending one, and how
// long it will wait as of now.
func (t *tracker) ahead(op *operation) (position, wait *int64) {
	var n int64
	for _, o := range t.pending {
		if o.class < op.class || o.class == op.class && o.seq < op.seq {
			n++
		}
	}
	left := max(0, int64(t.latency[op.class])-time.Since(op.begun).Milliseconds())
	return &n, &left
}

// operations answers GET /v1/operations/{idempotency_key}: what this node
// knows, and what the other nodes were asked to write themselves.
func (s *Server) operations(q *request) error {
	key := operationKey{q.actor(), q.PathValue("idempotency_key")}
	if !visible(key.key, 255) {
		return bad("idempotency_key", "idempotency_key must be 1 to 255 visible ASCII characters")
	}
	if err := q.allow("consistency"); err != nil {
		return err
	}
	if _, err := q.stale(); err != nil {
		return err
	}
	q.tellIndex()
	// The others first: what is pending there may complete meanwhile, and must
	// not be missed in between.
	out := wire.OperationList{Operations: append(s.othersOperations(q.Context(), key), s.ops.find(key)...)}
	slices.SortStableFunc(out.Operations, func(a, b wire.Operation) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	if s.deps.Operations != nil {
		known := map[uint64]bool{}
		for _, o := range out.Operations {
			if o.Index != nil {
				known[*o.Index] = true
			}
		}
		kept, err := s.deps.Operations.Operations(keyPrefix(key.actor, key.key))
		if err != nil {
			return err
		}
		old := []wire.Operation{}
		for i := range kept {
			o, err := s.keptOperation(key.key, &kept[i])
			if err != nil {
				return err
			}
			if !known[*o.Index] {
				old = append(old, o)
			}
		}
		out.Operations = append(old, out.Operations...)
	}
	return q.answer(http.StatusOK, &out)
}

// AskOperations is the name of the question that LocalOperations answers.
const AskOperations = "api.operations"

// othersWithin is how long the other nodes' word about a write is waited for:
// one that is away must not hold up the answer.
const othersWithin = time.Second

// askOperations is that question.
type askOperations struct {
	Actor string `json:"actor"`
	Key   string `json:"key"`
}

// LocalOperations answers another node's AskOperations: what became of the
// writes that this node was asked for. Nil where the question is not understood.
func (s *Server) LocalOperations(question []byte) []byte {
	var ask askOperations
	if wire.Unmarshal(question, &ask) != nil {
		return nil
	}
	b, err := wire.Marshal(&wire.OperationList{Operations: s.ops.find(operationKey{ask.Actor, ask.Key})})
	if err != nil {
		return nil
	}
	return b
}

// othersOperations asks the other nodes.
func (s *Server) othersOperations(ctx context.Context, key operationKey) []wire.Operation {
	out := []wire.Operation{}
	if s.deps.AskOthers == nil {
		return out
	}
	question, err := wire.Marshal(&askOperations{key.actor, key.key})
	if err != nil {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()
	for _, b := range s.deps.AskOthers(ctx, AskOperations, question) {
		var l wire.OperationList
		if err := wire.Unmarshal(b, &l); err != nil {
			s.log.Warn("another node's word about its writes is not understood", "error", err)
			continue
		}
		out = append(out, l.Operations...)
	}
	return out
}

// keptOperation tells a write from the answer that the log keeps to it.
func (s *Server) keptOperation(key string, e *event.Event) (wire.Operation, error) {
	at, index := wire.Time(event.ClockOf(e.ID)), event.RefOf(e.ID).Index
	o := wire.Operation{
		Key: key, Type: "write", Status: "completed", Priority: classNames[event.ClassSettle],
		CreatedAt: at, ProcessedAt: at, Index: &index,
	}
	c, err := s.eventContent(e)
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

// operationStats answers GET /v1/operations/stats: this node's writes since it
// started.
func (s *Server) operationStats(q *request) error {
	if err := q.allow("consistency"); err != nil {
		return err
	}
	if _, err := q.stale(); err != nil {
		return err
	}
	out := s.ops.summary()
	if s.deps.Load != nil {
		out.SystemHealth.Utilization, out.SystemHealth.QueueDepth = s.deps.Load.Load()
	}
	return q.answer(http.StatusOK, &out)
}

func (t *tracker) summary() wire.OperationStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := wire.OperationStats{Stats: []wire.OperationStat{}}
	out.SystemHealth.Waiting = int64(len(t.pending))
	out.SystemHealth.QueueDepth = int64(len(t.pending))
	waiting := map[statKey]*stat{}
	for _, op := range t.pending {
		k := statKey{op.kind, op.status, op.class}
		st := waiting[k]
		if st == nil {
			st = &stat{oldest: op.begun, newest: op.begun}
			waiting[k] = st
		}
		st.count++
		if op.begun.Before(st.oldest) {
			st.oldest = op.begun
		}
		if op.begun.After(st.newest) {
			st.newest = op.begun
		}
	}
	for _, m := range []map[statKey]*stat{waiting, t.stats} {
		for k, st := range m {
			o := wire.OperationStat{
				Type: k.kind, Priority: classNames[k.class], Status: k.status, Count: st.count,
				Oldest: wire.TimeOf(st.oldest), Newest: wire.TimeOf(st.newest),
			}
			if k.status != "pending" {
				avg := float64(st.latency.Microseconds()) / 1000 / float64(st.count)
				o.AvgLatencyMS = &avg
			}
			out.Stats = append(out.Stats, o)
		}
	}
	sortStats(out.Stats)
	return out
}
