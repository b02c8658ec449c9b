package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// keepOperations is how many finished writes with an Idempotency-Key this node
// remembers; older ones are in the OperationsStore.
const keepOperations = 10_000

// tracker knows what becomes of this node's writes. It is asked twice for every
// write: what is written without an Idempotency-Key leaves no more than sums.
type tracker struct {
	mu          sync.Mutex
	next        uint64
	first, last *operation                // pending, oldest first
	waiting     int                       // how many these are
	done        []*operation              // with an Idempotency-Key and finished: a ring
	oldest      int                       // where it begins, once it is full
	byKey       map[operationKey]keyChain // with an Idempotency-Key
	stats       [operationKinds][event.Classes][2]stat
	latency     [event.Classes]float64 // ms, moving average
	free        []*operation           // to be used again
}

// operation is one write. Fields after begun are guarded by the tracker.
type operation struct {
	seq    uint64
	key    operationKey // zero: it had none
	kind   kind
	class  event.Class
	begun  time.Time
	ended  time.Time
	status string
	err    string
	index  uint64

	before, after *operation // while pending
	newer         *operation // of the same key
}

// keyChain are the writes of one key, oldest first.
type keyChain struct{ first, last *operation }

// operationKey is an Idempotency-Key and whose it is.
type operationKey struct{ actor, key string }

type stat struct {
	count          int64
	oldest, newest time.Time
	latency        time.Duration // sum
}

// Which of a kind's two stats is which.
const (
	completed = iota
	failed
)

var statusNames = [2]string{"completed", "failed"}

var classNames = [event.Classes]string{"settle", "produce", "lease", "background"}

// kind is what a command does.
type kind uint8

const (
	kindOther kind = iota
	kindPutQueue
	kindDeleteQueue
	kindPauseQueue
	kindResumeQueue
	kindPurgeQueue
	kindProduce
	kindLease
	kindSettle
	kindTransaction
	kindDeleteMessage
	operationKinds
)

var kindNames = [operationKinds]string{"other", "put_queue", "delete_queue", "pause_queue", "resume_queue", "purge_queue",
	"produce", "lease", "settle", "transaction", "delete_message"}

func newTracker() *tracker { return &tracker{byKey: map[operationKey]keyChain{}} }

func commandKind(c *event.Command) kind {
	switch {
	case c.PutQueue != nil:
		return kindPutQueue
	case c.DeleteQueue != nil:
		return kindDeleteQueue
	case c.PauseQueue != nil && c.PauseQueue.Paused:
		return kindPauseQueue
	case c.PauseQueue != nil:
		return kindResumeQueue
	case c.PurgeQueue != nil:
		return kindPurgeQueue
	case c.Produce != nil:
		return kindProduce
	case c.Lease != nil:
		return kindLease
	case c.Settle != nil:
		return kindSettle
	case c.Transaction != nil:
		return kindTransaction
	case c.Delete != nil:
		return kindDeleteMessage
	}
	return kindOther
}

// begin notes a write; key is its Idempotency-Key, "" none. It must be ended,
// and not be used after that.
func (t *tracker) begin(key string, c *event.Command) *operation {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	var op *operation
	if n := len(t.free); n > 0 {
		op, t.free = t.free[n-1], t.free[:n-1]
	} else {
		op = new(operation)
	}
	t.next++
	*op = operation{seq: t.next, kind: commandKind(c), class: c.Class(), begun: now, status: "pending", before: t.last}
	if t.last != nil {
		t.last.after = op
	} else {
		t.first = op
	}
	t.last = op
	t.waiting++
	if key != "" {
		op.key = operationKey{c.Actor, key}
		ch := t.byKey[op.key]
		if ch.last != nil {
			ch.last.newer = op
		} else {
			ch.first = op
		}
		ch.last = op
		t.byKey[op.key] = ch
	}
	return op
}

// end notes how a write ended and returns how long it took.
func (t *tracker) end(op *operation, index uint64, err error) time.Duration {
	now := time.Now()
	took := now.Sub(op.begun)
	t.mu.Lock()
	defer t.mu.Unlock()
	if op.before != nil {
		op.before.after = op.after
	} else {
		t.first = op.after
	}
	if op.after != nil {
		op.after.before = op.before
	} else {
		t.last = op.before
	}
	op.before, op.after = nil, nil
	t.waiting--
	how := completed
	if err != nil {
		how, op.err = failed, codeInternal
		var p *event.Problem
		if errors.As(err, &p) {
			op.err = p.Code
		}
	}
	op.ended, op.index, op.status = now, index, statusNames[how]
	t.latency[op.class] += (float64(took.Microseconds())/1000 - t.latency[op.class]) / 16
	st := &t.stats[op.kind][op.class][how]
	if st.count == 0 {
		st.oldest = op.begun
	}
	st.count++
	st.newest = op.begun
	st.latency += took
	if op.key.key == "" {
		if len(t.free) < 1000 {
			t.free = append(t.free, op)
		}
		return took
	}
	if len(t.done) < keepOperations {
		t.done = append(t.done, op)
		return took
	}
	t.forget(t.done[t.oldest])
	t.done[t.oldest] = op
	t.oldest = (t.oldest + 1) % keepOperations
	return took
}

// forget takes a write out of its key's.
func (t *tracker) forget(op *operation) {
	ch := t.byKey[op.key]
	if ch.first == op {
		if ch.first = op.newer; ch.first == nil {
			delete(t.byKey, op.key)
			return
		}
	} else {
		prev := ch.first
		for prev.newer != op {
			prev = prev.newer
		}
		if prev.newer = op.newer; op.newer == nil {
			ch.last = prev
		}
	}
	t.byKey[op.key] = ch
}

// find returns the writes of a key, oldest first.
func (t *tracker) find(key operationKey) []wire.Operation {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []wire.Operation{}
	for op := t.byKey[key].first; op != nil; op = op.newer {
		o := wire.Operation{
			Key: key.key, Type: kindNames[op.kind], Status: op.status, Priority: classNames[op.class],
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
	for o := t.first; o != nil; o = o.after {
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
	out.SystemHealth.Waiting = int64(t.waiting)
	out.SystemHealth.QueueDepth = int64(t.waiting)
	tell := func(k kind, c event.Class, status string, st *stat) {
		if st.count == 0 {
			return
		}
		o := wire.OperationStat{
			Type: kindNames[k], Priority: classNames[c], Status: status, Count: st.count,
			Oldest: wire.TimeOf(st.oldest), Newest: wire.TimeOf(st.newest),
		}
		if status != "pending" {
			avg := float64(st.latency.Microseconds()) / 1000 / float64(st.count)
			o.AvgLatencyMS = &avg
		}
		out.Stats = append(out.Stats, o)
	}
	var pending [operationKinds][event.Classes]stat
	for op := t.first; op != nil; op = op.after {
		st := &pending[op.kind][op.class]
		if st.count++; st.count == 1 {
			st.oldest = op.begun
		}
		st.newest = op.begun
	}
	for k := range operationKinds {
		for c := range event.Classes {
			tell(k, c, "pending", &pending[k][c])
			for how, status := range statusNames {
				tell(k, c, status, &t.stats[k][c][how])
			}
		}
	}
	sortStats(out.Stats)
	return out
}
