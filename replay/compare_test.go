package replay

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestCompareFindsWhereLogsPart(t *testing.T) {
	l := startLive(t, 41, 8<<10)
	l.busy(60)
	l.checkpoint()
	copied := filepath.Join(t.TempDir(), "copy")
	l.busy(20)
	must(t, l.log.Sync())
	err := fs.ErrNotExist
	for errors.Is(err, fs.ErrNotExist) { // a side file was renamed meanwhile
		must(t, os.RemoveAll(copied))
		err = os.CopyFS(copied, os.DirFS(l.dir))
	}
	must(t, err)
	common := l.index
	compare := func(a, b *Dir) (*Comparison, int) {
		t.Helper()
		n := 0
		c, err := a.Compare(t.Context(), b, now, Filter{}, func(*Change) error { n++; return nil })
		must(t, err)
		return c, n
	}
	other, err := Open(copied)
	must(t, err)
	c, n := compare(l.open(), other)
	assert.True(t, c.SameLog && c.SameState && n == 0 && c.Index == common, "%+v, %d", c, n)
	other.Close()
	// One goes on: what both have is still the same.
	l.busy(20)
	must(t, l.log.Sync())
	other, err = Open(copied)
	must(t, err)
	defer other.Close()
	c, _ = compare(l.open(), other)
	assert.True(t, c.SameLog && c.SameState && c.Index == common, "%+v", c)
	// The other one goes on otherwise.
	v := &victim{t: t, dir: copied}
	for b, err := range other.Log.Blocks(t.Context(), 0, common) {
		require.NoError(t, err)
		v.blocks = append(v.blocks, &event.Block{Index: b.Index, Time: b.Time, Chain: b.Chain,
			Events: slices.Clone(b.Events)})
	}
	at := len(v.blocks) / 2
	for len(v.blocks[at].Events) == 0 || v.blocks[at].Events[0].Type != event.Enqueued {
		at++
	}
	v.forge(func(i int, b *event.Block) *event.Block {
		if i == at {
			b.Events[0].Kind = "forged"
		}
		return b
	})
	forged, err := Open(copied)
	must(t, err)
	defer forged.Close()
	c, _ = compare(l.open(), forged)
	assert.True(t, !c.SameLog && c.Parted == v.blocks[at].Index && c.AgreeUpTo == c.Parted-1,
		"%+v, forged at %d", c, v.blocks[at].Index)
}
