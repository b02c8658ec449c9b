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
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// shared is a server of produce and settle calls that tells what requests it
// got, holds them until it is let go, and refuses what refuse says.
type shared struct {
	srv    *httptest.Server
	got    chan []string // each request's payloads, or leases
	hold   chan struct{} // a value lets one request go on; nil: nothing is held
	refuse func(all []string) *wire.Problem
	mu     sync.Mutex
	keys   []string
}

func newShared(t *testing.T, hold bool, refuse func(all []string) *wire.Problem) (*shared, *Client) {
	t.Helper()
	s := &shared{got: make(chan []string, 1000), refuse: refuse}
	if hold {
		s.hold = make(chan struct{})
	}
	s.srv = httptest.NewServer(s)
	t.Cleanup(s.srv.Close)
	c, err := New(s.srv.URL)
	if err != nil {
		t.Fatal(err)
	}
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
		problemSays(http.StatusBadRequest, "invalid_json", "not_applied", false)(w)
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
		produced.Messages = append(produced.Messages, wire.Produced{ID: "id of " + one, Status: wire.Enqueued})
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

// waitingFor returns once n items wait in the lane of q.
func waitingFor(t *testing.T, c *Client, n int) {
	t.Helper()
	v, _ := c.lanes.LoadOrStore("q", c.enqueueLane("q"))
	l := v.(*enqueueLane)
	for t.Context().Err() == nil {
		l.mu.Lock()
		got := len(l.waiting)
		l.mu.Unlock()
		if got == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestEnqueueSharesRequests(t *testing.T) {
	s, c := newShared(t, true, nil)
	var wg sync.WaitGroup
	one := func(v any) {
		wg.Go(func() {
			if _, err := c.Enqueue(t.Context(), "q", JSON(v)); err != nil {
				t.Error(err)
			}
		})
	}
	// The first leaves alone and at once; while requests are under way the
	// others gather.
	one("first")
	if got := <-s.got; len(got) != 1 {
		t.Fatal(got)
	}
	const n = 300
	for i := range n {
		one(i)
	}
	requests, messages := 0, 0
	for messages < n {
		select {
		case got := <-s.got:
			requests++
			messages += len(got)
		case s.hold <- struct{}{}:
		}
	}
	close(s.hold)
	wg.Wait()
	if requests > n/4 {
		t.Errorf("%d requests for %d messages", requests, n)
	}
}

// One bad message is told to its own caller; the others are enqueued.
func TestABadMessageFailsAlone(t *testing.T) {
	bad := func(all []string, is func(string) bool, named bool, status int, code string) *wire.Problem {
		for i, v := range all {
			if !is(v) {
				continue
			}
			p := &wire.Problem{Status: status, Code: code, Detail: fmt.Sprintf("messages[%d].key must be short", i), Outcome: wire.NotApplied}
			if named {
				p.Index = &i
			}
			return p
		}
		return nil
	}
	ends := func(suffix string) func(string) bool {
		return func(v string) bool { return strings.HasSuffix(v, suffix) }
	}
	for name, refuse := range map[string]func(all []string) *wire.Problem{
		"named":     func(all []string) *wire.Problem { return bad(all, ends("7"), true, 400, "invalid_argument") },
		"not named": func(all []string) *wire.Problem { return bad(all, ends("7"), false, 400, "invalid_argument") },
		"too large": func(all []string) *wire.Problem { return bad(all, ends("7"), false, 413, "payload_too_large") },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newShared(t, false, refuse)
			for i, err := range enqueue(t, c, 100) {
				if i%10 != 7 {
					if err != nil {
						t.Errorf("message %d: %v", i, err)
					}
					continue
				}
				var e *Error
				if !errors.As(err, &e) || !errors.Is(err, ErrInvalidArgument) && !errors.Is(err, ErrPayloadTooLarge) {
					t.Fatalf("message %d: %v", i, err)
				}
				if e.Problem.Index != nil && (*e.Problem.Index != 0 || e.Problem.Detail != "messages[0].key must be short") {
					t.Errorf("message %d: %d: %s", i, *e.Problem.Index, e.Problem.Detail)
				}
			}
			keys := map[string]bool{}
			for _, k := range s.keys {
				if keys[k] {
					t.Error("a key is used for two requests")
				}
				keys[k] = true
			}
		})
	}
	// What is not about one message is told to all, after one request.
	s, c := newShared(t, true, func([]string) *wire.Problem {
		return &wire.Problem{Status: 404, Code: "queue_not_found", Outcome: wire.NotApplied}
	})
	close(s.hold)
	for _, err := range enqueue(t, c, 50) {
		if !errors.Is(err, ErrQueueNotFound) {
			t.Error(err)
		}
	}
	if len(s.keys) > 50 {
		t.Errorf("%d requests", len(s.keys))
	}
}

// What can't be written as JSON fails alone, too, whoever finds that.
func TestAPayloadThatIsNoJSONFailsAlone(t *testing.T) {
	s, c := newShared(t, true, nil)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Enqueue(t.Context(), "q", JSON("first")) })
	<-s.got
	for i, p := range []string{`1`, `{`, `2`, `]`} {
		wg.Go(func() {
			_, err := c.Enqueue(t.Context(), "q", wire.NewMessage{Payload: []byte(p)})
			if (err != nil) != (i%2 == 1) {
				t.Errorf("%s: %v", p, err)
			}
		})
	}
	close(s.hold)
	wg.Wait()
}

// As much as fits into a full queue goes in, and the rest is told so.
func TestAFullQueueTakesWhatFits(t *testing.T) {
	room := 40
	var mu sync.Mutex
	_, c := newShared(t, false, func(all []string) *wire.Problem {
		mu.Lock()
		defer mu.Unlock()
		if len(all) > room {
			return &wire.Problem{Status: 429, Code: "queue_full", Retryable: true, Outcome: wire.NotApplied}
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
	if full != 60 || room != 0 {
		t.Errorf("%d did not fit; room for %d", full, room)
	}
}

// A caller's deadline ends its own wait and nobody else's.
func TestADeadlineEndsItsOwnWait(t *testing.T) {
	s, c := newShared(t, true, nil)
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
	for range maxRequests - 1 { // fill what may be under way
		go func() { _, err := c.Enqueue(t.Context(), "q", JSON("stays")); ok <- err }()
		<-s.got
	}
	waits, leave := context.WithCancel(t.Context())
	go func() { _, err := c.Enqueue(waits, "q", JSON("waits")); gone <- err }()
	waitingFor(t, c, 1)
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("it was never sent: %v", err)
	}
	close(s.hold)
	for range maxRequests {
		if err := <-ok; err != nil {
			t.Error(err)
		}
	}
	select {
	case got := <-s.got:
		t.Errorf("%v was sent", got)
	default:
	}
	if _, err := c.Enqueue(waits, "q", JSON(1)); !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
}

// An unknown outcome is repeated under the same key, with the same messages.
func TestASharedRequestIsRepeatedUnderItsKey(t *testing.T) {
	c, f, _ := setup(t, hangup, problemSays(503, "no_leader", "unknown", true), says(201, produced))
	if out, err := c.Enqueue(t.Context(), "q", JSON(1)); err != nil || out.ID != "01A" {
		t.Fatal(err)
	}
	a := f.asked()
	for i := range a {
		if a[i].body != a[0].body || a[i].header.Get("Idempotency-Key") != a[0].header.Get("Idempotency-Key") {
			t.Errorf("request %d differs", i)
		}
	}
	if len(a) != 3 {
		t.Errorf("%d requests", len(a))
	}
}

// The messages of one goroutine are in its order, whatever the others do.
func TestEnqueueKeepsAGoroutinesOrder(t *testing.T) {
	s, c := newShared(t, false, nil)
	const goroutines, each = 20, 20
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				if _, err := c.Enqueue(t.Context(), "q", JSON(fmt.Sprint(g, " ", i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(s.got)
	next := map[string]int{}
	for all := range s.got {
		for _, v := range all {
			g, i, _ := strings.Cut(strings.Trim(v, `"`), " ")
			if fmt.Sprint(next[g]) != i {
				t.Fatalf("goroutine %s: %s, not %d", g, i, next[g])
			}
			next[g]++
		}
	}
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
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
}

func TestSettleSharesRequests(t *testing.T) {
	s, c := newShared(t, false, func(all []string) *wire.Problem {
		if i := slices.Index(all, "bad"); i >= 0 {
			return &wire.Problem{Status: 400, Code: "invalid_argument", Index: &i, Outcome: wire.NotApplied}
		}
		return nil
	})
	var wg sync.WaitGroup
	for i := range 100 {
		for _, verb := range []Verb{DoAck, DoRetry, DoDeadLetter, DoExtend, DoRelease} {
			wg.Go(func() {
				lease := fmt.Sprint(verb, " ", i)
				if i == 50 {
					lease = "bad"
				}
				r, err := c.Settle(t.Context(), "q", Settlement{LeaseID: lease, Do: verb})
				if i == 50 && !errors.Is(err, ErrInvalidArgument) || i != 50 && (err != nil || r.LeaseID != lease) {
					t.Errorf("%s: %+v, %v", lease, r, err)
				}
			})
		}
	}
	wg.Wait()
	if len(s.keys) > 400 {
		t.Errorf("%d requests", len(s.keys))
	}
	c, _, _ = setup(t, says(200, `{"results":[{"lease_id":"01A","status":"rejected","code":"lease_lost"}]}`))
	if _, err := c.Settle(t.Context(), "q", Settlement{LeaseID: "01A", Do: DoAck}); !errors.Is(err, ErrLeaseLost) {
		t.Error(err)
	}
}

// How requests are made of what comes, without a network.
func TestLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New("http://nobody")
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var sizes []int
		l := &lane[int, int]{c: c, list: "numbers", send: func(_ context.Context, items []int) ([]int, error) {
			mu.Lock()
			sizes = append(sizes, len(items))
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return items, nil
		}}
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
		if len(sizes) != 1 {
			t.Error("a lone item waits")
		}
		mu.Unlock()
		if got := settled(); !slices.Equal(got, []int{1}) {
			t.Error(got)
		}
		add(3000, 1)
		got := settled()
		if most := slices.Max(got); most > maxItems || len(got) > 30 {
			t.Errorf("%v", got)
		}
		add(40, maxBytes/4)
		if most := slices.Max(settled()); most > 4 {
			t.Errorf("%d items of a quarter of what fits", most)
		}
		add(2, 3*maxBytes)
		if got := settled(); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("large items: %v", got)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.senders != 0 || l.away != 0 || l.bytes != 0 || len(l.waiting) != 0 {
			t.Errorf("left: %d senders, %d away, %d bytes, %d waiting", l.senders, l.away, l.bytes, len(l.waiting))
		}
		c.Close()
	})
}

// atOnce counts how many are within at the same time.
type atOnce struct {
	mu        sync.Mutex
	now, most int
}

// enter counts one more until leave.
func (a *atOnce) enter() (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now++
	a.most = max(a.most, a.now)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.now--
	}
}

// anew forgets who has left.
func (a *atOnce) anew() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.most = a.now
}

// seen is how many there were at most.
func (a *atOnce) seen() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.most
}

// A crowd of 64 fills one request where what it costs the servers counts, and two
// where one node has nothing else to do.
func TestRequestsOfACrowd(t *testing.T) {
	for name, c := range map[string]struct {
		addr string
		busy bool
		want int
	}{
		"one node":                   {"http://nobody", false, 2},
		"one node, and another lane": {"http://nobody", true, 1},
		"several nodes":              {"http://nobody,http://nothing", false, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, err := New(c.addr)
			if err != nil {
				t.Fatal(err)
			}
			var requests atOnce
			send := func(_ context.Context, items []int) ([]int, error) {
				defer requests.enter()()
				time.Sleep(10 * time.Millisecond)
				return items, nil
			}
			other := &lane[int, int]{c: client, list: "others", send: func(_ context.Context, items []int) ([]int, error) {
				time.Sleep(time.Second)
				return items, nil
			}}
			if c.busy {
				go other.do(t.Context(), 1, 1)
				synctest.Wait()
			}
			l := &lane[int, int]{c: client, list: "numbers", send: send}
			for i := range 64 {
				go func() {
					for range 20 {
						if _, err := l.do(t.Context(), i, 1); err != nil {
							t.Error(err)
						}
					}
				}()
			}
			time.Sleep(55 * time.Millisecond) // who comes first leaves alone
			requests.anew()
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if most := requests.seen(); most != c.want {
				t.Errorf("%s: %d requests at a time, not %d", name, most, c.want)
			}
			if n := client.sharing.Load(); n != 0 {
				t.Errorf("%s: %d senders are left", name, n)
			}
			client.Close()
		})
	}
}

// Callers that come one behind the other's answer meet and share requests, and one
// whose request hangs does not hold up the others.
func TestAFewMeet(t *testing.T) {
	const calls, each = 100, 10 * time.Millisecond
	for name, c := range map[string]struct {
		callers int
		hangs   bool
		most    time.Duration // for all calls
	}{
		"two":                      {2, false, calls * each * 11 / 10},
		"three":                    {3, false, calls * each * 11 / 10},
		"one beside a long call":   {1, true, calls * each * 11 / 10},
		"two beside a long call":   {2, true, calls * each * 11 / 10},
		"three beside a long call": {3, true, calls*each*11/10 + strayAfter},
		"many beside a long call":  {30, true, calls*each*11/10 + strayAfter},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, err := New("http://nobody,http://nothing")
			if err != nil {
				t.Fatal(err)
			}
			requests := 0
			var mu sync.Mutex
			l := &lane[int, int]{c: client, list: "numbers", send: func(_ context.Context, items []int) ([]int, error) {
				mu.Lock()
				requests++
				mu.Unlock()
				if slices.Contains(items, 0) {
					time.Sleep(time.Minute)
				}
				time.Sleep(each)
				return items, nil
			}}
			var wg sync.WaitGroup
			if c.hangs {
				wg.Go(func() { l.do(t.Context(), 0, 1) })
				synctest.Wait()
			}
			began := time.Now()
			var took time.Duration
			for i := range c.callers {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * each / 3)
					for range calls {
						if _, err := l.do(t.Context(), i+1, 1); err != nil {
							t.Error(err)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					took = max(took, time.Since(began))
				})
			}
			wg.Wait()
			if took > c.most {
				t.Errorf("%s: %v for what takes %v", name, took, calls*each)
			}
			if requests > calls*3/2 {
				t.Errorf("%s: %d requests for %d calls of each", name, requests, calls)
			}
			client.Close()
		})
	}
}

// Who comes by himself does not wait for those whom another caller waits for.
func TestAnOutsiderDoesNotWait(t *testing.T) {
	const each = 15 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		client, err := New("http://nobody,http://nothing")
		if err != nil {
			t.Fatal(err)
		}
		l := &lane[int, int]{c: client, list: "numbers", send: func(_ context.Context, items []int) ([]int, error) {
			if slices.Contains(items, 0) {
				time.Sleep(time.Second)
			}
			time.Sleep(each)
			return items, nil
		}}
		call := func(i int) {
			if _, err := l.do(t.Context(), i, 1); err != nil {
				t.Error(err)
			}
		}
		go call(0)
		synctest.Wait()
		go func() { call(1); call(1) }() // behind its first answer it waits for the one above
		time.Sleep(each + 2*time.Millisecond)
		came := time.Now()
		call(2)
		if d := time.Since(came); d != each {
			t.Errorf("answered after %v, not %v", d, each)
		}
		client.Close()
	})
}

// What may have been committed is not sent again under another key, whatever a
// repeat is answered.
func TestWhatMayBeCommittedIsNotTakenApart(t *testing.T) {
	full := problemSays(429, "queue_full", "not_applied", true)
	bad := problemSays(400, "invalid_argument", "not_applied", false)
	two := `{"messages":[{"id":"01A","status":"enqueued"},{"id":"01B","status":"enqueued"}]}`
	for _, tt := range []struct {
		name    string
		answers answerList
		unknown bool
	}{
		{"full", answerList{hangup, full, says(201, two)}, false},
		{"bad", answerList{hangup, bad}, true},
	} {
		c, f, _ := setup(t, tt.answers...)
		l := c.enqueueLane("q")
		var tickets []*ticket[wire.NewMessage, wire.Produced]
		for i := range 2 {
			tickets = append(tickets, &ticket[wire.NewMessage, wire.Produced]{item: JSON(i), done: make(chan struct{}, 1)})
		}
		l.ask(t.Context(), tickets, nil)
		for _, ticket := range tickets {
			<-ticket.done
			if errors.Is(ticket.err, ErrOutcomeUnknown) != tt.unknown || (ticket.err != nil) != tt.unknown {
				t.Errorf("%s: %v", tt.name, ticket.err)
			}
		}
		a := f.asked()
		for i := range a {
			if a[i].header.Get("Idempotency-Key") != a[0].header.Get("Idempotency-Key") || a[i].body != a[0].body {
				t.Errorf("%s: request %d is another one", tt.name, i)
			}
		}
		if len(a) != len(tt.answers) {
			t.Errorf("%s: %d requests", tt.name, len(a))
		}
	}
}

// What was taken apart ends with the last of those who still wait.
func TestEnqueueEndsWithTheLastThatWaits(t *testing.T) {
	c, err := New("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first, again := 0, make(chan struct{})
	l := &enqueueLane{c: c, list: "messages", send: func(ctx context.Context, items []wire.NewMessage) ([]wire.Produced, error) {
		if len(items) == 2 {
			return nil, &Error{Problem: wire.Problem{Status: 400, Code: "invalid_argument", Index: &first}}
		}
		close(again)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := &batch{callers: 2, cancel: cancel}
	bad := &enqueueTicket{done: make(chan struct{}, 1), batch: b}
	good := &enqueueTicket{done: make(chan struct{}, 1), batch: b}
	ended := make(chan struct{})
	go func() {
		l.ask(ctx, []*enqueueTicket{bad, good}, nil)
		close(ended)
	}()
	if <-bad.done; !errors.Is(bad.err, ErrInvalidArgument) {
		t.Error(bad.err)
	}
	<-again
	left, leave := context.WithCancel(t.Context())
	leave()
	if err := l.leave(good, left); !errors.Is(err, ErrOutcomeUnknown) {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("a request goes on that nobody waits for")
	}
}

type enqueueTicket = ticket[wire.NewMessage, wire.Produced]
