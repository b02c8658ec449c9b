package sim

import (
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// forgetful is a plan in which a node that was put back from an old copy could
// vote for what it has forgotten: what was committed while n3 was away is on the
// leader and on that node, which is asked for its vote while the leader is cut
// off.
func forgetful(seed uint64) *Plan {
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	return &Plan{Seed: seed, Until: at(18000), Steps: []Step{
		{At: at(3000), Kind: Copy, Whom: -3},
		{At: at(4000), Kind: Isolate, Whom: -4, For: at(6000)},
		{At: at(9000), Kind: PutBack, Whom: -3, Force: true},
		{At: at(9400), Kind: Isolate, Whom: -1, For: at(7000)},
	}}
}

// TestForgetful: a node that was put back from an old copy is found out, and the simulation notices
// if it is not. (internal/simtest/planted plants other mistakes.)
func TestForgetful(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long, and very long under the race detector")
	}
	for seed := range uint64(4) {
		rep := run(t, Options{Seed: seed + 1, Plan: forgetful(seed + 1)})
		for _, wrong := range rep.Judge() {
			t.Errorf("seed %d: %s", seed+1, wrong)
		}
		assert.Equal(t, rep.Counts["rolled back"], 1,
			"seed %d: the old copy was not found out: %v", seed+1, rep.Counts)
	}
	for seed := range uint64(80) {
		rep := run(t, Options{Seed: seed + 1, Plan: forgetful(seed + 1), NoVouch: true})
		if wrong := rep.Judge(); len(wrong) > 0 {
			t.Logf("found by seed %d: %s", seed+1, wrong[0])
			return
		}
	}
	t.Error("not found")
}
