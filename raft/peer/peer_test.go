package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// childNode is the environment of a test that is a node in a process of its own.
const childNode = "PEER_TEST_NODE"

// start makes a node n of cluster c on a port of its own.
func start(t *testing.T, node string, set ...func(*Options)) *Net {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, l, node, set...)
}

func startOn(t *testing.T, l net.Listener, node string, set ...func(*Options)) *Net {
	t.Helper()
	o := Options{
		Listener: l,
		Self:     Identity{Cluster: "c", Node: node, Incarnation: "i-" + node, Raft: l.Addr().String(), HTTP: "127.0.0.1:1"},
		Logger:   slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, f := range set {
		f(&o)
	}
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func at(n *Net) Target { return Target{Addr: n.Addr()} }

func echo(_ context.Context, from Identity, body []byte) ([]byte, error) {
	return append([]byte(from.Node+":"), body...), nil
}

func TestCall(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	b.Handle("echo", echo)
	b.Handle("fail", func(context.Context, Identity, []byte) ([]byte, error) {
		return nil, &Error{Code: "no", Detail: "because", Body: []byte{0, 1}}
	})
	b.Handle("plain", func(context.Context, Identity, []byte) ([]byte, error) { return nil, errors.New("plain") })
	for _, body := range []string{"", "x", strings.Repeat("long ", 1<<18)} {
		got, from, err := a.Call(t.Context(), at(b), "echo", []byte(body))
		if err != nil || string(got) != "a:"+body || from != b.Self() {
			t.Fatalf("echo of %d bytes: %d bytes, %v, %v", len(body), len(got), from, err)
		}
	}
	var e *Error
	if _, _, err := a.Call(t.Context(), at(b), "fail", nil); !errors.As(err, &e) || e.Code != "no" || e.Detail != "because" || string(e.Body) != "\x00\x01" || NotSent(err) {
		t.Errorf("fail: %v", err)
	}
	if _, _, err := a.Call(t.Context(), at(b), "plain", nil); !errors.As(err, &e) || e.Code != "internal" || e.Detail != "plain" {
		t.Errorf("plain: %v", err)
	}
	if _, _, err := a.Call(t.Context(), at(b), "what", nil); !errors.As(err, &e) || e.Code != "unknown_call" || !NotSent(err) {
		t.Errorf("what: %v", err)
	}
}

// counting counts what it accepts.
type counting struct {
	net.Listener
	n atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

func TestCallsShareOneConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	count := &counting{Listener: l}
	a, b := start(t, "a"), startOn(t, count, "b")
	const calls = 200
	var met sync.WaitGroup
	met.Add(calls) // all are under way at once
	b.Handle("meet", func(context.Context, Identity, []byte) ([]byte, error) {
		met.Done()
		met.Wait()
		return nil, nil
	})
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if _, _, err := a.Call(t.Context(), at(b), "meet", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := count.n.Load(); got != 1 {
		t.Errorf("%d connections", got)
	}
}

func TestStream(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	b.HandleStream("count", func(_ context.Context, _ Identity, body []byte, w io.Writer) error {
		for range 100 {
			if _, err := w.Write(body); err != nil {
				return err
			}
		}
		return nil
	})
	r, err := a.Stream(t.Context(), at(b), "count", make([]byte, 100_000))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.Copy(io.Discard, r)
	if err != nil || got != 10_000_000 {
		t.Errorf("%d bytes, %v", got, err)
	}
}

// lockedBuffer is a log that many write.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// BenchmarkCall is what it costs to ask another node something of 1 KiB.
func BenchmarkCall(b *testing.B) {
	nodes := make([]*Net, 2)
	for i := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		if nodes[i], err = New(Options{Listener: l}); err != nil {
			b.Fatal(err)
		}
		defer nodes[i].Close()
	}
	nodes[1].Handle("echo", echo)
	body := make([]byte, 1024)
	call := func() {
		if _, _, err := nodes[0].Call(b.Context(), at(nodes[1]), "echo", body); err != nil {
			b.Error(err)
		}
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			call()
		}
	})
	b.Run("many", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				call()
			}
		})
	})
}
