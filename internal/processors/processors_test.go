package processors

import (
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// machine is a system whose process uses as much as it is told, of what it has.
type machine struct {
	mu     sync.Mutex
	cores  float64 // wanted
	n      int
	limit  int // of the container
	own    bool
	ever   time.Duration
	at     time.Time
	looked int
	broken error
}

func newMachine(limit int) *machine {
	return &machine{n: limit, limit: limit, at: time.Now()}
}

func (m *machine) system() system { return system{m.used, m.count, m.set, m.all} }

// goOn counts what was used until now. The lock is held.
func (m *machine) goOn() {
	now := time.Now()
	m.ever += time.Duration(min(m.cores, float64(m.n)) * float64(now.Sub(m.at)))
	m.at = now
}

func (m *machine) used() (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looked++
	m.goOn()
	return m.ever, m.broken
}

func (m *machine) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n
}

func (m *machine) set(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goOn()
	m.n, m.own = n, true
}

func (m *machine) all() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goOn()
	m.n, m.own = m.limit, false
	return m.n
}

// container changes the limit, which the runtime follows where nobody has set
// another number.
func (m *machine) container(limit int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goOn()
	if m.limit = limit; !m.own {
		m.n = limit
	}
}

func (m *machine) want(cores float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goOn()
	m.cores = cores
}

func (m *machine) looks() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.looked
}

func TestGovernor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(8)
		g := start(m.system(), slog.New(slog.DiscardHandler))
		defer g.Stop()
		is := func(what string, n int, changes uint64) {
			t.Helper()
			synctest.Wait()
			if got := m.count(); got != n || g.Changes() != changes {
				t.Fatalf("%s: %d processors after %d changes, not %d after %d", what, got, g.Changes(), n, changes)
			}
		}
		time.Sleep(settle / 2)
		is("it begins with all", 8, 0)
		time.Sleep(settle)
		is("at rest", 1, 1)

		m.want(20)
		time.Sleep(rest + window)
		is("a burst out of the rest", 8, 2)
		m.want(3)
		time.Sleep(settle + 2*window)
		is("less", 5, 3)
		m.want(0)
		time.Sleep(2*settle + rest)
		is("at rest again", 1, 4)

		release := g.Hold()
		is("held, and nobody has waited", 8, 5)
		second := g.Hold()
		release()
		time.Sleep(3 * settle)
		is("held by another", 8, 5)
		second()
		time.Sleep(settle + 2*rest)
		is("held by nobody", 1, 6)

		m.container(4)
		m.want(20)
		time.Sleep(2 * rest)
		is("of a container that was made smaller", 4, 7)
		m.container(16)
		time.Sleep(settle)
		is("of one that was made larger, by the runtime itself", 16, 7)
		m.want(10)
		time.Sleep(3 * settle)
		is("which is seen", 16, 7)
		m.want(1)
		time.Sleep(3 * settle)
		is("and left", 2, 8)
		m.container(3)
		m.want(1.7)
		time.Sleep(3 * window)
		is("twice as many are more than there are now", 3, 9)
	})
}

// An idle server is not kept awake to find out that it is.
func TestAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		g := start(m.system(), slog.New(slog.DiscardHandler))
		time.Sleep(time.Second)
		before := m.looks()
		time.Sleep(time.Minute)
		if got, most := m.looks()-before, int(time.Minute/rest); got > most {
			t.Errorf("looked %d times in a minute, not %d", got, most)
		}
		g.Stop()
		if m.count() != 2 {
			t.Errorf("%d when it has ended", m.count())
		}
	})
}

// Who can't know what is used keeps all.
func TestNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		g := start(m.system(), slog.New(slog.DiscardHandler))
		time.Sleep(2 * settle)
		m.mu.Lock()
		if m.n != 1 {
			t.Errorf("%d at rest", m.n)
		}
		m.broken = errors.New("not permitted")
		m.mu.Unlock()
		time.Sleep(settle)
		if m.count() != 2 {
			t.Errorf("%d where nothing is known", m.count())
		}
		g.Hold()() // nobody listens
		g.Stop()
	})
}

// The user's word counts, and nil governs nothing.
func TestStart(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	for value, governs := range map[string]bool{"": before > 1, "2": false, "1": false, "many": before > 1, "0": before > 1} {
		g := Start(func(name string) string {
			if name == "GOMAXPROCS" {
				return value
			}
			return ""
		}, slog.New(slog.DiscardHandler))
		if (g != nil) != governs {
			t.Errorf("GOMAXPROCS=%q: governed %t", value, g != nil)
		}
		g.Hold()()
		g.Stop()
		if got := runtime.GOMAXPROCS(0); got != before {
			t.Errorf("GOMAXPROCS=%q: %d processors in the end, not %d", value, got, before)
		}
	}
	if g := (*Governor)(nil); g.Changes() != 0 {
		t.Error("nobody has changed anything")
	}
}

// What is used is told in time that passes.
func TestUsed(t *testing.T) {
	before, err := used()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	for began := time.Now(); err == nil; {
		after, e := used()
		if err = e; after > before {
			if wall := time.Since(began); after-before > time.Duration(runtime.NumCPU())*(wall+time.Second) {
				t.Errorf("%s in %s", after-before, wall)
			}
			return
		}
	}
	t.Error(err)
}
