package api

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// poll waits for messages of a queue beside, and returns where the answer will be.
func (h *harness) poll(ctx context.Context, queue, body string) chan answer {
	out := make(chan answer, 1)
	go func() {
		w := httptest.NewRecorder()
		h.h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/queues/"+queue+"/lease", strings.NewReader(body)))
		out <- answer{w, h.T}
	}()
	synctest.Wait()
	return out
}

// proposed returns how many groups fn proposes, and the commands.
func (h *harness) proposed(fn func()) (groups int, kinds string) {
	h.mu.Lock()
	g, n := h.groups, len(h.commands)
	h.mu.Unlock()
	fn()
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, c := range h.commands[n:] {
		all = append(all, commandKind(c))
	}
	return h.groups - g, strings.Join(all, " ")
}

// TestLeaseGoesAlong: what is produced goes to who waits for it in one entry, to as
// many as there is work for, and to nobody in vain that this node can tell.
func TestLeaseGoesAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		for _, q := range []string{"q", "other"} {
			h.do("PUT", "/v1/queues/"+q, "").want(201)
		}
		h.do("PUT", "/v1/queues/fifo", `{"ordering":"fifo"}`).want(201)
		produce := func(queue, messages string) func() {
			return func() { h.do("POST", "/v1/queues/"+queue+"/messages", `{"messages":[`+messages+`]}`).want(201) }
		}
		want := func(what string, groups int, kinds string, fn func()) {
			t.Helper()
			if g, k := h.proposed(fn); g != groups || k != kinds {
				t.Errorf("%s: %d groups: %s", what, g, k)
			}
		}
		got := func(a chan answer, n int) {
			t.Helper()
			synctest.Wait()
			select {
			case a := <-a:
				if m, _ := a.want(200).get("messages").([]any); len(m) != n {
					t.Errorf("got %s, not %d messages", a.Body, n)
				}
			default:
				assert.True(t, n < 0, "still waits for %d messages", n)
			}
		}

		a := h.poll(t.Context(), "q", `{"wait_ms":60000}`)
		b := h.poll(t.Context(), "q", `{"wait_ms":60000,"max_messages":2}`)
		want("one message", 1, "produce lease", produce("q", `{"payload":1}`))
		got(a, 1)
		got(b, -1)
		c := h.poll(t.Context(), "q", `{"wait_ms":60000,"max_messages":2}`)
		d := h.poll(t.Context(), "q", `{"wait_ms":60000}`)
		want("three", 1, "produce lease lease", produce("q", `{"payload":1},{"payload":2},{"payload":3}`))
		got(b, 2)
		got(c, 1)

		want("of another queue", 1, "produce", produce("other", `{"payload":1}`))
		want("later", 1, "produce", produce("q", `{"payload":1,"delay_ms":100000}`))
		got(d, -1)
		k := h.poll(t.Context(), "q", `{"wait_ms":60000,"kinds":["x","y"]}`)
		want("of no kind", 1, "produce lease", produce("q", `{"payload":1}`))
		got(d, 1)
		got(k, -1)
		want("of a kind", 1, "produce lease", produce("q", `{"payload":1,"kind":"y"},{"payload":1,"kind":"z"}`))
		got(k, 1)

		// In a transaction, too. z is still there for anybody.
		got(h.poll(t.Context(), "q", `{}`), 1)
		a = h.poll(t.Context(), "q", `{"wait_ms":60000}`)
		want("transaction", 1, "transaction lease", func() {
			h.do("POST", "/v1/transactions", `{"produce":[{"queue":"q","messages":[{"payload":1}]}]}`).want(200)
		})
		got(a, 1)

		// A full max_in_flight takes no lease along; the waiter gets the next one when a lease ends.
		h.do("PUT", "/v1/queues/two", `{"delivery":{"max_in_flight":2}}`).want(201)
		produce("two", `{"payload":1},{"payload":2},{"payload":3}`)()
		lease := h.do("POST", "/v1/queues/two/lease", `{}`).want(200).get("messages.0.lease_id")
		a = h.poll(t.Context(), "two", `{"wait_ms":60000}`)
		want("at the limit", 1, "produce", produce("two", `{"payload":4}`))
		got(a, -1)
		h.do("POST", fmt.Sprintf("/v1/leases/%s/ack", lease), "").want(200)
		got(a, 1)

		// Nor does a rate limit that is used up: the waiter gets the next one with the next token.
		h.do("PUT", "/v1/queues/slow", `{"delivery":{"rate_limit":{"count":1,"per_ms":30000}}}`).want(201)
		produce("slow", `{"payload":1},{"payload":2}`)()
		got(h.poll(t.Context(), "slow", `{}`), 1)
		a = h.poll(t.Context(), "slow", `{"wait_ms":60000}`)
		want("without a token", 1, "produce", produce("slow", `{"payload":3}`))
		time.Sleep(29 * time.Second)
		produce("other", `{"payload":1}`)()
		got(a, -1)
		time.Sleep(time.Second)
		produce("other", `{"payload":1}`)() // as the leader proposes what is due
		got(a, 1)

		// A lane gives one at a time.
		a = h.poll(t.Context(), "fifo", `{"wait_ms":60000}`)
		b = h.poll(t.Context(), "fifo", `{"wait_ms":60000}`)
		want("the first", 1, "produce lease", produce("fifo", `{"payload":1},{"payload":2}`))
		got(a, 1)
		got(b, -1)
		want("held", 1, "produce", produce("fifo", `{"payload":1}`))
		leased, _ := h.Messages("fifo", event.MessageFilter{State: event.StateLeased, Limit: 1})
		h.do("POST", "/v1/leases/"+leased[0].Lease.String()+"/ack", "").want(200)
		got(b, 1)

		// Nobody is leased to who has hung up, and what was leased to one that does
		// so meanwhile is given back.
		ctx, cancel := context.WithCancel(t.Context())
		gone := h.poll(ctx, "q", `{"wait_ms":60000}`)
		cancel()
		<-gone
		want("hung up", 1, "produce", produce("q", `{"payload":1}`))
		got(h.poll(t.Context(), "q", `{}`), 1)
		ctx, cancel = context.WithCancel(t.Context())
		gone = h.poll(ctx, "q", `{"wait_ms":60000}`)
		h.fake.before = func() { h.fake.before = nil; cancel() }
		want("hangs up", 2, "produce lease settle", produce("q", `{"payload":1}`))
		<-gone
		if a := <-h.poll(t.Context(), "q", `{"max_messages":1}`); a.get("messages.0.attempt") != 1.0 {
			t.Errorf("%s", a.Body)
		}

		// A produce that is refused brings nothing: its waiter keeps its place.
		a = h.poll(t.Context(), "q", `{"wait_ms":60000}`)
		b = h.poll(t.Context(), "q", `{"wait_ms":60000}`)
		h.mu.Lock()
		h.fake.err = &event.Problem{Code: "overloaded", Index: -1}
		h.mu.Unlock()
		h.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1}]}`).want(429)
		synctest.Wait()
		h.mu.Lock()
		h.fake.err = nil
		h.mu.Unlock()
		produce("q", `{"payload":1}`)()
		got(a, 1)
		got(b, -1)
		h.s.Drain()
		synctest.Wait()
	})
}

// TestNothingIsLostAlong: whatever comes, goes and races, a message that is there
// does not lie while somebody waits for it, who has hung up keeps nothing, and no
// claim outlives its call.
func TestNothingIsLostAlong(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var wrong []string
		var mu sync.Mutex
		fail := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
		synctest.Test(t, func(t *testing.T) {
			s := newShop()
			var calls sync.WaitGroup
			var hangUps []context.CancelFunc
			in, out := 0, 0 // messages: came, and taken and kept
			open := map[string]int{}
			ms := func(name string, most int) time.Duration {
				return time.Duration(rapid.IntRange(0, most).Draw(rt, name)) * time.Millisecond
			}
			key := func(kind string) string { return strings.TrimSuffix("q/"+kind, "/") }
			// A queue without kinds, and two with one: the shop counts them apart.
			kinds := []string{"", "x", "y"}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				kind := rapid.SampledFrom(kinds).Draw(rt, "kind")
				n := rapid.IntRange(1, 3).Draw(rt, "n")
				switch rapid.IntRange(0, 6).Draw(rt, "what") {
				case 0, 1: // somebody comes
					ctx, cancel := context.WithCancel(t.Context())
					hangUps = append(hangUps, cancel)
					wait, trip, claims := ms("wait", 300), ms("trip", 5), kinds[:0:0]
					if kind != "" {
						claims = []string{kind}
					}
					w := s.add([]string{"q"}, claims, n)
					w.command = func() *event.Command {
						if ctx.Err() != nil {
							return nil
						}
						return &event.Command{Lease: &event.Lease{Max: n, Kinds: claims}}
					}
					s.mu.Lock()
					open[key(kind)]++
					s.mu.Unlock()
					calls.Go(func() {
						got := 0
						_ = s.lease(ctx, w, wait, func(sent pendingWrite) (int, error) {
							if ctx.Err() != nil && sent == nil {
								fail("leased for one who has hung up")
							}
							if sent != nil {
								res, err := sent(ctx)
								got = len(res.Leased)
								return got, err
							}
							time.Sleep(trip)
							var err error
							got, err = s.take("w", key(kind), n, nil)(nil)
							return got, err
						})
						s.mu.Lock()
						open[key(kind)]--
						back := ctx.Err() != nil
						if !back {
							out += got
						}
						s.mu.Unlock()
						if back && got > 0 {
							s.put(key(kind), got)
						}
					})
				case 2: // somebody goes
					if len(hangUps) > 0 {
						hangUps[rapid.IntRange(0, len(hangUps)-1).Draw(rt, "who")]()
					}
				case 3: // something is produced elsewhere
					s.mu.Lock()
					in += n
					s.mu.Unlock()
					s.put(key(kind), n)
				case 4, 5: // something is produced here, and taken or not
					taken, trip := rapid.Bool().Draw(rt, "taken"), ms("trip", 5)
					to := s.waiters.take("q", func() []string { return slices.Repeat([]string{kind}, n) })
					decided := make(chan struct{})
					leased, asked := make([]int, len(to)), make([]bool, len(to))
					for i, w := range to {
						if len(w.kinds) > 0 && w.kinds[0] != kind {
							fail("a lease of kind %s went along with %s", w.kinds[0], kind)
						}
						var pending pendingWrite
						if asked[i] = w.command() != nil; asked[i] {
							pending = func(context.Context) (event.Result, error) {
								<-decided
								return event.Result{Leased: make([]event.LeasedMessage, leased[i])}, nil
							}
						}
						w.wake <- pending
					}
					calls.Go(func() {
						time.Sleep(trip)
						if taken {
							s.mu.Lock()
							in += n
							s.stock[key(kind)] += n
							for i, w := range to {
								// A waiter that asks for no kind is given of the queue's own.
								k := "q"
								if len(w.kinds) > 0 {
									k = key(w.kinds[0])
								}
								if asked[i] {
									leased[i] = min(w.most, s.stock[k])
									s.stock[k] -= leased[i]
								}
							}
							s.mu.Unlock()
							s.applied([]string{"q"})
						}
						close(decided)
					})
				case 6:
					time.Sleep(ms("sleep", 40))
				}
				if rapid.Bool().Draw(rt, "settle") {
					synctest.Wait()
				}
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			s.mu.Lock()
			for k, n := range open {
				if n > 0 && s.stock[k] > 0 {
					fail("%d of %s lie, and %d wait", s.stock[k], k, n)
				}
			}
			s.mu.Unlock()
			for _, hangUp := range hangUps {
				hangUp()
			}
			calls.Wait()
			left := 0
			for _, n := range s.stock {
				left += n
			}
			if in != out+left {
				fail("%d came, %d were taken, %d are left", in, out, left)
			}
			if len(s.lines) != 0 || s.parked.Load() != 0 {
				fail("left: %v, %d", s.lines, s.parked.Load())
			}
		})
		require.Equal(rt, len(wrong), 0, "%v", strings.Join(wrong, "\n"))
	})
}
