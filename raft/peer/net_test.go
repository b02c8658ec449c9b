package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memnet"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// startIn makes a node on a network in memory. Its host is its name.
func startIn(t *testing.T, m *memnet.Network, node string, set ...func(*Options)) *Net {
	t.Helper()
	l, err := m.Listen(node + ":7071")
	require.NoError(t, err)
	return startOn(t, l, node, append(set, func(o *Options) { o.Dial = m.Dialer(node) })...)
}

// TestPartition runs nodes in simulated time: a partition is noticed in seconds,
// by calls without a deadline too.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New(memnet.Options{Latency: func(string, string) time.Duration { return time.Millisecond }})
		a, b := startIn(t, m, "a"), startIn(t, m, "b")
		b.Handle(t.Context(), "echo", echo)
		waiting(t, b)
		if got, _, err := a.Call(t.Context(), at(b), "echo", []byte("x")); err != nil || string(got) != "a:x" {
			t.Fatalf("%q, %v", got, err)
		}
		time.Sleep(time.Hour) // idle connections stay
		for _, cut := range []func(){
			func() { m.CutBoth("a", "b") },
			func() { m.Cut("a", "b") },
			func() { m.Cut("b", "a") },
		} {
			// One is under way when the line is cut, one comes then.
			waiting := wait(t.Context(), a, b)
			synctest.Wait()
			time.Sleep(time.Minute)
			start := time.Now()
			cut()
			err := <-waiting
			assert.True(t, err != nil && !NotSent(err), "call under way: %v", err)
			noticed := time.Now()
			assert.True(t, noticed.Sub(start) <= 5*time.Second, "noticed after %v", noticed.Sub(start))
			_, _, err = a.Call(t.Context(), at(b), "echo", nil)
			assert.True(t, NotSent(err) && errors.Is(err, context.DeadlineExceeded),
				"call through a cut: %v", err)
			assert.True(t, time.Since(noticed) <= 5*time.Second, "gave up after %v", time.Since(noticed))
			m.HealAll()
			_, _, err = a.Call(t.Context(), at(b), "echo", nil)
			assert.NoError(t, err, "after healing")
		}
	})
}

// TestNotSent: what surely reached no handler.
func TestNotSent(t *testing.T) {
	t.Parallel()
	a, b := start(t, "a"), start(t, "b")
	var ran atomic.Int64
	b.Handle(t.Context(), "echo", func(ctx context.Context, from Identity, body []byte) ([]byte, error) {
		ran.Add(1)
		return echo(ctx, from, body)
	})
	// Nobody listens on port 1; one that was free a moment ago may be another
	// test's by now.
	const nobody = "127.0.0.1:1"
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	require.NoError(t, err)
	defer deaf.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		to   Target
		body int
		want string
	}{
		{"nobody there", t.Context(), Target{Addr: nobody}, 1, "connection refused"},
		{"no address", t.Context(), Target{Addr: "nonsense"}, 1, "missing port"},
		{"no address at all", t.Context(), Target{}, 1, "missing address"},
		{"nobody answers", t.Context(), Target{Addr: deaf.Addr().String()}, 1, "timeout"},
		{"refused", t.Context(), Target{Addr: b.Addr(), Node: "x"}, 1, "refused"},
		{"context ended", gone, at(b), 1, "context canceled"},
		{"too large", t.Context(), at(b), maxCall + 1, "too_large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := a.Call(c.ctx, c.to, "echo", make([]byte, c.body))
			assert.True(t, NotSent(err) && strings.Contains(err.Error(), c.want),
				"call: %v; want %q", err, c.want)
		})
	}
	if n := ran.Load(); n != 0 {
		t.Errorf("the handler ran %d times", n)
	}
	assert.True(t, !NotSent(nil) && !NotSent(errors.New("x")) && !NotSent(&Error{Code: "refused"}),
		"not sent: what is not known to be")
}

// TestContextBeforeConnection: who gives up while a connection is being made
// sent nothing, and the connection serves those that stay.
func TestContextBeforeConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New(memnet.Options{})
		a, b := startIn(t, m, "a"), startIn(t, m, "b")
		b.Handle(t.Context(), "echo", echo)
		m.Cut("b", "a")
		patient := make(chan error)
		go func() {
			_, _, err := a.Call(t.Context(), at(b), "echo", nil)
			patient <- err
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := a.Call(ctx, at(b), "echo", nil); !NotSent(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("impatient: %v", err)
		}
		m.HealAll()
		assert.NoError(t, <-patient, "patient")
	})
}

// TestContextEnds: the handler is told that nobody waits, and the caller that it
// is not known what it did.
func TestContextEnds(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	in, out := waiting(t, b)
	b.Handle(t.Context(), "echo", echo)
	ctx, cancel := context.WithCancel(t.Context())
	done := wait(ctx, a, b)
	<-in
	cancel()
	err := <-done
	assert.True(t, errors.Is(err, context.Canceled) && !NotSent(err), "caller: %v", err)
	assert.ErrorIs(t, <-out, context.Canceled, "handler:")
	_, _, err = a.Call(t.Context(), at(b), "echo", nil)
	assert.NoError(t, err, "the next call")
}

// TestNeverTwice makes calls through connections that break at any moment, and
// compares what the callers were told with what was done. make sim takes more seeds.
func TestNeverTwice(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { neverTwice(t, seed) }) })
	}
}

func neverTwice(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	pick := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	m := memnet.New(memnet.Options{
		Latency: func(string, string) time.Duration { return time.Duration(pick(3000)) * time.Microsecond },
	})
	a := startIn(t, m, "a")
	var ran [400]atomic.Int64
	b := startIn(t, m, "b")
	unserve := func() {}
	serve := func(b *Net) {
		var ctx context.Context
		ctx, unserve = context.WithCancel(t.Context())
		b.Handle(ctx, "do", func(ctx context.Context, _ Identity, body []byte) ([]byte, error) {
			ran[binary.LittleEndian.Uint32(body)].Add(1)
			time.Sleep(time.Duration(pick(3)) * time.Millisecond)
			return body[:4], nil
		})
	}
	serve(b)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(pick(40)) * time.Millisecond):
			}
			switch pick(5) {
			case 0:
				b.SetSelf(Identity{Cluster: "c", Node: "b", Incarnation: fmt.Sprint(i)})
			case 1:
				a.SetSelf(Identity{Cluster: "c", Node: "a", Incarnation: fmt.Sprint(i)})
			case 2:
				m.Crash("b")
				b.Close()
				b = startIn(t, m, "b")
				serve(b)
			case 3:
				m.CutBoth("a", "b")
				time.Sleep(time.Duration(pick(40)*pick(40)) * time.Millisecond)
				m.HealAll()
			case 4:
				unserve()
				time.Sleep(time.Duration(pick(5)) * time.Millisecond)
				serve(b)
			}
		}
	}()
	var wg sync.WaitGroup
	var ok, unknown, unsent atomic.Int64
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < len(ran); i += 8 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+pick(100))*time.Millisecond)
				body := binary.LittleEndian.AppendUint32(nil, uint32(i))
				body = append(body, make([]byte, pick(20000))...)
				got, _, err := a.Call(ctx, Target{Addr: "b:7071"}, "do", body)
				cancel()
				switch {
				case err == nil:
					ok.Add(1)
					if n := ran[i].Load(); n != 1 || !bytes.Equal(got, body[:4]) {
						t.Errorf("call %d answered %x, done %d times", i, got, n)
					}
				case NotSent(err):
					unsent.Add(1)
					time.Sleep(time.Millisecond) // then it would have been
					if n := ran[i].Load(); n != 0 {
						t.Errorf("call %d not sent (%v), done %d times", i, err, n)
					}
				default:
					unknown.Add(1)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	<-stopped
	time.Sleep(time.Minute)
	for i := range ran {
		if n := ran[i].Load(); n > 1 {
			t.Errorf("call %d was done %d times", i, n)
		}
	}
	t.Logf("%d answered, %d unknown, %d not sent", ok.Load(), unknown.Load(), unsent.Load())
}

// TestSetSelf: what was said under another name is over.
func TestSetSelf(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	in, _ := waiting(t, b)
	b.Handle(t.Context(), "echo", func(_ context.Context, from Identity, _ []byte) ([]byte, error) {
		return []byte(from.Incarnation), nil
	})
	b.Raft()
	layer := a.Raft()
	for i, n := range []*Net{a, b} {
		raft, err := layer.Dial(at(b), time.Minute)
		require.NoError(t, err)
		done := wait(t.Context(), a, b)
		<-in
		self := n.Self()
		n.SetSelf(self) // the same: nothing happens
		select {
		case err := <-done:
			t.Fatalf("ended by nothing: %v", err)
		default:
		}
		self.Incarnation = "new-" + self.Node
		n.SetSelf(self)
		assert.Equal(t, n.Self(), self, "self")
		if err := <-done; err == nil || NotSent(err) {
			t.Errorf("%d: call: %v", i, err)
		}
		if _, err := raft.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d: Raft's connection is open", i)
		}
		got, from, err := a.Call(t.Context(), at(b), "echo", nil)
		assert.True(t, err == nil && string(got) == a.Self().Incarnation && from == b.Self(),
			"%d: %q, %+v, %v", i, got, from, err)
	}
	// The connection that is open leads to who is looked for, or is not used.
	to := Target{Addr: b.Addr(), Node: "b", Incarnation: "i-b"}
	_, _, err := a.Call(t.Context(), to, "echo", nil)
	assert.True(t, NotSent(err) && strings.Contains(err.Error(), "another data directory"),
		"the incarnation before: %v", err)
	to.Incarnation = "new-b"
	_, _, err = a.Call(t.Context(), to, "echo", nil)
	assert.NoError(t, err, "the one now")
}

// TestClose: everything ends, and Close waits for it.
func TestClose(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	in, out := waiting(t, b)
	called := wait(t.Context(), a, b)
	<-in
	layer, accepted := b.Raft(), make(chan error)
	go func() {
		_, err := layer.Accept()
		accepted <- err
	}()
	silent, err := net.Dial("tcp", b.Addr())
	require.NoError(t, err)
	defer silent.Close()
	require.NoError(t, b.Close())
	assert.Equal(t, len(out), 1, "handlers that have ended")
	assert.True(t, <-called != nil && <-accepted != nil, "a call, or Accept, has succeeded")
	_, err = silent.Read(make([]byte, 1))
	assert.True(t, err != nil, "a stranger is still in")
	assert.NoError(t, b.Close(), "again")
	for what, f := range map[string]func() error{
		"call":   func() error { _, _, err := b.Call(t.Context(), at(a), "x", nil); return err },
		"hello":  func() error { _, err := b.Hello(t.Context(), a.Addr()); return err },
		"raft":   func() error { _, err := b.Raft().Dial(at(a), time.Minute); return err },
		"accept": func() error { _, err := b.Raft().Accept(); return err },
	} {
		assert.ErrorIs(t, f(), net.ErrClosed, "%s after Close:", what)
	}
	err = <-wait(t.Context(), a, b)
	assert.True(t, NotSent(err), "call to who is closed: %v", err)
}

// TestRaftLayers: there is one at a time, and its connections end with it.
func TestRaftLayers(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	la, lb := a.Raft(), b.Raft()
	pair := func() (near, far net.Conn) {
		t.Helper()
		near, err := la.Dial(Target{Addr: lb.Addr().String(), Node: "b"}, time.Minute)
		require.NoError(t, err)
		if far, err = b.raft.Accept(); err != nil {
			t.Fatal(err)
		}
		if n, f := near.(*conn).peer, far.(*conn).peer; n != b.Self() || f != a.Self() {
			t.Errorf("between %+v and %+v", f, n)
		}
		return near, far
	}
	closed := func(what string, cs ...net.Conn) {
		t.Helper()
		for _, c := range cs {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: a connection is open", what)
			}
		}
	}
	near, far := pair()
	lb.Close()
	closed("closed over there", near, far)
	lb2 := b.Raft()
	if _, err := lb.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept on the one before: %v", err)
	}
	lb.Close() // long since: takes nothing from the new one
	near, far = pair()
	la.Close()
	closed("closed here", near, far)
	if _, err := la.Dial(at(b), time.Minute); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial on a closed one: %v", err)
	}
	la = a.Raft()
	near, far = pair()
	lb2.Close()
	closed("closed over there", near, far)
	if _, err := la.Dial(at(b), time.Minute); !NotSent(err) {
		t.Errorf("dial to none: %v", err)
	}
}

// TestStrangers: those that speak something else are gone, in words where they
// can be read, and do not fill the disk with messages.
func TestStrangers(t *testing.T) {
	var logged lockedBuffer
	n := start(t, "a", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	ask := func(path, hello string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: x\r\nQlogd-Hello: " + hello + "\r\n\r\n"
	}
	for name, c := range map[string]struct{ sends, says string }{
		"HTTP":          {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not a node"},
		"a call":        {"POST /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "not a node"},
		"TLS":           {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400 Bad Request"},
		"too long":      {ask("/calls", strings.Repeat("x", 3*maxHello)), "431 Request Header"},
		"no JSON":       {ask("/calls", "x"), "invalid character"},
		"newer version": {ask("/calls", `{"version":2}`), "protocol version 2 is not known here, only 1"},
		"unknown kind":  {ask("/other", `{"version":1,"from":{"node":"x"}}`), "/other"},
		"control":       {ask("/calls", `{"version":1,"from":{"node":"x\u000a"}}`), "control characters"},
	} {
		c2, err := net.Dial("tcp", n.Addr())
		require.NoError(t, err)
		if _, err := c2.Write([]byte(c.sends)); err != nil {
			t.Fatal(err)
		}
		// No timeout: the other side must end it.
		if got, _ := io.ReadAll(c2); !strings.Contains(string(got), c.says) || strings.HasPrefix(string(got), "HTTP/1.1 2") {
			t.Errorf("%s: answered with %q", name, got)
		}
		c2.Close()
	}
	if got := strings.Count(logged.String(), "connection from an unknown host refused"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, logged.String())
	}
}

// TestSlowStrangers: those that connect and say nothing, or half of it, are gone
// after a while, or when there are too many; a node that comes meanwhile is let in.
func TestSlowStrangers(t *testing.T) {
	for _, half := range []string{"GET", "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"} {
		synctest.Test(t, func(t *testing.T) { testSlowStrangers(t, half) })
	}
}

func testSlowStrangers(t *testing.T, half string) {
	m := memnet.New(memnet.Options{})
	n := startIn(t, m, "a", func(o *Options) { o.MaxConns = 20 })
	b := startIn(t, m, "b")
	n.Handle(t.Context(), "echo", echo)
	begin := time.Now()
	ended := make(chan time.Duration, n.o.MaxConns+10)
	for range cap(ended) {
		c, err := m.Dialer("s")(t.Context(), n.Addr())
		require.NoError(t, err)
		go func() {
			_, _ = c.Write([]byte(half))
			_, _ = io.ReadAll(c)
			c.Close()
			ended <- time.Since(begin)
		}()
		synctest.Wait()
	}
	if _, _, err := b.Call(t.Context(), at(n), "echo", nil); err != nil {
		t.Errorf("call while strangers say nothing: %v", err)
	}
	atOnce := 0
	for range cap(ended) {
		if d := <-ended; d == 0 {
			atOnce++
		} else if d < greetTimeout || d > greetTimeout+time.Second {
			t.Errorf("gone after %v", d)
		}
	}
	if atOnce != 11 { // the node takes a place too
		t.Errorf("%d gave way", atOnce)
	}
}

// failing is a listener whose first accepts fail, as with too little memory.
type failing struct {
	net.Listener
	left atomic.Int32
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, syscall.ENOBUFS
	}
	return f.Listener.Accept()
}

// TestAcceptFails: the port is served again after an error.
func TestAcceptFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &failing{Listener: l}
	f.left.Store(3)
	n, b := startOn(t, f, "a"), start(t, "b")
	n.Handle(t.Context(), "echo", echo)
	_, _, err = b.Call(t.Context(), at(n), "echo", nil)
	assert.NoError(t, err)
}
