package scrub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/vfs"
)

// world is a directory with a log and a checkpoint, and the scrub of it.
type world struct {
	*testing.T
	disk   *memdisk.Disk
	log    *log.Log
	scrub  *Scrubber
	logged bytes.Buffer
	right  map[string][]byte // files as they were
	peer   bool              // another node has them
	busy   atomic.Bool
}

var meta = checkpoint.Meta{Index: 9, Term: 1, HeadIndex: 9}

func newWorld(t *testing.T, rate int64) *world {
	w := &world{T: t, disk: memdisk.New(), right: map[string][]byte{}}
	require.NoError(t, w.disk.MkdirAll("/checkpoints"))
	logger := slog.New(slog.NewTextHandler(&w.logged, nil))
	w.scrub = New(Options{
		FS: w.disk, DataDir: "/", Rate: rate, Busy: w.busy.Load,
		Segment: func(_ context.Context, s log.SegmentInfo) error {
			if !w.peer {
				return errors.New("no peer")
			}
			err := vfs.WriteFile(w.disk, "/copy", w.right["/log/"+s.Name])
			return errors.Join(err, w.log.Replace(s, "/copy"))
		},
		Checkpoint: func(_ context.Context, name string) error {
			newer := meta
			newer.Index++
			return errors.Join(checkpoint.Write(w.disk, "/checkpoints", newer, body{}),
				vfs.Remove(w.disk, "/checkpoints", name))
		},
		Registry: prometheus.NewRegistry(), Logger: logger,
	})
	var err error
	w.log, err = log.Open(log.Options{FS: w.disk, Dir: "/log", SegmentSize: 64 << 10,
		HeldFrom: 1, Damaged: w.scrub.Found})
	require.NoError(t, err)
	w.scrub.Log = w.log
	content := event.EncodeContent(&event.Content{Payload: []byte(strings.Repeat("x", 1000))})
	for i := range uint64(200) {
		require.NoError(t, w.log.Append(&event.Block{Index: i + 1, Events: []event.Event{{
			ID: event.NewID(1, i+1, 0), Type: event.Enqueued, Queue: "q", Content: content,
		}}}))
	}
	require.NoError(t, w.log.Sync())
	require.NoError(t, checkpoint.Write(w.disk, "/checkpoints", meta, body{}))
	synctest.Wait() // for the side files
	for _, dir := range []string{"/log", "/checkpoints"} {
		names, err := w.disk.List(dir)
		require.NoError(t, err)
		for _, name := range names {
			w.right[path.Join(dir, name)] = w.disk.Get(path.Join(dir, name))
		}
	}
	return w
}

type body struct{}

func (body) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(bytes.Repeat([]byte("state"), 1000))
	return int64(n), err
}

// run runs the scrub for a time, and what do does meanwhile.
func (w *world) run(for_ time.Duration, do func()) {
	ctx, cancel := context.WithTimeout(w.Context(), for_)
	defer cancel()
	if do != nil {
		go do()
	}
	w.scrub.Run(ctx)
}

func (w *world) flip(name string) { w.disk.Flip(name, len(w.right[name])/2, 1) }

// reads reads the log from an index on, and reports whether it met damage.
func (w *world) reads(from uint64) (damaged bool) {
	for _, err := range w.log.Blocks(w.Context(), from, w.log.Head()) {
		damaged = damaged || log.IsDamage(err)
	}
	return damaged
}

func (w *world) errors() int { return strings.Count(w.logged.String(), "level=ERROR") }

// TestScrub damages a file of each kind: it is found, logged once, shown until it is repaired, and
// repaired at once where that is possible.
func TestScrub(t *testing.T) {
	for _, c := range []struct {
		kind      string
		of        func(segments []log.SegmentInfo) string
		alone     bool // is repaired without another node
		reparable bool
	}{
		{"segment", func(s []log.SegmentInfo) string { return "log/" + s[0].Name }, false, true},
		{"segment", func(s []log.SegmentInfo) string { return "log/" + s[len(s)-1].Name }, false, false},
		{"index", func(s []log.SegmentInfo) string { return "log/" + s[1].SideFile }, true, true},
		{"checkpoint", func([]log.SegmentInfo) string { return "checkpoints/" + meta.Name() },
			true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1<<30)
			defer w.log.Close()
			file := c.of(w.log.Segments())
			w.flip("/" + file)
			w.run(3*repairAgain, nil)
			for range 3 { // all readers report the same
				assert.Equal(t, w.reads(1), c.kind == "segment")
			}
			h := w.scrub.Health()
			shown := fmt.Sprint(h.Damaged)
			if c.alone {
				assert.Equal(t, len(h.Damaged), 0, "%s: still shown", file)
			} else {
				require.Equal(t, len(h.Damaged), 1, "%s: %s", file, shown)
				assert.True(t, h.Damaged[0].File == file && h.Damaged[0].Kind == c.kind, shown)
			}
			assert.Equal(t, w.errors(), 1, "%s: %s", file, &w.logged)
			assert.True(t, h.Round.Ended > 0 && h.Round.Bytes > 150_000, "round %+v", h.Round)
			w.peer, w.scrub.Rate = true, 0
			w.run(3*repairAgain, nil)
			h = w.scrub.Health()
			assert.Equal(t, len(h.Damaged) == 0, c.reparable, "%s: %v", file, h.Damaged)
			assert.Equal(t, w.errors(), 1, "%s: %s", file, &w.logged)
			if now := w.disk.Get("/" + file); c.reparable && c.kind != "checkpoint" {
				assert.True(t, bytes.Equal(now, w.right["/"+file]), "%s is still wrong", file)
			} else if c.reparable {
				assert.True(t, now == nil, "%s is still there", file)
			}
		})
	}
}

// TestReadersReport: damage that a reader meets is repaired without a scrub, and at once.
func TestReadersReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		defer w.log.Close()
		w.peer = true
		began := time.Now()
		w.run(time.Hour, func() {
			for _, s := range w.log.Segments()[:2] {
				w.flip("/log/" + s.Name)
				assert.True(t, w.reads(s.First), "the flipped byte was not met")
				synctest.Wait()
				assert.Equal(t, len(w.scrub.Health().Damaged), 0, "not repaired")
				_, err := w.log.Block(s.First)
				assert.NoError(t, err)
			}
			assert.True(t, time.Since(began) == 0, "repaired after %s", time.Since(began))
		})
		assert.Equal(t, w.errors(), 2, "%s", &w.logged)
	})
}

// TestPace: a round takes as long as the rate wants it, waits while the node is busy, and is not
// repeated at once.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1<<10)
		defer w.log.Close()
		w.run(roundEvery-time.Second, nil)
		r := w.scrub.Health().Round
		took := time.Duration(r.TookMS) * time.Millisecond
		want := time.Duration(r.Bytes) * time.Second / (1 << 10)
		assert.True(t, took > want-5*time.Second && took <= want, "%s for %d bytes", took, r.Bytes)
		w.run(roundEvery-time.Second, nil)
		assert.Equal(t, w.scrub.Health().Round.Bytes, r.Bytes, "the second round")

		w.busy.Store(true)
		w.run(2*roundEvery, func() {
			before := w.scrub.Health().Round
			time.Sleep(roundEvery)
			assert.Equal(t, w.scrub.Health().Round, before, "read while the node is busy")
			w.busy.Store(false)
			time.Sleep(roundEvery / 2)
			assert.True(t, w.scrub.Health().Round.Ended > before.Ended, "no round afterwards")
		})
	})
}
