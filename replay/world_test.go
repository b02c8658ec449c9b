package replay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// observed is what was observed live after an entry.
type observed struct {
	index    uint64
	clock    int64
	digest   [16]byte
	queues   []event.QueueView
	messages map[string][]event.MessageView
}

// world is a node without Raft, its clients, and a clock that only it moves.
type world struct {
	t     *testing.T
	dir   string // of data; "": the log is in memory
	log   *log.Log
	m     *fsm.Machine
	index uint64
	now   int64
	rng   *rand.Rand
	// With a directory:
	leases  []event.ID
	history []observed
}

func begin(t *testing.T, seed uint64) *world {
	t.Helper()
	return openWorld(t, seed, "", log.Options{FS: memdisk.New(), Dir: "/log"})
}

// startLive begins a world with a data directory as a node writes it.
func startLive(t *testing.T, seed uint64, segmentSize int64) *world {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, errors.Join(os.MkdirAll(dir, 0o700),
		datadir.NewNode("n1", segmentSize).Write(dir)))
	return openWorld(t, seed, dir, log.Options{
		FS: vfs.OS{}, Dir: datadir.Path(dir, datadir.LogDir), SegmentSize: segmentSize,
	})
}

func openWorld(t *testing.T, seed uint64, dir string, o log.Options) *world {
	t.Helper()
	l, err := log.Open(o)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return &world{
		t: t, dir: dir, log: l, m: fsm.New(projections.New(), l), index: 2,
		now: 1_700_000_000_000, rng: rand.New(rand.NewPCG(seed, 1)),
	}
}

// do applies one entry. With a directory it comes some milliseconds after the one before, and what
// a reader would see is recorded.
func (w *world) do(commands ...*event.Command) []event.Result {
	w.t.Helper()
	w.index++
	if w.dir != "" {
		w.index += uint64(w.rng.IntN(3) / 2) // now and then an index is Raft's own
		w.now += int64(w.rng.IntN(400))
	}
	e := &event.Entry{Rules: event.Rules, Time: w.now}
	for _, c := range commands {
		e.Commands = append(e.Commands, event.EncodeCommand(c))
	}
	results, err := w.m.Apply(w.index, e.Encode())
	must(w.t, err)
	if w.dir == "" {
		return results
	}
	for _, r := range results {
		for _, m := range r.Leased {
			w.leases = append(w.leases, m.Lease)
		}
	}
	w.m.View(func(s *projections.State) { w.history = append(w.history, observe(s)) })
	return results
}

// source is the log in memory.
func (w *world) source() *Source {
	return &Source{Log: w.log, FS: memdisk.New(), Checkpoints: "/checkpoints"}
}

func observe(s *projections.State) observed {
	o := observed{index: s.Index(), clock: s.Clock(), digest: s.Digest(), queues: s.Queues(),
		messages: map[string][]event.MessageView{}}
	for _, q := range o.queues {
		o.messages[q.Name], _ = s.Messages(q.Name, event.MessageFilter{})
	}
	return o
}

// checkpoint writes one of the state as it is.
func (l *world) checkpoint() checkpoint.Meta {
	l.t.Helper()
	must(l.t, l.log.Sync())
	f := l.m.Freeze()
	defer f.Release()
	index, chain := l.log.Tip()
	meta := checkpoint.Meta{Index: index, Term: 1, HeadIndex: index, Chain: chain,
		Clock: f.Clock(), Digest: f.Digest(), ClusterID: "c"}
	must(l.t, checkpoint.Write(vfs.OS{}, l.ckpts(), meta, f))
	return meta
}

func (l *world) ckpts() string {
	dir := datadir.Path(l.dir, datadir.CheckpointDir)
	must(l.t, os.MkdirAll(dir, 0o700))
	return dir
}

// busy makes a history with everything in it.
func (l *world) busy(entries int) {
	l.t.Helper()
	jobs, keyed := event.DefaultPolicy(), event.DefaultPolicy()
	jobs.MaxAttempts, jobs.InitialBackoffMS, jobs.LeaseMS = 2, 300, 2000
	keyed.Ordering, keyed.OnRetry = event.PerKey, event.RetryHead
	l.do(&event.Command{PutQueue: &event.PutQueue{Name: "jobs", Policy: jobs,
		DeadLetterAuto: true}},
		&event.Command{PutQueue: &event.PutQueue{Name: "keyed", Policy: keyed}})
	for i := range entries {
		var commands []*event.Command
		for range 1 + l.rng.IntN(3) {
			commands = append(commands, l.random(i))
		}
		l.do(commands...)
	}
}

// lives begins a world with n checkpoints, entries apart, and some more, and opens its directory.
func lives(t *testing.T, seed uint64, segmentSize int64, n, entries int) (*world, *Dir) {
	t.Helper()
	l := startLive(t, seed, segmentSize)
	for range n {
		l.busy(entries)
		l.checkpoint()
	}
	l.busy(20)
	must(t, l.log.Sync())
	return l, l.open()
}

func (l *world) random(i int) *event.Command {
	queue := []string{"jobs", "keyed", "jobs.dlq"}[l.rng.IntN(3)]
	switch l.rng.IntN(8) {
	case 0, 1, 2:
		p := &event.Produce{Queue: queue}
		for k := range 1 + l.rng.IntN(4) {
			p.Messages = append(p.Messages, event.NewMessage{
				Key: fmt.Sprint("k", l.rng.IntN(5)), Priority: uint8(1 + l.rng.IntN(10)),
				DelayMS: int64(l.rng.IntN(3) / 2 * 1500), Size: 2,
				Content: content(fmt.Sprintf(`"%d-%d"`, i, k)),
			})
		}
		return &event.Command{Produce: p}
	case 3, 4:
		return &event.Command{Lease: &event.Lease{Queues: []string{queue}, Max: 1 + l.rng.IntN(3),
			Worker: "w"}}
	case 5, 6:
		if len(l.leases) > 0 {
			id := l.leases[l.rng.IntN(len(l.leases))]
			op := []event.SettleOp{event.OpAck, event.OpRetry, event.OpDeadLetter, event.OpExtend,
				event.OpRelease}[l.rng.IntN(5)]
			return &event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: op,
				Lease: id, DelayMS: -1,
				Content: event.EncodeContent(&event.Content{Error: "no"})}}}}
		}
	}
	if l.rng.IntN(10) == 0 {
		return &event.Command{PurgeQueue: &event.PurgeQueue{Name: "jobs.dlq"}}
	}
	return &event.Command{PauseQueue: &event.PauseQueue{Name: "keyed", Paused: l.rng.IntN(2) == 0}}
}

func (l *world) open() *Dir {
	l.t.Helper()
	d, err := Open(l.dir)
	must(l.t, err)
	l.t.Cleanup(func() { d.Close() })
	return d
}

func content(payload string) event.Blob {
	return event.EncodeContent(&event.Content{Payload: []byte(payload)})
}

var start, now = event.Instant{Kind: event.InstantStart}, event.Instant{Kind: event.InstantNow}

func at(index uint64) event.Instant { return event.Instant{Kind: event.InstantIndex, Index: index} }

// indexed syncs the log and waits for the side files of all sealed segments, which are written in
// the background.
func (l *world) indexed() {
	l.t.Helper()
	must(l.t, l.log.Sync())
	for _, s := range l.log.Segments() {
		for s.Sealed {
			_, err := os.Stat(filepath.Join(datadir.Path(l.dir, datadir.LogDir), s.SideFile))
			if err == nil {
				break
			}
			require.NoError(l.t, l.t.Context().Err(), "%v", err)
			time.Sleep(time.Millisecond) // the log has no event for it
		}
	}
}

// sample returns whole, or with -short, under the race detector, short.
func sample(whole, short int) int {
	if testing.Short() {
		return short
	}
	return whole
}

// must fails the test on an error.
var must = require.NoError
