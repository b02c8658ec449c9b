package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/eventlog"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/raft"
)

// fake is a backend in memory: a naive unordered queue, just enough to see
// what the API makes of answers. How many commands reached it is counted.
type fake struct {
	mu       sync.Mutex
	commands []*event.Command
	groups   int // of commands that were proposed together
	blocks   []event.Block
	queues   map[string]*event.QueueView
	messages map[event.ID]*event.MessageView
	webhooks map[string]*event.WebhookView
	kept     map[event.Hash]keptAnswer
	grown    chan struct{}
	err      error // of Propose
	stale    int   // produce answers stale_revision as often
	erased   bool  // all contents are
	deleted  uint64
	rebuilt  int
	applied  func([]string)
	before   func() // called by Propose
	barrier  error
	secrets  fakeSecrets
	target   fakeTarget
}

type keptAnswer struct {
	body event.Hash
	ref  event.Ref
}

// fakeNode is the Node of a cluster of one, unless a test says what others answer.
type fakeNode struct {
	proposer
	unready   []string
	age       func() (time.Duration, bool)
	leader    string
	askLeader func(context.Context, string, []byte) ([]byte, error)
	askOthers func(context.Context, string, []byte) [][]byte
}

type proposer interface {
	Propose(context.Context, *event.Command) (event.Result, error)
	Begin(*event.Command, []*event.Command) []func(context.Context) (event.Result, error)
	Barrier(context.Context) error
}

func (n *fakeNode) Ready() (bool, []string) { return len(n.unready) == 0, n.unready }
func (n *fakeNode) Load() raft.Load         { return raft.Load{} }
func (n *fakeNode) Clock() int64            { return time.Now().UnixMilli() }
func (n *fakeNode) LeaderHTTP() string      { return n.leader }

func (n *fakeNode) Age() (time.Duration, bool) {
	if n.age == nil {
		return 0, false
	}
	return n.age()
}

func (n *fakeNode) AskLeader(ctx context.Context, name string, body []byte) ([]byte, error) {
	return n.askLeader(ctx, name, body)
}

func (n *fakeNode) AskOthers(ctx context.Context, name string, body []byte) [][]byte {
	if n.askOthers == nil {
		return nil
	}
	return n.askOthers(ctx, name, body)
}

func newFake() *fake {
	return &fake{queues: map[string]*event.QueueView{}, messages: map[event.ID]*event.MessageView{}, webhooks: map[string]*event.WebhookView{}, kept: map[event.Hash]keptAnswer{}, grown: make(chan struct{})}
}

// harness is a server on a fake.
type harness struct {
	*testing.T
	*fake
	cluster *fakeCluster
	node    *fakeNode
	s       *Server
	h       http.Handler
}

func setup(t *testing.T, opts ...func(*Options)) *harness {
	t.Helper()
	h := build(opts...)
	t.Cleanup(h.s.Close)
	h.T = t
	return h
}

// build is setup without a test; the caller closes the server.
func build(opts ...func(*Options)) *harness {
	f := newFake()
	o := Options{HistoryRetention: 7 * 24 * time.Hour}
	for _, fn := range opts {
		fn(&o)
	}
	c := newFakeCluster()
	n := &fakeNode{proposer: f}
	s := New(Deps{
		Node: n, State: f, Log: f, Models: f, Cluster: c, Eraser: nothingToErase{},
		Past:     func(context.Context, event.Instant) (State, error) { return f, nil },
		Secrets:  &f.secrets,
		Forward:  &f.target,
		Logger:   slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(),
	}, o)
	f.applied = s.Applied
	return &harness{fake: f, cluster: c, node: n, s: s, h: s.Handler()}
}

// forget empties the fake.
func (f *fake) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := newFake()
	f.commands, f.blocks, f.queues, f.messages, f.kept = nil, nil, n.queues, n.messages, n.kept
}

// answer is a response and its body.
type answer struct {
	*httptest.ResponseRecorder
	t *testing.T
}

// do sends a request; headers are "Name: value".
func (h *harness) do(method, target, body string, headers ...string) answer {
	h.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for _, line := range headers {
		name, v, _ := strings.Cut(line, ": ")
		r.Header.Add(name, v)
	}
	return h.send(r)
}

func (h *harness) send(r *http.Request) answer {
	h.Helper()
	w := httptest.NewRecorder()
	check := conform(h.T, r)
	h.h.ServeHTTP(w, r)
	check(w)
	return answer{w, h.T}
}

// want fails unless the status is this one.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.Code != status {
		a.t.Fatalf("status %d, want %d: %s", a.Code, status, a.Body)
	}
	return a
}

// get returns a member of the JSON answer by a path like messages.0.id.
func (a answer) get(path string) any {
	a.t.Helper()
	var v any
	if err := json.Unmarshal(a.Body.Bytes(), &v); err != nil {
		a.t.Fatalf("answer %s: %v", a.Body, err)
	}
	for _, tok := range strings.Split(path, ".") {
		switch c := v.(type) {
		case map[string]any:
			v = c[tok]
		case []any:
			i := 0
			for _, d := range tok {
				i = i*10 + int(d-'0')
			}
			if i >= len(c) {
				return nil
			}
			v = c[i]
		default:
			return nil
		}
	}
	return v
}

func (a answer) str(path string) string {
	s, _ := a.get(path).(string)
	return s
}

func (f *fake) proposals() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.commands)
}

func (f *fake) Propose(ctx context.Context, c *event.Command) (event.Result, error) {
	return f.Begin(c, nil)[0](ctx)
}

// Begin executes all in their order; nobody else's commands come between.
func (f *fake) Begin(c *event.Command, along []*event.Command) (answers []func(context.Context) (event.Result, error)) {
	if f.before != nil {
		f.before()
	}
	f.mu.Lock()
	f.groups++
	for _, c := range append([]*event.Command{c}, along...) {
		res, _, err := f.execute(c)
		answers = append(answers, func(context.Context) (event.Result, error) { return res, err })
	}
	var work []string
	for q := range f.queues {
		work = append(work, q)
	}
	failed := f.err != nil
	f.mu.Unlock()
	if !failed {
		f.applied(work)
	}
	return answers
}

// execute is called with f.mu held.
func (f *fake) execute(c *event.Command) (event.Result, *event.Block, error) {
	// As the log would: what c lies in is used again.
	c, err := event.DecodeCommand(event.EncodeCommand(c))
	if err != nil {
		panic(err)
	}
	f.commands = append(f.commands, c)
	if f.err != nil {
		return event.Result{}, nil, f.err
	}
	b := event.Block{Index: uint64(len(f.blocks) + 1), Time: time.Now().UnixMilli()}
	res := event.Result{Index: b.Index}
	if r := c.Request; r != nil {
		if k, ok := f.kept[r.Key]; ok {
			if k.body != r.Body {
				return event.Result{Problem: event.Problemf(event.CodeKeyReused, "", "reused")}, nil, nil
			}
			return event.Result{Index: b.Index, Kept: k.ref}, nil, nil
		}
	}
	res.Problem = f.decide(c, &b, &res)
	if r := c.Request; r != nil && res.Problem == nil {
		e := f.add(&b, event.Event{Type: event.AnswerKept, Alias: r.Key, Body: r.Body,
			Content: event.EncodeContent(&event.Content{Answer: event.EncodeResult(&res)})})
		f.kept[r.Key] = keptAnswer{r.Body, event.RefOf(e.ID)}
	}
	f.blocks = append(f.blocks, b)
	close(f.grown)
	f.grown = make(chan struct{})
	return res, &b, nil
}

func (f *fake) add(b *event.Block, e event.Event) *event.Event {
	e.ID = event.NewID(b.Time, b.Index, uint32(len(b.Events)))
	b.Events = append(b.Events, e)
	return &b.Events[len(b.Events)-1]
}

func (f *fake) decide(c *event.Command, b *event.Block, res *event.Result) *event.Problem {
	switch {
	case c.PutQueue != nil:
		v := f.queues[c.PutQueue.Name]
		if v == nil {
			v = &event.QueueView{Name: c.PutQueue.Name, CreatedAt: b.Time}
			f.queues[v.Name] = v
			res.Created = true
		} else if r := c.PutQueue.IfRevision; r != 0 && r != v.Revision || f.stale > 0 {
			f.stale--
			v.Revision++
			return event.Problemf(event.CodeStaleRevision, "", "stale")
		}
		v.Policy, v.Revision, v.UpdatedAt = c.PutQueue.Policy, b.Index, b.Time
		f.add(b, event.Event{Type: event.QueueUpdated, Queue: v.Name, Policy: &v.Policy})
	case c.DeleteQueue != nil:
		delete(f.queues, c.DeleteQueue.Name)
	case c.PauseQueue != nil:
		f.queues[c.PauseQueue.Name].Paused = c.PauseQueue.Paused
	case c.PurgeQueue != nil:
		for id, m := range f.messages {
			if m.Queue == c.PurgeQueue.Name && m.State == event.StateReady {
				delete(f.messages, id)
				res.Count++
			}
		}
	case c.Produce != nil:
		return f.produce(c.Produce, b, res)
	case c.Lease != nil:
		f.lease(c.Lease, b, res)
	case c.Settle != nil:
		for i := range c.Settle.Items {
			f.settle(&c.Settle.Items[i], b, res)
		}
	case c.Transaction != nil:
		for i := range c.Transaction.Settle {
			it, at := &c.Transaction.Settle[i], 0
			for j := range i {
				if c.Transaction.Settle[j].Op == it.Op {
					at++
				}
			}
			if f.leased(it.Lease) == nil {
				field := map[event.SettleOp]string{event.OpAck: "ack", event.OpRetry: "retry", event.OpDeadLetter: "dead_letter", event.OpExtend: "extend"}
				return event.Problemf(event.CodeLeaseLost, field[it.Op], "lost").At(at)
			}
		}
		for i := range c.Transaction.Settle {
			f.settle(&c.Transaction.Settle[i], b, res)
		}
		for i := range c.Transaction.Produce {
			if p := f.produce(&c.Transaction.Produce[i], b, res); p != nil {
				return p
			}
		}
	case c.PutWebhook != nil:
		return f.putWebhook(c.PutWebhook, b, res)
	case c.Define != nil:
		return f.define(c.Define, b)
	case c.DeleteWebhook != nil:
		return f.deleteWebhook(c.DeleteWebhook)
	case c.Delete != nil:
		m := f.messages[c.Delete.ID]
		if m == nil {
			return event.Problemf(event.CodeMessageNotFound, "id", "no")
		}
		f.add(b, event.Event{Type: event.Discarded, Subject: m.ID, Queue: m.Queue, Reason: event.ReasonDeleted})
		delete(f.messages, m.ID)
	}
	return nil
}

func (f *fake) produce(p *event.Produce, b *event.Block, res *event.Result) *event.Problem {
	q := f.queues[p.Queue]
	if q == nil {
		return event.Problemf(event.CodeQueueNotFound, "queue", "no")
	}
	if f.stale > 0 || p.Revision != q.Revision {
		f.stale--
		q.Revision++
		return event.Problemf(event.CodeStaleRevision, "", "stale")
	}
	for i := range p.Messages {
		m := &p.Messages[i]
		if !m.DedupKey.IsZero() {
			if id, ok := f.dedup(p.Queue, m.DedupKey); ok {
				res.Produced = append(res.Produced, event.Produced{ID: id, Duplicate: true})
				continue
			}
		}
		if held := int64(len(f.messages)); q.Policy.MaxDepth > 0 && held >= q.Policy.MaxDepth {
			p := event.Problemf(event.CodeQueueFull, "retention.max_depth", "full")
			p.RetryAfterMS = 1000
			return p
		}
		due := m.DeliverAt
		if m.DelayMS > 0 {
			due = b.Time + m.DelayMS
		}
		e := f.add(b, event.Event{Type: event.Enqueued, Queue: p.Queue, Key: m.Key, Kind: m.Kind, Priority: m.Priority, Due: due,
			Size: m.Size, Alias: m.DedupKey, Content: m.Content})
		e.Subject = e.ID
		st := event.StateReady
		if due > b.Time {
			st = event.StateScheduled
		}
		f.messages[e.ID] = &event.MessageView{ID: e.ID, Queue: p.Queue, Key: m.Key, Kind: m.Kind, State: st, Priority: m.Priority,
			Size: m.Size, EnqueuedAt: b.Time, Due: due, Content: event.RefOf(e.ID)}
		q.Stats.Enqueued++
		res.Produced = append(res.Produced, event.Produced{ID: e.ID})
	}
	return nil
}

func (f *fake) dedup(queue string, key event.Hash) (event.ID, bool) {
	for i := range f.blocks {
		for _, e := range f.blocks[i].Events {
			if e.Type == event.Enqueued && e.Queue == queue && e.Alias == key {
				return e.ID, true
			}
		}
	}
	return event.ID{}, false
}

func (f *fake) ready(queue string, kinds []string) []*event.MessageView {
	q := f.queues[queue]
	if q == nil || q.Paused {
		return nil
	}
	var out []*event.MessageView
	for _, m := range f.messages {
		if m.Queue == queue && m.State == event.StateReady && (len(kinds) == 0 || slices.Contains(kinds, m.Kind)) {
			out = append(out, m)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID.Compare(out[j].ID) < 0 })
	return out
}

func (f *fake) lease(l *event.Lease, b *event.Block, res *event.Result) {
	for _, q := range l.Queues {
		for _, m := range f.ready(q, l.Kinds) {
			if len(res.Leased) == l.Max {
				return
			}
			m.Attempt++
			m.State = event.StateLeased
			m.LeaseExpiresAt = b.Time + max(l.LeaseMS, 1000)
			e := f.add(b, event.Event{Type: event.Leased, Subject: m.ID, Queue: q, Attempt: m.Attempt, LeaseExpires: m.LeaseExpiresAt, Worker: l.Worker})
			m.Lease = e.ID
			res.Leased = append(res.Leased, event.LeasedMessage{MessageView: *m, MaxAttempts: 5})
		}
	}
}

func (f *fake) leased(lease event.ID) *event.MessageView {
	for _, m := range f.messages {
		if m.State == event.StateLeased && m.Lease == lease {
			return m
		}
	}
	return nil
}

func (f *fake) settle(it *event.SettleItem, b *event.Block, res *event.Result) {
	t := event.Settled{Lease: it.Lease}
	m := f.leased(it.Lease)
	if m == nil {
		t.Status, t.Code = event.StatusRejected, event.CodeLeaseLost
		res.Settled = append(res.Settled, t)
		return
	}
	e := event.Event{Subject: m.ID, Queue: m.Queue, Lease: it.Lease, Content: it.Content}
	switch it.Op {
	case event.OpAck:
		e.Type, t.Status = event.Acked, event.StatusAcked
		delete(f.messages, m.ID)
	case event.OpRetry:
		e.Type, t.Status = event.Retried, event.StatusRetried
		e.Due = b.Time + max(it.DelayMS, 0)
		t.NextAt = e.Due
		m.State = event.StateScheduled
	case event.OpDeadLetter:
		e.Type, e.Reason, t.Status = event.Discarded, event.ReasonRejected, event.StatusDiscarded
		t.Message, t.Queue = m.ID, m.Queue
		delete(f.messages, m.ID)
	case event.OpExtend:
		e.Type, t.Status = event.LeaseExtended, event.StatusExtended
		m.LeaseExpiresAt = b.Time + max(it.LeaseMS, 1000)
		t.ExpiresAt = m.LeaseExpiresAt
	case event.OpRelease:
		e.Type, t.Status = event.Released, event.StatusReleased
		m.State = event.StateReady
		m.Attempt--
	}
	f.add(b, e)
	res.Settled = append(res.Settled, t)
}

func (f *fake) Barrier(ctx context.Context) error {
	if f.barrier != nil {
		return f.barrier
	}
	return ctx.Err()
}

func (f *fake) Queue(name string) (event.QueueView, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.queues[name]
	if v == nil {
		return event.QueueView{}, false
	}
	out := *v
	for _, m := range f.messages {
		if m.Queue != name {
			continue
		}
		switch m.State {
		case event.StateReady:
			out.Stats.Ready++
		case event.StateLeased:
			out.Stats.InFlight++
		case event.StateScheduled:
			out.Stats.Scheduled++
		}
	}
	return out, true
}

func (f *fake) Queues() []event.QueueView {
	f.mu.Lock()
	var names []string
	for n := range f.queues {
		names = append(names, n)
	}
	f.mu.Unlock()
	slices.Sort(names)
	var out []event.QueueView
	for _, n := range names {
		v, _ := f.Queue(n)
		out = append(out, v)
	}
	return out
}

func (f *fake) Message(id event.ID) (event.MessageView, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.messages[id]; m != nil {
		return *m, true
	}
	return event.MessageView{}, false
}

func (f *fake) Messages(queue string, q event.MessageFilter) ([]event.MessageView, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queues[queue] == nil {
		return nil, false
	}
	var out []event.MessageView
	for _, m := range f.messages {
		if m.Queue == queue && m.ID.Compare(q.After) > 0 && (q.State == event.StateNone || q.State == m.State) && (q.Key == nil || *q.Key == m.Key) {
			out = append(out, *m)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID.Compare(out[j].ID) < 0 })
	return out[:min(len(out), q.Limit)], true
}

func (f *fake) Leasable(queue string, kinds []string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ready(queue, kinds))
}

func (f *fake) Clock() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.blocks) == 0 {
		return 0
	}
	return f.blocks[len(f.blocks)-1].Time
}

func (f *fake) Index() uint64 { return f.Head() }

func (f *fake) event(ref event.Ref) *event.Event {
	if ref.Index == 0 || ref.Index > uint64(len(f.blocks)) || int(ref.Number) >= len(f.blocks[ref.Index-1].Events) {
		return nil
	}
	return &f.blocks[ref.Index-1].Events[ref.Number]
}

func (f *fake) Content(ref event.Ref) (*event.Content, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.erased {
		return nil, eventlog.ErrErased
	}
	e := f.event(ref)
	if e == nil {
		return nil, eventlog.ErrNotFound
	}
	return event.DecodeContent(e.Content.Bytes)
}

func (f *fake) Contents(refs []event.Ref) ([]*event.Content, error) {
	out := make([]*event.Content, len(refs))
	for i, r := range refs {
		var err error
		if out[i], err = f.Content(r); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *fake) History(_ context.Context, id event.ID) ([]event.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []event.Event
	for i := range f.blocks {
		for _, e := range f.blocks[i].Events {
			if e.Subject == id {
				out = append(out, e)
			}
		}
	}
	return out, nil
}

func (f *fake) EndOf(_ context.Context, lease event.ID) (*event.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.blocks {
		for _, e := range f.blocks[i].Events {
			if e.Lease == lease && e.Type != event.LeaseExtended {
				return &e, nil
			}
		}
	}
	return nil, eventlog.ErrNotFound
}

func (f *fake) Blocks(from uint64) (func(context.Context) (*event.Block, error), func()) {
	at := max(from, 1)
	return func(ctx context.Context) (*event.Block, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if at > uint64(len(f.blocks)) {
			return nil, io.EOF
		}
		at++
		b := f.blocks[at-2]
		return &b, nil
	}, func() {}
}

func (f *fake) Head() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return uint64(len(f.blocks))
}

// The fake's read models: what is rebuilt is counted at once.
func (f *fake) QueueTotals(queue string) (map[string]uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]uint64{}
	for i := range f.blocks {
		for _, e := range f.blocks[i].Events {
			if e.Queue == queue {
				out[e.Type.String()]++
			}
		}
	}
	return out, nil
}

func (f *fake) DeadLetters(string) (map[event.Reason]uint64, error) {
	return map[event.Reason]uint64{event.ReasonRejected: 2}, nil
}

func (f *fake) Minutes(_ string, from, to int64) ([]store.Minute, error) {
	if to-from > 3_600_001 {
		return nil, nil
	}
	return []store.Minute{{Start: to / 60_000 * 60_000, Counts: store.Counts{Enqueued: 1}}}, nil
}

func (f *fake) Position() (uint64, int64) { return f.Head(), 60_000 }

func (f *fake) Rebuild() error { f.rebuilt++; return nil }

func (f *fake) DeletedBefore() (uint64, bool) { return f.deleted, f.deleted > 0 }

func (f *fake) Wait(ctx context.Context, index uint64) error {
	for {
		f.mu.Lock()
		n, grown := uint64(len(f.blocks)), f.grown
		f.mu.Unlock()
		if n > index {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fake) From(at event.Instant) (uint64, error) {
	switch at.Kind {
	case event.InstantIndex, event.InstantID:
		return at.Index, nil
	case event.InstantNow:
		return f.Head() + 1, nil
	}
	return 1, nil
}

func (f *fake) To(at event.Instant) (uint64, error) {
	switch at.Kind {
	case event.InstantIndex, event.InstantID:
		return at.Index, nil
	case event.InstantStart:
		return 0, nil
	}
	return f.Head(), nil
}

func (f *fake) Block(index uint64) (*event.Block, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if index == 0 || index > uint64(len(f.blocks)) {
		return nil, eventlog.ErrNotFound
	}
	return &f.blocks[index-1], nil
}

func (f *fake) DedupFloor() uint64                 { return 0 }
func (f *fake) AnswerFloor() uint64                { return 0 }
func (f *fake) Counts() (n [event.NumTypes]uint64) { return n }

func (f *fake) MessagesPerMinute(string, int64) (int64, error) { return 0, errors.New("not counted") }

func (f *fake) OperationsWith([]byte) ([]store.Operation, error) { return nil, nil }

func (f *fake) Replayed(string, event.ID, int) ([]store.Replayed, error) { return nil, nil }

func (f *fake) Event(ref event.Ref) (*event.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.event(ref); e != nil {
		return e, nil
	}
	return nil, eventlog.ErrNotFound
}

// Nothing dies in a fake, and it has no tasks: see machine_test.go for a server
// on the real thing.

func (f *fake) Dead(string, event.DeadFilter) ([]event.MessageView, bool) { return nil, false }
func (f *fake) DeadCount(string) int64                                    { return 0 }
func (f *fake) Lane(string, string) (event.LaneView, bool)                { return event.LaneView{}, false }
func (f *fake) Task(event.ID) (event.TaskView, bool)                      { return event.TaskView{}, false }
func (f *fake) Tasks() []event.TaskView                                   { return nil }
