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
		if f != nil {
			f(&o)
		}
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

// waiting makes a node serve a call that lasts until nobody waits for the answer: in receives when
// it begins, out why it ends.
func waiting(t *testing.T, n *Net) (in chan struct{}, out chan error) {
	in, out = make(chan struct{}, 9), make(chan error, 9)
	n.Handle(t.Context(), "wait", func(ctx context.Context, _ Identity, _ []byte) ([]byte, error) {
		in <- struct{}{}
		<-ctx.Done()
		out <- ctx.Err()
		return nil, ctx.Err()
	})
	return in, out
}

// wait makes that call, and returns where its error will be.
func wait(ctx context.Context, from, to *Net) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, _, err := from.Call(ctx, at(to), "wait", nil)
		done <- err
	}()
	return done
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
	for name, want := range map[string]string{
		"fail": "no: because", "plain": "internal: plain", "what": `unknown_call: no handler for "what"`,
	} {
		_, _, err := a.Call(t.Context(), at(b), name, nil)
		e, ok := errors.AsType[*Error](err)
		assert.True(t, ok && e.Error() == want && NotSent(err) == (name == "what"),
			"%s: %v, want %s", name, err, want)
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
