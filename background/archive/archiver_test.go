package archive

import (
	"testing"

	"github.com/qlogd/qlogd/log"
)

func TestWhatAnArchiveHas(t *testing.T) {
	all := make([]log.SegmentInfo, 6) // segment i is index 10i+1 to 10i+10
	for i := range all {
		all[i] = log.SegmentInfo{First: uint64(10*i + 1), Last: uint64(10*i + 10),
			PrevIndex: uint64(10 * i), Chain: [32]byte{byte(i + 1)}, Sealed: i < 5}
	}
	for _, c := range []struct {
		name        string
		mine, there []log.SegmentInfo
		since, upTo uint64
	}{
		{"nothing", all, nil, 0, 0},
		{"the beginning", all, all[:2], 0, 20},
		{"all that is sealed", all, all[:5], 0, 50},
		{"not the active one", all, all, 0, 50},
		{"more than the log still has", all[3:], all[:5], 0, 50},
		// The leader had deleted its first two before it began to archive.
		{"less than the log still has", all, all[2:4], 20, 40},
		{"a hole", all, append(all[:1:1], all[2:4]...), 0, 10},
	} {
		if since, upTo := archived(c.mine, c.there); since != c.since || upTo != c.upTo {
			t.Errorf("%s: behind %d up to %d, not behind %d up to %d", c.name, since, upTo,
				c.since, c.upTo)
		}
	}
}
