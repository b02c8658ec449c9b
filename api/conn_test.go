package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// connected returns both ends of a connection, the server's as Limit gives it.
func connected(t *testing.T) (server *conn, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	nc, err := Limit(l, 0, 0).Accept()
	if err != nil {
		t.Fatal(err)
	}
	server = nc.(*conn)
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return server, client
}

var longAgo = time.Unix(1, 0)

func TestConnDeafReadEndsByDeadlineAndClose(t *testing.T) {
	c, client := connected(t)
	got := make(chan error)
	read := func() {
		_, err := c.Read(make([]byte, 1))
		got <- err
	}
	c.hear(false)
	for _, end := range []func(){func() { _ = c.SetReadDeadline(longAgo) }, func() { _ = c.Close() }} {
		_ = c.SetReadDeadline(time.Time{})
		if _, err := client.Write([]byte("x")); err != nil { // it does not hear that
			t.Fatal(err)
		}
		go read()
		end()
		if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
}

func TestConnClosesOneWay(t *testing.T) {
	var c net.Conn
	c, client := connected(t)
	half, ok := c.(interface{ CloseWrite() error }) // as net/http asks
	if !ok {
		t.Fatal("net/http can't close it one way")
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 9)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

func TestConnHearsAgain(t *testing.T) {
	c, client := connected(t)
	c.hear(false)
	got := make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		got <- err
	}()
	c.hear(true)
	_ = client.Close()
	if err := <-got; !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestConnDeadlines(t *testing.T) {
	c, client := connected(t)
	buf := make([]byte, 10)
	// One that is set before the read, and one that is set while it lasts.
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(time.Hour))
	got := make(chan error)
	go func() {
		_, err := c.Read(buf)
		got <- err
	}()
	_ = c.SetReadDeadline(longAgo)
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Time{})
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	// What is far away may come later, but never earlier, and not too late.
	now := time.Now()
	for _, v := range []struct {
		set, want time.Duration
		does      bool
	}{
		{2 * time.Minute, 2 * time.Minute, true}, {2*time.Minute + 5*time.Second, 2 * time.Minute, true}, {2 * time.Minute, 2*time.Minute + time.Second, false},
		{3 * time.Minute, 2 * time.Minute, false}, {31 * time.Second, 30 * time.Second, false},
	} {
		if got := does(now.Add(v.set), now.Add(v.want)); got != v.does {
			t.Errorf("%v for %v: %v", v.set, v.want, got)
		}
	}
	if does(time.Time{}, now) || does(now, time.Time{}) || !does(time.Time{}, time.Time{}) {
		t.Error("none is another than some")
	}
}

// A client may send a request that is deaf, one that waits, and hang up.
func TestConnHangUpIsHeardByWaiters(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	gone := make(chan struct{})
	srv := HTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/lease") {
			defer close(gone)
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			r = r.WithContext(ctx)
		}
		h.h.ServeHTTP(w, r)
	}), Options{}, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(Limit(l, 0, 0)) }()
	t.Cleanup(func() { _ = srv.Close() })
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(client)
	for range 3 {
		_, _ = io.WriteString(client, "POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx")
		r, err := http.ReadResponse(in, nil)
		if err != nil || r.StatusCode != 201 {
			t.Fatal(err, r)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}
	h.do("PUT", "/v1/queues/empty", "").want(201)
	body := `{"wait_ms":60000}`
	_, _ = io.WriteString(client, "POST /v1/queues/empty/lease HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n"+body)
	_ = client.Close()
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Fatal("a waiter did not hear that its client has hung up")
	}
}

// net/http also reads one byte where one byte of its buffer is free, or one of
// its limit is left: that is no waiting for a hang-up, and what comes must be
// read, or the deadline be kept.
func TestConnReadsOneByteOfARequest(t *testing.T) {
	c, client := connected(t)
	c.hear(false)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

func TestConnRequestInAwkwardPieces(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	srv := HTTPServer(h.h, Options{}, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(Limit(l, 0, 0)) }()
	t.Cleanup(func() { _ = srv.Close() })
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	_ = client.SetDeadline(time.Now().Add(4 * time.Second))
	in := bufio.NewReader(client)
	answered := func() {
		t.Helper()
		r, err := http.ReadResponse(in, nil)
		if err != nil || r.StatusCode != 201 {
			t.Fatal(err, r)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}
	const head = "POST /v1/queues/q/messages HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
	_, _ = io.WriteString(client, head+"Content-Length: 1\r\n\r\nx")
	answered()
	// A line that leaves one byte of a buffer of 4096 free.
	_, _ = io.WriteString(client, head)
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(client, "X-Long: "+strings.Repeat("x", 4095-8))
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(client, "x\r\nContent-Length: 1\r\n\r\nx")
	answered()
	// The same in the head of a chunk.
	_, _ = io.WriteString(client, head+"Transfer-Encoding: chunked\r\n\r\n")
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(client, "1;"+strings.Repeat("x", 4095-3))
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(client, "\r")
	time.Sleep(50 * time.Millisecond)
	_, _ = io.WriteString(client, "\nx\r\n0\r\n\r\n")
	answered()
}
