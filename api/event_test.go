package api

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// produceN enqueues n messages, one entry each.
func (h *harness) produceN(queue string, n int) {
	h.Helper()
	for range n {
		h.do("POST", "/v1/queues/"+queue+"/messages", oneMessage).want(201)
	}
}

// TestPollingMissesNothing walks the log page by page, with filters, while more
// is written.
func TestPollingMissesNothing(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/a", "").want(201)
	h.do("PUT", "/v1/queues/b", "").want(201)
	h.produceN("a", 5)
	h.do("POST", "/v1/queues/b/messages",
		`{"messages":[{"payload":1},{"payload":2},{"payload":3}]}`).want(201)
	h.produceN("a", 5)
	for _, filter := range []string{"", "&queue=b", "&type=enqueued", "&queue=a&type=enqueued"} {
		all := h.do("GET", "/v1/events?limit=1000"+filter, "").want(200).each("events", "event_id")
		assert.True(t, len(all) > 0, "%s: nothing", filter)
		var seen []string
		cursor := event.ID{}.String()
		for range len(all) + 1 {
			a := h.do("GET", "/v1/events?limit=2&after="+cursor+filter, "").want(200)
			seen = append(seen, a.each("events", "event_id")...)
			cursor = a.str("next_cursor")
		}
		assert.EqualSlices(t, seen, all, "%s", filter)
		h.produceN("a", 1)
		a := h.do("GET", "/v1/events?after="+cursor, "").want(200)
		assert.Equal(t, len(a.each("events", "event_id")), 1, "%s: after the end", filter)
	}
}

// stream is an answer that is read while it is written.
type stream struct {
	header http.Header
	r      *io.PipeReader
	w      *io.PipeWriter
	lines  *bufio.Scanner
	done   chan struct{}
}

func (s *stream) Header() http.Header         { return s.header }
func (s *stream) Write(b []byte) (int, error) { return s.w.Write(b) }
func (s *stream) WriteHeader(int)             {}
func (s *stream) Flush()                      {}

func (h *harness) open(ctx context.Context, target string, headers ...string) *stream {
	s := &stream{header: http.Header{}, done: make(chan struct{})}
	s.r, s.w = io.Pipe()
	s.lines = bufio.NewScanner(s.r)
	r := requestOf(ctx, "GET", target, "", headers...)
	go func() {
		h.h.ServeHTTP(s, r)
		_ = s.w.Close()
		close(s.done)
	}()
	synctest.Wait()
	return s
}

func (s *stream) line() string {
	s.lines.Scan()
	return s.lines.Text()
}

// event reads a line of NDJSON.
func (s *stream) event(t *testing.T) (e wire.Event) {
	t.Helper()
	line := s.line()
	require.NoError(t, wire.Unmarshal([]byte(line), &e), "%s", line)
	return e
}

func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.do("PUT", "/v1/queues/q", "").want(201)
		nd := h.open(t.Context(), "/v1/events?follow=true&type=enqueued",
			"Accept: application/x-ndjson")
		h.produceN("q", 2)
		e := nd.event(t)
		require.True(t, e.Type == "enqueued" && e.Index == 2, "%+v", e)
		first := e.EventID
		nd.line()
		begun := time.Now()
		if l := nd.line(); l != "" || time.Since(begun) != 15*time.Second {
			t.Errorf("heartbeat %q after %s", l, time.Since(begun))
		}

		sse := h.open(t.Context(), "/v1/events?follow=true&after=00000000000000000000000000",
			"Accept: text/event-stream", "Last-Event-ID: "+first)
		assert.Equal(t, sse.header.Get("Content-Type"), typeSSE, "%v", sse.header)
		if l := sse.line(); !strings.HasPrefix(l, "id: ") || l == "id: "+first {
			t.Errorf("%q", l)
		}
		assert.Equal(t, sse.line(), "event: enqueued")
		if l := sse.line(); !strings.HasPrefix(l, `data: {"event_id":`) {
			t.Errorf("%q", l)
		}
		sse.line()
		assert.Equal(t, sse.line(), ":", "heartbeat")
		sse.line()

		// One that hangs up, and one that ends by itself.
		ctx, cancel := context.WithCancel(t.Context())
		gone := h.open(ctx, "/v1/events?follow=true", "Accept: application/x-ndjson")
		cancel()
		<-gone.done
		n := h.open(t.Context(), "/v1/events?from=start&limit=2", "Accept: application/x-ndjson")
		if first, second, end := n.line(), n.line(), n.line(); first == "" || second == "" ||
			end != "" {
			t.Error("a list as NDJSON")
		}
		go io.Copy(io.Discard, nd.r)
		go io.Copy(io.Discard, sse.r)
		h.s.Drain()
		<-nd.done
		<-sse.done
		// A new one would end at once too: its client is to go elsewhere. What
		// ends by itself is served still.
		for _, media := range []string{"application/x-ndjson", "text/event-stream"} {
			accept := "Accept: " + media
			a := h.do("GET", "/v1/events?follow=true", "", accept).want(503)
			assert.NotEqual(t, a.with("code", "shutting_down").Header().Get("Retry-After"), "",
				"%s: %s", accept, a.Body)
			a = h.do("GET", "/v1/events?from=start&type=enqueued", "", accept).want(200)
			assert.Equal(t, strings.Count(a.Body.String(), "event_id"), 2,
				"%s, a list: %s", accept, a.Body)
		}
		h.s.Drain()
	})
}

// TestEventsAreFoundInTime: a list answers after about a second with what it has found, in each form,
// and its cursor continues it. A stream goes on, with heartbeats.
func TestEventsAreFoundInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.do("PUT", "/v1/queues/q", "").want(201)
		for range 400 {
			h.produceN("q", 1)
		}
		h.do("POST", "/v1/queues/q/pause", "").want(200)
		h.log.slow = 100 * time.Millisecond
		for _, media := range []string{typeJSON, typeNDJSON, typeSSE} {
			cursor, calls := event.ID{}.String(), 0
			for paused := false; !paused; calls++ {
				begun := time.Now()
				a := h.do("GET", "/v1/events?type=queue_paused&after="+cursor, "",
					"Accept: "+media).want(200)
				assert.True(t, time.Since(begun) <= 1100*time.Millisecond, "%s: after %s", media,
					time.Since(begun))
				paused = strings.Contains(a.Body.String(), `"type":"queue_paused"`)
				switch media {
				case typeJSON:
					cursor = a.str("next_cursor")
					assert.Equal(t, a.get("partial") == true, !paused, "%s", a.Body)
					continue
				case typeSSE:
					assert.True(t, strings.HasSuffix(a.Body.String(),
						"id: "+a.Header().Get("X-Qlogd-Next-Cursor")+"\n\n"), "%s", a.Body)
				}
				cursor = a.Header().Get("X-Qlogd-Next-Cursor")
				assert.Equal(t, a.Header().Get("X-Qlogd-Partial") == "true", !paused)
			}
			assert.True(t, calls > 30, "%s: %d calls", media, calls)
		}
		nd := h.open(t.Context(), "/v1/events?follow=true&from=start&type=queue_paused",
			"Accept: "+typeNDJSON)
		for _, beat := range []string{"", ""} {
			assert.Equal(t, nd.line(), beat, "before it is found")
		}
		assert.True(t, strings.Contains(nd.line(), `"type":"queue_paused"`))
		h.s.Drain()
		<-nd.done
	})
}

// TestStreamOverlapsProduce follows from the start while more comes: in order,
// each once.
func TestStreamOverlapsProduce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.do("PUT", "/v1/queues/q", "").want(201)
		s := h.open(t.Context(), "/v1/events?follow=true&from=start&type=enqueued",
			"Accept: application/x-ndjson")
		go h.produceN("q", 200)
		last := ""
		for i := range 200 {
			e := s.event(t)
			require.True(t, e.EventID > last, "%d: %+v after %s", i, e, last)
			last = e.EventID
		}
		h.s.Drain()
		<-s.done
		h.s.Drain()
	})
}
