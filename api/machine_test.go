package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/background/erasure"
	"github.com/qlogd/qlogd/background/task"
	"github.com/qlogd/qlogd/background/verify"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/projections"
)

// machine is a backend that decides, appends and folds as a node does: a state
// machine and an event log, with nothing but Raft left out.
type machine struct {
	*fsm.Machine
	log    *log.Log
	disk   *memdisk.Disk // of log
	s      *Server
	runs   *task.Runner // nil: no tasks
	eraser *erasure.Eraser

	mu    sync.Mutex
	index uint64
	now   int64 // 0: by the clock; else time passes only when a test says so
}

func newMachine(s *Server) *machine {
	disk := memdisk.New()
	log, err := log.Open(log.Options{FS: disk, Dir: "log", SegmentSize: 1 << 20,
		CacheBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	return &machine{Machine: fsm.New(projections.New(), log), log: log, disk: disk, s: s}
}

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// onMachine is a harness with a runner of tasks, where it is noon until time passes.
func onMachine(t *testing.T, opts ...func(*Options)) (*harness, *machine) {
	t.Helper()
	h := setup(t, opts...)
	m := h.machine
	m.now = noon.UnixMilli()
	h.node.clock = func() int64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.now
	}
	verifier := verify.New(verify.Options{
		FS: m.disk, Node: &datadir.Node{NodeID: "n1"}, Log: m.log, Rate: verify.Rate,
		Busy: func() bool { return false },
	})
	options := task.Options{
		Logger: slog.New(slog.DiscardHandler), Propose: m.Propose, Barrier: m.Barrier,
		Tasks: m.Tasks, Content: m.log.Content, Leader: func() bool { return true },
		Run: m.s.Tasks(m.Propose),
	}
	options.Run[event.TaskVerify] = verifier.Run
	m.runs = task.New(options)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	erased := make(chan struct{})
	go func() { m.runs.Run(ctx); close(ended) }()
	go func() { m.eraser.Run(ctx); close(erased) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		<-erased
	})
	return h, m
}

func (m *machine) Barrier(ctx context.Context) error { return ctx.Err() }

func (m *machine) Propose(ctx context.Context, c *event.Command) (event.Result, error) {
	return m.Begin(c, nil)[0](ctx)
}

func (m *machine) Begin(c *event.Command,
	along []*event.Command) (answers []func(context.Context) (event.Result, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index++
	e := event.Entry{Rules: event.Rules, Time: m.now}
	if m.now == 0 {
		e.Time = time.Now().UnixMilli()
	}
	if m.Rules() < event.Rules {
		e.Commands = append(e.Commands,
			event.EncodeCommand(&event.Command{Upgrade: &event.Upgrade{Rules: event.Rules}}))
	}
	first := len(e.Commands)
	for _, c := range append([]*event.Command{c}, along...) {
		e.Commands = append(e.Commands, event.EncodeCommand(c))
	}
	results, err := m.Apply(m.index, e.Encode())
	if err != nil {
		panic(err)
	}
	m.s.Applied(m.TakeLeasable())
	if m.runs != nil {
		m.runs.Wake()
		m.eraser.Wake()
	}
	for _, r := range results[first:] {
		answers = append(answers, func(context.Context) (event.Result, error) { return r, nil })
	}
	return answers
}

// pass lets time go by, and what it brings happen.
func (m *machine) pass(d time.Duration) {
	m.late(d)
	if _, err := m.Propose(context.Background(), &event.Command{Mark: &event.Mark{}}); err != nil {
		panic(err)
	}
}

// late lets time go by, and nothing happen.
func (m *machine) late(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now += d.Milliseconds()
}

// proposals is how many entries there are.
func (m *machine) proposals() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

// queue makes a queue q with a dead-letter queue and these policy fields.
func (h *harness) queue(name, ordering, more string) {
	h.Helper()
	h.do("PUT", "/v1/queues/"+name,
		fmt.Sprintf(`{"ordering":%q,"delivery":{"dead_letter_queue":"auto","max_attempts":1}%s}`,
			ordering, more)).want(201)
}

// put enqueues a message and returns its id.
func (h *harness) put(queue, key, payload string) string {
	h.Helper()
	return h.do("POST", "/v1/queues/"+queue+"/messages",
		fmt.Sprintf(`{"messages":[{"key":%q,"payload":%s}]}`, key,
			payload)).want(201).str("messages.0.id")
}

// die leases the next message of a queue, dead-letters it, and returns its id
// in the queue.
func (h *harness) die(queue, errorText string) string {
	h.Helper()
	a := h.do("POST", "/v1/queues/"+queue+"/lease", `{"max_messages":1}`).want(200)
	lease := a.str("messages.0.lease_id")
	require.NotEqual(h, lease, "", "nothing to lease")
	h.do("POST", "/v1/queues/"+queue+"/dead-letter",
		fmt.Sprintf(`{"items":[{"lease_id":%q,"error":%q}]}`, lease, errorText)).want(200)
	return a.str("messages.0.id")
}

// dead lists a member of each dead message of a queue.
func (h *harness) dead(queue, query, member string) []string {
	h.Helper()
	a := h.do("GET", "/v1/queues/"+queue+"/dead"+query, "").want(http.StatusOK)
	return a.each("dead", member)
}

// with fails unless the answer has these members: pairs of a path and a value, "" for none.
func (a answer) with(pairs ...any) answer {
	a.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		got := a.get(pairs[i].(string))
		if absent := got == nil && pairs[i+1] == ""; got != pairs[i+1] && !absent {
			a.t.Fatalf("%s is %v, want %v: %s", pairs[i], got, pairs[i+1], a.Body)
		}
	}
	return a
}

// each is a member of each element of a list, as text.
func (a answer) each(list, member string) []string {
	a.t.Helper()
	out := []string{}
	elements, _ := a.get(list).([]any)
	for _, e := range elements {
		out = append(out, fmt.Sprint(memberOf(e, member)))
	}
	return out
}

// payloads leases and acks all that there is, and returns the payloads in their
// order.
func (h *harness) payloads(queue string) []string {
	h.Helper()
	out := []string{}
	for {
		a := h.do("POST", "/v1/queues/"+queue+"/lease", `{"max_messages":1}`).want(200)
		lease := a.str("messages.0.lease_id")
		if lease == "" {
			return out
		}
		out = append(out, fmt.Sprint(a.get("messages.0.payload")))
		h.do("POST", "/v1/queues/"+queue+"/ack", fmt.Sprintf(`{"lease_ids":[%q]}`, lease)).want(200)
	}
}

// newEraser returns what carries erasures out for a cluster of the one node that there is.
func (m *machine) newEraser() *erasure.Eraser {
	disk := memdisk.New()
	err := disk.MkdirAll("/data")
	if err == nil {
		m.eraser, err = erasure.New(erasure.Options{
			Log: m.log, State: m.Machine, FS: disk, DataDir: "/data", Propose: m.Propose,
			Self:     func() string { return "n1/a" },
			Members:  func() []string { return []string{"n1/a"} },
			Fetched:  func() error { return nil },
			PurgeLog: func(context.Context, uint64) error { return nil },
			OpenPast: func(context.Context) (*log.Log, func(), error) {
				return m.log, func() {}, nil
			},
			Logger: slog.New(slog.DiscardHandler),
		})
	}
	if err != nil {
		panic(err)
	}
	return m.eraser
}
