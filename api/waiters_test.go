package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// shop is waiters over numbers that represent queues' messages.
type shop struct {
	*waiters
	mu    sync.Mutex
	stock map[string]int
	took  []string // who got how many, in order
	asked int      // leases proposed
}

func newShop() *shop {
	s := &shop{stock: map[string]int{}}
	s.waiters = &waiters{lines: map[string][]*line{}}
	s.fresh = func(context.Context) error { return nil }
	s.leasable = func(q string, kinds []string) int {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(kinds) > 0 {
			return s.stock[q+"/"+kinds[0]]
		}
		return s.stock[q]
	}
	return s
}

func (s *shop) put(q string, n int) {
	s.mu.Lock()
	s.stock[q] += n
	s.mu.Unlock()
	s.applied([]string{strings.Split(q, "/")[0]})
}

// take is a lease of up to most from a queue; before is called first.
func (s *shop) take(name, key string, most int, before func()) func(pendingWrite) (int, error) {
	return func(pendingWrite) (int, error) {
		if before != nil {
			before()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked++
		n := min(most, s.stock[key])
		s.stock[key] -= n
		if n > 0 {
			s.took = append(s.took, fmt.Sprintf("%s:%d", name, n))
		}
		return n, nil
	}
}

func (s *shop) lease(ctx context.Context, w *waiter, d time.Duration, take func(pendingWrite) (int, error)) error {
	w.lease = take
	return w.poll(ctx, d)
}

// wait starts a waiter for a queue and lets it come to rest.
func (s *shop) wait(name, q string, most int, d time.Duration, before func()) (done chan error, cancel func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done = make(chan error, 1)
	queue, kind, _ := strings.Cut(q, "/")
	var kinds []string
	if kind != "" {
		kinds = []string{kind}
	}
	go func() {
		done <- s.lease(ctx, s.add([]string{queue}, kinds, most), d, s.take(name, q, most, before))
	}()
	synctest.Wait()
	return done, cancel
}

func (s *shop) got() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.took, " ")
}

func TestWaitersAreServedInOrderAndNoHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop()
		for i := range 100 {
			s.wait(fmt.Sprint(i), "q", 1, time.Hour, nil)
		}
		s.put("q", 3)
		synctest.Wait()
		slices.Sort(s.took) // they lease at the same time
		assert.Equal(t, s.got(), "0:1 1:1 2:1")
		assert.Equal(t, s.asked, 3, "leases proposed for 3 messages")
		for range 97 {
			s.put("q", 1)
			synctest.Wait()
		}
		assert.True(t, len(s.took) == 100 && s.took[99] == "99:1" && s.asked == 100,
			"%d asked, took %s", s.asked, s.got())
		assert.True(t, len(s.lines) == 0 && s.parked.Load() == 0, "left: %v", s.lines)
	})
}

func TestKindsAndSeveralQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop()
		gate := make(chan struct{})
		s.put("q", 5)
		busy, _ := s.wait("busy", "q", 5, time.Hour, func() { <-gate }) // claims all
		rare, _ := s.wait("rare", "q/x", 1, time.Hour, nil)
		s.put("q/x", 1)
		if <-rare; s.got() != "rare:1" { // not starved by claims for other kinds
			t.Errorf("took %s", s.got())
		}
		close(gate)
		<-busy

		done := make(chan error, 1)
		w := s.add([]string{"a", "b"}, nil, 1)
		go func() { done <- s.lease(context.Background(), w, time.Hour, s.take("two", "b", 1, nil)) }()
		synctest.Wait()
		s.put("b", 1)
		if <-done; !strings.HasSuffix(s.got(), "two:1") || len(s.lines) != 0 {
			t.Errorf("took %s, left %v", s.got(), s.lines)
		}
	})
}

// TestEmptyLeasesAreNotHot: where leasable promises what leases do not find, a
// waiter pauses between its tries.
func TestEmptyLeasesAreNotHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop()
		s.put("q", 1)
		done := make(chan error, 1)
		asked := 0
		go func() {
			done <- s.lease(context.Background(), s.add([]string{"q"}, nil, 1), 30*time.Second, func(pendingWrite) (int, error) { asked++; return 0, nil })
		}()
		if err := <-done; err != nil || asked > int(30*time.Second/maxPause)+20 {
			t.Errorf("%v, %d asked", err, asked)
		}
	})
}

// TestLosersSeeNewWork: a waiter that lost any number of races to another node's
// gets a message that nobody else wants within the 100 ms that are promised.
func TestLosersSeeNewWork(t *testing.T) {
	const trip = 5 * time.Millisecond // to the leader and back
	for name, late := range map[string]time.Duration{
		"while it pauses":        500 * time.Millisecond,
		"while it asks":          trip / 2,
		"just after it was told": trip + time.Millisecond,
	} {
		for _, races := range []int{1, 2, 7, 12, 20} {
			synctest.Test(t, func(t *testing.T) {
				s := newShop()
				var asked atomic.Int64
				var mine atomic.Bool
				got := make(chan time.Time, 1)
				go func() {
					_ = s.lease(t.Context(), s.add([]string{"p", "q"}, nil, 1), time.Minute, func(pendingWrite) (int, error) {
						asked.Add(1)
						won := mine.Load()
						time.Sleep(trip)
						if won {
							return 1, nil
						}
						if !mine.Load() {
							s.mu.Lock()
							s.stock["q"] = 0 // another node's was faster
							s.mu.Unlock()
						}
						return 0, nil
					})
					got <- time.Now()
				}()
				synctest.Wait()
				for i := range races {
					s.put("q", 1)
					synctest.Wait()
					if i < races-1 {
						time.Sleep(1500 * time.Millisecond)
					}
				}
				time.Sleep(late)
				began := time.Now()
				mine.Store(true)
				s.put("q", 1)
				if took := (<-got).Sub(began); took > 100*time.Millisecond {
					t.Errorf("%s, after %d lost races: leased after %v, %d asked", name, races, took, asked.Load())
				}
				synctest.Wait()
				assert.True(t, len(s.lines) == 0 && s.parked.Load() == 0,
					"left: %v, %d", s.lines, s.parked.Load())
			})
		}
	}
}

// TestLongPollThroughHTTP: a waiting lease gets what is produced, an empty list
// at its end or when the server drains, and nothing when it has hung up.
func TestLongPollThroughHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.do("PUT", "/v1/queues/q", "").want(201)
		lease := func(ctx context.Context, body string) chan answer { return h.poll(ctx, "q", body) }
		begun := time.Now()
		if a := <-lease(t.Context(), `{"wait_ms":1500}`); a.Body.String() != `{"messages":[]}` || time.Since(begun) != 1500*time.Millisecond {
			t.Errorf("%s after %s", a.Body, time.Since(begun))
		}
		before := h.proposals()
		waiting := lease(t.Context(), `{"wait_ms":60000}`)
		assert.Equal(t, h.proposals(), before, "a lease was proposed for nothing")
		h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1}]}`).want(201)
		if a := <-waiting; a.str("messages.0.id") == "" {
			t.Errorf("%s", a.Body)
		}

		waiting = lease(t.Context(), `{"wait_ms":60000}`)
		h.s.Drain()
		if a := <-waiting; a.Code != 200 || a.Body.String() != `{"messages":[]}` {
			t.Errorf("%d %s", a.Code, a.Body)
		}
		if a := h.do("POST", "/v1/queues/q/lease", `{}`).want(503); a.str("code") != "shutting_down" || a.Header().Get("Retry-After") != "2" {
			t.Errorf("%s", a.Body)
		}
		h.do("GET", "/readyz", "").want(503)
		h.do("GET", "/healthz", "").want(200)
		h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1}]}`).want(201)
		h.s.Drain()
	})
}
