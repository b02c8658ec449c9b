package api

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
)

// pair is two nodes on one backend: h leads, and other asks it.
type pair struct {
	*harness
	other *Server
	cut   atomic.Bool // the call to the leader fails
	asked atomic.Int64
}

func newPair(t *testing.T) *pair {
	h := setup(t)
	p := &pair{harness: h}
	deps := h.s.deps
	deps.Registry = nil
	deps.AskLeader = func(ctx context.Context, name string, body []byte) ([]byte, error) {
		p.asked.Add(1)
		if p.cut.Load() || name != AskWait {
			return nil, errors.New("cut off")
		}
		return h.s.WaitHere(ctx, body)
	}
	p.other = New(deps, h.s.opts)
	t.Cleanup(p.other.Close)
	here, there := h.s.Applied, p.other.Applied
	h.fake.applied = func(q []string) { here(q); there(q) }
	h.do("PUT", "/v1/queues/q", "").want(201)
	return p
}

// away waits at the other node until it waits at the leader.
func (p *pair) away(ctx context.Context, body string) chan answer {
	out := make(chan answer, 1)
	go func() {
		w := httptest.NewRecorder()
		p.other.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/queues/q/lease", strings.NewReader(body)))
		out <- answer{w, p.T}
	}()
	time.Sleep(2 * settleIn)
	synctest.Wait()
	return out
}

func (p *pair) produce() {
	p.do("POST", "/v1/queues/q/messages", `{"messages":[{"payload":1}]}`).want(201)
}

// TestWaitAtLeader: who waits at another node waits in the leader's line.
func TestWaitAtLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		quiet := func(what string) {
			t.Helper()
			synctest.Wait()
			for _, ws := range []*waits{p.s.waits, p.other.waits} {
				if len(ws.lanes) != 0 || len(ws.worked) != 0 || len(ws.away) != 0 || ws.waiting.Load() != 0 {
					t.Errorf("%s: left: %v, %v, %d", what, ws.lanes, ws.away, ws.waiting.Load())
				}
			}
		}
		waits := p.away(t.Context(), `{"wait_ms":60000,"worker":"w"}`)
		if g, kinds := p.proposed(p.produce); g != 1 || kinds != "produce lease" {
			t.Errorf("%d groups: %s", g, kinds)
		}
		if a := (<-waits).want(200); a.str("messages.0.id") == "" || a.Header().Get("X-Qlogd-Index") == "" {
			t.Errorf("%s", a.Body)
		}
		quiet("one message")

		// What another node forwards is looked at by the leader.
		waits = p.away(t.Context(), `{"wait_ms":60000}`)
		leases, begun := p.s.Along(event.EncodeCommand(&event.Command{Produce: &event.Produce{Queue: "q", Messages: []event.NewMessage{{Priority: 5}}}}))
		if len(leases) != 1 || leases[0].Lease == nil {
			t.Fatalf("%+v", leases)
		}
		begun([]pendingWrite{func(context.Context) (event.Result, error) {
			return event.Result{}, &event.Problem{Code: codeNoLeader, Index: -1}
		}})
		synctest.Wait()
		p.produce() // it stands in line still
		p.produce()
		if a := <-waits; a.str("messages.0.id") == "" {
			t.Errorf("%s", a.Body)
		}
		p.do("POST", "/v1/queues/q/lease", "").want(200)
		quiet("forwarded")

		begin := time.Now()
		if a := <-p.away(t.Context(), `{"wait_ms":1500}`); a.Body.String() != `{"messages":[]}` || time.Since(begin) > 1600*time.Millisecond {
			t.Errorf("%s after %s", a.Body, time.Since(begin))
		}
		quiet("nothing came")

		ctx, cancel := context.WithCancel(t.Context())
		waits = p.away(ctx, `{"wait_ms":60000}`)
		cancel()
		<-waits
		quiet("hung up")
		if _, kinds := p.proposed(p.produce); kinds != "produce" {
			t.Errorf("leased to one that has hung up: %s", kinds)
		}
		p.do("POST", "/v1/queues/q/lease", "").want(200)

		ctx, cancel = context.WithCancel(t.Context())
		waits = p.away(ctx, `{"wait_ms":60000}`)
		p.fake.before = func() { p.fake.before = nil; cancel() }
		if _, kinds := p.proposed(p.produce); kinds != "produce lease settle" {
			t.Errorf("hangs up in that moment: %s", kinds)
		}
		<-waits
		if a := p.do("POST", "/v1/queues/q/lease", "").want(200); a.get("messages.0.attempt") != 1.0 {
			t.Errorf("%s", a.Body)
		}
		quiet("hung up in that moment")

		// The node fetches what it lacks: it would wait for an entry that it
		// never applies, and hold up its own beginning anew.
		waits = p.away(t.Context(), `{"wait_ms":60000}`)
		p.fake.lacks.Store(true)
		begin = time.Now()
		if _, kinds := p.proposed(p.produce); kinds != "produce lease settle" {
			t.Errorf("a node that lacks the log: %s", kinds)
		}
		if a := (<-waits).want(503); a.str("code") != codeNoLeader || time.Since(begin) > time.Second {
			t.Errorf("%s after %s", a.Body, time.Since(begin))
		}
		p.fake.lacks.Store(false)
		if a := p.do("POST", "/v1/queues/q/lease", "").want(200); a.get("messages.0.attempt") != 1.0 {
			t.Errorf("%s", a.Body)
		}

		// More than so many wait at their own node.
		var all []chan answer
		for range maxAway + 2 {
			all = append(all, p.away(t.Context(), `{"wait_ms":60000,"max_messages":1}`))
		}
		for range all {
			p.produce()
		}
		for _, a := range all {
			if a := <-a; a.str("messages.0.id") == "" {
				t.Errorf("%s", a.Body)
			}
		}
		quiet("many")

		// Without a leader it waits here; when the leader goes, too.
		p.cut.Store(true)
		waits = p.away(t.Context(), `{"wait_ms":60000}`)
		asked := p.asked.Load()
		time.Sleep(10 * time.Second)
		if n := p.asked.Load() - asked; n < 5 || n > 15 {
			t.Errorf("asked %d times in 10 s", n)
		}
		p.produce()
		if a := <-waits; a.str("messages.0.id") == "" {
			t.Errorf("%s", a.Body)
		}
		p.fake.barrier = &event.Problem{Code: codeNoLeader, Index: -1}
		(<-p.away(t.Context(), `{"wait_ms":60000}`)).want(503)
		p.cut.Store(false)
		p.fake.barrier = nil
		quiet("cut off")

		waits = p.away(t.Context(), `{"wait_ms":60000}`)
		p.s.Drain()
		synctest.Wait()
		p.produce()
		if a := <-waits; a.str("messages.0.id") == "" {
			t.Errorf("%s", a.Body)
		}
		waits = p.away(t.Context(), `{"wait_ms":60000}`)
		p.other.Drain()
		if a := <-waits; a.Code != 200 || a.Body.String() != `{"messages":[]}` {
			t.Errorf("%d %s", a.Code, a.Body)
		}
		quiet("drained")
		p.other.Close()
		p.s.Close()
	})
}

func TestWaitHereRefuses(t *testing.T) {
	h := setup(t)
	h.s.Drain()
	lease := event.EncodeCommand(&event.Command{Lease: &event.Lease{Queues: []string{"q"}, Max: 1}})
	for _, body := range [][]byte{
		nil, {1}, {1, 0, 0, 0, 1}, append([]byte{2, 0, 0, 0, 1}, lease...), append([]byte{1, 255, 0, 0, 1}, lease...),
		append([]byte{1, 0, 0, 0, 1}, event.EncodeCommand(&event.Command{Produce: &event.Produce{Queue: "q"}})...),
		append([]byte{1, 0, 0, 0, 1}, 0xff, 0xff),
	} {
		if b, err := h.s.WaitHere(t.Context(), body); err == nil {
			t.Errorf("%x: %x", body, b)
		}
	}
}
