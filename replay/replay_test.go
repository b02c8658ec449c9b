package replay

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

func sameAs(t *testing.T, want observed, s *projections.State) {
	t.Helper()
	assert.Equal(t, cmp.Diff(want, observe(s), cmp.AllowUnexported(observed{})), "",
		"at index %d", want.index)
}

func TestPastIsWhatWasSeenLive(t *testing.T) {
	l, d := lives(t, 1, 8<<10, 6, 30)
	past := NewPast(&d.Source, 3)
	for range 8 {
		want := l.history[l.rng.IntN(len(l.history))]
		state, cost, err := d.StateAt(t.Context(), at(want.index))
		must(t, err)
		sameAs(t, want, state)
		assert.True(t, cost.Blocks <= 60, "the checkpoints before %d were passed over: %+v",
			want.index, cost)
		state, err = past.At(t.Context(), at(want.index))
		must(t, err)
		sameAs(t, want, state)
	}
	calls := 0
	r, err := verifyDir(t, l.dir, func(done, total int64) { calls++ })
	must(t, err)
	assert.True(t, r.Checkpoints == 6 && r.Log.Last == l.index && int(r.Folded) == len(l.history) &&
		calls != 0, "%+v", r)
	sameAs(t, l.history[len(l.history)-1], r.State)
	// Before the first event there is nothing.
	state, _, err := d.StateAt(t.Context(), start)
	must(t, err)
	assert.Equal(t, len(state.Queues()), 0, "queues at the start")
}

func TestPastIsSharedAndCancellable(t *testing.T) {
	l := startLive(t, 3, 1<<20)
	l.busy(300)
	d := l.open()
	p := NewPast(&d.Source, 2)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.At(gone, at(l.index))
	require.ErrorIs(t, err, context.Canceled)
	var wg sync.WaitGroup
	states := make([]*projections.State, 8)
	for i := range states {
		wg.Go(func() {
			var err error
			states[i], err = p.At(t.Context(), at(l.index))
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	for _, s := range states {
		require.Equal(t, s, states[0], "the same instant was folded more than once")
	}
	for i := range 10 {
		_, err := p.At(t.Context(), at(l.history[i].index))
		must(t, err)
	}
	assert.Equal(t, p.known.Len(), 2, "states are kept, want 2")
}

// A checkpoint that is whole but of another state is found by the fold.
func TestVerifyFindsAWrongCheckpoint(t *testing.T) {
	l := startLive(t, 6, 1<<20)
	l.busy(20)
	wrong := projections.New()
	f := wrong.Freeze()
	index, chain := l.log.Tip()
	meta := checkpoint.Meta{Index: index, Term: 1, HeadIndex: index, Chain: chain,
		Clock: l.m.Clock(), Digest: f.Digest(), ClusterID: "c"}
	must(t, checkpoint.Write(vfs.OS{}, l.ckpts(), meta, f))
	must(t, l.log.Sync())
	_, err := verifyDir(t, l.dir, nil)
	d, ok := errors.AsType[*Difference](err)
	assert.True(t, ok && d.Index == index, "%v", err)
	// And it does not serve as a beginning: the log does.
	state, cost, err := l.open().StateAt(t.Context(), at(index))
	require.True(t, err == nil && len(cost.Skipped) == 1, "%v, %v", cost, err)
	sameAs(t, l.history[len(l.history)-1], state)
}

// thinning is a live node's directory: a checkpoint is there when it is listed
// and gone when it is read.
type thinning struct {
	vfs.FS
	gone   string
	opened int
}

func (f *thinning) OpenRead(name string) (vfs.File, error) {
	if filepath.Base(name) == f.gone {
		if f.opened++; f.opened > 1 {
			return nil, fs.ErrNotExist
		}
	}
	return f.FS.OpenRead(name)
}

func TestVerifyOfALiveNodeThatThinsItsCheckpoints(t *testing.T) {
	l := startLive(t, 9, 4<<10)
	for range 4 {
		l.busy(30)
		l.checkpoint()
	}
	l.indexed()
	must(t, l.log.Close())
	files, _ := filepath.Glob(filepath.Join(l.dir, "log/*.seg"))
	require.NoError(t, errors.Join(os.Remove(files[0]),
		os.Remove(strings.TrimSuffix(files[0], ".seg")+".idx")))
	ckpts, _ := filepath.Glob(filepath.Join(l.dir, "checkpoints/*.ckpt"))
	node := &datadir.Node{Fork: &datadir.Fork{Index: l.index}}
	r, err := Verify(t.Context(), vfs.OS{}, l.dir, node, nil)
	must(t, err)
	for _, name := range ckpts {
		f := &thinning{FS: vfs.OS{}, gone: filepath.Base(name)}
		again, err := Verify(t.Context(), f, l.dir, node, nil)
		assert.True(t, err == nil && f.opened >= 2 && again.From >= r.From,
			"%s: opened %d times, from %d: %v", f.gone, f.opened, again.From, err)
	}
}

func TestDiffLeadsFromOneStateToTheOther(t *testing.T) {
	l, d := lives(t, 9, 8<<10, 1, 100)
	for _, r := range [][2]int{{0, 119}, {10, 60}, {60, 60}, {100, 119}} {
		before, after := l.history[r[0]], l.history[r[1]]
		state := map[event.ID]event.State{}
		for _, ms := range before.messages {
			for _, m := range ms {
				state[m.ID] = m.State
			}
		}
		changes := 0
		_, err := d.Diff(t.Context(), at(before.index), at(after.index), Filter{},
			func(c *Change) error {
				changes++
				if c.Message == (event.ID{}) {
					return nil
				}
				assert.True(t, c.Before == nil || state[c.Message] == c.Before.State,
					"%s was %s, not as in %+v", c.Message, state[c.Message], c.Before)
				state[c.Message] = c.After.State
				return nil
			})
		must(t, err)
		assert.False(t, r[0] == r[1] && changes > 0,
			"%d changes between an instant and itself", changes)
		for _, ms := range after.messages {
			for _, m := range ms {
				assert.Equal(t, state[m.ID], m.State, "%s", m.ID)
				delete(state, m.ID)
			}
		}
		for id, s := range state { // the rest has left
			assert.True(t, s != event.StateReady && s != event.StateLeased &&
				s != event.StateScheduled, "%s is said to be %s, but it is gone", id, s)
		}
	}
}

// seedless writes the checkpoint and no Raft store: that is cmd's business.
func seedless(dir string, node *datadir.Node, meta checkpoint.Meta, body io.WriterTo) error {
	meta.Term, meta.ClusterID = 1, node.ClusterID
	return checkpoint.Write(vfs.OS{}, datadir.Path(dir, datadir.CheckpointDir), meta, body)
}

func TestIntoHoldsWhatWasSeenLive(t *testing.T) {
	l, d := lives(t, 10, 8<<10, 3, 40)
	for i := range 3 {
		want := l.history[l.rng.IntN(len(l.history))]
		target := filepath.Join(t.TempDir(), "then")
		node, err := d.Into(t.Context(), at(want.index), target, seedless, nil)
		must(t, err)
		assert.True(t, node.Fork.Index == want.index && node.Fork.At.UnixMilli() == want.clock &&
			node.ClusterID != d.Node.ClusterID, "%d: %+v", i, node.Fork)
		r, err := verifyDir(t, target, nil)
		must(t, err)
		sameAs(t, want, r.State)
		c, err := Open(target)
		must(t, err)
		state, cost, err := c.StateAt(t.Context(), now)
		assert.True(t, err == nil && cost.Blocks == 0, "%+v, %v", cost, err)
		sameAs(t, want, state)
		c.Close()
	}
}

// A target that is something else is refused. A copy that fails on the way leaves neither the
// target nor what lay beside it.
func TestIntoLeavesNothing(t *testing.T) {
	l := startLive(t, 11, 8<<10)
	l.busy(10)
	l.checkpoint()
	d, parent, broken := l.open(), t.TempDir(), errors.New("no Raft today")
	file := filepath.Join(parent, "mine")
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	for _, target := range []string{parent, file, l.dir, filepath.Join(l.dir, "copy")} {
		_, err := d.Into(t.Context(), at(l.index), target, seedless, nil)
		assert.ErrorIs(t, err, ErrTarget, target)
	}
	_, err := d.Into(t.Context(), at(l.index), filepath.Join(parent, "then"),
		func(string, *datadir.Node, checkpoint.Meta, io.WriterTo) error { return broken }, nil)
	assert.ErrorIs(t, err, broken)
	left, _ := os.ReadDir(parent)
	assert.Equal(t, len(left), 1, "left behind: %v", left)
}

func TestReadingTouchesNothing(t *testing.T) {
	l := startLive(t, 12, 4<<10)
	l.busy(60)
	l.checkpoint()
	must(t, l.log.Close())
	print := func() map[string]string {
		out := map[string]string{}
		_ = filepath.WalkDir(l.dir, func(path string, e os.DirEntry, err error) error {
			must(t, err)
			info, _ := e.Info()
			b, _ := os.ReadFile(path)
			out[path] = info.ModTime().String() + info.Mode().String() + string(b)
			return nil
		})
		return out
	}
	before := print()
	d, err := Open(l.dir)
	must(t, err)
	then := at(l.history[30].index)
	_, _, err = d.StateAt(t.Context(), then)
	must(t, err)
	_, err = d.Into(t.Context(), then, filepath.Join(t.TempDir(), "then"), seedless, nil)
	must(t, err)
	_, err = d.Log.History(t.Context(), l.leases[0])
	must(t, err)
	d.Close()
	_, err = verifyDir(t, l.dir, nil)
	must(t, err)
	assert.Equal(t, cmp.Diff(before, print()), "", "something was touched")
}

// verifyDir verifies a data directory with its card.
func verifyDir(t *testing.T, dir string, progress func(done, total int64)) (*Report, error) {
	t.Helper()
	node, err := datadir.ReadNode(dir)
	require.False(t, err != nil && !errors.Is(err, datadir.ErrNoNode), "%v", err)
	return Verify(t.Context(), vfs.OS{}, dir, node, progress)
}
