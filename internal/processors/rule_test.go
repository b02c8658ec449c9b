package processors

import (
	"math/rand/v2"
	"testing"
	"time"
)

// load is how many processors would be used in each window, if there were enough.
type load func(n int) float64

func steady(cores float64) load { return func(int) float64 { return cores } }

// play lets a rule see so many windows of a load, and returns how many processors
// there are after each.
func play(r *rule, now, all, windows int, held bool, l load) (path []int) {
	for i := range windows {
		used := min(l(i), float64(now))
		now = r.next(use{time.Duration(used * float64(window)), window}, now, all, held)
		path = append(path, now)
	}
	return path
}

func changes(now int, path []int) (n int) {
	for _, to := range path {
		if to != now {
			n++
		}
		now = to
	}
	return n
}

// A steady load comes to rest, from wherever it began, also where it is not quite
// steady: after the first seconds nothing changes any more, but for one step down
// where it lies at the very edge of one.
func TestSteady(t *testing.T) {
	for _, all := range []int{2, 3, 4, 16, 64} {
		for cores := 0.0; cores <= float64(all); cores += 0.05 {
			for _, from := range []int{1, all} {
				rng := rand.New(rand.NewPCG(uint64(all), uint64(cores*100)))
				var r rule
				l := func(int) float64 { return cores * (0.95 + 0.1*rng.Float64()) }
				begun := play(&r, from, all, 400, false, l)
				now := begun[len(begun)-1]
				if path := play(&r, now, all, 2000, false, l); changes(now, path) > 1 || path[len(path)-1] > now {
					t.Errorf("%.2f of %d from %d: %d changes in %d windows", cores, all, from, changes(now, path), len(path))
				}
				if cores > most*float64(now)*1.05 && now < all {
					t.Errorf("%.2f of %d: only %d", cores, all, now)
				}
				if fewer := now * 3 / 4; from == all && fewer > 0 && cores < least*float64(fewer)*0.95 {
					t.Errorf("%.2f of %d: still %d", cores, all, now)
				}
			}
		}
	}
}

func TestRule(t *testing.T) {
	second := int(settle / window)
	for name, c := range map[string]struct {
		now, all, windows int
		load              load
		want              int
		changes           int
	}{
		"idle, not for long":              {2, 2, second - 1, steady(0), 2, 0},
		"idle":                            {2, 2, second, steady(0), 1, 1},
		"idle on many":                    {16, 16, second, steady(0), 1, 1},
		"what is needed, at once":         {16, 16, second, steady(2), 4, 1},
		"one node of three on two cores":  {2, 2, 10 * second, steady(0.5), 1, 1},
		"one node that has two cores":     {2, 2, 10 * second, steady(0.78), 2, 0},
		"one that would fit, but hardly":  {2, 2, 10 * second, steady(0.7), 2, 0},
		"it fits, and stays":              {1, 2, 10 * second, steady(0.72), 1, 0},
		"a burst takes all":               {1, 16, 1, steady(16), 16, 1},
		"more than there is room for":     {1, 2, 2, steady(0.8), 2, 1},
		"twice as many, not all":          {2, 16, 2, steady(1.6), 4, 1},
		"never more than there are":       {2, 3, 2, steady(1.6), 3, 1},
		"all are in use":                  {2, 2, 10 * second, steady(2), 2, 0},
		"one window says nothing":         {1, 2, 10 * second, spikes(0.3, 0.85, second), 1, 0},
		"a full one does, for the second": {1, 2, second, spikes(0.3, 1, second), 2, 1},
	} {
		var r rule
		path := play(&r, c.now, c.all, c.windows, false, c.load)
		if got := path[len(path)-1]; got != c.want || changes(c.now, path) != c.changes {
			t.Errorf("%s: %d after %d changes, not %d after %d: %v", name, got, changes(c.now, path), c.want, c.changes, path)
		}
	}
}

// spikes is a load of low with a window of high in the middle of each period.
func spikes(low, high float64, period int) load {
	return func(n int) float64 {
		if n%period == period/2 {
			return high
		}
		return low
	}
}

// While they are held there are all, however little is used, and a second after.
func TestHeld(t *testing.T) {
	var r rule
	second := int(settle / window)
	play(&r, 1, 4, second/2, false, steady(0.1))
	if path := play(&r, 1, 4, 5*second, true, steady(0.1)); path[0] != 4 || changes(4, path) != 0 {
		t.Fatalf("held: %v", path)
	}
	path := play(&r, 4, 4, second, false, steady(0.1))
	if changes(4, path) != 1 || path[second-2] != 4 || path[second-1] != 1 {
		t.Fatalf("let go of: %v", path)
	}
}

// Windows are as long as they are: what counts is the time.
func TestWindows(t *testing.T) {
	var r rule
	if got := r.next(use{0, settle}, 4, 4, false); got != 1 {
		t.Errorf("one long window of rest: %d", got)
	}
	if got := r.next(use{}, 1, 4, false); got != 1 {
		t.Errorf("an empty window: %d", got)
	}
}
