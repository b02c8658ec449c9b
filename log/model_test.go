package log

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
	"pgregory.net/rapid"
)

// model is a slice of blocks and the log that must be the same.
type model struct {
	disk    *memdisk.Disk
	log     *Log
	opts    Options
	blocks  []*rawBlock // all that were ever appended and not lost
	durable uint64
	erased  map[event.Ref]bool
	ids     int
}

func (m *model) open(rt *rapid.T) {
	m.opts.FS, m.opts.Durable, m.opts.HeldFrom = m.disk, m.durable, m.durable+1
	l, err := Open(m.opts)
	must(rt, err)
	m.log = l
	require.True(rt, l.Head() >= m.durable, "head %d, durable %d", l.Head(), m.durable)
	for len(m.blocks) > 0 && m.blocks[len(m.blocks)-1].Index > l.Head() {
		m.blocks = m.blocks[:len(m.blocks)-1]
	}
}

func (m *model) append(rt *rapid.T) {
	index := m.log.Head() + rapid.Uint64Range(1, 3).Draw(rt, "gap")
	b := &rawBlock{Index: index, Time: rapid.Int64Range(0, 500).Draw(rt,
		"time") + int64(len(m.blocks))*10}
	for range rapid.IntRange(0, 5).Draw(rt, "records") {
		r := record{Header: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(rt, "header")}
		m.ids++
		le16(r.ID[:], uint64(m.ids), 0)
		if n := rapid.IntRange(0, 12).Draw(rt, "subject"); n > 0 {
			r.Subject = key("subject %d", n)
		}
		if n := rapid.IntRange(0, 8).Draw(rt, "alias"); n > 4 {
			r.Alias = key("alias %d", n)
		}
		r.Prev = event.Ref{Index: rapid.Uint64Range(0, 3).Draw(rt, "prev"),
			Number: uint32(m.ids % 2)}
		if rapid.Bool().Draw(rt, "content") {
			r.Content = rapid.SliceOfN(rapid.Byte(), 0, rapid.SampledFrom([]int{10, 200,
				2000}).Draw(rt, "most")).Draw(rt, "bytes")
			r.Digest = sha256.Sum256(r.Content)
		}
		b.Records = append(b.Records, r)
	}
	must(rt, m.log.append(b))
	m.blocks = append(m.blocks, b)
}

func (m *model) sync(rt *rapid.T) {
	must(rt, m.log.Sync())
	m.durable = m.log.Head()
}

// held are the model's blocks that retention has left.
func (m *model) held() []*rawBlock {
	i := slices.IndexFunc(m.blocks, func(b *rawBlock) bool { return b.Index >= m.log.First() })
	if i < 0 || m.log.First() == 0 {
		return nil
	}
	return m.blocks[i:]
}

func (m *model) check(rt *rapid.T) { everyLookup(rt, m.log, m.held(), m.erased) }

// TestModel does random things to a log, with crashes put in anywhere.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{disk: memdisk.New(), erased: map[event.Ref]bool{}}
		m.opts = Options{
			Dir: dir, inline: true,
			SegmentSize: rapid.SampledFrom([]int64{1, 600, 5000, 40000}).Draw(rt, "segment size"),
			CacheBytes:  rapid.SampledFrom([]int64{0, 1000, 1 << 20}).Draw(rt, "cache"),
		}
		m.open(rt)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch do := rapid.IntRange(0, 13).Draw(rt, "do"); do {
			default:
				m.append(rt)
			case 8:
				m.sync(rt)
			case 9:
				must(rt, m.log.Close())
				m.durable = m.log.Head()
				m.open(rt)
			case 10:
				m.disk = m.disk.Crash(testRand(rapid.Uint64().Draw(rt, "seed")))
				m.open(rt)
			case 11:
				index := rapid.Uint64Range(0, m.log.Head()+1).Draw(rt, "before")
				first := m.log.First()
				must(rt, m.log.DeleteBefore(index))
				s := m.log.Segments()
				require.False(rt, len(s) > 1 && s[0].Last < index, "a segment is still there")
				if m.log.First() != first {
					m.durable = m.log.Head() // before anything goes, all is synced
				}
			case 12:
				var refs []event.Ref
				for _, b := range m.held() {
					for n, r := range b.Records {
						if rapid.IntRange(0, 9).Draw(rt, "erase") == 0 {
							refs = append(refs, event.Ref{Index: b.Index, Number: uint32(n)})
							if r.Content != nil {
								m.erased[event.Ref{Index: b.Index, Number: uint32(n)}] = true
							}
						}
					}
				}
				must(rt, m.log.Erase(refs))
				m.durable = m.log.Head()
			case 13:
				m.check(rt)
			}
		}
		m.check(rt)
		must(rt, m.log.Close())
		report, err := Verify(context.Background(), Options{FS: m.disk, Dir: dir}, nil)
		must(rt, err)
		require.Equal(rt, tip{report.Last, report.Chain}, tipOf(m.log))
	})
}

// TestConcurrent appends while everybody reads, syncs, deletes and erases. The
// race detector and the chain judge.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	l := mustOpen(t, Options{FS: vfs.OS{}, Dir: t.TempDir() + "/log", SegmentSize: 20000,
		CacheBytes: 30000})
	const last = 400
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	errs := make(chan error, 16)
	readers := 0
	run := func(f func() error) {
		readers++
		go func() { errs <- f() }()
	}
	for range 2 {
		run(func() error { return follow(ctx, l, last) })
	}
	run(func() error {
		rng := testRand(1)
		for l.Head() < last {
			head := l.Head()
			if head == 0 {
				continue
			}
			ref := event.Ref{Index: 1 + rng.Uint64N(head), Number: uint32(rng.IntN(4))}
			_, recordErr := l.record(ref)
			_, _, newestErr := l.newest(tableSubjects, key("subject %d", rng.IntN(50)), 0)
			_, _, timeErr := l.SeekTime(int64(1000 + 10*ref.Index))
			_, chainErr := l.ChainAt(ref.Index)
			for _, err := range []error{recordErr, newestErr, timeErr, chainErr} {
				if err != nil && !errors.Is(err, ErrGone) {
					return err
				}
			}
			l.Segments()
		}
		return nil
	})
	run(func() error {
		for l.Head() < last {
			if err := l.Sync(); err != nil {
				return err
			}
		}
		return nil
	})
	run(func() error {
		for i := uint64(50); i < last; i += 50 {
			if err := l.Wait(ctx, i); err != nil {
				return err
			}
			if err := l.Erase([]event.Ref{{Index: i, Number: 0}, {Index: i - 1, Number: 1},
				{Index: i - 20, Number: 2}}); err != nil {
				return err
			}
			if err := l.DeleteBefore(i - 40); err != nil {
				return err
			}
			// A reader on the side, of the live directory.
			r, err := OpenReadOnly(Options{Dir: l.dir})
			if err != nil {
				return err
			}
			if _, err := tryReadAll(r, 0); err != nil {
				return err
			}
			r.Close()
		}
		return nil
	})
	for i := range uint64(last) {
		var rs []record
		for n := range 4 {
			rs = append(rs, rec(fmt.Sprintf("subject %d", (i+uint64(n)*7)%50),
				fmt.Sprintf("content %d of %d, and some more to fill it up", n, i)))
		}
		must(t, l.append(block(i+1, rs...)))
	}
	for range readers {
		must(t, <-errs)
	}
	must(t, l.Close())
	_, err := Verify(t.Context(), Options{Dir: l.dir}, nil)
	must(t, err)
}

// follow reads up to a block, waiting for each.
func follow(ctx context.Context, l *Log, last uint64) error {
	seen := uint64(0)
	for seen < last {
		for b, err := range l.blocks(seen + 1) {
			if errors.Is(err, ErrGone) {
				break // retention was faster
			} else if err != nil {
				return err
			}
			if b.Index <= seen {
				return fmt.Errorf("block %d after %d", b.Index, seen)
			}
			seen = b.Index
		}
		if err := l.Wait(ctx, min(seen, last-1)); err != nil {
			return err
		}
	}
	return nil
}
