package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/invariants"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log"
	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/log/vfs"
	"github.com/qlogd/qlogd/projections"
)

// badPage is a disk that cannot read the page at an offset of a segment.
type badPage struct {
	vfs.OS
	segment string
	off     int64
}

type badPageFile struct {
	vfs.File
	off int64
}

func (d badPage) OpenRead(name string) (vfs.File, error) {
	f, err := d.OS.OpenRead(name)
	if err == nil && filepath.Base(name) == d.segment {
		f = badPageFile{f, d.off}
	}
	return f, err
}

func (f badPageFile) ReadAt(b []byte, off int64) (int, error) {
	if off < f.off+4096 && off+int64(len(b)) > f.off {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(b, off)
}

// TestSalvageFromABadDisk: a page that cannot be read loses what it holds, and nothing else.
func TestSalvageFromABadDisk(t *testing.T) {
	l := startLive(t, 7, 32<<10)
	l.busy(200)
	l.indexed()
	step := int64(sample(8<<10, 31<<10))
	for _, s := range l.log.Segments() {
		for off := int64(0); off < s.Size; off += step {
			blocks, losses, _ := salvagedOn(t, badPage{segment: s.Name, off: off}, l.dir)
			require.True(t, len(losses) > 0, "%s, %d: no loss", s.Name, off)
			lost := l.lost(blocks, &s)
			require.True(t, lost < len(l.history)/4, "%s, %d: %d of %d blocks lost", s.Name, off, lost,
				len(l.history))
		}
	}
}

// lost returns how many blocks are not among some, all of them of a segment.
func (l *world) lost(blocks map[uint64]event.Block, s *log.SegmentInfo) (n int) {
	for _, o := range l.history {
		if blocks[o.index].Index == 0 {
			n++
			require.True(l.t, o.index >= s.First && o.index <= s.Last, "%d is lost", o.index)
		}
	}
	return n
}

// salvaged salvages a directory, verifies the result, and returns its log's blocks by index.
func salvaged(t *testing.T, dir string) (blocks map[uint64]event.Block, losses []*Loss, to string) {
	t.Helper()
	return salvagedOn(t, vfs.OS{}, dir)
}

func salvagedOn(t *testing.T, fsys vfs.FS, dir string) (
	blocks map[uint64]event.Block, losses []*Loss, to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "new")
	card, err := ReadCard(dir)
	must(t, err)
	node, losses, err := Salvage(t.Context(), fsys, dir, card, now, to, seedless,
		func(int64, int64) {})
	must(t, err)
	_, err = Verify(t.Context(), vfs.OS{}, to, node, nil)
	must(t, err)
	l, err := log.OpenReadOnly(log.Options{Dir: datadir.Path(to, datadir.LogDir)})
	must(t, err)
	defer l.Close()
	blocks = map[uint64]event.Block{}
	for _, b := range blocksOf(t, l) {
		blocks[b.Index] = *b
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
	l.indexed()
	whole, losses, same := salvaged(t, l.dir)
	assert.Equal(t, len(losses), 0)
	assert.Equal(t, len(whole), len(l.history))
	segments := segmentsIn(t, l.dir)
	require.True(t, len(segments) > 2, "%d segments", len(segments))
	for _, name := range segments {
		got := readFile(t, filepath.Join(same, datadir.LogDir, filepath.Base(name)))
		assert.True(t, bytes.Equal(got, readFile(t, name)), "%s differs", filepath.Base(name))
	}
	for _, name := range segments {
		size := len(readFile(t, name))
		for at := l.rng.IntN(200); at < size; at += sample(2477, 7001) {
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
					require.Equal(t, len(got[index].Events), len(loss.Created), "%s: %d is there", what, index)
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

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return b
}

// block returns a change of the header of the block at an index.
func block(index uint64) func([]byte) []byte {
	return func(b []byte) []byte {
		for at := 0; ; {
			at += bytes.Index(b[at:], []byte("qblk"))
			if binary.LittleEndian.Uint64(b[at+12:]) == index {
				b[at+13] ^= 4
				return b
			}
			at++
		}
	}
}

// TestSalvageLeavesOutWhatNeedsALostBlock loses one block after another.
func TestSalvageLeavesOutWhatNeedsALostBlock(t *testing.T) {
	l := startLive(t, 3, 1<<20)
	produce := func(payload string) event.ID {
		return l.produce("q", event.NewMessage{Content: content(payload)})
	}
	l.queue("q", func(*event.Policy) {})
	created := l.index
	a := produce(`"a"`)
	enqueued := l.index
	b := produce(`"b"`)
	_, lease := l.take("q")
	leased := l.index
	l.settle(event.OpAck, lease)
	acked := l.index
	c := produce(`"c"`)
	must(t, l.log.Sync())
	text := func(b []byte) []byte { return bytes.Replace(b, []byte(`"b"`), []byte(`"x"`), 1) }
	for name, tt := range map[string]struct {
		change         func([]byte) []byte
		leftOut        int
		affected, live []event.ID
		kept           bool
	}{
		"the queue":   {block(created), 0, nil, []event.ID{b, c}, false},
		"an enqueue":  {block(enqueued), 2, []event.ID{a}, []event.ID{b, c}, false},
		"a lease":     {block(leased), 1, []event.ID{a}, []event.ID{a, b, c}, false},
		"an ack":      {block(acked), 0, nil, []event.ID{a, b, c}, false},
		"a content":   {text, 0, []event.ID{b}, []event.ID{b, c}, true},
		"half a file": {func(b []byte) []byte { return b[:len(b)-30] }, 0, nil, []event.ID{b}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := damaged(t, l.dir, log.SegmentName(l.log.First()), tt.change)
			_, losses, to := salvaged(t, dir)
			_, _, again := salvaged(t, dir)
			require.Equal(t, len(losses), 1)
			assert.Equal(t, losses[0].LeftOut, tt.leftOut)
			assert.Equal(t, losses[0].Kept, tt.kept)
			assert.EqualSlices(t, losses[0].Messages, tt.affected, "affected")
			d, state := opened(t, to)
			assert.Equal(t, len(d.Node.Fork.Lost) == 0, tt.kept)
			var live []event.ID
			views, _ := state.Messages("q", event.MessageFilter{Limit: 10})
			for _, m := range views {
				live = append(live, m.ID)
				_, err := d.Log.Content(m.Content)
				bad := tt.kept && m.ID == b
				assert.Equal(t, errors.Is(err, log.ErrDamaged), bad, "%v", err)
				_, err = d.Log.History(t.Context(), m.ID)
				must(t, err)
			}
			slices.SortFunc(live, event.ID.Compare)
			assert.EqualSlices(t, live, tt.live, "live")
			for i, name := range segmentsIn(t, to) {
				one, two := readFile(t, name), readFile(t, segmentsIn(t, again)[i])
				assert.True(t, bytes.Equal(one, two), "two salvages differ in %s", name)
			}
		})
	}
}

// TestSalvageCreatesQueues loses the creation of queues that later events need, with a checkpoint
// that knows them and without, once among other damage.
func TestSalvageCreatesQueues(t *testing.T) {
	l := startLive(t, 3, 1<<20)
	produce := func(queue string) event.ID {
		return l.produce(queue, event.NewMessage{Content: content(`"a"`)})
	}
	put := func(name, dlq string) uint64 {
		l.queue(name, func(p *event.Policy) {
			p.MaxAttempts, p.LeaseMS, p.DeadLetterQueue = 3, 77_000, dlq
		})
		return l.index
	}
	graves := put("graves", "")
	jobs := put("jobs", "graves")
	idle := put("idle", "")
	produce("jobs")
	later := put("later", "")
	lost := produce("jobs")
	produce("later")
	l.try("jobs", 0, event.OpDeadLetter)
	l.do(&event.Command{PurgeQueue: &event.PurgeQueue{Name: "later"}})
	produce("idle")
	last := put("last", "")
	must(t, l.log.Sync())
	for name, tt := range map[string]struct {
		at      []uint64
		created [][]string
		dead    int64 // in graves
	}{
		"a queue":                           {[]uint64{jobs}, [][]string{{"jobs"}}, 1},
		"a dead-letter queue":               {[]uint64{graves}, [][]string{{"graves"}}, 1},
		"both":                              {[]uint64{graves, jobs}, [][]string{{"graves", "jobs"}}, 1},
		"one before an unrelated loss":      {[]uint64{idle, event.RefOf(lost).Index}, [][]string{{"idle"}, nil}, 1},
		"one whose number others follow":    {[]uint64{later}, [][]string{{"later"}}, 1},
		"one that nothing needs any more":   {[]uint64{last}, [][]string{nil}, 1},
		"one after an unrelated loss":       {[]uint64{event.RefOf(lost).Index, last}, [][]string{nil, nil}, 1},
		"two, and a third block in between": {[]uint64{jobs, event.RefOf(lost).Index, graves}, [][]string{{"graves", "jobs"}, nil}, 1},
	} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, known to a checkpoint: %v", name, known), func(t *testing.T) {
				dir := damaged(t, l.dir, log.SegmentName(l.log.First()), func(b []byte) []byte {
					for _, at := range tt.at {
						b = block(at)(b)
					}
					return b
				})
				if known {
					m := l.checkpoint()
					defer os.Remove(filepath.Join(l.ckpts(), m.Name()))
					must(t, os.CopyFS(filepath.Join(dir, datadir.CheckpointDir), os.DirFS(l.ckpts())))
				}
				_, losses, to := salvaged(t, dir)
				require.Equal(t, len(losses), len(tt.created))
				_, state := opened(t, to)
				for i, loss := range losses {
					names := []string{}
					for _, c := range loss.Created {
						names = append(names, c.Queue)
						require.Equal(t, c.Checkpoint > 0, known)
						q, _ := state.Queue(c.Queue)
						require.Equal(t, q.Policy.LeaseMS == 77_000, known, "%+v", q.Policy)
						require.True(t, known || q.Policy.MaxAttempts == 0, "%+v", q.Policy)
						live, _ := l.m.Queue(c.Queue)
						require.True(t, !known || q.Number == live.Number, "number %d", q.Number)
					}
					slices.Sort(names)
					assert.True(t, slices.Equal(names, tt.created[i]), "created %v", names)
				}
				for _, q := range []string{"graves", "jobs", "idle", "later"} {
					_, ok := state.Queue(q)
					assert.True(t, ok, "%s is not there", q)
				}
				q, _ := state.Queue("graves")
				assert.Equal(t, q.Stats.Messages(), tt.dead)
			})
		}
	}
}

// TestSalvageOfAnOrderedQueue loses the creation of a queue whose events only an ordered one has: it
// is created again without its ordering, which nothing tells.
func TestSalvageOfAnOrderedQueue(t *testing.T) {
	l := startLive(t, 4, 1<<20)
	l.queue("q", func(p *event.Policy) { p.Ordering = event.PerKey })
	created := l.index
	for _, key := range []string{"", "k", "k"} {
		l.produce("q", event.NewMessage{Key: key, Content: content("")})
	}
	settle := func(op event.SettleOp, delay int64, most int) {
		r := l.do(&event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: most, Worker: "w"}})
		for _, m := range r[0].Leased {
			l.do(&event.Command{Settle: &event.Settle{Items: []event.SettleItem{{Op: op,
				Lease: m.Lease, DelayMS: delay}}}})
		}
	}
	settle(event.OpRetry, 60_000, 2)
	l.now += 30_000
	l.do(&event.Command{PauseQueue: &event.PauseQueue{Name: "q", Paused: true}},
		&event.Command{PauseQueue: &event.PauseQueue{Name: "q"}})
	l.now += 60_000
	settle(event.OpRetry, 1, 2)
	l.now += 60_000
	settle(event.OpAck, -1, 1)
	q := l.salvagedWithout(created)
	require.Equal(t, q.Stats.Messages(), 2)
}

// TestSalvageWithoutSegments loses whole files, also of a log whose beginning retention has
// deleted.
func TestSalvageWithoutSegments(t *testing.T) {
	l := startLive(t, 11, 8<<10)
	l.busy(60)
	l.indexed()
	for _, s := range l.log.Segments() {
		dir := damaged(t, l.dir, s.Name, nil)
		blocks, losses, _ := salvaged(t, dir)
		assert.True(t, l.lost(blocks, &s) > 0 && (len(losses) == 1 || !s.Sealed), "%+v", losses)
	}
	l.checkpoint()
	l.busy(40)
	must(t, l.log.DeleteBefore(l.log.Segments()[2].First))
	l.indexed()
	missing := 0
	for _, name := range segmentsIn(t, l.dir) {
		dir := damaged(t, l.dir, filepath.Base(name), func(b []byte) []byte {
			b[len(b)/2] ^= 1
			return b
		})
		blocks, losses, to := salvaged(t, dir)
		assert.True(t, len(losses) > 0 && len(blocks) > 0, "%d losses, %d blocks", len(losses), len(blocks))
		// A message of the checkpoint may have lost its content.
		d, state := opened(t, to)
		for m := range state.All {
			if _, err := d.Log.Content(m.Content); err != nil && !errors.Is(err, log.ErrGone) {
				require.ErrorIs(t, err, log.ErrDamaged)
				missing++
			}
		}
	}
	assert.True(t, missing > 0, "no content is missing")
}

// TestCopyOfADamagedHeader: where only a header is damaged, a copy of the log has all of it, whole.
func TestCopyOfADamagedHeader(t *testing.T) {
	l := startLive(t, 5, 8<<10)
	l.busy(60)
	l.indexed()
	for i, seg := range l.log.Segments() {
		dir := damaged(t, l.dir, seg.Name, func(b []byte) []byte {
			b[(i*37)%88] ^= 1
			return b
		})
		card, err := ReadCard(dir)
		must(t, err)
		_, err = Verify(t.Context(), vfs.OS{}, dir, card, nil)
		require.True(t, log.IsDamage(err), "%v", err)
		d, err := OpenOn(vfs.OS{}, dir, card, false)
		must(t, err)
		defer d.Close()
		to := filepath.Join(t.TempDir(), "new")
		node, err := d.Into(t.Context(), now, to, seedless, nil)
		must(t, err)
		report, err := Verify(t.Context(), vfs.OS{}, to, node, nil)
		must(t, err)
		head, chain := l.log.Tip()
		require.True(t, report.Log.Last == head && report.Log.Chain == chain, "%s: %+v", seg.Name, report)
	}
}

// TestSalvageWithoutTheEndOfALease loses the ack of the first message of a key: it waits before the
// others again, which were leased after it.
func TestSalvageWithoutTheEndOfALease(t *testing.T) {
	l := startLive(t, 4, 1<<20)
	l.queue("q", func(p *event.Policy) { p.Ordering, p.LaneBatch = event.PerKey, 2 })
	for range 5 {
		l.produce("q", event.NewMessage{Key: "k", Content: content("")})
	}
	var acks []uint64
	for range 2 {
		settle := &event.Settle{}
		r := l.do(&event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 2, Worker: "w"}})
		for _, m := range r[0].Leased {
			settle.Items = append(settle.Items, event.SettleItem{Op: event.OpAck, Lease: m.Lease})
		}
		l.do(&event.Command{Settle: settle})
		acks = append(acks, l.index)
	}
	q := l.salvagedWithout(acks[0])
	require.Equal(t, q.Stats.Ready, 3)
	require.Equal(t, q.Stats.Acked, 2)
}

// salvagedWithout loses the block at an index, after which everything else is kept, and returns
// queue q.
func (l *world) salvagedWithout(index uint64) event.QueueView {
	l.t.Helper()
	must(l.t, l.log.Sync())
	_, losses, to := salvaged(l.t, damaged(l.t, l.dir, log.SegmentName(l.log.First()), block(index)))
	require.Equal(l.t, losses[0].LeftOut, 0)
	_, state := opened(l.t, to)
	q, _ := state.Queue("q")
	return q
}

// opened opens a data directory and folds it up to now.
func opened(t *testing.T, dir string) (*Dir, *projections.State) {
	t.Helper()
	d, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	state, _, err := d.StateAt(t.Context(), now)
	must(t, err)
	must(t, invariants.Check(state))
	return d, state
}
