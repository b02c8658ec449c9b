package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// dialled serves on a network in memory, as fits a bubble, and returns how hosts connect.
func dialled(t *testing.T, srv *http.Server) func(from string) net.Conn {
	t.Helper()
	n := memnet.New(memnet.Options{})
	l, err := n.Listen("server:80")
	require.NoError(t, err)
	go func() { _ = srv.Serve(l) }()
	return func(from string) net.Conn {
		c, err := n.Dialer(from)(t.Context(), "server:80")
		assert.NoError(t, err)
		return c
	}
}

// TestStrangers speaks raw HTTP to a whole http.Server.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.do("PUT", "/v1/queues/q", "").want(201)
		before := h.proposals()
		srv := HTTPServer(h.s.Handler(), Guard{Exempt: Exempt, Refuse: h.s.Refuse}, h.s.opts.Conns, h.s.log)
		dial := dialled(t, srv)
		talk := func(text string) (status string, after time.Duration) {
			c := dial("1.2.3.4")
			defer c.Close()
			begun := time.Now()
			go func() { _, _ = io.WriteString(c, text) }()
			status, _ = bufio.NewReader(c).ReadString('\n')
			return strings.TrimSpace(status), time.Since(begun)
		}
		head := "POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\n"
		for _, c := range []struct {
			name, text, status string
			within             time.Duration
		}{
			{"slow headers", "POST /v1/queues/q/mess", "HTTP/1.1 400 Bad Request", 5 * time.Second},
			{"a body that stalls", head + "Content-Length: 100\r\n\r\n{", "HTTP/1.1 408 Request Timeout", 30 * time.Second},
			{"a body too long by its own word", head + "Content-Length: 100000000\r\n\r\n{", "HTTP/1.1 413 Request Entity Too Large", 0},
			{"two lengths", head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 400 Bad Request", 0},
			{"a header of 64 KiB", head + "X-A: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", "HTTP/1.1 431 Request Header Fields Too Large", 0},
			{"no host", "GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request", 0},
			{"no host before HTTP/1.1", "GET /v1/queues HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK", 0},
			{"a host of its own", "GET http://evil.example.com/v1/queues HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 421 Misdirected Request", 0},
			{"a page that stalls", head + "Origin: http://y\r\nContent-Length: 100\r\n\r\n{", "HTTP/1.1 403 Forbidden", 0},
			{"a good one", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK", 0},
			{"a chunked body without an end", head + "Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("10000\r\n"+strings.Repeat("x", 0x10000)+"\r\n", 40), "HTTP/1.1 413 Request Entity Too Large", 0},
		} {
			if status, after := talk(c.text); !strings.HasPrefix(status, c.status) || after > c.within {
				t.Errorf("%s: %q after %s", c.name, status, after)
			}
		}
		// What follows a chunked body may be what a proxy takes for a part of it.
		c := dial("1.2.3.4")
		go func() {
			_, _ = io.WriteString(c, "POST /v1/queues/none/pause HTTP/1.1\r\nHost: x\r\n"+
				"Content-Length: 44\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+
				"PUT /v1/queues/smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
		}()
		answers, _ := io.ReadAll(c)
		assert.Equal(t, strings.Count(string(answers), "HTTP/1.1 "), 1, "answers: %s", answers)
		assert.Contains(t, string(answers), "\r\nConnection: close\r\n")
		assert.Equal(t, h.proposals(), before, "reached the proposer")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		h.s.Drain()
		require.NoError(t, srv.Shutdown(ctx))
		h.s.Drain()
	})
}

// TestRefusedUnread: who is refused before the body is read gets the answer at once, and does not
// hold a connection by a body that stalls.
func TestRefusedUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, _, _ := withAuth(t, "admin")
		srv := HTTPServer(h.s.Handler(), Guard{Refuse: h.s.Refuse}, h.s.opts.Conns, h.s.log)
		dial := dialled(t, srv)
		defer srv.Close()
		for _, c := range []struct {
			request string
			status  int
		}{
			{"POST /v1/queues/q/messages", 401},
			{"POST /hook/none", 404},
		} {
			for _, body := range []string{
				"Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n9\r\n{",
			} {
				conn := dial("1.2.3.4")
				begun := time.Now()
				go func() { _, _ = io.WriteString(conn, c.request+" HTTP/1.1\r\nHost: 1.2.3.4\r\n"+body) }()
				in := bufio.NewReader(conn)
				answer, err := http.ReadResponse(in, nil)
				require.NoError(t, err)
				_, err = io.ReadAll(answer.Body)
				require.NoError(t, err)
				assert.Equal(t, answer.StatusCode, c.status)
				assert.True(t, answer.Close, "%s: no Connection: close", c.request)
				assert.Equal(t, time.Since(begun), 0, "%s: answered after", c.request)
				_, _ = in.ReadByte()
				assert.True(t, time.Since(begun) <= 2*time.Second, "%s: closed after %v", c.request, time.Since(begun))
				conn.Close()
			}
		}
	})
}

// TestTooLargeIsAnswered: a client that sends all of a large body before it reads gets the answer.
func TestTooLargeIsAnswered(t *testing.T) {
	h := setup(t, func(o *Options) { o.MaxRequest = 8 << 20 })
	srv := httptest.NewServer(h.s.Handler())
	defer srv.Close()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	body := 2 * h.s.opts.MaxRequest // more than sockets buffer
	_, err = fmt.Fprintf(c, "POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\n"+
		"Content-Length: %d\r\n\r\n", body)
	require.NoError(t, err)
	_, err = c.Write(make([]byte, body))
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	assert.Equal(t, answer.StatusCode, http.StatusRequestEntityTooLarge)
}

// TestQuiesce waits for clients that still come, and not for ever.
func TestQuiesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.s.Drain()
		begun := time.Now()
		h.s.Quiesce(t.Context())
		assert.Equal(t, time.Since(begun), quietFor, "quiet after")
		for _, c := range []struct{ requests, waits time.Duration }{{1, 2 * quietFor}, {100, quietWithin}} {
			begun = time.Now()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range c.requests {
					<-time.After(quietFor / 2)
					h.do("GET", "/healthz", "")
				}
			}()
			h.s.Quiesce(t.Context())
			assert.Equal(t, time.Since(begun), c.waits, "%d requests: quiet after", c.requests)
			<-done
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun = time.Now()
		h.s.Quiesce(ctx)
		assert.Equal(t, time.Since(begun), 0, "waited on")
		h.s.Drain()
	})
}

func TestUnready(t *testing.T) {
	h := Unready("waiting for 1 more of 3 nodes")
	for _, c := range []struct {
		method, path string
		status       int
		says         string
	}{
		{"GET", "/healthz", 200, `"ok"`},
		{"GET", "/readyz", 503, "waiting for 1 more of 3 nodes"},
		{"POST", "/v1/queues/q/messages", 503, `"outcome":"not_applied"`},
		{"GET", "/problems/no_leader", 200, "Try again"},
		{"GET", "/v1/queues", 503, `"code":"no_leader"`},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, http.NoBody))
		assert.True(t, w.Code == c.status && strings.Contains(w.Body.String(), c.says),
			"%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		assert.False(t, c.status == 503 && w.Header().Get("Retry-After") == "",
			"%s: no Retry-After", c.path)
	}
}
