package witness

import (
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

func TestPromise(t *testing.T) {
	p := Promise{AckTerm: 5, AckIndex: 100, VoteTerm: 6}
	for _, c := range []struct {
		term, last uint64
		broken     bool
	}{
		{6, 100, false},
		{6, 50, false}, // a later leader may have cut its log
		{7, 1, false},
		{5, 100, true}, // the vote is forgotten
		{4, 500, true},
	} {
		assert.Equal(t, p.Broken(c.term, c.last) != "", c.broken, "term %d, last %d", c.term, c.last)
	}
	p.VoteTerm = 0
	for last, broken := range map[uint64]bool{99: true, 100: false, 101: false} {
		assert.Equal(t, p.Broken(5, last) != "", broken, "last %d in the same term", last)
	}
}
