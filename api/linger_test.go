package api

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestLinger is a client that reads nothing before it has sent everything, as
// most do: it hears the refusal all the same, over a real socket.
func TestLinger(t *testing.T) {
	h := setup(t)
	h.do("PUT", "/v1/queues/q", "").want(201)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := HTTPServer(h.s.Handler(), h.s.opts, h.s.log)
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	body := bytes.Repeat([]byte("a"), 20<<20) // far more than sockets hold
	for _, c := range []struct {
		path, media string
		want        int
	}{
		{"/v1/queues/q/messages", "text/plain", http.StatusRequestEntityTooLarge},
		{"/v1/queues/q/messages", "application/json", http.StatusRequestEntityTooLarge},
		{"/v1/queues/q/messages", "multipart/form-data; boundary=x", http.StatusUnsupportedMediaType},
		{"/v1/nothing", "text/plain", http.StatusNotFound},
	} {
		t.Run(c.path+" "+c.media, func(t *testing.T) {
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", c.path, c.media, len(body))
			if _, err := conn.Write(body); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != c.want {
				t.Fatal(resp.StatusCode, err)
			}
		})
	}
}
