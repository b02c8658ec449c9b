package peer

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/sharedsecret"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// The headers of a proof: internal/sharedsecret.
const (
	clientNonce = "Qlogd-Client-Nonce"
	serverNonce = "Qlogd-Server-Nonce"
	proofHeader = "Qlogd-Proof"
)

// with gives a node a shared secret.
func with(t *testing.T, secret string) func(*Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	s, err := sharedsecret.Load(file)
	require.NoError(t, err)
	return func(o *Options) { o.Secret = s }
}

const ours, theirs = "correct horse battery", "incorrect horse battery"

// TestHandshake: nodes connect, for calls and for Raft, if they are those that are looked for, of
// one cluster, with certificates of one authority for their hosts, or none, and with the same
// secret, or none. Else each side says why not.
func TestHandshake(t *testing.T) {
	type set = []func(*Options)
	cluster := func(c string) set { return set{func(o *Options) { o.Self.Cluster = c }} }
	closed := set{func(o *Options) { o.Closed = "it needs a secret" }}
	elsewhere := func(o *Options) { o.Self.Raft = "10.0.0.1:7071" }
	us, them := with(t, ours), with(t, theirs)
	ca, other := newAuthority(t), newAuthority(t)
	certified, host := ca.with(t, ca, "x"), ca.with(t, ca, "localhost", "127.0.0.1")
	for name, c := range map[string]struct {
		from, to set
		target   Target // its Addr is a host, "" the right one
		bare     bool   // no replica runs there
		want     string // why they do not connect; "": they do
		raft     string // why not for Raft, if else they do
		known    bool   // it is known who is there, all the same
		here     bool   // the other side says something else, or nothing
	}{
		"same cluster":                 {},
		"by name":                      {target: Target{Node: "b", Incarnation: "i-b"}},
		"with a zone, unlike in a URL": {target: Target{Addr: "fe80::1%eth0"}},
		"another cluster":              {from: cluster("d"), want: `belongs to cluster "c"`, known: true},
		"from none":                    {from: cluster(""), raft: "do not both belong"},
		"to none":                      {to: cluster(""), raft: "do not both belong"},
		"both none":                    {from: cluster(""), to: cluster(""), raft: "do not both belong"},
		"another node":                 {target: Target{Node: "x"}, want: `"b", not "x"`, known: true},
		"another incarnation": {target: Target{Node: "b", Incarnation: "i-x"},
			want: `another data directory: incarnation "i-b", not "i-x"`, known: true},
		"no replica":   {bare: true, raft: "no replica"},
		"closed there": {to: closed, want: "it needs a secret", known: true},
		"closed here":  {from: closed, want: "it needs a secret", here: true},

		"the same secret": {from: set{us}, to: set{us}},
		"another secret": {from: set{them}, to: set{us},
			want: "the connecting node's shared secret differs from this node's"},
		"no secret here": {to: set{us},
			want: "this node requires a shared secret, the connecting node has none", known: true},
		"no secret there": {from: set{us},
			want: "the connecting node uses a shared secret, this node has none"},
		// Who listens where a node is expected, and passes everything on to another one.
		"passed on": {from: set{us}, to: set{us, elsewhere}, want: "advertises 10.0.0.1:7071",
			known: true},
		"a secret under TLS": {from: set{us, certified}, to: set{us, host, elsewhere}},
		"another secret under TLS": {from: set{them, certified}, to: set{us, host},
			want: "shared secret differs"},

		"TLS":         {from: set{certified}, to: set{host}},
		"TLS by name": {from: set{certified}, to: set{host}, target: Target{Addr: "localhost"}},
		"TLS of another host": {from: set{certified}, to: set{host},
			target: Target{Addr: "127.0.0.2"}, want: "127.0.0.2", here: true},
		"another authority here": {from: set{other.with(t, ca, "127.0.0.1")}, to: set{host},
			want: "unknown certificate authority", here: true},
		"another authority there": {from: set{ca.with(t, other, "127.0.0.1")}, to: set{host},
			want: "unknown authority", here: true},
		"no TLS here": {to: set{host}, want: "not a node of qlogd", here: true},
	} {
		t.Run(name, func(t *testing.T) {
			var logged lockedBuffer
			b := start(t, "b", append(c.to, func(o *Options) {
				o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			})...)
			a := start(t, "a", append(c.from, func(o *Options) {
				o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
					assert.Equal(t, addr, c.target.Addr, "dialled")
					return new(net.Dialer).DialContext(ctx, "tcp", b.Addr())
				}
			})...)
			b.Handle(t.Context(), "echo", echo)
			if !c.bare {
				b.Raft()
			}
			is, port, err := net.SplitHostPort(b.Addr())
			require.NoError(t, err)
			c.target.Addr = net.JoinHostPort(cmp.Or(c.target.Addr, is), port)
			check := func(what, want string, err error) {
				t.Helper()
				e, ok := errors.AsType[*Error](err)
				assert.True(t, want == "" && err == nil || want != "" && NotSent(err) &&
					strings.Contains(err.Error(), want) && (c.here || ok && e.Code == "refused"),
					"%s: %v; want %q", what, err, want)
			}
			for _, size := range []int{0, 1 << 20} {
				_, _, err := a.Call(t.Context(), c.target, "echo", make([]byte, size))
				check("call", c.want, err)
			}
			why := cmp.Or(c.want, c.raft)
			stream, err := a.Raft().Dial(c.target, time.Minute)
			check("raft", why, err)
			if err == nil {
				stream.Close()
			}
			id, err := a.Hello(t.Context(), c.target.Addr)
			assert.Equal(t, err == nil, c.want == "" || c.known, "hello: %v", err)
			assert.Equal(t, id == b.Self(), err == nil, "hello of %+v", id)
			said := strings.ReplaceAll(logged.String(), `\"`, `"`)
			assert.True(t, why == "" || strings.Contains(said, why) != c.here,
				"the other side logs %s", said)
		})
	}
}

// exchange sends requests on a connection of its own, and returns what comes back until its end.
func exchange(t *testing.T, addr string, requests ...string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, strings.Join(requests, ""))
	require.NoError(t, errors.Join(err, c.(*net.TCPConn).CloseWrite()))
	got, _ := io.ReadAll(c)
	return string(got)
}

// TestSecretIsNotReplayed: what was recorded of one connection opens no other one.
func TestSecretIsNotReplayed(t *testing.T) {
	var logged lockedBuffer
	b := start(t, "b", with(t, ours), func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	})
	b.Handle(t.Context(), "echo", echo)
	var recorded lockedBuffer
	a := start(t, "a", with(t, ours), func(o *Options) {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			return recorder{c, &recorded}, err
		}
	})
	_, _, err := a.Call(t.Context(), at(b), "echo", nil)
	require.NoError(t, err)
	requests := strings.SplitAfter(recorded.String(), "\r\n\r\n")
	require.True(t, len(requests) >= 3, "%q", requests) // hello, proof, call
	for name, again := range map[string][]string{
		"all of it":        requests,
		"the proof":        requests[1:],
		"the proof, twice": {requests[1], requests[1]},
		// As if this side had given no challenge.
		"no challenge": {strings.ReplaceAll(requests[1], serverNonce, "X-Other"), requests[2]},
	} {
		got := exchange(t, b.Addr(), again...)
		assert.True(t, strings.Contains(got, "replayed hello") && !strings.Contains(got, "200 OK"),
			"%s: %s", name, got)
	}
	// Nor does a proof serve for something else, or come from somebody else.
	for old, replaced := range map[string]string{
		pathCalls: pathRaft, `"node":"a"`: `"node":"c"`, clientNonce + ": ": clientNonce + ": 0",
	} {
		c, err := net.Dial("tcp", b.Addr())
		require.NoError(t, err)
		defer c.Close()
		in := bufio.NewReader(c)
		_, err = io.WriteString(c, requests[0])
		require.NoError(t, err)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		// The attacker has the proof for this very challenge, given in another hello.
		req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(requests[0])))
		require.NoError(t, err)
		a.o.Secret.Prove(req, resp.Header, nil)
		var text strings.Builder
		require.NoError(t, req.Write(&text))
		_, err = io.WriteString(c, strings.Replace(text.String(), old, replaced, 1))
		require.NoError(t, errors.Join(err, c.(*net.TCPConn).CloseWrite()))
		got, _ := io.ReadAll(in)
		assert.True(t, strings.Contains(string(got), "shared secret differs"), "%s: %s", old, got)
	}
	assert.Contains(t, logged.String(), "replayed hello", "the log")
}

// recorder keeps what is written.
type recorder struct {
	net.Conn
	to *lockedBuffer
}

func (r recorder) Write(b []byte) (int, error) {
	_, _ = r.to.Write(b)
	return r.Conn.Write(b)
}

// TestSecretIsProvenByBoth: who answers a hello as if all were well, or sends the asking side's own
// proof back, is not believed to be anybody.
func TestSecretIsProvenByBoth(t *testing.T) {
	a := start(t, "a", with(t, ours))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	impostor := &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			h := hello{Version: version, From: Identity{Cluster: "c", Node: "b"}}
			h.put(w.Header())
			w.Header().Set(serverNonce, "x")
			w.Header().Set(proofHeader, r.Header.Get(proofHeader))
			w.WriteHeader(http.StatusNoContent)
		})}
	go impostor.Serve(l) //nolint:errcheck // it is closed
	defer impostor.Close()
	is, err := a.Hello(t.Context(), l.Addr().String())
	assert.True(t, is == Identity{} && err != nil &&
		strings.Contains(err.Error(), "did not prove the shared secret"), "%+v, %v", is, err)
}

// TestSecretTakesNoTime: who asks for a challenge and does not answer it is gone as soon as who
// says nothing.
func TestSecretTakesNoTime(t *testing.T) {
	secret := with(t, ours)
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New(memnet.Options{})
		n := startIn(t, m, "a", secret)
		c, err := m.Dialer("s")(t.Context(), n.Addr())
		require.NoError(t, err)
		begin := time.Now()
		_, err = io.WriteString(c, "GET /calls HTTP/1.1\r\nHost: x\r\n"+clientNonce+": x\r\n"+
			helloHeader+`: {"version":1,"from":{"node":"s"}}`+"\r\n\r\n")
		require.NoError(t, err)
		got, err := io.ReadAll(c)
		c.Close()
		assert.True(t, err == nil || errors.Is(err, net.ErrClosed), "%v", err)
		assert.Contains(t, string(got), "401 Unauthorized", "the answer")
		assert.Equal(t, time.Since(begin), greetTimeout, "it is gone")
	})
}

// TestProofIsOfItsSession: a node with a certificate cannot relay a proof to another TLS session.
func TestProofIsOfItsSession(t *testing.T) {
	ca := newAuthority(t)
	var one, two Options
	ca.with(t, ca, "n1")(&one)
	ca.with(t, ca, "n2")(&two)
	session := func() (client, server tls.ConnectionState) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		c, s := tls.Client(near, two.TLS.Client("n1")), tls.Server(far, one.TLS.Server(true))
		done := make(chan error, 1)
		go func() { done <- s.HandshakeContext(t.Context()) }()
		require.NoError(t, c.HandshakeContext(t.Context()))
		require.NoError(t, <-done)
		return c.ConnectionState(), s.ConnectionState()
	}
	client, server := session()
	_, other := session()
	with(t, ours)(&one)
	s := one.Secret
	r, answer := httptest.NewRequest("GET", "/calls", nil), http.Header{}
	s.Begin(r)
	challenge := s.Challenge(answer)
	s.Prove(r, answer, &client)
	r.TLS = &server
	require.NoError(t, s.Check(r, challenge, answer))
	s.Confirm(r, answer)
	require.NoError(t, s.Confirmed(r, answer, &client))
	r.TLS = &other
	assert.True(t, s.Check(r, challenge, answer) != nil, "passed on")
}
