package erasure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/projections"
)

var errGivesUp = errors.New("the story ends")

func init() { checkEvery = time.Millisecond }

const clock = 1_700_000_000_000

// world is a node with the real deciding and folding, and no Raft.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	disk   *memdisk.Disk
	log    *log.Log
	m      *fsm.Replica
	eraser *Eraser

	mu    sync.Mutex
	index uint64
	now   int64
	// between, if set, is called before each proposal of an Erase: what others do.
	between  func()
	texts    int
	leases   []event.ID
	purged   uint64
	archived []event.Ref
}

// open opens a node on a disk, as after a start.
func open(t *testing.T, disk *memdisk.Disk) (*world, error) {
	w := &world{t: t, rng: rand.New(rand.NewPCG(1, 1)), disk: disk}
	if err := disk.MkdirAll("/data"); err != nil {
		return nil, err
	}
	var err error
	o := log.Options{FS: disk, Dir: "/data/log", SegmentSize: 4 << 10, HeldFrom: 1}
	if w.log, err = log.Open(o); err != nil {
		return nil, err
	}
	t.Cleanup(func() { w.log.Close() })
	state := projections.New()
	for b, err := range w.log.Blocks(w.t.Context(), 0, math.MaxUint64) {
		if err != nil {
			return nil, err
		}
		state.Fold(b)
	}
	w.index, w.now = max(w.log.Head(), 2), max(state.Clock(), clock)
	w.m = fsm.NewReplica(state, w.log)
	w.eraser, err = New(Options{
		Log: w.log, State: w.m.Machine, FS: disk, DataDir: "/data", Propose: w.propose,
		Self:     func() string { return "n1/a" },
		Members:  func() []string { return []string{"n1/a"} },
		Fetched:  func() error { return nil },
		PurgeLog: func(_ context.Context, upTo uint64) error { w.purged = upTo; return nil },
		OpenPast: func(context.Context) (*log.Log, func(), error) {
			return w.log, func() {}, nil
		},
		Archive: func(_ context.Context, refs []event.Ref) error {
			w.archived = slices.Clone(refs)
			return nil
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	return w, err
}

func newWorld(t *testing.T, seed uint64) *world {
	w, err := open(t, memdisk.New())
	must(t, err)
	w.rng = rand.New(rand.NewPCG(seed, 1))
	for _, q := range []string{"a", "b"} {
		p := event.DefaultPolicy()
		p.Ordering, p.MaxAttempts, p.InitialBackoffMS = event.PerKey, 2, 0
		w.do(&event.Command{PutQueue: &event.PutQueue{Name: q, Policy: p, DeadLetterAuto: true}})
	}
	return w
}

func (w *world) propose(_ context.Context, c *event.Command) (event.Result, error) {
	if w.between != nil && c.Erase != nil {
		between := w.between
		w.between = nil
		between()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	w.now += 10
	e := event.Entry{Rules: event.Rules, Time: w.now}
	if w.m.Rules() < event.Rules {
		upgrade := &event.Command{Upgrade: &event.Upgrade{Rules: event.Rules}}
		e.Commands = append(e.Commands, event.EncodeCommand(upgrade))
	}
	e.Commands = append(e.Commands, event.EncodeCommand(c))
	rs, err := w.m.Apply(w.index, e.Encode())
	w.eraser.Wake()
	if err != nil {
		return event.Result{}, err
	}
	return rs[len(rs)-1], nil
}

func (w *world) do(c *event.Command) event.Result {
	w.t.Helper()
	r, err := w.propose(w.t.Context(), c)
	must(w.t, err)
	return r
}

// text is one that is written once.
func (w *world) text(c event.Content) event.Blob {
	w.texts++
	s := fmt.Sprintf("text-%d", w.texts)
	switch {
	case c.Error != "":
		c.Error = s
	case c.Result != nil:
		c.Result = fmt.Appendf(nil, "%q", s)
	default:
		c.Payload = fmt.Appendf(nil, "%q", s)
	}
	return event.EncodeContent(&c)
}

func (w *world) some(of ...string) string { return of[w.rng.IntN(len(of))] }

// live returns the messages of a queue.
func (w *world) live(queue string) []event.MessageView {
	views, _ := w.m.Messages(queue, event.MessageFilter{Limit: 1000})
	return views
}

func (w *world) steps(n int) {
	for range n {
		w.step()
	}
}

// step does something that clients do.
func (w *world) step() {
	queue := w.some("a", "b")
	switch n := w.rng.IntN(21); {
	case n < 5:
		w.do(&event.Command{Produce: &event.Produce{Queue: queue, Messages: []event.NewMessage{
			{Key: w.some("k", "l", ""), Priority: 5, Content: w.text(event.Content{})},
		}}})
	case n < 10:
		lease := &event.Lease{Queues: []string{queue}, Max: 2, LeaseMS: 300}
		r := w.do(&event.Command{Lease: lease})
		for i := range r.Leased {
			w.leases = append(w.leases, r.Leased[i].Lease)
		}
	case n < 15:
		if len(w.leases) == 0 {
			return
		}
		i := w.rng.IntN(len(w.leases))
		it := event.SettleItem{
			Lease: w.leases[i], Op: event.OpRetry, Content: w.text(event.Content{Error: "x"}),
		}
		switch w.rng.IntN(3) {
		case 0:
			it.Op, it.Content = event.OpAck, w.text(event.Content{Result: []byte("x")})
		case 1:
			it.Op = event.OpDeadLetter
		}
		w.leases = slices.Delete(w.leases, i, i+1)
		w.do(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{it}}})
	case n < 18:
		dead := w.live(queue + ".dlq")
		if len(dead) == 0 {
			return
		}
		it := event.ReplayItem{ID: dead[w.rng.IntN(len(dead))].ID}
		if w.rng.IntN(2) == 0 {
			it.Edited, it.Content = true, w.text(event.Content{})
		}
		w.do(&event.Command{Replay: &event.Replay{
			Queue: queue, To: w.some("", "a", "b"), Order: event.OrderAppend,
			Items: []event.ReplayItem{it},
		}})
	case n < 19:
		live := w.live(queue)
		if len(live) == 0 {
			return
		}
		m := live[w.rng.IntN(len(live))]
		e, err := w.log.Event(m.Content)
		must(w.t, err)
		if !e.Content.IsZero() { // else it is erased: retention finds nothing to carry
			it := event.CarryItem{ID: m.ID, From: m.Content, Content: e.Content}
			w.do(&event.Command{Carry: &event.Carry{Items: []event.CarryItem{it}}})
		}
	case n < 20:
		w.resurrect()
	default:
		w.do(&event.Command{PurgeQueue: &event.PurgeQueue{Name: w.some("a.dlq", "b.dlq")}})
	}
}

// resurrect brings a message back that has left its queue, perhaps one that was
// brought back before.
func (w *world) resurrect() {
	var gone []event.Event
	for e := range w.events(w.log) {
		_, live := w.m.Message(e.Subject)
		if !live && (e.Type == event.Acked || e.Type == event.Discarded) {
			gone = append(gone, *e)
		}
	}
	if len(gone) == 0 {
		return
	}
	e := gone[w.rng.IntN(len(gone))]
	history, err := w.log.History(w.t.Context(), e.Subject)
	must(w.t, err)
	last := e
	for i := range history {
		if history[i].Type == event.Erased || history[i].Type == event.Resurrected && history[i].Subject == e.Subject {
			return // there is nothing to bring back, or it is back
		}
		if history[i].Subject == e.Subject {
			last = history[i]
		}
	}
	made, err := log.Made(w.t.Context(), w.log, e.Subject)
	must(w.t, err)
	w.do(&event.Command{Resurrect: &event.Resurrect{
		To: w.some("a", "b"), Looked: w.log.Head(), Items: []event.ResurrectItem{{
			ID: e.Subject, Last: event.RefOf(last.ID), Key: made.Key, Priority: 5,
			First: history[0].ID, Content: w.text(event.Content{}),
		}},
	}})
}

// events are a log's.
func (w *world) events(l *log.Log) iter.Seq[*event.Event] {
	return func(yield func(*event.Event) bool) {
		for e, err := range l.Events(w.t.Context(), 0, math.MaxUint64) {
			must(w.t, err)
			if !yield(e) {
				return
			}
		}
	}
}

// hasContent reports whether an event has, or had, a content of a message.
func hasContent(e *event.Event) bool {
	return e.Content.Digest != [32]byte{} && e.Subject != event.ID{}
}

// families tells, by reading the whole log once, under which id each message
// first came, and which keys and queues it had.
func (w *world) families() (
	first map[event.ID]event.ID, key map[event.ID]string, in map[event.ID]map[string]bool,
) {
	first, key, in = map[event.ID]event.ID{}, map[event.ID]string{}, map[event.ID]map[string]bool{}
	for e := range w.events(w.log) {
		switch {
		case e.Type == event.Enqueued:
			first[e.ID], key[e.ID], in[e.ID] = e.ID, e.Key, map[string]bool{e.Queue: true}
		case e.IsMove():
			first[e.ID] = first[e.Subject]
			in[first[e.ID]][e.ToQueue] = true
		}
	}
	return first, key, in
}

// create creates a task.
func (w *world) create(kind event.TaskKind, spec []byte) event.TaskView {
	w.t.Helper()
	c := &event.CreateTask{
		Kind: kind, Queue: "a", Content: event.EncodeContent(&event.Content{Spec: spec}),
	}
	t, _ := w.m.Task(w.do(&event.Command{CreateTask: c}).ID)
	return t
}

// encode returns a spec as a task has it.
func encode(spec Spec) []byte {
	b, _ := json.Marshal(spec)
	return b
}

// erase erases, and returns when that is done.
func (w *world) erase(spec Spec) {
	w.t.Helper()
	spec.Reason = "test"
	task := w.create(event.TaskErase, encode(spec))
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { w.eraser.Run(ctx); close(done) }()
	_, _, err := w.eraser.RunTask(ctx, task, encode(spec))
	cancel()
	<-done
	must(w.t, err)
}

// check compares every content of the log with whether it should be there.
func (w *world) check(gone func(first event.ID) bool, what string) {
	w.t.Helper()
	first, _, _ := w.families()
	n := 0
	for e := range w.events(w.log) {
		if !hasContent(e) {
			continue
		}
		want := gone(first[e.Subject]) && e.Type != event.Erased
		require.Equal(w.t, e.Erased(), want, "%s: %s %s of %s: erased", what, e.Type, e.ID, e.Subject)
		if want {
			n++
		}
	}
	for _, q := range []string{"a", "b", "a.dlq", "b.dlq"} {
		for _, m := range w.live(q) {
			assert.False(w.t, gone(first[m.ID]), "%s: %s is still in %s", what, m.ID, q)
		}
	}
	w.t.Logf("%s: %d contents are erased", what, n)
}

// seeds returns how many histories are tried; with -short some.
func seeds(all int) int {
	if testing.Short() {
		return all / 5
	}
	return all
}

// TestErasesAMessageWhole erases messages out of random histories, by any of their ids, and all of
// a key: all that they wrote goes, and nothing else. Others go on with them in the very moment.
func TestErasesAMessageWhole(t *testing.T) {
	for seed := range uint64(seeds(40)) {
		w := newWorld(t, seed)
		w.steps(150)
		more := func() { w.steps(20) }
		gone := map[event.ID]bool{}
		first, _, _ := w.families()
		var ids []event.ID
		for id := range first {
			ids = append(ids, id)
		}
		slices.SortFunc(ids, event.ID.Compare)
		for range 3 {
			id := ids[w.rng.IntN(len(ids))]
			w.between = more
			w.erase(Spec{Message: id})
			gone[first[id]] = true
			w.check(func(f event.ID) bool { return gone[f] }, fmt.Sprintf("seed %d, message", seed))
		}
		_, key, in := w.families()
		for f := range key {
			if key[f] == "k" && in[f]["a"] {
				gone[f] = true
			}
		}
		before := w.index
		w.between = more
		w.erase(Spec{Queue: "a", Key: "k"})
		now, _, queues := w.families()
		for id, f := range now { // one that came to the queue meanwhile may be erased, or not
			came := event.RefOf(id).Index > before && key[f] == "k" && queues[f]["a"]
			if came && w.erased(f) {
				gone[f] = true
			}
		}
		w.check(func(f event.ID) bool { return gone[f] }, fmt.Sprintf("seed %d, key", seed))
	}
}

// erased tells whether what a message was produced with is.
func (w *world) erased(id event.ID) bool {
	_, err := w.log.Content(event.RefOf(id))
	return errors.Is(err, log.ErrErased)
}

// What retention has deleted, and the archive has, is found there: all that a
// message wrote is erased, and nothing else.
func TestErasesWhatOnlyTheArchiveHas(t *testing.T) {
	for seed := range uint64(seeds(20)) {
		w := newWorld(t, seed)
		w.steps(250)
		must(t, w.log.Sync())
		past, err := log.OpenReadOnly(log.Options{FS: w.disk.Clone(), Dir: "/data/log"})
		must(t, err)
		defer past.Close()
		first, key, in := w.families()
		segments := w.log.Segments()
		must(t, w.log.DeleteBefore(segments[len(segments)/2].First))
		before, _ := w.log.Begins()
		require.NotEqual(t, before, 0, "nothing was deleted")
		told := map[event.Ref]bool{}
		w.eraser.OpenPast = func(context.Context) (*log.Log, func(), error) {
			return past, func() {}, nil
		}
		w.eraser.Archive = func(_ context.Context, refs []event.Ref) error {
			for _, ref := range refs {
				told[ref] = true
			}
			return nil
		}
		w.erase(Spec{Queue: "a", Key: "k"})
		old := 0
		for e := range w.events(past) {
			f, ref := first[e.Subject], event.RefOf(e.ID)
			want := hasContent(e) && key[f] == "k" && in[f]["a"]
			require.Equal(t, told[ref], want, "seed %d: %s %s of %s", seed, e.Type, e.ID, e.Subject)
			if want && ref.Index < w.log.First() {
				old++
			}
		}
		t.Logf("seed %d: %d contents, %d of them only in the archive", seed, len(told), old)
	}
}

// A task's spec may have the message's text in it too.
func TestErasesEditsInTasks(t *testing.T) {
	w := newWorld(t, 1)
	w.put("text")
	lease := &event.Lease{Queues: []string{"a"}, Max: 1, LeaseMS: 1000}
	leased := w.do(&event.Command{Lease: lease}).Leased[0]
	die := event.SettleItem{Op: event.OpDeadLetter, Lease: leased.Lease}
	w.do(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{die}}})
	dead := w.live("a.dlq")[0].ID
	replay := func(id event.ID) event.ID {
		spec := fmt.Appendf(nil, `{"message_ids":[%q],"edit":{%q:{"payload":"c2VjcmV0"}}}`, id, id)
		return w.create(event.TaskReplay, spec).ID
	}
	done, open, other := replay(dead), replay(dead), replay(leased.Lease)
	item := event.ReplayItem{ID: dead, Edited: true, Content: w.text(event.Content{})}
	w.do(&event.Command{Replay: &event.Replay{
		Queue: "a", Task: done, Order: event.OrderAppend, Items: []event.ReplayItem{item},
	}})
	w.do(&event.Command{UpdateTask: &event.UpdateTask{ID: done, Op: event.TaskOpComplete}})
	w.erase(Spec{Message: dead})
	for _, c := range []struct {
		task event.ID
		gone bool
	}{{done, true}, {open, true}, {other, false}} {
		assert.Equal(t, w.erased(c.task), c.gone, "task %s: erased %v", c.task, !c.gone)
	}
}

// A task that another node has sealed meanwhile is not failed by one that was
// about to seal it, too.
func TestRunsTwiceAtOnce(t *testing.T) {
	w := newWorld(t, 1)
	spec := Spec{Message: w.put("text"), Reason: "test"}
	task := w.create(event.TaskErase, encode(spec))
	w.between = func() { w.do(sealing(task.ID)) }
	e := w.eraser
	e.Members = func() []string { return nil }
	_, _, err := e.RunTask(t.Context(), task, encode(spec))
	var p *event.Problem
	assert.True(t, err != nil && !errors.As(err, &p), "%v ends the task", err)
	// Started again, it only waits.
	task, _ = w.m.Task(task.ID)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	e.Members = func() []string {
		if looks++; looks == 3 {
			cancel()
		}
		return nil
	}
	_, _, err = e.RunTask(ctx, task, encode(spec))
	assert.ErrorIs(t, err, context.Canceled)
}

// enqueue produces a message and returns its id.
func enqueue(text string) *event.Command {
	content := event.EncodeContent(&event.Content{Payload: []byte(text)})
	return &event.Command{Produce: &event.Produce{
		Queue: "a", Messages: []event.NewMessage{{Priority: 5, Content: content}},
	}}
}

// erasing returns the commands of an erasure but for its seal.
func erasing(task event.ID, ids ...event.ID) *event.Command {
	c := &event.Erase{Task: task}
	for _, id := range ids {
		c.Items = append(c.Items, event.EraseItem{ID: id, Refs: []event.Ref{event.RefOf(id)}})
	}
	return &event.Command{Erase: c}
}

func sealing(task event.ID) *event.Command {
	return &event.Command{UpdateTask: &event.UpdateTask{ID: task, Op: event.TaskOpSeal}}
}

func (w *world) put(text string) event.ID { return w.do(enqueue(text)).Produced[0].ID }

// in returns the files in which some bytes are.
func (w *world) in(mark string) (files []string) {
	w.t.Helper()
	for _, dir := range []string{"/data", "/data/log"} {
		names, _ := w.disk.List(dir)
		for _, name := range names {
			if bytes.Contains(w.disk.Get(path.Join(dir, name)), []byte(mark)) {
				files = append(files, path.Join(dir, name))
			}
		}
	}
	return files
}

func (w *world) once() {
	w.t.Helper()
	must(w.t, w.eraser.once(context.Background()))
}

func (w *world) reports(task event.ID) int {
	t, _ := w.m.Task(task)
	return len(t.Nodes)
}

func TestNodeCarriesOut(t *testing.T) {
	w := newWorld(t, 1)
	secret, other := w.put("secret"), w.put("other")
	for i := range 20 { // several segments
		w.put(fmt.Sprint("noise", i, strings.Repeat(" ", 600)))
	}
	must(t, w.log.Sync())
	require.Equal(t, len(w.in("secret")), 1, "not found before")
	task := w.create(event.TaskErase, nil).ID
	w.do(erasing(task, secret))
	w.once()
	assert.EqualSlices(t, w.in("secret"), nil)
	assert.True(t, w.reports(task) <= 0 && w.purged <= 0, "reported before it was sealed")
	w.do(sealing(task))
	sealed := w.index
	w.once()
	assert.Equal(t, w.reports(task), 1)
	assert.Equal(t, w.purged, sealed)
	assert.EqualSlices(t, w.archived, []event.Ref{event.RefOf(secret)})
	index := w.index
	w.once()
	assert.Equal(t, w.index, index, "reported again")
	c, err := w.log.Content(event.RefOf(other))
	assert.True(t, err == nil && string(c.Payload) == "other", "%+v, %v", c, err)
	// A cancelled one is not reported, but what it has erased is overwritten.
	task = w.create(event.TaskErase, nil).ID
	w.do(erasing(task, other))
	w.do(&event.Command{UpdateTask: &event.UpdateTask{ID: task, Op: event.TaskOpCancel}})
	w.once()
	assert.True(t, w.erased(other) && w.reports(task) == 0, "%d reports", w.reports(task))
}

// What came while the node was not running, or lies in segments that were put in place beside it,
// is carried out at the start.
func TestNodeCatchesUp(t *testing.T) {
	w := newWorld(t, 1)
	first, second := w.put("first"), w.put("second")
	w.put("noise")
	w.once()
	again := func() {
		t.Helper()
		err := w.log.Close()
		if err == nil {
			w, err = open(t, w.disk)
		}
		must(t, err)
	}
	task := w.create(event.TaskErase, nil).ID
	w.do(erasing(task, first))
	again()
	require.NotEqual(t, len(w.in("first")), 0, "carried out already")
	w.once()
	assert.EqualSlices(t, w.in("first"), nil)
	// The position says that there is nothing more before it.
	w.put("behind")
	w.once()
	upTo, err := datadir.ReadErased(w.disk, "/data")
	assert.True(t, err == nil && upTo != 0 && upTo <= w.log.Head(), "position %d, %v", upTo, err)
	w.do(erasing(task, second))
	again()
	for _, damage := range []func(){
		func() { _ = w.disk.Remove("/data/" + datadir.ErasedFile) },
		func() { w.disk.Put("/data/"+datadir.ErasedFile, []byte("{")) },
		func() {
			w.disk.Put("/data/"+datadir.ErasedFile, []byte(`{"format":99,"up_to_index":1000000}`))
		},
	} {
		damage()
		again()
		w.once()
		assert.EqualSlices(t, w.in("second"), nil)
	}
}

// TestNodeCrashAnywhere lets the power fail in each write, sync, rename and removal of a story with
// two erasures: after the next start everything is carried out, and nothing else has changed.
func TestNodeCrashAnywhere(t *testing.T) {
	before := newWorld(t, 1)
	must(t, before.log.Close())
	story := func(disk *memdisk.Disk) (erased []string, kept []event.Ref) {
		w, err := open(t, disk)
		if err != nil {
			return nil, nil
		}
		defer w.log.Close()
		do := func(err error) {
			if err != nil {
				panic(errGivesUp)
			}
		}
		defer func() {
			if v := recover(); v != nil && v != errGivesUp { //nolint:errorlint // the very one
				panic(v)
			}
		}()
		tell := func(c *event.Command) event.Result {
			r, err := w.propose(t.Context(), c)
			do(err)
			return r
		}
		for round := range 2 {
			var ids []event.ID
			task := tell(&event.Command{CreateTask: &event.CreateTask{
				Kind: event.TaskErase, Queue: "a",
			}}).ID
			for i := range 4 {
				long := fmt.Sprintf("secret-%d-%d-%s", round, i, strings.Repeat("s", 200))
				ids = append(ids, tell(enqueue(long)).Produced[0].ID)
				k := tell(enqueue(fmt.Sprintf("kept-%d-%d", round, i))).Produced[0].ID
				do(w.log.Sync())
				kept = append(kept, event.RefOf(k))
			}
			tell(erasing(task, ids...))
			tell(sealing(task))
			do(w.log.Sync()) // as a checkpoint does
			erased = append(erased, fmt.Sprintf("secret-%d-", round))
			do(w.eraser.once(t.Context()))
		}
		return erased, kept
	}
	whole := before.disk.Clone()
	begun := whole.Ops()
	erased, kept := story(whole)
	require.True(t, len(erased) == 2 && len(kept) == 8, "%v, %v", erased, kept)
	t.Logf("figures: %d operations of an erasure", whole.Ops()-begun)
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := begun + 1; at <= whole.Ops() && !t.Failed(); at += step {
		for loss := memdisk.LoseAll; loss <= memdisk.LoseRandom; loss++ {
			disk := before.disk.Clone()
			disk.CrashAt(at)
			erased, kept := story(disk)
			what := fmt.Sprintf("crash at operation %d, loss %d", at, loss)
			w, err := open(t, disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss)))))
			require.NoError(t, err, what)
			w.once()
			for _, mark := range erased {
				assert.EqualSlices(t, w.in(mark), nil, "%s: %s is still there", what, mark)
			}
			for _, ref := range kept {
				_, err := w.log.Content(ref)
				assert.NoError(t, err, what)
			}
			for _, task := range w.m.Tasks() {
				assert.True(t, !task.Sealed || len(task.Nodes) == 1, "%s: task %s has reports %v", what,
					task.ID, task.Nodes)
			}
			w.log.Close()
		}
	}
}

// must fails the test on an error.
var must = require.NoError

// TestReplace puts a copy of a segment, from a node that has erased nothing yet, in place of a
// damaged one: what is erased here stays erased, also after a crash in each write, sync, rename and
// removal, and also where what erases it is in the same segment.
func TestReplace(t *testing.T) {
	w := newWorld(t, 1)
	task := w.do(&event.Command{CreateTask: &event.CreateTask{
		Kind: event.TaskErase, Queue: "a"}}).ID
	in, behind := w.put("secret-in"), w.put("secret-behind")
	w.do(erasing(task, in))
	for len(w.log.Segments()) < 2 {
		w.put(strings.Repeat("x", 200))
	}
	w.do(erasing(task, behind))
	must(t, w.log.Sync())
	sealed := w.log.Segments()[0]
	peer := w.disk.Get("/data/log/" + sealed.Name)
	require.True(t, bytes.Contains(peer, []byte("secret-in")), "erased already")
	w.once()
	must(t, w.log.Close())
	name := "/data/log/" + sealed.Name
	right := w.disk.Get(name)
	// The flipped byte is in an erased content, which does not look like one any more.
	at, wrong := bytes.Index(right, []byte("[erased]")), bytes.Clone(right)
	wrong[at] ^= 1

	// replace repairs a segment that is damaged while the node runs, up to a crash.
	replace := func(crash int) (*memdisk.Disk, error) {
		disk := w.disk.Clone()
		w, err := open(t, disk)
		must(t, err)
		defer w.log.Close()
		disk.Flip(name, at, 1)
		require.True(t, log.IsDamage(w.log.Check(t.Context(), sealed.First, nil)), "not damaged")
		must(t, disk.MkdirAll("/data/incoming"))
		disk.Put("/data/incoming/"+sealed.Name, peer)
		disk.CrashAt(disk.Ops() + crash)
		if err := w.eraser.Replace(t.Context(), "/data/incoming", sealed); err != nil {
			return disk, err
		}
		return disk, w.log.Check(t.Context(), sealed.First, nil)
	}
	disk, err := replace(1000)
	must(t, err)
	require.True(t, bytes.Equal(disk.Get(name), right), "the segment is not as before")
	for crash := 1; ; crash++ {
		disk, err := replace(crash)
		if !disk.Crashed() {
			require.True(t, err == nil && crash > 5, "crash %d: %v", crash, err)
			break
		}
		for loss := memdisk.LoseAll; loss <= memdisk.LoseRandom; loss++ {
			after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(crash), uint64(loss))))
			b := after.Get(name)
			require.True(t, bytes.Equal(b, right) || bytes.Equal(b, wrong),
				"crash %d, loss %d: neither the old nor the new file", crash, loss)
		}
	}
}
