package log

import (
	"context"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/log/vfs"
)

// everyLookup asks a log for everything there is in blocks.
func everyLookup(t *testing.T, l *Log, blocks []*rawBlock) {
	t.Helper()
	subjects, aliases := map[[16]byte]event.Ref{}, map[[16]byte]event.Ref{}
	clock := int64(0)
	for i, b := range blocks {
		for n, want := range b.Records {
			ref := event.Ref{Index: b.Index, Number: uint32(n)}
			got, err := l.record(ref)
			must(t, err)
			if diff := diffRecord(got, want); diff != "" {
				t.Fatalf("record %s: %s", ref, diff)
			}
			content, erased, err := contentOf(l, ref)
			must(t, err)
			if !slices.Equal(content, want.Content) || (content == nil) != (want.Content == nil) || erased {
				t.Fatalf("content %s: %q, %v", ref, content, erased)
			}
			subjects[want.Subject], aliases[want.Alias] = ref, ref
		}
		if _, err := l.record(event.Ref{Index: b.Index, Number: uint32(len(b.Records))}); !isErr(err, ErrNotFound) {
			t.Fatalf("past the last record of block %d: %v", b.Index, err)
		}
		chain, err := l.ChainAt(b.Index)
		must(t, err)
		if chain != b.Chain {
			t.Fatalf("chain at %d: %x, want %x", b.Index, chain, b.Chain)
		}
		if b.Time > clock {
			index, ok, err := l.SeekTime(b.Time)
			must(t, err)
			if !ok || index != b.Index {
				t.Fatalf("time %d: block %d, %v, want %d", b.Time, index, ok, b.Index)
			}
			clock = b.Time
		}
		sameBlocks(t, readAll(t, l, b.Index), blocks[i:])
	}
	for subject, want := range subjects {
		got, ok, err := l.newest(tableSubjects, subject, 0)
		must(t, err)
		if subject == [16]byte{} {
			want = event.Ref{}
		}
		if got != want || ok != (want != event.Ref{}) {
			t.Fatalf("last of %q: %v %v, want %v", subject, got, ok, want)
		}
	}
	for alias, want := range aliases {
		if alias == [16]byte{} {
			continue
		}
		got, ok, err := l.newest(tableAliases, alias, want.Index)
		must(t, err)
		if got != want || !ok {
			t.Fatalf("alias %q: %v %v, want %v", alias, got, ok, want)
		}
		if got, ok, err := l.newest(tableAliases, alias, want.Index+1); ok || err != nil {
			t.Fatalf("alias %q after its last record: %v %v", alias, got, err)
		}
	}
	if _, ok, err := l.newest(tableSubjects, key("nobody"), 0); ok || err != nil {
		t.Fatalf("a subject that is not there: %v %v", ok, err)
	}
	if _, ok, err := l.SeekTime(clock + 1); ok || err != nil {
		t.Fatalf("a time that has not come: %v %v", ok, err)
	}
}

func isErr(err, want error) bool { return err != nil && errorsIs(err, want) }

func TestWriteAndReadBack(t *testing.T) {
	for name, cached := range map[string]int64{"cached": 1 << 20, "a little cached": 300, "not cached": 0} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewMem()
			opts := options(disk)
			opts.CacheBytes = cached
			l := mustOpen(t, opts)
			var blocks []*rawBlock
			for i := range 60 {
				b := story(i)
				appendAll(t, l, b)
				blocks = append(blocks, b)
			}
			if n := len(l.Segments()); n < 5 {
				t.Fatalf("only %d segments", n)
			}
			head := tip{blocks[59].Index, blocks[59].Chain}
			check := func(l *Log) {
				t.Helper()
				everyLookup(t, l, blocks)
				if tipOf(l) != head || l.First() != 1 || l.Clock() != blocks[len(blocks)-1].Time || l.SegmentSize() != 1000 {
					t.Fatalf("head %v, first %d, clock %d", l.Head(), l.First(), l.Clock())
				}
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
			if (tip{report.Last, report.Chain}) != head || report.Blocks != 60 || report.Tail != nil || report.SideFiles != report.Segments-1 {
				t.Fatalf("report %+v", report)
			}
			if disk.Ops() != ops {
				t.Fatal("a reader has written")
			}

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
