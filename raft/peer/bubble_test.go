package peer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/memnet"
)

// startIn makes a node on a network in memory. Its host is its name.
func startIn(t *testing.T, m *memnet.Network, node string, set ...func(*Options)) *Net {
	t.Helper()
	l, err := m.Listen(node + ":7071")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, l, node, append(set, func(o *Options) { o.Dial = m.Dialer(node) })...)
}

// TestBubble runs nodes in simulated time: a partition is noticed in seconds,
// by calls without a deadline too.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New(memnet.Options{Latency: func(string, string) time.Duration { return time.Millisecond }})
		a, b := startIn(t, m, "a"), startIn(t, m, "b")
		b.Handle("echo", echo)
		b.Handle("wait", func(ctx context.Context, _ Identity, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
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
			waiting := make(chan error)
			go func() {
				_, _, err := a.Call(t.Context(), at(b), "wait", nil)
				waiting <- err
			}()
			synctest.Wait()
			time.Sleep(time.Minute)
			start := time.Now()
			cut()
			if err := <-waiting; err == nil || NotSent(err) {
				t.Errorf("call under way: %v", err)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("noticed after %v", d)
			}
			start = time.Now()
			if _, _, err := a.Call(t.Context(), at(b), "echo", nil); !NotSent(err) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("call through a cut: %v", err)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("gave up after %v", d)
			}
			m.HealAll()
			if _, _, err := a.Call(t.Context(), at(b), "echo", nil); err != nil {
				t.Errorf("after healing: %v", err)
			}
		}
	})
}
