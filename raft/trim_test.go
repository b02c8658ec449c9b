package raft

import (
	"testing"

	hraft "github.com/hashicorp/raft"
)

func TestTrim(t *testing.T) {
	entry := func(mib int) *hraft.Log { return &hraft.Log{Data: make([]byte, mib<<20)} }
	for _, c := range []struct {
		sizes []int
		want  int
	}{
		{nil, 0}, {[]int{1}, 1}, {[]int{40}, 1}, {[]int{40, 1}, 1}, {[]int{1, 40}, 1}, {[]int{8, 8}, 2}, {[]int{8, 8, 1}, 2},
	} {
		args := &hraft.AppendEntriesRequest{}
		for _, mib := range c.sizes {
			args.Entries = append(args.Entries, entry(mib))
		}
		if trim(args); len(args.Entries) != c.want {
			t.Errorf("%v MiB: %d entries, want %d", c.sizes, len(args.Entries), c.want)
		}
	}
}
