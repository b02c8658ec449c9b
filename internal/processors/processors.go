// Package processors keeps the number of processors of Go's scheduler (GOMAXPROCS)
// at what the process has work for.
//
// A processor that has nothing to do is not free: its thread spins for work and is
// put to sleep and woken again with every request, across cores, which is dear on
// a virtual machine. Three nodes that share two cores do a tenth to a quarter more
// with one each. But one that has the machine for itself wants all of it, and says
// so by using it.
package processors

import (
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// window is how often it is looked while there is work, and rest while there is
	// less than idle of a processor's: then a burst waits so long at most.
	window = 50 * time.Millisecond
	rest   = 4 * window
	idle   = 0.05
)

// Governor sets the number. A nil one leaves it alone.
type Governor struct {
	os     system
	logger *slog.Logger

	held    atomic.Int64
	changes atomic.Uint64
	wake    chan struct{} // it is held now
	stop    chan struct{}
	done    sync.WaitGroup
}

// system is what is governed.
type system struct {
	used  func() (time.Duration, error) // processor time of this process, ever
	count func() int
	set   func(n int)
	// all sets as many as the runtime would have by itself, which it goes on to
	// look after (a container's limit may change), and returns how many these are.
	all func() int
}

// Start begins to govern; the process has all that there are. It returns nil where
// the user has said how many there are to be (GOMAXPROCS), where there is only one,
// or where it is not known how much is used.
func Start(getenv func(string) string, logger *slog.Logger) *Governor {
	if n, err := strconv.Atoi(getenv("GOMAXPROCS")); err == nil && n > 0 {
		return nil
	}
	if _, err := used(); err != nil || runtime.GOMAXPROCS(0) < 2 {
		return nil
	}
	return start(system{
		used: used, count: func() int { return runtime.GOMAXPROCS(0) }, set: func(n int) { runtime.GOMAXPROCS(n) },
		all: func() int { runtime.SetDefaultGOMAXPROCS(); return runtime.GOMAXPROCS(0) },
	}, logger)
}

func start(os system, logger *slog.Logger) *Governor {
	g := &Governor{os: os, logger: logger, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	g.done.Go(g.run)
	return g
}

// Stop ends it; the process has all that there are again.
func (g *Governor) Stop() {
	if g == nil {
		return
	}
	close(g.stop)
	g.done.Wait()
}

// Changes returns how often the number was changed. Each time the world stops for
// a moment.
func (g *Governor) Changes() uint64 {
	if g == nil {
		return 0
	}
	return g.changes.Load()
}

// Hold says that work begins which computes for long: on the only processor it would
// let requests wait for 10 ms at a time until it was seen. Until release, which is
// called once, the process has all that there are.
func (g *Governor) Hold() (release func()) {
	if g == nil {
		return func() {}
	}
	if g.held.Add(1) == 1 {
		// Not done here: the runtime changes it only between two collections.
		select {
		case g.wake <- struct{}{}:
		default:
		}
		runtime.Gosched() // lets run go first, where there is one processor
	}
	return func() { g.held.Add(-1) }
}

func (g *Governor) run() {
	var r rule
	all, own := g.os.all(), false // own: fewer than all, set here
	at := time.Now()
	before, err := g.os.used()
	tick := time.NewTimer(window)
	defer tick.Stop()
	for err == nil {
		select {
		case <-tick.C:
		case <-g.wake:
		case <-g.stop:
			g.os.all()
			return
		}
		held := g.held.Load() > 0
		to := time.Now()
		if !held && to.Sub(at) < window {
			continue // it was let go of again; too short to say anything
		}
		now := g.os.count()
		if !own {
			all = now // as the runtime has it
		}
		var ever time.Duration
		if ever, err = g.os.used(); err != nil {
			break
		}
		u := use{ever - before, to.Sub(at)}
		at, before = to, ever
		if next := r.next(u, now, all, held); next != now {
			if next > now { // a container's limit may have changed meanwhile
				most := g.os.all()
				if next == all || next > most {
					next = most
				}
				all = most
			}
			if own = next < all; own {
				g.os.set(next)
			}
			g.changes.Add(1)
			g.logger.Debug("processors", "before", now, "now", g.os.count(), "used", u.cores())
		}
		if u.cores() < idle {
			tick.Reset(rest)
		} else {
			tick.Reset(window)
		}
	}
	g.logger.Warn("how much processor time is used is not known any more: all processors are kept", "error", err)
	g.os.all()
}
