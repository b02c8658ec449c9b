package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// shared is a server of produce and settle calls that reports the requests it got,
// holds them until it is released, and refuses what refuse returns a problem for.
type shared struct {
	srv    *httptest.Server
	got    chan []string // each request's payloads, or leases
	hold   chan struct{} // a value releases one request; nil: nothing is held
	refuse func(all []string) *wire.Problem
	mu     sync.Mutex
	keys   []string
}

func newShared(t *testing.T, hold bool, refuse func(all []string) *wire.Problem) (
	*shared, *Client) {
	t.Helper()
	return newSharedOn(t, httptest.NewServer, hold, refuse)
}

func newSharedOn(t *testing.T, serve func(http.Handler) *httptest.Server, hold bool,
	refuse func(all []string) *wire.Problem, opts ...Option) (*shared, *Client) {
	t.Helper()
	s := &shared{got: make(chan []string, 1000), refuse: refuse}
	if hold {
		s.hold = make(chan struct{})
	}
	s.srv = serve(s)
	t.Cleanup(s.srv.Close)
	c, err := New(s.srv.URL, opts...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	c.sleep = func(time.Duration) <-chan time.Time { return time.After(0) }
	return s, c
}

func (s *shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Messages []wire.NewMessage `json:"messages"`
		LeaseIDs []string          `json:"lease_ids"`
		Items    []struct {
			LeaseID string `json:"lease_id"`
		} `json:"items"`
	}
	if err := wire.Unmarshal(bodyOf(r), &in); err != nil {
		refuses(http.StatusBadRequest, "invalid_json", false)(w)
		return
	}
	all := in.LeaseIDs
	for _, m := range in.Messages {
		all = append(all, string(m.Payload))
	}
	for _, it := range in.Items {
		all = append(all, it.LeaseID)
	}
	s.mu.Lock()
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	s.mu.Unlock()
	s.got <- all
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-r.Context().Done():
			return
		}
	}
	if s.refuse != nil {
		if p := s.refuse(all); p != nil {
			b, _ := wire.Marshal(p)
			w.WriteHeader(p.Status)
			_, _ = w.Write(b)
			return
		}
	}
	var produced wire.ProduceResponse
	var settled wire.SettleResponse
	for _, one := range all {
		p := wire.Produced{ID: "id of " + one, Status: wire.Enqueued}
		produced.Messages = append(produced.Messages, p)
		settled.Results = append(settled.Results, wire.SettleResult{LeaseID: one, Status: "acked"})
	}
	v := any(produced)
	if in.Messages == nil {
		v = settled
	}
	b, _ := wire.Marshal(v)
	_, _ = w.Write(b)
}

// enqueue enqueues numbers at the same time, and returns their errors.
func enqueue(t *testing.T, c *Client, n int) []error {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			out, err := c.Enqueue(t.Context(), "q", JSON(i))
			if errs[i] = err; err == nil && out.ID != fmt.Sprint("id of ", i) {
				t.Errorf("message %d has the answer %s", i, out.ID)
			}
		})
	}
	wg.Wait()
	return errs
}

// One bad message fails for its own caller; the others are enqueued.
func TestABadMessageFailsAlone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		code   code
	}{
		{"named", 400, ErrInvalidArgument}, {"not named", 400, ErrInvalidArgument},
		{"too large", 413, ErrPayloadTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := newShared(t, false, func(all []string) *wire.Problem {
				i := slices.IndexFunc(all, func(v string) bool { return strings.HasSuffix(v, "7") })
				if i < 0 {
					return nil
				}
				p := &wire.Problem{Status: tt.status, Code: string(tt.code),
					Outcome: wire.NotApplied,
					Detail:  fmt.Sprintf("messages[%d].key must be short", i)}
				if tt.name == "named" {
					p.Index = &i
				}
				return p
			})
			for i, err := range enqueue(t, c, 100) {
				if i%10 != 7 {
					assert.NoError(t, err, "message %d", i)
					continue
				}
				var e *Error
				require.True(t, errors.As(err, &e) && errors.Is(err, tt.code),
					"message %d: %v", i, err)
				p := e.Problem
				if p.Index != nil && (*p.Index != 0 ||
					p.Detail != "messages[0].key must be short") {
					t.Errorf("message %d: %d: %s", i, *p.Index, p.Detail)
				}
			}
			keys := map[string]bool{}
			for _, k := range s.keys {
				assert.False(t, keys[k], "a key is used for two requests")
				keys[k] = true
			}
		})
	}
	// A refusal that is not due to one message fails all, after one request.
	s, c := newShared(t, true, func([]string) *wire.Problem {
		return &wire.Problem{Status: 404, Code: "queue_not_found", Outcome: wire.NotApplied}
	})
	close(s.hold)
	for _, err := range enqueue(t, c, 50) {
		assert.ErrorIs(t, err, ErrQueueNotFound)
	}
	assert.True(t, len(s.keys) <= 50, "%d requests", len(s.keys))
}

// What can't be written as JSON fails alone, too, on either side.
func TestAPayloadThatIsNoJSONFailsAlone(t *testing.T) {
	s, c := newShared(t, true, nil)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Enqueue(t.Context(), "q", JSON("first")) })
	<-s.got
	for i, p := range []string{`1`, `{`, `2`, `]`} {
		wg.Go(func() {
			_, err := c.Enqueue(t.Context(), "q", wire.NewMessage{Payload: []byte(p)})
			assert.Equal(t, err != nil, i%2 == 1, "%s: %v", p, err)
		})
	}
	close(s.hold)
	wg.Wait()
}

// As many as fit into a full queue are enqueued, and the rest fail.
func TestAFullQueueTakesWhatFits(t *testing.T) {
	room := 40
	var mu sync.Mutex
	_, c := newShared(t, false, func(all []string) *wire.Problem {
		mu.Lock()
		defer mu.Unlock()
		if len(all) > room {
			return &wire.Problem{Status: 429, Code: "queue_full", Retryable: true,
				Outcome: wire.NotApplied}
		}
		room -= len(all)
		return nil
	})
	full := 0
	for _, err := range enqueue(t, c, 100) {
		if errors.Is(err, ErrQueueFull) {
			full++
		} else if err != nil {
			t.Error(err)
		}
	}
	assert.True(t, full == 60 && room == 0, "%d did not fit; room for %d", full, room)
}

// A caller's deadline ends its own wait and nobody else's.
func TestADeadlineEndsItsOwnWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve, reach := inMemory(t)
		s, c := newSharedOn(t, serve, true, nil, reach)
		under, leave := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() { _, err := c.Enqueue(under, "q", JSON("under way")); gone <- err }()
		<-s.got
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrOutcomeUnknown) {
			t.Error(err)
		}
		// Its request had no other caller, so it has ended.
		ok := make(chan error)
		go func() { _, err := c.Enqueue(t.Context(), "q", JSON("stays")); ok <- err }()
		<-s.got
		waits, leave := context.WithCancel(t.Context())
		go func() { _, err := c.Enqueue(waits, "q", JSON("waits")); gone <- err }()
		synctest.Wait() // until it waits
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("it was never sent: %v", err)
		}
		close(s.hold)
		require.NoError(t, <-ok)
		select {
		case got := <-s.got:
			t.Errorf("%v was sent", got)
		default:
		}
		_, err := c.Enqueue(waits, "q", JSON(1))
		assert.True(t, errors.Is(err, context.Canceled) && !errors.Is(err, ErrOutcomeUnknown),
			"%v", err)
	})
}

// Close ends what is under way, and leaves nothing running.
func TestClose(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s, c := newShared(t, true, nil)
	gone := make(chan error)
	go func() { _, err := c.Enqueue(t.Context(), "q", JSON(1)); gone <- err }()
	<-s.got
	c.Close()
	if err := <-gone; !errors.Is(err, ErrClosed) || !errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	if _, err := c.Enqueue(t.Context(), "q", JSON(1)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	s.srv.Close()
	goleak.VerifyNone(t, before)
}

func TestSettleSharesRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serve, reach := inMemory(t)
		s, c := newSharedOn(t, serve, true, func(all []string) *wire.Problem {
			if i := slices.Index(all, "bad"); i >= 0 {
				return &wire.Problem{Status: 400, Code: "invalid_argument", Index: &i,
					Outcome: wire.NotApplied}
			}
			return nil
		}, reach)
		var wg sync.WaitGroup
		for i := range 100 {
			for _, verb := range []Verb{DoAck, DoRetry, DoDeadLetter, DoExtend, DoRelease} {
				wg.Go(func() {
					lease := fmt.Sprint(verb, " ", i)
					if i == 50 {
						lease = "bad"
					}
					r, err := c.Settle(t.Context(), "q", Settlement{LeaseID: lease, Do: verb})
					if i == 50 && !errors.Is(err, ErrInvalidArgument) ||
						i != 50 && (err != nil || r.LeaseID != lease) {
						t.Errorf("%s: %+v, %v", lease, r, err)
					}
				})
			}
		}
		synctest.Wait() // some are under way, the others wait
		close(s.hold)
		wg.Wait()
		assert.True(t, len(s.keys) <= 100, "%d requests", len(s.keys))
	})
	c, _, _ := setup(t, says(200,
		`{"results":[{"lease_id":"01A","status":"rejected","code":"lease_lost"}]}`))
	_, err := c.Settle(t.Context(), "q", Settlement{LeaseID: "01A", Do: DoAck})
	assert.ErrorIs(t, err, ErrLeaseLost)
}

// How requests are made of what comes, without a network.
func TestLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New("http://nobody")
		require.NoError(t, err)
		var mu sync.Mutex
		var sizes []int
		send := func(_ context.Context, items []int) ([]int, error) {
			mu.Lock()
			sizes = append(sizes, len(items))
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return items, nil
		}
		l := &lane[int, int]{c: c, list: "numbers", send: send}
		add := func(n, size int) {
			for i := range n {
				go func() {
					if out, err := l.do(t.Context(), i, size); err != nil || out != i {
						t.Errorf("%d: %d, %v", i, out, err)
					}
				}()
			}
		}
		settled := func() []int {
			time.Sleep(time.Second)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			defer func() { sizes = nil }()
			return sizes
		}
		add(1, 1)
		synctest.Wait()
		mu.Lock()
		assert.Equal(t, len(sizes), 1, "a lone item waits")
		mu.Unlock()
		assert.EqualSlices(t, settled(), []int{1})
		add(1500, 1)
		got := settled()
		if most := slices.Max(got); most > maxItems || len(got) > 30 {
			t.Errorf("%v", got)
		}
		add(40, maxBytes/4)
		if most := slices.Max(settled()); most > 4 {
			t.Errorf("%d items of a quarter of what fits", most)
		}
		add(2, 3*maxBytes)
		assert.EqualSlices(t, settled(), []int{1, 1}, "large items")
		l.mu.Lock()
		defer l.mu.Unlock()
		assert.True(t, l.senders == 0 && l.bytes == 0 && len(l.waiting) == 0,
			"left: %d senders, %d bytes, %d waiting", l.senders, l.bytes, len(l.waiting))
		c.Close()
	})
}

// A request that takes long does not hold up the others, nor does a lone caller wait
// for anything else.
func TestASlowRequestDoesNotHoldUpOthers(t *testing.T) {
	for _, callers := range []int{1, 3, 30} {
		synctest.Test(t, func(t *testing.T) {
			const calls, each = 100, 10 * time.Millisecond
			client, err := New("http://nobody")
			require.NoError(t, err)
			var requests atomic.Int32
			send := func(_ context.Context, items []int) ([]int, error) {
				requests.Add(1)
				if slices.Contains(items, 0) {
					time.Sleep(time.Minute)
				}
				time.Sleep(each)
				return items, nil
			}
			l := &lane[int, int]{c: client, list: "numbers", send: send}
			go l.do(t.Context(), 0, 1)
			synctest.Wait()
			began := time.Now()
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for range calls {
						if _, err := l.do(t.Context(), i+1, 1); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			// Callers may miss the request that leaves first: then they take turns.
			if took := time.Since(began); took > 2*calls*each+slowAfter {
				t.Errorf("%d callers: %v for what takes %v", callers, took, calls*each)
			}
			if n := requests.Load(); n > 2*calls+3 {
				t.Errorf("%d callers: %d requests for %d calls of each", callers, n, calls)
			}
			client.Close()
		})
	}
}

// What may have been committed is not sent again under another key, whatever a repeat is answered.
func TestWhatMayBeCommittedIsNotTakenApart(t *testing.T) {
	full := refuses(429, "queue_full", true)
	bad := refuses(400, "invalid_argument", false)
	two := `{"messages":[{"id":"01A","status":"enqueued"},{"id":"01B","status":"enqueued"}]}`
	for _, tt := range []struct {
		name    string
		answers []answer
		unknown bool
	}{
		{"full", all(hangup, full, says(201, two)), false},
		{"bad", all(hangup, bad), true},
	} {
		c, f, _ := setup(t, tt.answers...)
		l := c.enqueueLane("q")
		var tickets []*ticket[wire.NewMessage, wire.Produced]
		var errs []error
		for i := range 2 {
			tickets = append(tickets, &ticket[wire.NewMessage, wire.Produced]{item: JSON(i),
				then: func(_ wire.Produced, err error) { errs = append(errs, err) }})
		}
		_ = l.ask(tickets, 0)
		for _, err := range errs {
			if errors.Is(err, ErrOutcomeUnknown) != tt.unknown || (err != nil) != tt.unknown {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		assert.Equal(t, len(errs), 2, "answers")
		a := f.asked()
		for i := range a {
			if a[i].header.Get("Idempotency-Key") != a[0].header.Get("Idempotency-Key") ||
				a[i].body != a[0].body {
				t.Errorf("%s: request %d is another one", tt.name, i)
			}
		}
		assert.Equal(t, len(a), len(tt.answers), "%s: requests", tt.name)
	}
}
