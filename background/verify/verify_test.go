package verify

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/fsm"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// world is a node's log in memory, and what verifies it.
type world struct {
	*testing.T
	disk  *memdisk.Disk
	log   *log.Log
	m     *fsm.Machine
	index uint64
	busy  atomic.Bool
	found []string // segments
	v     *Verifier
}

// newWorld has a log of a number of entries of about 10 kB, in segments of 64 KiB.
func newWorld(t *testing.T, entries int, rate int64) *world {
	w := &world{T: t, disk: memdisk.New()}
	var err error
	w.log, err = log.Open(log.Options{FS: w.disk, Dir: "/log", SegmentSize: 64 << 10, HeldFrom: 1})
	require.NoError(t, err)
	w.m = fsm.New(projections.New(), w.log)
	w.v = New(Options{
		FS: w.disk, DataDir: "/", Node: &datadir.Node{NodeID: "n1"}, Log: w.log, Rate: rate,
		Busy: w.busy.Load, Logger: slog.New(slog.DiscardHandler),
		Damaged: func(c *log.CorruptionError) { w.found = append(w.found, c.Segment) },
	})
	policy := event.DefaultPolicy()
	w.do(&event.Command{PutQueue: &event.PutQueue{Name: "q", Policy: policy, DeadLetterAuto: true}})
	q, _ := w.m.Queue("q")
	text := event.EncodeContent(&event.Content{Payload: []byte(strings.Repeat("x", 10_000))})
	for range entries {
		w.do(&event.Command{Produce: &event.Produce{Queue: "q", Revision: q.Revision,
			Messages: []event.NewMessage{{Priority: 5, Size: 10_000, Content: text}}}})
	}
	synctest.Wait() // for the side files
	return w
}

func (w *world) do(c *event.Command) {
	w.Helper()
	w.index++
	e := event.Entry{Rules: event.Rules, Time: 1_700_000_000_000,
		Commands: [][]byte{event.EncodeCommand(c)}}
	r, err := w.m.Apply(w.index, e.Encode())
	require.NoError(w, err)
	require.True(w, r[0].Problem == nil, "%v", r[0].Problem)
}

// task returns a verification that was created behind an index.
func (w *world) task(index uint64) event.TaskView {
	return event.TaskView{ID: event.NewID(1, index+1, 0), Kind: event.TaskVerify}
}

// run runs a verification, which must not fail.
func (w *world) run(ctx context.Context) *wire.Verified {
	w.Helper()
	_, result, err := w.v.Run(ctx, w.task(w.index), nil)
	require.NoError(w, err)
	found := &wire.Verified{}
	require.NoError(w, wire.Unmarshal(result, found))
	return found
}

// TestPace: reading takes as long as the rate wants it, pauses while the node is busy, and ends at
// once when it is cancelled.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 300, 1<<20)
		defer w.log.Close()
		began := time.Now()
		found := w.run(t.Context())
		took := time.Since(began)
		least := time.Duration(2*found.Bytes-atOnce) * time.Second / (1 << 20)
		assert.True(t, found.OK && found.Bytes > 3_000_000 && took >= least && took < 2*least,
			"%s for %d bytes, which are read twice", took, found.Bytes)

		w.busy.Store(true)
		w.index++
		time.AfterFunc(time.Hour, func() { w.busy.Store(false) })
		began = time.Now()
		assert.True(t, w.run(t.Context()).OK && time.Since(began) > time.Hour, "read while busy")

		w.index++
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2*time.Second, func() {
			now := w.v.Verifying()
			assert.True(t, now.Done > 0 && now.Done < now.Total && now.Total >= found.Bytes,
				"progress %+v", now)
			cancel()
		})
		began = time.Now()
		_, result, err := w.v.Run(ctx, w.task(w.index), nil)
		assert.ErrorIs(t, err, context.Canceled)
		assert.True(t, result == nil && time.Since(began) == 2*time.Second, "%s", time.Since(began))
		assert.Equal(t, w.v.Verifying(), datadir.Verifying{})
	})
}

// TestFinds: damage is found in a sealed segment, and in the newest one, behind the last
// checkpoint, where a stopped node's log would be taken for torn.
func TestFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 20, Rate)
		defer w.log.Close()
		segments := w.log.Segments()
		require.True(t, len(segments) > 2, "%d segments", len(segments))
		for _, s := range []log.SegmentInfo{segments[1], segments[len(segments)-1]} {
			at := s.Size - 5_000 // in the last content
			w.disk.Flip("/log/"+s.Name, int(at), 1)
			w.index++
			found := w.run(t.Context())
			assert.True(t, !found.OK && found.Segment == s.Name && *found.Offset < at &&
				*found.Offset > at-10_000 && found.WrongIndex == s.Last && found.Index == s.Last-1,
				"%s: %+v", s.Name, found)
			assert.True(t, slices.Equal(w.found, []string{s.Name}), "reported: %v", w.found)
			w.found = nil
			w.disk.Flip("/log/"+s.Name, int(at), 1)
		}
		w.index++
		assert.True(t, w.run(t.Context()).OK, "repaired")
	})
}

// TestEnds: a verification is not repeated, be it that its end could not be proposed, or that the
// node was stopped or restarted.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 20, Rate)
		defer w.log.Close()
		first := w.run(t.Context())
		w.v.o.FS = noFiles{} // the same task again
		assert.Equal(t, w.run(t.Context()).ChainHash, first.ChainHash)
		fails := func(why string) {
			t.Helper()
			w.index++
			_, _, err := w.v.Run(t.Context(), w.task(w.index), nil)
			p, ok := err.(*event.Problem)
			assert.True(t, ok && strings.Contains(p.Detail, why), "%v, not %q", err, why)
		}
		fails(io.ErrNoProgress.Error())
		w.v.Stop()
		fails("node n1 was stopped")
		w.v.o.Opened = w.index + 2
		fails("node n1 was restarted")
	})
}

type noFiles struct{ vfs.FS }

func (noFiles) List(string) ([]string, error) { return nil, io.ErrNoProgress }
