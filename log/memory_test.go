package log

import (
	"cmp"
	"io"
	"reflect"
	"slices"
	"testing"

	"github.com/qlogd/qlogd/log/vfs"
)

// TestBlocksInMemory: a reader gets the same blocks, whether the log still has
// them in memory, or some of them, or none, and goes on as more are appended.
func TestBlocksInMemory(t *testing.T) {
	var want []Block
	for _, cached := range []int64{0, 2000, 1 << 20} {
		o := options(vfs.NewMem())
		o.CacheBytes = cached
		l := mustOpen(t, o)
		r := l.Blocks(0)
		var got []Block
		for i := range 60 {
			must(t, l.Append(story(i)))
			if i%3 == 0 {
				continue
			}
			for {
				b, err := r.Next()
				if err == io.EOF {
					break
				}
				must(t, err)
				got = append(got, b)
			}
		}
		if want == nil {
			want = got
		}
		if len(got) != len(want) {
			t.Fatalf("cache %d: %d blocks, not %d", cached, len(got), len(want))
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("cache %d, block %d: %+v, not %+v", cached, i, got[i], want[i])
			}
		}
	}
}

// TestKeyedEntries: of each key its newest record, in the order of the hashes.
func TestKeyedEntries(t *testing.T) {
	rng := testRand(3)
	for _, n := range []int{0, 1, 2, 7, 64, 1000, 5000} {
		m := newMemIndex()
		newest := map[[16]byte]place{}
		for i := 0; len(m.records) < n; i++ {
			b := story(i)
			for j := range b.Records {
				b.Records[j].Subject = key("%d", rng.IntN(n))
				newest[b.Records[j].Subject] = place{uint32(i), uint32(j)}
			}
			m.add(b, b.Time, int64(1000*i), 1000, make([]uint32, len(b.Records)))
		}
		got := m.keyedEntries(tableSubjects)
		if !slices.IsSortedFunc(got, func(a, b keyed) int { return cmp.Compare(a.hash, b.hash) }) || len(got) != len(newest) {
			t.Fatalf("%d records: %d entries for %d keys, or out of order", n, len(got), len(newest))
		}
		byHash := map[uint64]keyed{}
		for _, e := range got {
			byHash[e.hash] = e
		}
		for k, p := range newest {
			if e := byHash[keyHash(k)]; e.index != m.blocks[p.block].index || e.number != p.number {
				t.Fatalf("%d records: %x is at %d/%d, not %v", n, k, e.index, e.number, p)
			}
			if at, ok := m.keys[tableSubjects].find(m.keys[tableSubjects].rows, k); !ok || at != p {
				t.Fatalf("%d records: %x is found at %v %v, not %v", n, k, at, ok, p)
			}
		}
	}
}
