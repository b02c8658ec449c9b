package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/checkpoint"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// seedPlain writes the checkpoint without a Raft store.
func seedPlain(dir string, _ *datadir.Node, meta checkpoint.Meta, body io.WriterTo) error {
	return checkpoint.Write(vfs.OS{}, datadir.Path(dir, datadir.CheckpointDir), meta, body)
}

// salvaged salvages a directory, verifies the result, and returns its log's blocks by index.
func salvaged(t *testing.T, dir string) (blocks map[uint64]event.Block, losses []*Loss, to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "new")
	card, err := ReadCard(dir)
	must(t, err)
	node, losses, err := Salvage(t.Context(), vfs.OS{}, dir, card, event.Instant{
		Kind: event.InstantNow}, to, seedPlain, func(int64, int64) {})
	must(t, err)
	_, err = Verify(t.Context(), vfs.OS{}, to, node, nil)
	must(t, err)
	l, err := log.OpenReadOnly(log.Options{Dir: datadir.Path(to, datadir.LogDir)})
	must(t, err)
	defer l.Close()
	blocks = map[uint64]event.Block{}
	for b, err := range l.Blocks(t.Context(), 1, ^uint64(0)) {
		must(t, err)
		c := *b
		c.Events = slices.Clone(b.Events)
		blocks[b.Index] = c
	}
	return blocks, losses, to
}

// damaged makes a copy of the log in which a segment is changed; nil deletes it.
func damaged(t *testing.T, from, segment string, change func([]byte) []byte) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "damaged")
	must(t, os.CopyFS(dir, os.DirFS(from)))
	name := filepath.Join(dir, datadir.LogDir, segment)
	if change == nil {
		must(t, os.Remove(name))
		return dir
	}
	b, err := os.ReadFile(name)
	must(t, errors.Join(err, os.WriteFile(name, change(b), 0o600)))
	return dir
}

func segmentsIn(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, datadir.LogDir, "*.seg"))
	must(t, err)
	return names
}

// TestSalvageKeepsEveryWholeBlock flips one byte after another. The block that it is in may be
// lost, and nothing else but events that need that.
func TestSalvageKeepsEveryWholeBlock(t *testing.T) {
	l := startLive(t, 7, 8<<10)
	l.busy(60)
	must(t, l.log.Sync())
	l.indexed()
	whole, losses, same := salvaged(t, l.dir)
	assert.Equal(t, len(losses), 0)
	assert.Equal(t, len(whole), len(l.history))
	segments := segmentsIn(t, l.dir)
	require.True(t, len(segments) > 2, "%d segments", len(segments))
	for _, name := range segments {
		want, err := os.ReadFile(name)
		must(t, err)
		got, err := os.ReadFile(filepath.Join(same, datadir.LogDir, filepath.Base(name)))
		must(t, err)
		assert.True(t, bytes.Equal(got, want), "%s differs", filepath.Base(name))
	}
	for _, name := range segments {
		size := len(must2(os.ReadFile(name)))
		for at := l.rng.IntN(200); at < size; at += 977 {
			dir := damaged(t, l.dir, filepath.Base(name), func(b []byte) []byte {
				b[at] ^= 1 << l.rng.IntN(8)
				return b
			})
			got, losses, _ := salvaged(t, dir)
			what := fmt.Sprintf("%s, byte %d", filepath.Base(name), at)
			require.Equal(t, len(losses), 1, "%s: losses", what)
			loss, events := losses[0], 0
			for index, b := range whole {
				if !loss.Kept && index >= loss.First && index <= loss.Last {
					require.True(t, got[index].Index == 0, "%s: %d is there", what, index)
					continue
				}
				require.True(t, got[index].Index == index, "%s: %d is not there: %+v", what, index, loss)
				events += len(b.Events) - len(got[index].Events)
			}
			require.Equal(t, events, loss.LeftOut, "%s: left out", what)
			require.True(t, len(whole)-len(got) <= 1, "%s: %d blocks lost", what, len(whole)-len(got))
		}
	}
}

func must2(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
