package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start makes a node n of cluster c on a port of its own.
func start(t testing.TB, node string, set ...func(*Options)) *Net {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return startOn(t, l, node, set...)
}

func startOn(t testing.TB, l net.Listener, node string, set ...func(*Options)) *Net {
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
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, n.Close())
	})
	return n
}

func at(n *Net) Target { return Target{Addr: n.Addr()} }

func echo(_ context.Context, from Identity, body []byte) ([]byte, error) {
	return append([]byte(from.Node+":"), body...), nil
}

func TestCall(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	b.Handle(t.Context(), "echo", echo)
	b.Handle(t.Context(), "fail", func(context.Context, Identity, []byte) ([]byte, error) {
		return nil, &Error{Code: "no", Detail: "because"}
	})
	b.Handle(t.Context(), "plain", func(context.Context, Identity, []byte) ([]byte, error) { return nil, errors.New("plain") })
	for _, body := range []string{"", "x", strings.Repeat("long ", 1<<18)} {
		got, from, err := a.Call(t.Context(), at(b), "echo", []byte(body))
		require.True(t, err == nil && string(got) == "a:"+body && from == b.Self(),
			"echo of %d bytes: %d bytes, %v, %v", len(body), len(got), from, err)
	}
	var e *Error
	if _, _, err := a.Call(t.Context(), at(b), "fail", nil); !errors.As(err, &e) || e.Code != "no" || e.Detail != "because" || NotSent(err) {
		t.Errorf("fail: %v", err)
	}
	if _, _, err := a.Call(t.Context(), at(b), "plain", nil); !errors.As(err, &e) || e.Code != "internal" || e.Detail != "plain" {
		t.Errorf("plain: %v", err)
	}
	if _, _, err := a.Call(t.Context(), at(b), "what", nil); !errors.As(err, &e) || e.Code != "unknown_call" || !NotSent(err) {
		t.Errorf("what: %v", err)
	}
}

func BenchmarkCall(b *testing.B) {
	from, to := start(b, "a"), start(b, "b")
	to.Handle(b.Context(), "echo", echo)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := from.Call(b.Context(), at(to), "echo", make([]byte, 1<<10)); err != nil {
			b.Fatal(err)
		}
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
