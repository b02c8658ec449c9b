package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/projections/store"
	"github.com/qlogd/qlogd/replay"
	"github.com/qlogd/qlogd/webhook"
)

// fake is a machine that a test can let fail. It keeps the commands that reached it.
type fake struct {
	*machine
	noModels
	log *fakeLog

	mu       sync.Mutex
	commands []*event.Command
	groups   int // of commands that were proposed together

	err     error  // of Propose
	stale   int    // how many writes are answered with stale_revision
	before  func() // called by Propose
	barrier error
	rebuilt uint64            // the index up to which the read models are
	secrets map[string]string // environment variables
	target  fakeTarget
	models  *store.Store // of the machine's log, in folder; nil: not asked for
	folder  string
}

// noModels are read models that have counted nothing.
type noModels struct{ Models }

func (noModels) MessagesPerMinute(string, int64) (int64, error) {
	return 0, errors.New("not counted")
}

func (noModels) Wait(context.Context, uint64) error { return nil }

func (noModels) OperationsWith([]byte) ([]store.Operation, error) { return nil, nil }

func (noModels) Replayed(string, event.ID, int) ([]store.Replayed, error) { return nil, nil }

// noPush takes every push and delivers nothing.
type noPush struct{}

func (noPush) Check(*wire.Push) error         { return nil }
func (noPush) Reason(string) *wire.PushReason { return nil }
func (noPush) Unready() []string              { return nil }

// fakeLog is a log whose contents may be erased, and its beginning deleted.
type fakeLog struct {
	*log.Log
	erased  bool
	damaged uint64 // contents of entries up to this index are in a damaged file
	single  bool   // nobody can repair it
	deleted uint64
	slow    time.Duration // what a history, or a block, takes to read
}

func (l *fakeLog) Blocks(ctx context.Context, from, to uint64, whole ...event.Type) iter.Seq2[
	*event.Block, error] {
	return func(yield func(*event.Block, error) bool) {
		for b, err := range l.Log.Blocks(ctx, from, to, whole...) {
			if time.Sleep(l.slow); !yield(b, err) {
				return
			}
		}
	}
}

func (l *fakeLog) History(ctx context.Context, id event.ID) ([]event.Event, error) {
	time.Sleep(l.slow)
	all, err := l.Log.History(ctx, id)
	return slices.DeleteFunc(all, func(e event.Event) bool {
		return event.RefOf(e.ID).Index <= l.deleted
	}), err
}

func (l *fakeLog) Content(ref event.Ref) (*event.Content, error) {
	if l.erased {
		return nil, log.ErrErased
	}
	if ref.Index <= l.damaged {
		err := fmt.Errorf("content of %s: %w", ref, &log.CorruptionError{Segment: "x.seg"})
		if l.single {
			err = fmt.Errorf("%w: %w", log.ErrDamaged, err)
		}
		return nil, err
	}
	return l.Log.Content(ref)
}

func (l *fakeLog) Begins() (uint64, int64) {
	if l.deleted == 0 {
		return 0, 0
	}
	return l.deleted, l.Clock()
}

func (l *fakeLog) Event(ref event.Ref) (*event.Event, error) {
	if ref.Index <= l.deleted {
		return nil, log.ErrGone
	}
	return l.Log.Event(ref)
}

// fakeNode is the Node of a cluster of one, unless a test says what others answer.
type fakeNode struct {
	*fake
	*fakeCluster
	unready   []string
	clock     func() int64
	age       func() (time.Duration, bool)
	leader    string
	askLeader func(context.Context, string, []byte) ([]byte, error)
	askOthers func(context.Context, string, []byte) [][]byte
}

func (n *fakeNode) Ready() (bool, []string) { return len(n.unready) == 0, n.unready }
func (n *fakeNode) Load() (int, float64)    { return 0, 0 }
func (n *fakeNode) Clock() int64            { return n.clock() }
func (n *fakeNode) LeaderHTTP() string      { return n.leader }

func (n *fakeNode) Age() (time.Duration, bool) { return n.age() }

func (n *fakeNode) AskOthers(ctx context.Context, name string, body []byte) [][]byte {
	return n.askOthers(ctx, name, body)
}

func (n *fakeNode) AskLeader(ctx context.Context, name string, ask, answer any) error {
	body, err := json.Marshal(ask)
	if err == nil {
		body, err = n.askLeader(ctx, name, body)
	}
	if err == nil {
		err = json.Unmarshal(body, answer)
	}
	return err
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
	t.Cleanup(h.close)
	h.T = t
	return h
}

// build is setup without a test; the caller closes it.
func build(opts ...func(*Options)) *harness {
	f := &fake{log: &fakeLog{}}
	secrets, _ := webhook.NewSecrets(func(name string) string { return f.secrets[name] }, "")
	o := Options{MaxPayload: 1 << 20, MaxRequest: 16 << 20, MaxQueues: 100_000, Version: "test",
		HistoryRetention: 7 * 24 * time.Hour, Conns: NewConns(MaxConns)}
	for _, fn := range opts {
		fn(&o)
	}
	c := newFakeCluster()
	n := &fakeNode{fake: f, fakeCluster: c,
		clock:     func() int64 { return time.Now().UnixMilli() },
		age:       func() (time.Duration, bool) { return 0, false },
		askOthers: func(context.Context, string, []byte) [][]byte { return nil }}
	f.machine = newMachine(nil)
	f.log.Log = f.machine.log
	past := replay.NewPast(&replay.Source{Log: f.machine.log, FS: memdisk.New(), Checkpoints: "c"}, 4)
	f.machine.s = New(Deps{
		Node: n, State: f, Log: f.log, Models: f, Push: noPush{}, Eraser: f.machine.newEraser(),
		Past:    func(ctx context.Context, at event.Instant) (State, error) { return past.At(ctx, at) },
		Secrets: secrets, Forward: &f.target, Logger: slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(),
		HeadAt:   fakeProof{f}.HeadAt, LogSegments: fakeProof{f}.LogSegments,
	}, o)
	return &harness{fake: f, cluster: c, node: n, s: f.machine.s, h: f.machine.s.Handler()}
}

func (h *harness) close() {
	h.s.Drain()
	h.forgetModels()
	_ = h.log.Close()
}

// forget empties the fake.
func (f *fake) forget() {
	f.forgetModels()
	_ = f.log.Close()
	f.machine = newMachine(f.machine.s)
	f.log.Log, f.commands = f.machine.log, nil
	f.machine.s.deps.Eraser = f.machine.newEraser()
}

// counted returns read models that have counted all of the machine's log.
func (f *fake) counted() *store.Store {
	if f.models == nil {
		var err error
		if f.folder, err = os.MkdirTemp("", "models"); err == nil {
			f.models, err = store.Open(filepath.Join(f.folder, "p.db"), "c", slog.New(slog.DiscardHandler))
		}
		if err != nil {
			panic(err)
		}
	}
	if err := f.models.CatchUp(context.Background(), f.log, func(uint64) {}); err != nil {
		panic(err)
	}
	return f.models
}

func (f *fake) forgetModels() {
	if f.models != nil {
		_ = f.models.Close()
		_ = os.RemoveAll(f.folder)
		f.models = nil
	}
}

// answer is a response and its body.
type answer struct {
	*httptest.ResponseRecorder
	t *testing.T
}

// requestOf returns a request; headers are "Name: value".
func requestOf(ctx context.Context, method, target, body string,
	headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	for _, line := range headers {
		name, v, _ := strings.Cut(line, ": ")
		r.Header.Add(name, v)
	}
	return r
}

// do sends a request; headers are "Name: value".
func (h *harness) do(method, target, body string, headers ...string) answer {
	h.Helper()
	return h.send(requestOf(context.Background(), method, target, body, headers...))
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
	require.Equal(a.t, a.Code, status, "status of %s", a.Body)
	return a
}

// get returns a member of the JSON answer by a path like messages.0.id; all of it is a dot.
func (a answer) get(path string) any {
	a.t.Helper()
	var v any
	require.NoError(a.t, json.Unmarshal(a.Body.Bytes(), &v), "answer %s", a.Body)
	return memberOf(v, path)
}

func memberOf(v any, path string) any {
	if path == "." {
		return v
	}
	for tok := range strings.SplitSeq(path, ".") {
		switch c := v.(type) {
		case map[string]any:
			v = c[tok]
		case []any:
			i, err := strconv.Atoi(tok)
			if err != nil || i >= len(c) {
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

func (f *fake) Begin(
	c *event.Command, along []*event.Command,
) (answers []func(context.Context) (event.Result, error)) {
	if f.before != nil {
		f.before()
	}
	f.mu.Lock()
	f.groups++
	f.commands = append(append(f.commands, c), along...)
	res, err := event.Result{}, f.err
	checked := c.PutQueue != nil || c.Produce != nil || c.Define != nil || c.Transaction != nil
	if f.stale > 0 && checked && err == nil {
		f.stale--
		res.Problem = event.Problemf(event.CodeStaleRevision, "", "stale")
	}
	f.mu.Unlock()
	if err == nil && res.Problem == nil {
		return f.machine.Begin(c, along)
	}
	for range len(along) + 1 {
		answers = append(answers, func(context.Context) (event.Result, error) { return res, err })
	}
	return answers
}

func (f *fake) Barrier(ctx context.Context) error {
	if f.barrier != nil {
		return f.barrier
	}
	return ctx.Err()
}

// The fake's read models.
func (f *fake) QueueTotals(queue string) (map[string]uint64, error) {
	q, _ := f.Queue(queue)
	return map[string]uint64{"enqueued": uint64(q.Stats.Enqueued)}, nil
}

func (f *fake) DeadLetters(string) (map[string]uint64, error) {
	return map[string]uint64{event.ReasonRejected.String(): 2}, nil
}

func (f *fake) Minutes(_ string, from, to int64) ([]store.Minute, error) {
	if to-from > 3_600_001 {
		return nil, nil
	}
	return []store.Minute{{Start: to / 60_000 * 60_000, Counts: store.Counts{Enqueued: 1}}}, nil
}

func (f *fake) Workers(now int64) ([]store.Worker, error) { return f.counted().Workers(now) }

func (f *fake) LeasesExpired(queues []event.QueueView) ([]uint64, error) {
	return f.counted().LeasesExpired(queues)
}

func (f *fake) Dying(now int64) (map[string]store.Counted, error) {
	return f.counted().Dying(now)
}

func (f *fake) Expiring(created func(string) int64) (map[string]*store.Expiring, error) {
	return f.counted().Expiring(created)
}

func (f *fake) Position() (uint64, int64) { return f.rebuilt, 60_000 }
func (f *fake) Rebuild() error            { f.rebuilt++; return nil }

// fakeProof is a log of one segment.
type fakeProof struct{ *fake }

func (p fakeProof) HeadAt(index uint64) (wire.LogHead, error) {
	if index <= p.log.deleted && index > 0 {
		return wire.LogHead{}, log.ErrGone
	}
	return wire.LogHead{ClusterID: "c", NodeID: "n1", Index: index,
		ChainHash: strings.Repeat("0", 64), Time: 1_700_000_000_000}, nil
}

func (p fakeProof) LogSegments() wire.LogSegments {
	return wire.LogSegments{ClusterID: "c", NodeID: "n1",
		Segments: []wire.LogSegment{{Name: "1.seg", FirstIndex: 1, LastIndex: 2, Bytes: 3,
			LastTime: 1, Sealed: true}}}
}
