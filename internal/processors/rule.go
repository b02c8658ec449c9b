package processors

import (
	"math"
	"time"
)

const (
	// Nearly all that there was: nobody knows how much more it would have used.
	full = 0.9
	// More than this of what there is, and it waits for processors; less than this
	// of fewer, and fewer will do. What lies between keeps a steady load where it is.
	most  = 0.75
	least = 0.65
	// settle is for how long fewer must have been enough.
	settle = time.Second
)

// use is how much time of processors was used in some time.
type use struct{ used, wall time.Duration }

func (u use) plus(v use) use { return use{u.used + v.used, u.wall + v.wall} }

// cores is how many processors would have been busy all the time.
func (u use) cores() float64 {
	if u.wall <= 0 {
		return 0
	}
	return float64(u.used) / float64(u.wall)
}

// rule says how many processors there should be. It goes up at once, for a burst
// does not wait, and down slowly.
type rule struct {
	before use // the window before
	since  use // since it last changed, or came to the end of a settle
}

// next returns how many there should be after a window in which there were now,
// of all that there may be; all of them where they are held.
func (r *rule) next(w use, now, all int, held bool) int {
	two := w.plus(r.before) // one alone may be a collection of garbage, or the luck of the draw
	r.before, r.since = w, r.since.plus(w)
	next := now
	switch n := float64(now); {
	case held || w.cores() > full*n:
		next = all
	case two.cores() > most*n:
		next = min(2*now, all)
	case r.since.wall < settle:
		return now
	default:
		// Of many not one by one: each change stops the world.
		if need := max(1, int(math.Ceil(r.since.cores()/least))); 4*need <= 3*now {
			next = need
		}
	}
	r.since = use{}
	if next != now {
		r.before = use{} // it says nothing of so many
	}
	return next
}
