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
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
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

// untouched returns the port of a server on this machine that nobody may connect to.
func untouched(t *testing.T) (port string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.NotFoundHandler())
	srv.Config.ConnState = func(c net.Conn, _ http.ConnState) {
		t.Errorf("%s has connected", c.RemoteAddr())
	}
	srv.Start()
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	must(t, err)
	return port
}

// egress returns a client to whom a name is what resolve says, if it is not nil.
func egress(t *testing.T, private bool, resolve func() []string) *Client {
	t.Helper()
	c := NewClient(private, "qlogd", 100)
	t.Cleanup(c.Close)
	if resolve != nil {
		c.dialer.Resolver = resolver(t, resolve)
	}
	return c
}

// are resolves to these addresses.
func are(addrs ...string) func() []string { return func() []string { return addrs } }

// TestAttempts: each is refused when it is saved, by Do, and by the connection alone, where nobody
// looked at the URL: nothing on this machine is connected to, whatever a resolver or net/http make
// of it.
func TestAttempts(t *testing.T) {
	port, c := untouched(t), egress(t, false, are("127.0.0.1", "::1"))
	urls(t, func(kind, raw string) {
		if kind != "attempt" {
			return
		}
		raw = strings.Replace(raw, "PORT", port, 1)
		var refused *RefusedError
		err := CheckURL(raw, false)
		assert.True(t, errors.As(err, &refused) && !strings.Contains(err.Error(), "secret"),
			"%s: taken, or the error repeats credentials: %v", raw, err)
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
}

// TestNamesThatStandForThisMachine: what a name stands for is judged when it is
// dialled, each address of it, also where it was another one before.
func TestNamesThatStandForThisMachine(t *testing.T) {
	port := untouched(t)
	asked := 0
	for name, resolve := range map[string]func() []string{
		"loopback":        are("127.0.0.1"),
		"loopback, IPv6":  are("::1"),
		"one good":        are("10.1.2.3", "127.0.0.1"),
		"metadata":        are("169.254.169.254"),
		"mapped":          are("::ffff:127.0.0.1"),
		"another time":    func() []string { asked++; return []string{fmt.Sprint("127.0.0.", asked)} },
		"unspecified":     are("0.0.0.0"),
		"embedded, NAT64": are("64:ff9b::7f00:1"),
	} {
		c := egress(t, false, resolve)
		target := "http://hooks.example.com:" + port + "/"
		must(t, CheckURL(target, false))
		for range 2 {
			_, err := c.Do(t.Context(), Outgoing{URL: target})
			var refused *RefusedError
			assert.True(t, errors.As(err, &refused), "%s: %v", name, err)
		}
	}
}

// TestRedirect: it is the answer, wherever it points.
func TestRedirect(t *testing.T) {
	c := egress(t, true, nil)
	for _, to := range []string{"http://169.254.169.254/latest/meta-data/",
		"http://127.0.0.1:" + untouched(t) + "/"} {
		srv := httptest.NewServer(http.RedirectHandler(to, http.StatusTemporaryRedirect))
		a, err := c.Do(t.Context(), Outgoing{URL: srv.URL})
		if err != nil || a.Status != http.StatusTemporaryRedirect ||
			a.Header.Get("Location") != to {
			t.Errorf("%v, %v", a, err)
		}
		srv.Close()
	}
}

// TestNoProxy: one of the environment would connect for us, and judge nothing.
func TestNoProxy(t *testing.T) {
	port := untouched(t)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:"+port)
	t.Setenv("http_proxy", "http://127.0.0.1:"+port)
	t.Setenv("ALL_PROXY", "http://127.0.0.1:"+port)
	c := egress(t, false, are("10.9.9.9"))
	_, err := c.Do(t.Context(), Outgoing{URL: "http://hooks.example.com/"})
	var refused *RefusedError
	require.True(t, errors.As(err, &refused), "%v", err)
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
	c := egress(t, true, nil)
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
		assert.True(t, err != nil && !strings.Contains(err.Error(), "secret"), "%s: %v", path, err)
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
	c := egress(t, true, nil)
	for range 4 {
		a, err := c.Do(t.Context(), Outgoing{URL: "http://" + l.Addr().String()})
		assert.True(t, err != nil && !strings.Contains(err.Error(), "hunter2") && !Unsent(err),
			"%+v, %v", a, err)
	}
}

// TestTLS: a certificate of nobody we know, or of another host, ends it.
func TestClientTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	srv.StartTLS()
	defer srv.Close()
	do := func(url string, trusts *x509.CertPool) error {
		c := egress(t, true, are("127.0.0.1"))
		if trusts != nil {
			c.transport.TLSClientConfig = &tls.Config{RootCAs: trusts}
		}
		_, err := c.Do(t.Context(), Outgoing{URL: url})
		return err
	}
	assert.True(t, do(srv.URL, nil) != nil, "a certificate that nobody signed was taken")
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	assert.NoError(t, do(srv.URL, pool))
	_, port, _ := net.SplitHostPort(srv.Listener.Addr().String())
	err := do("https://other.test:"+port, pool)
	assert.True(t, err != nil, "a certificate of another host was taken")
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
func resolver(t *testing.T, addrs func() []string) *net.Resolver {
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
			if out := answerDNS(buf[:n], addrs()); out != nil {
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
func answerDNS(q []byte, addrs []string) []byte {
	if len(q) < 17 {
		return nil
	}
	at := 12
	for at < len(q) && q[at] != 0 {
		at += 1 + int(q[at])
	}
	end := at + 5
	kind := binary.BigEndian.Uint16(q[at+1:])
	out := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
	n := 0
	for _, s := range addrs {
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
