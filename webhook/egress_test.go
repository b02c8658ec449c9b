package webhook

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
)

// urls calls fn with each URL of testdata/urls.txt.
func urls(t *testing.T, fn func(kind, raw string)) {
	t.Helper()
	b, err := os.ReadFile("testdata/urls.txt")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if f := strings.Split(line, "\t"); len(f) > 1 {
			fn(f[0], f[1])
		}
	}
}

// listen returns the port of a server on this machine and how many connections
// it was made.
func listen(t *testing.T) (port string, seen *atomic.Int64) {
	t.Helper()
	seen = new(atomic.Int64)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		_, _ = io.WriteString(w, "inside")
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			seen.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	must(t, err)
	return port, seen
}

// TestAttempts: each is refused when it is saved, by Do, and by the connection alone, where nobody
// looked at the URL: nothing on this machine is connected to, whatever a resolver or net/http make
// of it.
func TestAttempts(t *testing.T) {
	port, seen := listen(t)
	c := NewClient(false, "", 100)
	c.dialer.Resolver = resolver(t, func(string) []string { return []string{"127.0.0.1", "::1"} })
	defer c.Close()
	urls(t, func(kind, raw string) {
		if kind != "attempt" {
			return
		}
		raw = strings.Replace(raw, "PORT", port, 1)
		var refused *RefusedError
		err := CheckURL(raw, false)
		if !errors.As(err, &refused) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: taken, or the error repeats credentials: %v", raw, err)
		}
		if a, err := c.Do(t.Context(), Outgoing{URL: raw}); !errors.As(err, &refused) {
			t.Errorf("%s: %v, %v", raw, a, err)
		}
		req, err := http.NewRequest(http.MethodPost, raw, nil)
		if err != nil {
			return // net/http does not take it either
		}
		resp, err := c.transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s: connected", raw)
		}
	})
	if n := seen.Load(); n > 0 {
		t.Fatalf("%d connections were made", n)
	}
}

// TestNamesThatStandForThisMachine: what a name stands for is judged when it is
// dialled, each address of it, also where it was another one before.
func TestNamesThatStandForThisMachine(t *testing.T) {
	port, seen := listen(t)
	var asked atomic.Int64
	for name, addrs := range map[string]func() []string{
		"loopback":        func() []string { return []string{"127.0.0.1"} },
		"loopback, IPv6":  func() []string { return []string{"::1"} },
		"one good":        func() []string { return []string{"10.1.2.3", "127.0.0.1"} },
		"metadata":        func() []string { return []string{"169.254.169.254"} },
		"mapped":          func() []string { return []string{"::ffff:127.0.0.1"} },
		"another time":    func() []string { asked.Add(1); return []string{fmt.Sprintf("127.0.0.%d", asked.Load())} },
		"unspecified":     func() []string { return []string{"0.0.0.0"} },
		"embedded, NAT64": func() []string { return []string{"64:ff9b::7f00:1"} },
	} {
		c := NewClient(false, "", 100)
		c.dialer.Resolver = resolver(t, func(string) []string { return addrs() })
		target := "http://hooks.example.com:" + port + "/"
		must(t, CheckURL(target, false))
		for range 2 {
			_, err := c.Do(t.Context(), Outgoing{URL: target})
			var refused *RefusedError
			assert.True(t, errors.As(err, &refused), "%s: %v", name, err)
		}
		c.Close()
	}
	if n := seen.Load(); n > 0 {
		t.Fatalf("%d connections were made", n)
	}
}

// TestRedirect: it is the answer, wherever it points.
func TestRedirect(t *testing.T) {
	inner, seen := listen(t)
	for _, to := range []string{"http://169.254.169.254/latest/meta-data/",
		"http://127.0.0.1:" + inner + "/"} {
		srv := httptest.NewServer(http.RedirectHandler(to, http.StatusTemporaryRedirect))
		c := NewClient(true, "", 100)
		a, err := c.Do(t.Context(), Outgoing{URL: srv.URL})
		if err != nil || a.Status != http.StatusTemporaryRedirect ||
			a.Header.Get("Location") != to {
			t.Errorf("%v, %v", a, err)
		}
		c.Close()
		srv.Close()
	}
	if n := seen.Load(); n > 0 {
		t.Fatalf("%d connections were made", n)
	}
}

// TestNoProxy: one of the environment would connect for us, and judge nothing.
func TestNoProxy(t *testing.T) {
	port, seen := listen(t)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:"+port)
	t.Setenv("http_proxy", "http://127.0.0.1:"+port)
	t.Setenv("ALL_PROXY", "http://127.0.0.1:"+port)
	c := NewClient(false, "", 100)
	c.dialer.Resolver = resolver(t, func(string) []string { return []string{"10.9.9.9"} })
	defer c.Close()
	_, err := c.Do(t.Context(), Outgoing{URL: "http://hooks.example.com/"})
	var refused *RefusedError
	if !errors.As(err, &refused) || seen.Load() > 0 {
		t.Fatalf("%v, %d connections", err, seen.Load())
	}
	if u, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: "http",
		Host: "hooks.example.com"}}); err != nil || u == nil {
		t.Fatalf("the environment has no proxy here (%v, %v): the test shows nothing", u, err)
	}
}

// TestCheckURL: what is on the internet is taken, with the flag also this machine and private
// networks, but never what only clouds and links have.
func TestCheckURL(t *testing.T) {
	urls(t, func(kind, raw string) {
		if kind == "attempt" {
			return
		}
		if err := CheckURL(raw, false); (err == nil) != (kind == "public") {
			t.Errorf("%s: %v", raw, err)
		}
		if err := CheckURL(raw, true); (err == nil) != (kind != "never") {
			t.Errorf("%s, with the flag: %v", raw, err)
		}
	})
}

// TestDo: what is sent, what is kept of the answer, and when it is given up.
func TestDo(t *testing.T) {
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Got",
				r.Method+" "+r.Header.Get("X-Own")+" "+r.Header.Get("User-Agent")+" "+r.Host+" "+r.Header.Get("Accept-Encoding"))
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write(b)
		case "/large":
			_, _ = w.Write(make([]byte, 1<<20))
		case "/hang":
			<-hang
		case "/drip":
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for { // only the timeout ends it
				_, _ = w.Write([]byte("."))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
					return
				}
			}
		case "/break":
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
		case "/headers":
			w.Header().Set("X-Large", strings.Repeat("x", 100<<10))
		}
	}))
	defer srv.Close()
	defer close(hang)
	c := NewClient(true, "qlogd", 100)
	defer c.Close()
	a, err := c.Do(t.Context(), Outgoing{URL: srv.URL + "/echo", Body: []byte("hello"),
		Header: http.Header{"x-own": {"1"}, "Host": {"elsewhere"}, "Content-Length": {"3"}}})
	if err != nil || a.Status != http.StatusTeapot || string(a.Body) != "hello" || a.Cut {
		t.Fatalf("%+v, %v", a, err)
	}
	if got, want := a.Header.Get("X-Got"), "POST 1 qlogd "+strings.TrimPrefix(srv.URL,
		"http://"); got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
	if a, err = c.Do(t.Context(), Outgoing{URL: srv.URL + "/large", MaxAnswer: 1000}); err != nil ||
		len(a.Body) != 1000 || !a.Cut {
		t.Errorf("%v, %v", a, err)
	}
	for _, path := range []string{"/hang", "/drip"} {
		_, err = c.Do(t.Context(), Outgoing{
			URL: srv.URL + path + "?secret=1", Timeout: 300 * time.Millisecond,
		})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/break", "/headers"} {
		if a, err = c.Do(t.Context(), Outgoing{URL: srv.URL + path + "?secret=1"}); err == nil ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", path, a, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = c.Do(ctx, Outgoing{URL: srv.URL + "/echo"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestMaxConns: at the limit idle connections give way, and requests wait for one that is used.
func TestMaxConns(t *testing.T) {
	hold, held := make(chan bool), make(chan bool)
	serve := func() *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hold" {
				held <- true
				<-hold
			}
		}))
	}
	one, two := serve(), serve()
	defer one.Close()
	defer two.Close()
	c := NewClient(true, "", 1)
	defer c.Close()
	for _, url := range []string{one.URL, two.URL, one.URL} {
		_, err := c.Do(t.Context(), Outgoing{URL: url})
		must(t, err)
	}
	done := make(chan error)
	go func() {
		_, err := c.Do(t.Context(), Outgoing{URL: one.URL + "/hold"})
		done <- err
	}()
	<-held
	_, err := c.Do(t.Context(), Outgoing{URL: two.URL, Timeout: 10 * time.Millisecond})
	assert.True(t, err != nil && Unsent(err), "sent beyond the limit: %v", err)
	close(hold)
	must(t, <-done)
	_, err = c.Do(t.Context(), Outgoing{URL: two.URL})
	must(t, err)
}

// TestNotHTTP: what a server of another kind says is not told.
func TestNotHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	go func() {
		for _, banner := range []string{"-ERR unknown command, hunter2\r\n",
			"HTTP/1.1 hunter2 x\r\n\r\n", "HTTP/1.1 200 OK\r\nhunter2\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: hunter2\r\n\r\n"} {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, banner)
			_ = c.Close()
		}
	}()
	c := NewClient(true, "", 100)
	defer c.Close()
	for range 4 {
		a, err := c.Do(t.Context(), Outgoing{URL: "http://" + l.Addr().String()})
		if err == nil || strings.Contains(err.Error(), "hunter2") || Unsent(err) {
			t.Errorf("%+v, %v", a, err)
		}
	}
}

// TestTLS: a certificate of nobody we know, or of another host, ends it.
func TestClientTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	srv.StartTLS()
	defer srv.Close()
	c := NewClient(true, "", 100)
	if _, err := c.Do(t.Context(), Outgoing{URL: srv.URL}); err == nil {
		t.Error("a certificate that nobody signed was taken")
	}
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	known := NewClient(true, "", 100)
	known.transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	defer known.Close()
	if a, err := known.Do(t.Context(), Outgoing{URL: srv.URL}); err != nil || a.Status != 200 {
		t.Errorf("%v, %v", a, err)
	}
	other := NewClient(true, "", 100)
	other.transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	other.dialer.Resolver = resolver(t, func(string) []string { return []string{"127.0.0.1"} })
	defer other.Close()
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	if _, err := other.Do(t.Context(), Outgoing{URL: "https://other.test:" + port}); err == nil {
		t.Error("a certificate of another host was taken")
	}
}

func TestHeadersThatCanBeGiven(t *testing.T) {
	for _, name := range []string{"host", "Content-length", "TRANSFER-ENCODING", "connection"} {
		assert.True(t, ReservedHeader(name), "%s can be given", name)
	}
	for _, h := range [][2]string{{"", "x"}, {"a b", "x"}, {"a:", "x"}, {"a", "x\r\nHost: y"},
		{"a\n", "x"}, {"a", "x\x00"}, {"ä", "x"}} {
		assert.False(t, ValidHeader(h[0], h[1]), "%q: %q is taken", h[0], h[1])
	}
	assert.True(t, ValidHeader("X-Own", "a b\tc"), "a good header is refused")
}

// resolver returns one that asks a server of ours, which answers any name with
// these addresses.
func resolver(t *testing.T, addrs func(name string) []string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := answerDNS(buf[:n], addrs); out != nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
		}}
}

// answerDNS answers a question of one name (RFC 1035, section 4).
func answerDNS(q []byte, addrs func(string) []string) []byte {
	if len(q) < 17 {
		return nil
	}
	at, name := 12, ""
	for at < len(q) && q[at] != 0 {
		name += string(q[at+1:at+1+int(q[at])]) + "."
		at += 1 + int(q[at])
	}
	end := at + 5
	kind := binary.BigEndian.Uint16(q[at+1:])
	out := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
	n := 0
	for _, s := range addrs(name) {
		a := netip.MustParseAddr(s)
		if a.Is4() != (kind == 1) || kind != 1 && kind != 28 {
			continue
		}
		n++
		out = append(out, 0xc0, 12)
		out = binary.BigEndian.AppendUint16(out, kind)
		out = append(out, 0, 1, 0, 0, 0, 0, 0, byte(a.BitLen()/8))
		out = append(out, a.AsSlice()...)
	}
	out[7] = byte(n)
	return out
}
