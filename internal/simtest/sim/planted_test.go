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

// TestPlanted: the simulation finds what it is there for.
func TestPlanted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long, and very long under the race detector")
	}
	for _, c := range []struct {
		plant  Plant
		within uint64 // seeds
		plan   func(seed uint64) *Plan
	}{
		{plant: NoSync, within: 20},
		{plant: NoLogSync, within: 20},
		{plant: NoBarrier, within: 20},
		{plant: NoKey, within: 20},
		{plant: OtherTime, within: 5},
		{plant: NoVouch, within: 80, plan: forgetful},
	} {
		t.Run(string(c.plant), func(t *testing.T) {
			t.Parallel()
			for seed := range c.within {
				o := Options{Seed: seed + 1, Plant: c.plant}
				if c.plan != nil {
					o.Plan = c.plan(o.Seed)
				}
				if wrong := run(t, o).Judge(); len(wrong) > 0 {
					t.Logf("found by seed %d: %s", o.Seed, wrong[0])
					return
				}
			}
			t.Errorf("not found within %d seeds", c.within)
		})
	}
	t.Run("and without a fault that plan passes", func(t *testing.T) {
		t.Parallel()
		for seed := range uint64(10) {
			rep := run(t, Options{Seed: seed + 1, Plan: forgetful(seed + 1)})
			for _, wrong := range rep.Judge() {
				t.Errorf("seed %d: %s", seed+1, wrong)
			}
			assert.Equal(t, rep.Counts["rolled back"], 1,
				"seed %d: the old copy was not found out: %v", seed+1, rep.Counts)
		}
	})
}
