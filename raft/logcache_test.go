package raft

import (
	"testing"

	hraft "github.com/hashicorp/raft"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// What the cache hands out is what was stored last, and nothing that was
// deleted.
func TestLogCache(t *testing.T) {
	var c logCache
	put := func(term, from, to uint64, size int) {
		for i := from; i <= to; i++ {
			c.put([]*hraft.Log{{Index: i, Term: term, Data: make([]byte, size)}})
		}
	}
	holds := func(term, from, to uint64) {
		t.Helper()
		var l hraft.Log
		for i := from; i <= to; i++ {
			require.True(t, c.get(i, &l) && l.Index == i && l.Term == term, "entry %d: %+v", i, l)
		}
		require.True(t, !c.get(from-1, &l) && !c.get(to+1, &l),
			"entry %d, beside %d to %d", l.Index, from, to)
	}
	require.True(t, !c.get(0, new(hraft.Log)) && !c.get(1, new(hraft.Log)),
		"an empty cache holds something")
	put(1, 5, 5+2*cachedEntries, 10)
	holds(1, 6+cachedEntries, 5+2*cachedEntries)
	c.forget(500) // from the front
	holds(1, 501, 517)
	c.forget(517) // from the end
	var l hraft.Log
	require.False(t, c.get(505, &l), "kept what may be older than a deletion")
	put(2, 510, 512, 10)
	holds(2, 510, 512)
	c.forget(600)
	put(3, 900, 910, cachedBytes/4)
	holds(3, 907, 910)
	put(4, 908, 909, 2*cachedBytes) // not in a row: a new beginning
	holds(4, 909, 909)
}
