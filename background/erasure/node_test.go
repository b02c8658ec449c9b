package erasure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// teller is a node on a disk in memory: a real event log, and a Raft that only
// notes what it is asked.
type teller struct {
	t     testing.TB
	disk  *vfs.Mem
	log   *log.Log
	node  *Node
	last  map[event.ID]event.Ref
	tasks []event.TaskView

	index    uint64
	erased   uint64 // the first block with an erased event that the node has not seen
	shed     uint64
	archived []event.Ref
	reports  []string
}

const clock = 1_700_000_000_000

var errGivesUp = errors.New("the story ends")

// open opens the log and the node, as after a start.
func open(t testing.TB, disk *vfs.Mem) (*teller, error) {
	s := &teller{t: t, disk: disk, last: map[event.ID]event.Ref{}}
	if err := disk.MkdirAll("/data"); err != nil {
		return nil, err
	}
	var err error
	o := log.Options{FS: disk, Dir: "/data/log", SegmentSize: 2 << 10, HeldFrom: 1}
	if s.log, err = log.Open(o); err != nil {
		return nil, err
	}
	s.index = max(s.log.Head(), 2)
	for b, err := range s.log.Follow(0) {
		if err != nil {
			return nil, err
		}
		for i := range b.Events {
			s.note(&b.Events[i])
		}
	}
	s.node, err = NewNode(NodeOptions{
		Log: s.log, FS: disk, DataDir: "/data",
		Self:  func() string { return "n1/a" },
		Tasks: func() []event.TaskView { return slices.Clone(s.tasks) },
		Erased: func() (first, upTo uint64) {
			first, s.erased = s.erased, 0
			return first, s.log.Head()
		},
		Fetched:  func() error { return nil },
		PurgeLog: func(_ context.Context, upTo uint64) error { s.shed = upTo; return nil },
		Archive: func(_ context.Context, refs []event.Ref) error {
			s.archived = slices.Clone(refs)
			return nil
		},
		Propose: func(_ context.Context, c *event.Command) (event.Result, error) {
			u := c.UpdateTask
			if u == nil || u.Op != event.TaskOpReport {
				t.Errorf("proposed %+v", c)
			}
			s.reports = append(s.reports, u.Node)
			for i := range s.tasks {
				if s.tasks[i].ID == u.ID {
					s.tasks[i].Nodes = append(s.tasks[i].Nodes, event.TaskNode{Node: u.Node})
				}
			}
			return event.Result{}, nil
		},
	})
	return s, err
}

func (s *teller) note(e *event.Event) {
	if e.Subject != (event.ID{}) {
		s.last[e.Subject] = event.RefOf(e.ID)
	}
	switch e.Type {
	case event.TaskCreated:
		s.tasks = append(s.tasks, event.TaskView{ID: e.ID, Kind: e.TaskKind})
	case event.TaskSealed:
		for i := range s.tasks {
			s.tasks[i].Sealed = s.tasks[i].Sealed || s.tasks[i].ID == e.Task
		}
	}
}

// tell appends a block, as an entry that is applied.
func (s *teller) tell(events ...event.Event) ([]event.Event, error) {
	s.index++
	b := &event.Block{Index: s.index, Time: clock, Events: events}
	for i := range events {
		e := &events[i]
		e.ID = event.NewID(clock, s.index, uint32(i))
		if e.Type == event.Enqueued {
			e.Subject = e.ID
		}
		e.Prev = s.last[e.Subject]
	}
	if err := s.log.Append(b); err != nil {
		return nil, err
	}
	for i := range events {
		if events[i].Type == event.Erased && s.erased == 0 {
			s.erased = s.index
		}
	}
	if len(events) > 0 {
		s.node.Wake()
	}
	for i := range events {
		s.note(&events[i])
	}
	return events, nil
}

func (s *teller) must(events ...event.Event) []event.Event {
	s.t.Helper()
	out, err := s.tell(events...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func enqueued(text string) event.Event {
	content := event.EncodeContent(&event.Content{Payload: []byte(text)})
	return event.Event{Type: event.Enqueued, Queue: "q", Content: content}
}

// in returns the files in which some bytes are.
func in(t testing.TB, disk *vfs.Mem, mark string) (files []string) {
	t.Helper()
	for _, dir := range []string{"/data", "/data/log"} {
		names, err := disk.List(dir)
		if err != nil {
			return nil
		}
		for _, name := range names {
			if bytes.Contains(disk.Get(path.Join(dir, name)), []byte(mark)) {
				files = append(files, path.Join(dir, name))
			}
		}
	}
	return files
}

func (s *teller) once() {
	s.t.Helper()
	if err := s.node.once(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

func TestNodeCarriesOut(t *testing.T) {
	disk := vfs.NewMem()
	s, err := open(t, disk)
	if err != nil {
		t.Fatal(err)
	}
	secret := s.must(enqueued("secret"))[0]
	other := s.must(enqueued("other"))[0]
	for i := range 20 { // several segments
		s.must(enqueued(fmt.Sprint("noise", i, strings.Repeat(" ", 300))))
	}
	if err := s.log.Sync(); err != nil {
		t.Fatal(err)
	}
	if len(in(t, disk, "secret")) != 1 {
		t.Fatal("not found before")
	}
	task := s.must(event.Event{Type: event.TaskCreated, TaskKind: event.TaskErase})[0].ID
	ref := event.RefOf(secret.ID)
	s.must(event.Event{Type: event.Erased, Subject: secret.ID, Task: task, Refs: []event.Ref{ref}})
	s.once()
	if files := in(t, disk, "secret"); len(files) > 0 {
		t.Errorf("still in %v", files)
	}
	if len(s.reports) > 0 || s.shed > 0 {
		t.Error("reported before all was told")
	}
	s.must(event.Event{Type: event.TaskSealed, Task: task})
	s.once()
	if !slices.Equal(s.reports, []string{"n1/a"}) || s.shed != s.index ||
		!slices.Equal(s.archived, []event.Ref{ref}) {
		t.Errorf("reports %v, Raft log purged up to %d of %d, archived %v",
			s.reports, s.shed, s.index, s.archived)
	}
	s.once()
	if len(s.reports) != 1 {
		t.Error("reported again")
	}
	if c, err := s.log.Content(event.RefOf(other.ID)); err != nil || string(c.Payload) != "other" {
		t.Errorf("%+v, %v", c, err)
	}
	// A cancelled one is not reported, but what it told is overwritten.
	task = s.must(event.Event{Type: event.TaskCreated, TaskKind: event.TaskErase})[0].ID
	s.tasks[1].Status = event.TaskIsCancelled
	ref = event.RefOf(other.ID)
	s.must(
		event.Event{Type: event.Erased, Subject: other.ID, Task: task, Refs: []event.Ref{ref}},
		event.Event{Type: event.TaskSealed, Task: task})
	s.once()
	if _, err := s.log.Content(ref); !errors.Is(err, log.ErrErased) || len(s.reports) != 1 {
		t.Errorf("%v, %d reports", err, len(s.reports))
	}
}

// What came while the node was not running, or lies in segments that were put in
// place beside it, is carried out at the start.
func TestNodeCatchesUp(t *testing.T) {
	disk := vfs.NewMem()
	s, err := open(t, disk)
	if err != nil {
		t.Fatal(err)
	}
	first, second := s.must(enqueued("first"))[0], s.must(enqueued("second"))[0]
	s.must(enqueued("noise"))
	s.once()
	erase := func(e *event.Event) {
		s.must(event.Event{Type: event.Erased, Subject: e.ID, Refs: []event.Ref{event.RefOf(e.ID)}})
	}
	again := func() {
		t.Helper()
		if err := s.log.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = open(t, disk); err != nil {
			t.Fatal(err)
		}
	}
	erase(&first)
	again()
	if len(in(t, disk, "first")) == 0 {
		t.Fatal("carried out already")
	}
	s.once()
	if files := in(t, disk, "first"); len(files) > 0 {
		t.Errorf("still in %v", files)
	}
	// The position says that there is nothing more before it: as where an older
	// segment was put in place without telling, nothing is looked for.
	s.must(enqueued("behind"), enqueued("behind"))
	s.once()
	upTo, known, err := datadir.ReadErased(disk, "/data")
	if err != nil || !known || upTo == 0 || upTo > s.log.Head() {
		t.Errorf("position %d, %v, %v", upTo, known, err)
	}
	erase(&second)
	again()
	for _, damage := range []func(){
		func() { _ = disk.Remove("/data/" + datadir.ErasedFile) },
		func() { disk.Put("/data/"+datadir.ErasedFile, []byte("{")) },
		func() {
			disk.Put("/data/"+datadir.ErasedFile, []byte(`{"format":99,"up_to_index":1000000}`))
		},
	} {
		damage()
		again()
		s.once()
		if files := in(t, disk, "second"); len(files) > 0 {
			t.Errorf("still in %v", files)
		}
	}
}

// TestNodeCrashAnywhere lets the power fail in each write, sync, rename and
// removal of a story with two erasures: after the next start everything is
// carried out, and nothing else has changed.
func TestNodeCrashAnywhere(t *testing.T) {
	story := func(disk *vfs.Mem) (erased []string, kept []event.Ref) {
		s, err := open(t, disk)
		if err != nil {
			return nil, nil
		}
		defer s.log.Close()
		tell := func(events ...event.Event) []event.Event {
			out, err := s.tell(events...)
			if err != nil {
				panic(errGivesUp)
			}
			return out
		}
		defer func() {
			if v := recover(); v != nil && v != errGivesUp { //nolint:errorlint // the very one
				panic(v)
			}
		}()
		for round := range 2 {
			var refs []event.Ref
			task := tell(event.Event{Type: event.TaskCreated, TaskKind: event.TaskErase})[0].ID
			for i := range 4 {
				long := strings.Repeat("s", 200)
				e := tell(enqueued(fmt.Sprintf("secret-%d-%d-%s", round, i, long)))[0]
				refs = append(refs, event.RefOf(e.ID))
				k := tell(enqueued(fmt.Sprintf("kept-%d-%d", round, i)))[0]
				if err := s.log.Sync(); err != nil {
					return erased, kept
				}
				kept = append(kept, event.RefOf(k.ID))
			}
			tell(event.Event{Type: event.Erased, Task: task, Refs: refs})
			tell(event.Event{Type: event.TaskSealed, Task: task})
			if err := s.log.Sync(); err != nil { // as a checkpoint does
				return erased, kept
			}
			erased = append(erased, fmt.Sprintf("secret-%d-", round))
			if s.node.once(context.Background()) != nil {
				return erased, kept
			}
		}
		return erased, kept
	}
	whole := vfs.NewMem()
	if erased, kept := story(whole); len(erased) != 2 || len(kept) != 8 {
		t.Fatalf("%v, %v", erased, kept)
	}
	t.Logf("%d operations", whole.Ops())
	for at := 1; at <= whole.Ops(); at++ {
		for loss := vfs.LoseAll; loss <= vfs.LoseRandom; loss++ {
			disk := vfs.NewMem()
			disk.CrashAt(at)
			erased, kept := story(disk)
			after := disk.CrashWith(loss, rand.New(rand.NewPCG(uint64(at), uint64(loss))))
			s, err := open(t, after)
			if err != nil {
				t.Fatalf("crash at operation %d, loss %d: %v", at, loss, err)
			}
			s.once()
			for _, mark := range erased {
				if files := in(t, after, mark); len(files) > 0 {
					t.Errorf("crash at operation %d, loss %d: %s is still in %v",
						at, loss, mark, files)
				}
			}
			for _, ref := range kept {
				if _, err := s.log.Content(ref); err != nil {
					t.Errorf("crash at operation %d, loss %d: %v", at, loss, err)
				}
			}
			for _, task := range s.tasks {
				if task.Sealed && len(task.Nodes) != 1 {
					t.Errorf("crash at operation %d, loss %d: task %s has reports %v",
						at, loss, task.ID, task.Nodes)
				}
			}
			s.log.Close()
			if t.Failed() {
				return
			}
		}
	}
}
