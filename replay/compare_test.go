package replay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// TestCompareFindsWhereLogsPart compares a log with a copy in which one event is another.
func TestCompareFindsWhereLogsPart(t *testing.T) {
	l := startLive(t, 41, 8<<10)
	l.busy(80)
	l.checkpoint()
	v := &victim{t: t, dir: filepath.Join(t.TempDir(), "copy"), blocks: blocksOf(t, l.log)}
	must(t, l.log.Close())
	must(t, os.CopyFS(v.dir, os.DirFS(l.dir)))
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
	forged, err := Open(v.dir)
	must(t, err)
	defer forged.Close()
	c, err := l.open().Compare(t.Context(), forged, now, Filter{},
		func(*Change) error { return nil })
	must(t, err)
	assert.True(t, !c.SameLog && c.Parted == v.blocks[at].Index && c.AgreeUpTo == c.Parted-1,
		"%+v, forged at %d", c, v.blocks[at].Index)
}
