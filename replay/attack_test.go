package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
)

// attack is something done to a data directory by somebody who may write all its files.
type attack struct {
	name string
	do   func(v *victim)
	// onlyHeads: nothing in the directory itself can tell, for it is what an
	// honest node would have written. It is what exported heads are for.
	onlyHeads bool
}

// victim is a copy of the directory, to be attacked.
type victim struct {
	t       *testing.T
	dir     string
	foreign string // another cluster's directory
	blocks  []*event.Block
	ends    map[uint64]end
}

// end is where a block ends in the log's files.
type end struct {
	segment string
	offset  int64
}

func (v *victim) files(pattern string) []string {
	v.t.Helper()
	names, err := filepath.Glob(filepath.Join(v.dir, pattern))
	require.True(v.t, err == nil && len(names) != 0, "no %s: %v", pattern, err)
	return names
}

func (v *victim) seg(i int) string {
	names := v.files("log/*.seg")
	return names[(i+len(names))%len(names)]
}

func (v *victim) read(name string) []byte {
	v.t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(v.t, err)
	return b
}

func (v *victim) write(name string, b []byte) {
	v.t.Helper()
	require.NoError(v.t, os.WriteFile(name, b, 0o600))
}

// edit replaces a file's bytes.
func (v *victim) edit(name string, change func([]byte) []byte) {
	v.t.Helper()
	v.write(name, change(v.read(name)))
}

func (v *victim) remove(names ...string) {
	v.t.Helper()
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			v.t.Fatal(err)
		}
	}
}

func (v *victim) removeSegments(names ...string) {
	for _, name := range names {
		v.remove(name, side(name))
	}
}

func half(b []byte) []byte { return b[:len(b)/2] }

func side(seg string) string { return strings.TrimSuffix(seg, ".seg") + ".idx" }

// swap exchanges what two files hold.
func (v *victim) swap(a, b string) {
	x, y := v.read(a), v.read(b)
	v.write(a, y)
	v.write(b, x)
}

// forget removes the checkpoints of indexes above one: who cuts a log does not leave them.
func (v *victim) forget(above uint64) {
	for _, name := range v.files("checkpoints/*") {
		var index uint64
		if _, err := fmt.Sscanf(filepath.Base(name), "%d-", &index); err != nil {
			v.t.Fatal(err)
		}
		if index > above {
			v.remove(name)
		}
	}
}

// cutAfter cuts the log behind a block, leaving nothing that tells of more.
func (v *victim) cutAfter(index uint64) {
	at := v.ends[index]
	for _, name := range v.files("log/*.seg") {
		if filepath.Base(name) > at.segment {
			v.removeSegments(name)
		}
	}
	name := filepath.Join(v.dir, "log", at.segment)
	v.edit(name, func(b []byte) []byte { return b[:at.offset] })
	v.remove(side(name)) // it is the newest one now
	v.forget(index)
}

// forge writes the log anew, as an honest node would have: change may return a
// block in place of another, or none.
func (v *victim) forge(change func(i int, b *event.Block) *event.Block) {
	v.t.Helper()
	dir := filepath.Join(v.dir, "log")
	require.NoError(v.t, os.RemoveAll(dir))
	l, err := log.Open(log.Options{FS: vfs.OS{}, Dir: dir, SegmentSize: 4 << 10})
	require.NoError(v.t, err)
	for i, b := range v.blocks {
		c := *b
		c.Events = slices.Clone(b.Events)
		if forged := change(i, &c); forged != nil {
			require.NoError(v.t, l.Append(forged))
		}
	}
	require.NoError(v.t, l.Close())
	v.remove(v.files("checkpoints/*")...)
}

// rewriteContent changes what a user wrote in place, with its checksum.
func (v *victim) rewriteContent(blob []byte) {
	v.t.Helper()
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, name := range v.files("log/*.seg") {
		b := v.read(name)
		i := bytes.Index(b, blob)
		if i < 0 {
			continue
		}
		b[i+len(blob)-2] ^= 1
		binary.LittleEndian.PutUint32(b[i-4:], crc32.Checksum(b[i:i+len(blob)], table))
		v.write(name, b)
		return
	}
	v.t.Fatal("no such content")
}

// attacks is the table. That bytes in place are found is tested in log and log/checkpoint.
func attacks(blocks []*event.Block, segments int) (all []attack) {
	add := func(name string, onlyHeads bool, do func(*victim)) {
		all = append(all, attack{name, do, onlyHeads})
	}
	for i := range 8 {
		b := blocks[len(blocks)*i/8]
		k := slices.IndexFunc(b.Events, func(e event.Event) bool { return len(e.Content.Bytes) > 4 })
		if k >= 0 {
			add(fmt.Sprintf("a payload at index %d with its checksum put right", b.Index), false,
				func(v *victim) { v.rewriteContent(b.Events[k].Content.Bytes) })
		}
	}

	// Cuts.
	for i := range segments {
		for what, do := range map[string]func(v *victim){
			"removed":           func(v *victim) { v.removeSegments(v.seg(i)) },
			"empty":             func(v *victim) { v.write(v.seg(i), nil) },
			"cut in its middle": func(v *victim) { v.edit(v.seg(i), half) },
			"and those before removed": func(v *victim) {
				v.removeSegments(v.files("log/*.seg")[:i+1]...)
			},
		} {
			add(fmt.Sprintf("segment %d %s", i, what), false, do)
		}
	}
	for i := range 12 {
		index := blocks[(len(blocks)-1)*i/12].Index
		add(fmt.Sprintf("tail behind index %d, with its checkpoints", index), true,
			func(v *victim) { v.cutAfter(index) })
	}
	add("all but the card", true, func(v *victim) {
		v.remove(v.files("log/*")...)
		v.remove(v.files("checkpoints/*")...)
	})

	// Swaps.
	for i := range segments - 1 {
		add(fmt.Sprintf("segments %d and %d", i, i+1), false,
			func(v *victim) { v.swap(v.seg(i), v.seg(i+1)) })
		add(fmt.Sprintf("segment %d with another cluster's", i), false, func(v *victim) {
			names, _ := filepath.Glob(filepath.Join(v.foreign, "log/*.seg"))
			v.write(v.seg(i), v.read(names[i%len(names)]))
		})
		if i < segments-2 {
			add(fmt.Sprintf("side files %d and %d", i, i+1), false,
				func(v *victim) { v.swap(side(v.seg(i)), side(v.seg(i+1))) })
		}
	}
	add("two checkpoints", false, func(v *victim) {
		names := v.files("checkpoints/*")
		v.swap(names[0], names[1])
	})
	add("a checkpoint with another cluster's", false, func(v *victim) {
		names, _ := filepath.Glob(filepath.Join(v.foreign, "checkpoints/*"))
		v.write(v.files("checkpoints/*")[0], v.read(names[0]))
	})
	for i := range 12 {
		// Three neighbours in one segment: the two behind the first are exchanged.
		k := (len(blocks) - 4) * i / 12
		add(fmt.Sprintf("blocks %d and %d", blocks[k+1].Index, blocks[k+2].Index), false,
			func(v *victim) {
				for ; ; k++ {
					a, b, c := v.ends[blocks[k].Index], v.ends[blocks[k+1].Index], v.ends[blocks[k+2].Index]
					if a.segment == c.segment && c.offset < v.ends[blocks[k+3].Index].offset {
						v.edit(filepath.Join(v.dir, "log", a.segment), func(was []byte) []byte {
							return slices.Concat(was[:a.offset], was[b.offset:c.offset],
								was[a.offset:b.offset], was[c.offset:])
						})
						return
					}
				}
			})
	}
	add("all of the log with another cluster's", true, func(v *victim) {
		for _, dir := range []string{"log", "checkpoints"} {
			require.NoError(v.t, errors.Join(os.RemoveAll(filepath.Join(v.dir, dir)),
				os.CopyFS(filepath.Join(v.dir, dir), os.DirFS(filepath.Join(v.foreign, dir)))))
		}
	})

	// Rewrites: by somebody who has qlogd's own code, and leaves no checkpoint that contradicts.
	forgery := func(name string, onlyHeads bool, i int, change func(b *event.Block) *event.Block) {
		add(name, onlyHeads, func(v *victim) {
			v.forge(func(n int, b *event.Block) *event.Block {
				if n == i {
					return change(b)
				}
				return b
			})
		})
	}
	for n := range 10 {
		at := len(blocks) * n / 10
		forgery(fmt.Sprintf("block %d left out", blocks[at].Index), false, at,
			func(*event.Block) *event.Block { return nil })
		for len(blocks[at].Events) == 0 {
			at++
		}
		for what, change := range map[string]func(*event.Event){
			"actor":   func(e *event.Event) { e.Actor = "somebody else" },
			"payload": func(e *event.Event) { e.Content = content(`"forged"`) },
		} {
			forgery(fmt.Sprintf("another %s at index %d", what, blocks[at].Index), true, at,
				func(b *event.Block) *event.Block { change(&b.Events[0]); return b })
		}
	}
	for i := range 6 {
		add(fmt.Sprintf("segment %d of a forged log", i), false, func(v *victim) {
			was := filepath.Join(v.t.TempDir(), "was")
			require.NoError(v.t, os.CopyFS(was, os.DirFS(v.dir)))
			v.forge(func(n int, b *event.Block) *event.Block {
				if n == 0 {
					b.Events[0].Actor = "somebody else"
				}
				return b
			})
			name := v.seg(i)
			forged := v.read(name)
			require.NoError(v.t, os.RemoveAll(v.dir))
			require.NoError(v.t, os.CopyFS(v.dir, os.DirFS(was)))
			v.write(name, forged)
		})
	}
	return all
}

// blocksOf returns the blocks of a log.
func blocksOf(t *testing.T, l *log.Log) (blocks []*event.Block) {
	t.Helper()
	for b, err := range l.Blocks(t.Context(), 0, math.MaxUint64) {
		require.NoError(t, err)
		c := *b
		c.Events = slices.Clone(b.Events)
		blocks = append(blocks, &c)
	}
	return blocks
}

// Every attack on a log is seen: by verification, or, where the directory is
// what an honest node would have left, by the heads that were kept elsewhere.
func TestAttacks(t *testing.T) {
	l := startLive(t, 21, 4<<10)
	var heads []wire.LogHead
	keep := func() {
		h, err := HeadAt(l.log, &datadir.Node{}, l.log.Head())
		require.NoError(t, err)
		require.True(t, h.Index == l.index && int64(h.Time) == l.now, "%+v at index %d", h, l.index)
		heads = append(heads, h)
	}
	for range 4 {
		l.busy(30)
		l.checkpoint()
		keep()
		l.busy(10)
		keep()
	}
	segments := len(l.log.Segments())
	blocks, ends := blocksOf(t, l.log), map[uint64]end{}
	for _, b := range blocks {
		upTo, err := l.log.SegmentsTo(b.Index)
		require.NoError(t, err)
		last := upTo[len(upTo)-1]
		ends[b.Index] = end{last.Name, last.Size}
	}
	l.indexed()
	require.NoError(t, l.log.Close())
	other := startLive(t, 22, 4<<10)
	for range 4 {
		other.busy(40)
		other.checkpoint()
	}
	require.NoError(t, other.log.Close())
	require.Equal(t, detect(t, l.dir, heads), "", "the honest log")

	table := attacks(blocks, segments)
	parent := t.TempDir()
	for i := 0; i < len(table); i += sample(1, 5) {
		a, dir := table[i], filepath.Join(parent, fmt.Sprint(i))
		require.NoError(t, os.CopyFS(dir, os.DirFS(l.dir)))
		v := &victim{t: t, dir: dir, foreign: other.dir, blocks: blocks, ends: ends}
		a.do(v)
		by := detect(t, dir, heads)
		if a.onlyHeads {
			assert.Equal(t, by, "heads", "%s", a.name)
		} else {
			assert.NotEqual(t, by, "", "%s", a.name)
		}
		require.NoError(t, os.RemoveAll(dir))
	}
	t.Logf("figures: %d attacks on %d segments, %d blocks, with %d heads", len(table), segments,
		len(blocks), len(heads))
}

// detect returns who sees that something was done to a directory.
func detect(t *testing.T, dir string, heads []wire.LogHead) string {
	t.Helper()
	_, err := verifyDir(t, dir, nil)
	if errors.As(err, new(*Difference)) {
		return "verify"
	}
	require.NoError(t, err, "%s: not even a difference", dir)
	d, err := Open(dir)
	require.NoError(t, err)
	defer d.Close()
	r, err := compareHeads(t, d, heads)
	if errors.As(err, new(*Difference)) {
		return "heads"
	}
	require.True(t, err == nil && r.Equal == len(heads) && r.Newest == heads[len(heads)-1].Index,
		"%s: %+v, %v", dir, r, err)
	return ""
}

func compareHeads(t *testing.T, d *Dir, heads []wire.LogHead) (HeadsReport, error) {
	t.Helper()
	chain, err := d.Chain()
	require.NoError(t, err)
	return chain.Compare(t.Context(), heads)
}

// What heads tell is told in words.
func TestHeadsTellWhatWasDone(t *testing.T) {
	l := startLive(t, 23, 4<<10)
	l.busy(20)
	first, _ := HeadAt(l.log, &datadir.Node{}, l.log.Head())
	l.busy(20)
	last, _ := HeadAt(l.log, &datadir.Node{}, l.log.Head())
	require.NoError(t, l.log.Sync())
	d := l.open()
	other := last
	other.ChainHash = strings.Repeat("0", 64)
	beyond := last
	beyond.Index += 5
	strange := first
	strange.ClusterID = "somebody else's"
	for want, heads := range map[string][]wire.LogHead{
		"":                               {last, first},
		"history was rewritten between":  {first, other},
		"history was rewritten before":   {other},
		"tail was cut off":               {first, beyond},
		"this is a foreign log":          {first, strange},
		"two of the heads contradict":    {first, last, other},
		"the log's tail was cut off, or": {beyond},
	} {
		_, err := compareHeads(t, d, heads)
		assert.ErrorContains(t, err, want)
	}
	// A copy goes on from where it was made.
	target := filepath.Join(t.TempDir(), "then")
	_, err := d.Into(t.Context(), at(first.Index), target, seedless, nil)
	require.NoError(t, err)
	c, err := Open(target)
	require.NoError(t, err)
	defer c.Close()
	first.ClusterID, last.ClusterID = d.Node.ClusterID, d.Node.ClusterID
	_, err = compareHeads(t, c, []wire.LogHead{first})
	assert.NoError(t, err)
	_, err = compareHeads(t, c, []wire.LogHead{first, last})
	assert.ErrorContains(t, err, "a copy that was made at index")
}
