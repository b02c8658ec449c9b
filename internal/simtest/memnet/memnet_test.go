package memnet

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// pair connects a to b.
func pair(t *testing.T, n *Network) (a, b net.Conn) {
	t.Helper()
	l, err := n.Listen("b:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	a, err = n.Dialer("a")(t.Context(), "b:1")
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if k, err := c.Write([]byte(s)); k != len(s) || err != nil {
		t.Fatalf("write %q: %d, %v", s, k, err)
	}
}

func want(t *testing.T, c net.Conn, s string) {
	t.Helper()
	b := make([]byte, len(s))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != s {
		t.Fatalf("read %q, %v; want %q", b, err, s)
	}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func TestLatency(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := New(Options{Latency: func(from, to string) time.Duration {
			if from == "a" {
				return time.Second
			}
			return 2 * time.Second
		}})
		start := time.Now()
		a, b := pair(t, n)
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("connected after %v", d)
		}
		start = time.Now()
		send(t, a, "one")
		send(t, a, "two")
		want(t, b, "onetwo")
		send(t, b, "three")
		want(t, a, "three")
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("there and back in %v", d)
		}
	})
}

func TestDeadlines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := pair(t, New(Options{Buffer: 4}))
		timeout := func(what string, k int, err error) {
			t.Helper()
			var ne net.Error
			if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &ne) || !ne.Timeout() {
				t.Errorf("%s: %d, %v", what, k, err)
			}
		}
		a.SetReadDeadline(time.Now().Add(time.Minute))
		k, err := a.Read(make([]byte, 1))
		timeout("read", k, err)
		a.SetWriteDeadline(time.Now().Add(time.Minute))
		k, err = a.Write([]byte("too long"))
		timeout("write", k, err)
		if k != 4 {
			t.Errorf("%d bytes written", k)
		}
		a.SetDeadline(time.Time{})
		want(t, b, "too ")
		// One that is set while somebody waits.
		go func() {
			time.Sleep(time.Hour)
			a.SetReadDeadline(time.Now())
		}()
		k, err = a.Read(make([]byte, 1))
		timeout("read", k, err)
	})
}

func TestBackpressure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := pair(t, New(Options{Buffer: 10}))
		text := strings.Repeat("0123456789", 100) + "end"
		go func() {
			a.Write([]byte(text))
			a.Close()
		}()
		got, err := io.ReadAll(b)
		if err != nil || string(got) != text {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write to who is gone: %v", err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after Close: %v", err)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after Close: %v", err)
		}
	})
}

func TestCutOneWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := New(Options{})
		a, b := pair(t, n)
		n.Cut("a", "b")
		send(t, a, "later")
		send(t, b, "now")
		want(t, a, "now")
		b.SetReadDeadline(time.Now().Add(time.Hour))
		if k, err := b.Read(make([]byte, 9)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d bytes through a cut, %v", k, err)
		}
		b.SetReadDeadline(time.Time{})
		a.Close()
		go func() {
			time.Sleep(time.Hour)
			n.Heal("b", "a")
		}()
		want(t, b, "later")
		if _, err := b.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestDialThroughCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := New(Options{})
		a, _ := pair(t, n)
		for _, w := range []way{{"a", "b"}, {"b", "a"}} {
			n.Cut(w.from, w.to)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if _, err := n.Dialer("a")(ctx, "b:1"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("dial through %v: %v", w, err)
			}
			cancel()
			n.HealAll()
		}
		if _, err := n.Dialer("b")(t.Context(), "a:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nobody listens: %v", err)
		}
		n.Isolate("b")
		go func() {
			time.Sleep(time.Minute)
			n.HealAll()
		}()
		c, err := n.Dialer("a")(t.Context(), "b:1")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		a.Close()
	})
}

func TestCrash(t *testing.T) {
	for _, host := range []string{"a", "b"} {
		for _, cut := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				n := New(Options{Latency: func(string, string) time.Duration { return time.Second }})
				a, b := pair(t, n)
				if host == "a" {
					a, b = b, a // b's host crashes
				}
				if cut {
					n.CutBoth("a", "b")
					go func() {
						time.Sleep(time.Hour)
						n.HealAll()
					}()
				}
				start := time.Now()
				n.Crash(host)
				if _, err := b.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s itself: %v", host, err)
				}
				send(t, a, "nobody knows yet")
				if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the other one: %v", err)
				}
				if d, late := time.Since(start), cut; (d == time.Hour) != late || !late && d != time.Second {
					t.Errorf("news after %v", d)
				}
				if _, err := a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
					t.Errorf("write: %v", err)
				}
				_, err := n.Listen("b:1")
				if up := err != nil; up != (host == "a") {
					t.Errorf("%s crashed, listen at b: %v", host, err)
				}
			})
		}
	}
}

func TestListener(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := New(Options{})
		l, err := n.Listen("b:0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Listen(l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("twice: %v", err)
		}
		// More than the backlog holds wait for their turn.
		const many = 300
		for range many {
			go func() {
				c, err := n.Dialer("a")(t.Context(), l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
		synctest.Wait()
		for range many {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		waiting, err := n.Dialer("a")(t.Context(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("not accepted: %v", err)
		}
		waiting.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("accept after Close: %v", err)
		}
		synctest.Wait()
		if left := len(n.conns); left != 0 {
			t.Errorf("%d ends left open", left)
		}
	})
}
