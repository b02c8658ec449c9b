package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// postOffice is a server without a network, in simulated time: a RoundTripper that
// leases what is put into it and notes what is settled.
type postOffice struct {
	t     *testing.T
	lease time.Duration

	mu      sync.Mutex
	n       int
	ready   []string      // payloads
	more    chan struct{} // something was put in
	until   map[string]time.Time
	payload map[string]string // by lease
	log     []string          // what was settled: "ack 3"
	settles int               // requests
	asked   []int64           // max_messages of each lease call
	lane    bool              // what one call leases is a batch
	trip    time.Duration     // of an answer with leases
	refuse  func(verb string) *http.Response
}

func newPost(t *testing.T, payloads ...string) *postOffice {
	return &postOffice{t: t, lease: 30 * time.Second, ready: payloads,
		more: make(chan struct{}, 1000), until: map[string]time.Time{},
		payload: map[string]string{}}
}

func (p *postOffice) put(payloads ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, payloads...)
	p.more <- struct{}{}
}

// expire ends all leases, as if they had run out.
func (p *postOffice) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.until {
		p.until[id] = time.Time{}
	}
}

func (p *postOffice) settled() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

func (p *postOffice) RoundTrip(r *http.Request) (*http.Response, error) {
	verb := path.Base(r.URL.Path)
	in := struct {
		wire.LeaseRequest
		LeaseIDs []string `json:"lease_ids"`
		Items    []struct {
			wire.RetryItem
			LeaseMS int64 `json:"lease_ms"`
		} `json:"items"`
	}{}
	require.NoError(p.t, wire.Unmarshal(bodyOf(r), &in))
	r.Body.Close()
	select {
	case <-time.After(time.Millisecond):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if resp := p.refused(verb); resp != nil {
		return resp, nil
	}
	if verb == "lease" {
		return p.leases(r, &in.LeaseRequest)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settles++
	now := time.Now()
	out := wire.SettleResponse{}
	one := func(it wire.RetryItem, ms int64) {
		res := wire.SettleResult{LeaseID: it.LeaseID, Status: verb + "ed"} // or so
		what := verb
		if it.Retryable != nil && !*it.Retryable {
			what, res.Status = "dead-letter", "dead_lettered"
		}
		if it.DelayMS != nil {
			what = fmt.Sprintf("%s after %d", what, *it.DelayMS)
		}
		switch until := p.until[it.LeaseID]; {
		case !now.Before(until):
			what, res.Status, res.Code = "too late to "+what, "rejected", "lease_lost"
		case verb == "extend":
			p.until[it.LeaseID] = now.Add(time.Duration(ms) * time.Millisecond)
			for id := range p.until {
				if p.lane && id > it.LeaseID {
					p.until[id] = p.until[it.LeaseID]
				}
			}
		default:
			delete(p.until, it.LeaseID)
			if verb == "release" && !p.lane && it.DelayMS == nil {
				p.ready = append(p.ready, p.payload[it.LeaseID])
				p.more <- struct{}{}
			}
		}
		what += " " + p.payload[it.LeaseID]
		if it.Error != "" {
			what += ": " + it.Error
		}
		p.log = append(p.log, what)
		out.Results = append(out.Results, res)
	}
	for _, id := range in.LeaseIDs {
		one(wire.RetryItem{LeaseID: id}, 0)
	}
	for _, it := range in.Items {
		one(it.RetryItem, it.LeaseMS)
	}
	return answerOf(200, out), nil
}

func (p *postOffice) refused(verb string) *http.Response {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse == nil {
		return nil
	}
	return p.refuse(verb)
}

func (p *postOffice) leases(r *http.Request, in *wire.LeaseRequest) (*http.Response, error) {
	end := time.After(time.Duration(in.WaitMS) * time.Millisecond)
	for {
		p.mu.Lock()
		if n := min(len(p.ready), int(*in.MaxMessages)); n > 0 {
			defer p.mu.Unlock()
			p.asked = append(p.asked, *in.MaxMessages)
			var out wire.LeaseResponse
			for _, payload := range p.ready[:n] {
				p.n++
				now := time.Now()
				id := ulidAt(now, p.n)
				p.until[id], p.payload[id] = now.Add(p.lease), payload
				behind := ""
				if n := len(out.Messages); n > 0 && p.lane {
					behind = out.Messages[n-1].LeaseID
				}
				out.Messages = append(out.Messages, wire.LeasedMessage{
					ID: "m" + id, LeaseID: id, Queue: "q", Payload: []byte(payload), Kind: payload,
					LeaseExpiresAt: wire.TimeOf(now.Add(p.lease)), Behind: behind,
				})
			}
			p.ready = p.ready[n:]
			select {
			case <-time.After(p.trip):
				return answerOf(200, out), nil
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		p.mu.Unlock()
		select {
		case <-p.more:
		case <-end:
			return answerOf(200, wire.LeaseResponse{}), nil
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

func answerOf(status int, v any) *http.Response {
	b, err := wire.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &http.Response{StatusCode: status, Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(b)), ContentLength: int64(len(b))}
}

func ulidAt(t time.Time, n int) string {
	id := ulid.ULID{15: byte(n), 14: byte(n >> 8)}
	_ = id.SetTime(uint64(t.UnixMilli())) // never fails before the year 10889
	return id.String()
}

// bubble runs a test of a worker in simulated time.
func bubble(t *testing.T, payloads []string, o WorkerOptions, h Handler,
	test func(t *testing.T, p *postOffice, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, payloads...)
		stop := working(t, p, o, h)
		test(t, p, func() {
			t.Helper()
			assert.NoError(t, stop())
		})
	})
}

// working runs a worker until the test calls stop.
func working(t *testing.T, p *postOffice, o WorkerOptions, h Handler) (stop func() error) {
	t.Helper()
	c, err := New("http://post", WithHTTPClient(&http.Client{Transport: p}))
	require.NoError(t, err)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- NewWorker(c, "q", h, o).Run(ctx) }()
	return func() error {
		cancel()
		err := <-done
		c.Close()
		return err
	}
}

func numbers(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

func sorted(s []string) string {
	slices.Sort(s)
	return strings.Join(s, "; ")
}

func TestWorkerSettlesByWhatTheHandlerReturns(t *testing.T) {
	var logged bytes.Buffer
	var mu sync.Mutex
	var reported []string
	o := WorkerOptions{Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Handlers: map[string]Handler{ // other kinds go to the worker's own
			"8": func(context.Context, *Message) error { return Snooze(time.Hour) },
		},
		Settled: func(m *Message, s Settlement, took time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			if reported = append(reported, string(s.Do)+" "+m.Kind); took <= 0 || err != nil {
				t.Errorf("%s: %+v, %s, %v", m.Kind, s, took, err)
			}
		}}
	bubble(t, numbers(10), o, Typed(func(_ context.Context, v int, m *Message) error {
		switch v {
		case 1:
			return errors.New("not today")
		case 2:
			return RetryAfter(5 * time.Second)
		case 3:
			return fmt.Errorf("so: %w", RetryAfter(time.Minute, errors.New("busy")))
		case 4:
			return fmt.Errorf("so: %w", DeadLetter(errors.New("never")))
		case 5:
			panic("oh")
		case 6:
			_ = numbers(0)[v]
		case 7:
			return errors.New("bad \xff text " + strings.Repeat("x", maxError))
		case 9:
			var err *badError // nil, and as an error not nil
			return err
		}
		return nil
	}), func(t *testing.T, p *postOffice, stop func()) {
		time.Sleep(time.Second)
		p.put(`"no number"`)
		time.Sleep(time.Second)
		stop()
		got := sorted(p.settled())
		for _, want := range []string{
			`ack 0; dead-letter "no number": payload of m`, // and the codec's words
			"; dead-letter 4: so: never; release after 3600000 8; retry 1: not today; " +
				"retry 5: panic: oh; retry 6: panic: runtime error: index out of range [6] with length 0",
			"; retry 7: bad  text " + strings.Repeat("x", 1000),
			"; retry 9: *client.badError, whose text is a panic: ",
			"; retry after 5000 2: retry after 5s; retry after 60000 3: so: busy",
		} {
			assert.Contains(t, got, want, "lacks")
		}
		assert.Equal(t, sorted(reported), `ack 0; dead-letter "no number"; dead-letter 4; release 8; `+
			"retry 1; retry 2; retry 3; retry 5; retry 6; retry 7; retry 9")
		assert.True(t, len(got) <= maxError+1000, "%d bytes", len(got))
		if strings.Contains(got, "goroutine") ||
			!strings.Contains(logged.String(), "worker_test.go") {
			t.Error("a panic's stack goes to the log and nowhere else")
		}
	})
}

type badError struct{ text string }

func (e *badError) Error() string { return e.text }

func TestWorkerSharesRequests(t *testing.T) {
	const n = 2000
	var running, most atomic.Int32
	bubble(t, numbers(n), WorkerOptions{Concurrency: 8}, func(context.Context, *Message) error {
		most.Store(max(most.Load(), running.Add(1)))
		time.Sleep(100 * time.Microsecond)
		running.Add(-1)
		return nil
	}, func(t *testing.T, p *postOffice, stop func()) {
		time.Sleep(10 * time.Second)
		stop()
		if len(p.log) != n || p.settles > n/20 || len(p.asked) > n/100 || most.Load() != 8 {
			t.Errorf("%d settled in %d requests, leased in %d; %d at once",
				len(p.log), p.settles, len(p.asked), most.Load())
		}
	})
}

// Slow handlers hoard nothing: what waits is what they work off in a moment.
func TestWorkerDoesNotHoard(t *testing.T) {
	bubble(t, numbers(100), WorkerOptions{Concurrency: 4}, func(context.Context, *Message) error {
		time.Sleep(time.Second)
		return nil
	}, func(t *testing.T, p *postOffice, stop func()) {
		time.Sleep(10*time.Second + 500*time.Millisecond)
		p.mu.Lock()
		leased := len(p.until)
		p.mu.Unlock()
		if done := len(p.settled()); leased > 8 || done < 36 {
			t.Errorf("%d leased, %d done", leased, done)
		}
		stop()
	})
}

// A lease is extended at a third of its time, in a handler and in the buffer, so it never runs out.
func TestWorkerExtends(t *testing.T) {
	o := WorkerOptions{Concurrency: 1, Prefetch: 10}
	bubble(t, nil, o, func(_ context.Context, m *Message) error {
		if string(m.Bytes()) != "0" { // a quick one: the worker dares to lease ahead
			time.Sleep(10*time.Second + 300*time.Millisecond)
		}
		return nil
	}, func(t *testing.T, p *postOffice, stop func()) {
		p.lease = 3 * time.Second
		p.put("0")
		time.Sleep(time.Second)
		p.put("1", "2", "3")
		time.Sleep(time.Minute)
		stop()
		count := map[string]int{}
		for _, s := range p.settled() {
			if count[s]++; strings.HasPrefix(s, "too late") {
				t.Error(s)
			}
		}
		if n := count["extend 1"]; n < 9 || n > 10 || count["extend 2"] < 9 ||
			count["ack 1"] != 1 || count["ack 3"] != 1 || count["extend 0"] != 0 {
			t.Error(count)
		}
	})
}

// A batch of a lane is handled in order, one message at a time, and extended as a whole. When one
// fails, those behind it are released and not handled.
func TestWorkerKeepsTheOrderOfABatch(t *testing.T) {
	var handled []string
	var running atomic.Int32
	o := WorkerOptions{Concurrency: 4}
	bubble(t, nil, o, func(_ context.Context, m *Message) error {
		if n := running.Add(1); n > 1 {
			t.Errorf("%d handlers of one key at once", n)
		}
		defer running.Add(-1)
		handled = append(handled, string(m.Bytes()))
		time.Sleep(2400 * time.Millisecond)
		if string(m.Bytes()) == "1" {
			return errors.New("not today")
		}
		return nil
	}, func(t *testing.T, p *postOffice, stop func()) {
		p.lane, p.lease = true, 3*time.Second
		p.put("0", "1", "2", "3")
		time.Sleep(time.Minute)
		stop()
		assert.Equal(t, strings.Join(handled, " "), "0 1")
		settled := p.settled()
		assert.Equal(t, strings.Join(settled[:5], "; "), "extend 0; extend 0; ack 0; extend 1; extend 1")
		assert.Equal(t, sorted(settled[5:]), "release 2; release 3; retry 1: not today")
	})
}

// When a lease is lost the handler's context ends, and what it returns changes nothing.
func TestWorkerEndsTheContextOfALostLease(t *testing.T) {
	for name, lose := range map[string]func(*postOffice){
		"taken away": (*postOffice).expire,
		// Nobody answers: it runs out, as far as is known here.
		"cut off": func(p *postOffice) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.refuse = func(string) *http.Response {
				return answerOf(503, wire.Problem{
					Code: "no_leader", Retryable: true, Outcome: wire.NotApplied,
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			o := WorkerOptions{Concurrency: 1}
			bubble(t, numbers(1), o, func(ctx context.Context, m *Message) error {
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil
			}, func(t *testing.T, p *postOffice, stop func()) {
				time.Sleep(time.Second) // the handler has the message
				lose(p)
				time.Sleep(30 * time.Second)
				select {
				case err := <-ended:
					assert.ErrorIs(t, err, ErrLeaseLost)
				default:
					t.Error("the handler's context outlives the lease")
				}
				p.mu.Lock()
				p.refuse = nil
				p.mu.Unlock()
				stop()
				for _, s := range p.settled() {
					assert.False(t, strings.Contains(s, "ack"), "%v", s)
				}
			})
		})
	}
}

func TestWorkerStops(t *testing.T) {
	first := true
	o := WorkerOptions{Concurrency: 1, Prefetch: 5}
	bubble(t, numbers(20), o, func(ctx context.Context, m *Message) error {
		if first {
			first = false
			return nil // a quick one
		}
		time.Sleep(9 * time.Second)
		return ctx.Err()
	}, func(t *testing.T, p *postOffice, stop func()) {
		time.Sleep(time.Second)
		at := time.Now()
		stop()
		if d := time.Since(at); d < 7*time.Second || d > 9*time.Second {
			t.Errorf("it took %s", d)
		}
		got := sorted(p.settled())
		assert.Equal(t, got, "ack 0; ack 1; release 2; release 3; release 4; release 5; release 6")
		assert.Equal(t, len(p.until), 0, "%v", p.until)
	})
}

// A worker that stops waits for the answer to its lease call, and makes no other.
func TestWorkerReleasesWhatWasOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := func(context.Context, *Message) error { return nil }
		p := newPost(t, "0")
		p.trip = answerFor / 2
		stop := working(t, p, WorkerOptions{}, handler)
		time.Sleep(p.trip / 2)
		assert.NoError(t, stop())
		assert.Equal(t, sorted(p.settled()), "release 0")

		calls := 0
		p.refuse = func(string) *http.Response {
			calls++
			time.Sleep(p.trip)
			return answerOf(503, wire.Problem{
				Code: "shutting_down", Retryable: true, Outcome: wire.NotApplied,
			})
		}
		stop = working(t, p, WorkerOptions{}, handler)
		time.Sleep(p.trip / 2)
		assert.NoError(t, stop())
		assert.Equal(t, calls, 1, "lease calls")

		calls, p.trip = 0, 0
		stop = working(t, p, WorkerOptions{}, handler)
		time.Sleep(5 * time.Millisecond) // it pauses before it repeats the call
		assert.NoError(t, stop())
		assert.Equal(t, calls, 1, "lease calls, stopped in a pause")
	})
}

// After the grace handlers' contexts end; what they give back does not count, and
// what they hold on to is released, too.
func TestWorkersGraceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, "0", "1", "2")
		late := make(chan struct{})
		o := WorkerOptions{Concurrency: 3, Grace: 5 * time.Second}
		stop := working(t, p, o, func(ctx context.Context, m *Message) error {
			switch string(m.Bytes()) {
			case "0": // heeds
				<-ctx.Done()
				assert.Equal(t, context.Cause(ctx), ErrStopping)
				return ctx.Err()
			case "1": // was about to end anyway
				<-ctx.Done()
				return nil
			}
			<-late
			return nil
		})
		time.Sleep(time.Second)
		at := time.Now()
		err := stop()
		assert.ErrorContains(t, err, "1 handlers have not returned")
		if d := time.Since(at); d < 6*time.Second || d > 7*time.Second {
			t.Errorf("it took %s", d)
		}
		assert.Equal(t, sorted(p.settled()), "ack 1; release 0; release 2")
		close(late)
	})
}

// What the server refuses for good ends Run; what passes does not.
func TestWorkerAndRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPost(t, "0")
		n := 0
		p.refuse = func(verb string) *http.Response {
			if n++; n > 20 || verb != "lease" {
				return nil
			}
			return answerOf(503, wire.Problem{
				Code: "no_leader", Retryable: true, Outcome: wire.Unknown,
			})
		}
		stop := working(t, p, WorkerOptions{}, func(context.Context, *Message) error { return nil })
		time.Sleep(5 * time.Minute)
		if err := stop(); err != nil || sorted(p.settled()) != "ack 0" {
			t.Error(err, p.settled())
		}
		p = newPost(t)
		p.refuse = func(string) *http.Response {
			return answerOf(404, wire.Problem{Code: "queue_not_found"})
		}
		c, err := New("http://post", WithHTTPClient(&http.Client{Transport: p}))
		require.NoError(t, err)
		defer c.Close()
		err = NewWorker(c, "q", nil, WorkerOptions{}).Run(t.Context())
		assert.ErrorIs(t, err, ErrQueueNotFound)
	})
}

func TestMiddlewareIsOutermostFirst(t *testing.T) {
	var ran []string
	notes := func(what string) Middleware {
		return func(next Handler) Handler {
			return func(ctx context.Context, m *Message) error {
				ran = append(ran, what)
				return next(ctx, m)
			}
		}
	}
	o := WorkerOptions{Middleware: []Middleware{notes("outer"), notes("inner")}}
	bubble(t, numbers(1), o, func(context.Context, *Message) error {
		ran = append(ran, "handler")
		return nil
	}, func(t *testing.T, p *postOffice, stop func()) {
		time.Sleep(time.Second)
		stop()
		assert.EqualSlices(t, ran, []string{"outer", "inner", "handler"})
	})
}

// A lease's length follows from its message, whatever the clock here is.
func TestLeaseOf(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	for _, tt := range []struct {
		id           string
		until        wire.Time
		asked, lease time.Duration
	}{
		{ulidAt(at, 1), wire.TimeOf(at.Add(1500 * time.Millisecond)), 0, 1500 * time.Millisecond},
		{ulidAt(at, 1), wire.TimeOf(at), 0, defaultLease},
		{"01A", wire.TimeOf(at), time.Minute, time.Minute},
		{strings.Repeat("!", 26), wire.TimeOf(at), time.Minute, time.Minute},
	} {
		m := &wire.LeasedMessage{LeaseID: tt.id, LeaseExpiresAt: tt.until}
		assert.Equal(t, leaseOf(m, tt.asked), tt.lease, "%s", tt.id)
	}
}
