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
	"github.com/qlogd/qlogd/projections/store"
)

// keepOperations is the number of finished writes with an Idempotency-Key that this
// node remembers; older ones are in the OperationsStore.
const keepOperations = 10_000

// tracker records this node's writes. Of a write without an Idempotency-Key only
// sums are kept once it is finished.
type tracker struct {
	mu      sync.Mutex
	next    uint64
	pending map[*operation]struct{}
	done    []*operation // with an Idempotency-Key and finished: a ring
	oldest  int          // index in done, once it is full
	byKey   map[operationKey][]*operation
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

// operationKey is an Idempotency-Key and the actor who sent it.
type operationKey struct{ actor, key string }

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

func (st *stat) add(begun time.Time, took time.Duration) {
	if st.count == 0 || begun.Before(st.oldest) {
		st.oldest = begun
	}
	if begun.After(st.newest) {
		st.newest = begun
	}
	st.count++
	st.latency += took
}

// Statuses of an operation.
const (
	opPending   = "pending"
	opCompleted = "completed"
	opFailed    = "failed"
)

var classNames = [event.Classes]string{"settle", "produce", "lease", "background"}

func newTracker() *tracker {
	return &tracker{
		pending: map[*operation]struct{}{}, byKey: map[operationKey][]*operation{}, stats: map[statKey]*stat{},
	}
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

// begin records a write, which must be ended; key is its Idempotency-Key, "" none.
func (t *tracker) begin(key string, c *event.Command) *operation {
	op := &operation{kind: commandKind(c), class: c.Class(), begun: time.Now(), status: opPending}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	op.seq = t.next
	t.pending[op] = struct{}{}
	if key != "" {
		op.key = operationKey{c.Actor, key}
		t.byKey[op.key] = append(t.byKey[op.key], op)
	}
	return op
}

// end records how a write ended and returns how long it took.
func (t *tracker) end(op *operation, index uint64, err error) time.Duration {
	now := time.Now()
	took := now.Sub(op.begun)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, op)
	op.ended, op.index, op.status = now, index, opCompleted
	if err != nil {
		op.status, op.err = opFailed, codeInternal
		var p *event.Problem
		if errors.As(err, &p) {
			op.err = p.Code
		}
	}
	t.latency[op.class] += (float64(took.Microseconds())/1000 - t.latency[op.class]) / 16
	k := statKey{op.kind, op.class, op.status}
	if t.stats[k] == nil {
		t.stats[k] = &stat{}
	}
	t.stats[k].add(op.begun, took)
	switch {
	case op.key.key == "":
	case len(t.done) < keepOperations:
		t.done = append(t.done, op)
	default:
		t.forget(t.done[t.oldest])
		t.done[t.oldest] = op
		t.oldest = (t.oldest + 1) % keepOperations
	}
	return took
}

func (t *tracker) forget(op *operation) {
	left := slices.DeleteFunc(t.byKey[op.key], func(o *operation) bool { return o == op })
	if t.byKey[op.key] = left; len(left) == 0 {
		delete(t.byKey, op.key)
	}
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
		if op.status == opPending {
			o.Position, o.EstimatedWaitMS = t.ahead(op)
		} else {
			ms := op.ended.Sub(op.begun).Milliseconds()
			o.ProcessedAt, o.LatencyMS = wire.TimeOf(op.ended), &ms
		}
		out = append(out, o)
	}
	return out
}

// unlessZero returns a pointer to v, nil for the zero value.
func unlessZero[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// ahead returns the number of this node's writes that go before a pending one, and an
// estimate of its remaining wait in ms.
func (t *tracker) ahead(op *operation) (position, wait *int64) {
	var n int64
	for o := range t.pending {
		if o.class < op.class || o.class == op.class && o.seq < op.seq {
			n++
		}
	}
	left := max(0, int64(t.latency[op.class])-time.Since(op.begun).Milliseconds())
	return &n, &left
}

// summary returns the sums of all writes since the node started.
func (t *tracker) summary() wire.OperationStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := int64(len(t.pending))
	out := wire.OperationStats{
		Stats: []wire.OperationStat{}, SystemHealth: wire.SystemHealth{Waiting: waiting, QueueDepth: waiting},
	}
	add := func(k statKey, st *stat) {
		o := wire.OperationStat{
			Type: k.kind, Priority: classNames[k.class], Status: k.status, Count: st.count,
			Oldest: wire.TimeOf(st.oldest), Newest: wire.TimeOf(st.newest),
		}
		if k.status != opPending {
			avg := float64(st.latency.Microseconds()) / 1000 / float64(st.count)
			o.AvgLatencyMS = &avg
		}
		out.Stats = append(out.Stats, o)
	}
	pending := map[statKey]*stat{}
	for op := range t.pending {
		k := statKey{op.kind, op.class, opPending}
		if pending[k] == nil {
			pending[k] = &stat{}
		}
		pending[k].add(op.begun, 0)
	}
	for k, st := range pending {
		add(k, st)
	}
	for k, st := range t.stats {
		add(k, st)
	}
	slices.SortFunc(out.Stats, func(a, b wire.OperationStat) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Status, b.Status))
	})
	return out
}

// localOnly checks the query of a call that only answers from the node's own memory.
func (q *request) localOnly() error {
	q.read("consistency").stale()
	return q.err
}

// operations answers GET /v1/operations/{idempotency_key}: from this node's memory, the
// other nodes', and the answers that the log keeps.
func (s *Server) operations(q *request) error {
	key := operationKey{q.actor(), q.PathValue("idempotency_key")}
	if !visible(key.key, 255) {
		return bad("idempotency_key", "idempotency_key must be 1 to 255 visible ASCII characters")
	}
	if err := q.localOnly(); err != nil {
		return err
	}
	q.tellIndex()
	// The others first: what is pending there may complete meanwhile, and must
	// not be missed in between.
	all := append(s.othersOperations(q.Context(), key), s.ops.find(key)...)
	slices.SortStableFunc(all, func(a, b wire.Operation) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	if s.deps.Models != nil {
		kept, err := s.keptOperations(keyPrefix(key.actor, key.key))
		if err != nil {
			return err
		}
		old := []wire.Operation{}
		for i := range kept {
			o, err := s.keptOperation(key.key, &kept[i])
			if err != nil {
				return err
			}
			known := func(a wire.Operation) bool { return a.Index != nil && *a.Index == *o.Index }
			if !slices.ContainsFunc(all, known) {
				old = append(old, o)
			}
		}
		all = append(old, all...)
	}
	return q.answer(http.StatusOK, &wire.OperationList{Operations: all})
}

// AskOperations is the name of the question that LocalOperations answers.
const AskOperations = "api.operations"

// othersWithin bounds the wait for the other nodes' answers.
const othersWithin = time.Second

// askOperations is that question.
type askOperations struct {
	Actor string `json:"actor"`
	Key   string `json:"key"`
}

// LocalOperations answers another node's AskOperations with the writes that this node
// received. It returns nil for a question that it does not understand.
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
	question, err := wire.Marshal(&askOperations{key.actor, key.key})
	if err != nil {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()
	for _, b := range s.deps.Node.AskOthers(ctx, AskOperations, question) {
		var l wire.OperationList
		if err := wire.Unmarshal(b, &l); err != nil {
			s.log.Warn("cannot decode another node's operations", "error", err)
			continue
		}
		out = append(out, l.Operations...)
	}
	return out
}

// keptOperations returns the answer_kept events whose Alias begins with prefix, oldest first: the
// read models know in which entries, the log holds them.
func (s *Server) keptOperations(prefix [8]byte) (out []event.Event, err error) {
	found, err := s.deps.Models.OperationsWith(prefix[:])
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b store.Operation) int { return cmp.Compare(a.Index, b.Index) })
	for _, f := range found {
		b, err := s.deps.Log.Block(f.Index)
		if err != nil && (s.gone(err) || s.notFound(err)) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range b.Events {
			if e := &b.Events[i]; e.Type == event.AnswerKept && e.Alias == f.Key {
				out = append(out, *e)
			}
		}
	}
	return out, nil
}

// keptOperation describes a write by the answer that the log keeps.
func (s *Server) keptOperation(key string, e *event.Event) (wire.Operation, error) {
	at, index := wire.Time(event.ClockOf(e.ID)), event.RefOf(e.ID).Index
	o := wire.Operation{
		Key: key, Type: "write", Status: opCompleted, Priority: classNames[event.ClassSettle],
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

// operationStats answers GET /v1/operations/stats: this node's writes since it started.
func (s *Server) operationStats(q *request) error {
	if err := q.localOnly(); err != nil {
		return err
	}
	out := s.ops.summary()
	load := s.deps.Node.Load()
	out.SystemHealth.Utilization, out.SystemHealth.QueueDepth = load.Utilization, int64(load.Waiting)
	return q.answer(http.StatusOK, &out)
}
