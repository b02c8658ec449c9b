package log

import (
	"context"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// everyLookup asks a log for everything there is in the blocks that it holds, some of whose
// contents were erased.
func everyLookup(t require.T, l *Log, blocks []*rawBlock, erased map[event.Ref]bool) {
	t.Helper()
	got, err := tryReadAll(l, 0)
	must(t, err)
	sameBlocks(t, got, blocks)
	newest := [tables]map[[16]byte]event.Ref{{}, {}}
	_, clock := l.Begins()
	for i, b := range blocks {
		for n, want := range b.Records {
			ref := event.Ref{Index: b.Index, Number: uint32(n)}
			got, err := l.record(ref)
			must(t, err)
			diff := diffRecord(got, want)
			require.True(t, diff == "" && got.Erased == erased[ref],
				"record %s: erased %v, %s", ref, got.Erased, diff)
			newest[tableSubjects][want.Subject], newest[tableAliases][want.Alias] = ref, ref
		}
		beyond := event.Ref{Index: b.Index, Number: uint32(len(b.Records))}
		_, err := l.record(beyond)
		require.ErrorIs(t, err, ErrNotFound, "past the last record of block %d", b.Index)
		chain, err := l.ChainAt(b.Index)
		must(t, err)
		require.Equal(t, chain, b.Chain, "chain at %d", b.Index)
		for _, ms := range []int64{clock + 1, b.Time} {
			index, ok, err := l.SeekTime(ms)
			require.False(t, b.Time > clock && (err != nil || !ok || index != b.Index),
				"time %d: block %d, %v, %v, want %d", ms, index, ok, err, b.Index)
		}
		clock = max(clock, b.Time)
		if i%10 == 5 {
			got, err := tryReadAll(l, b.Index)
			must(t, err)
			sameBlocks(t, got, blocks[i:])
		}
	}
	for table, keys := range newest {
		delete(keys, [16]byte{})
		for key, want := range keys {
			got, ok, err := l.newest(table, key, want.Index)
			require.True(t, got == want && ok && err == nil,
				"newest of %q: %v %v %v, want %v", key, got, ok, err, want)
			got, ok, err = l.newest(table, key, want.Index+1)
			require.True(t, !ok && err == nil, "%q after its newest record: %v %v", key, got, err)
		}
		for _, key := range [][16]byte{{}, key("nobody")} {
			_, ok, err := l.newest(table, key, 0)
			require.True(t, !ok && err == nil, "a key that is not there: %v %v", ok, err)
		}
	}
	_, ok, err := l.SeekTime(clock + 1)
	require.True(t, !ok && err == nil, "a time that has not come: %v %v", ok, err)
}

func TestWriteAndReadBack(t *testing.T) {
	for name, cached := range map[string]int64{"cached": 1 << 20, "a little cached": 300,
		"not cached": 0} {
		t.Run(name, func(t *testing.T) {
			disk := memdisk.New()
			opts := options(disk)
			opts.CacheBytes = cached
			l := mustOpen(t, opts)
			var blocks []*rawBlock
			for i := range 60 {
				b := story(i)
				appendAll(t, l, b)
				blocks = append(blocks, b)
			}
			require.True(t, len(l.Segments()) >= 5, "only %d segments", len(l.Segments()))
			head := tip{blocks[59].Index, blocks[59].Chain}
			check := func(l *Log) {
				t.Helper()
				everyLookup(t, l, blocks, nil)
				require.True(t, tipOf(l) == head && l.First() == 1 && l.SegmentSize() == 1000 &&
					l.Clock() == blocks[len(blocks)-1].Time,
					"head %v, first %d, clock %d", l.Head(), l.First(), l.Clock())
			}
			check(l)
			must(t, l.Close())

			ops := disk.Ops()
			r, err := OpenReadOnly(opts)
			must(t, err)
			check(r)
			must(t, r.Close())
			report, err := Verify(context.Background(), opts, nil)
			must(t, err)
			require.True(t, (tip{report.Last, report.Chain}) == head && report.Blocks == 60 &&
				report.Tail == nil, "report %+v", report)
			require.Equal(t, disk.Ops(), ops, "a reader has written")

			opts.SegmentSize = 5000 // of a log that exists, its own counts
			l = mustOpen(t, opts)
			check(l)
			b := story(60)
			appendAll(t, l, b)
			blocks, head = append(blocks, b), tip{b.Index, b.Chain}
			check(l)
		})
	}
}
