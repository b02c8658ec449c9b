package peer

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/memnet"
)

// TestStreamBreaks: whatever cuts a stream short, its reader sees an error and
// not an end.
func TestStreamBreaks(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	b.HandleStream("early", func(context.Context, Identity, []byte, io.Writer) error {
		return &Error{Code: "no", Detail: "because"}
	})
	b.HandleStream("late", func(_ context.Context, _ Identity, _ []byte, w io.Writer) error {
		if _, err := w.Write(make([]byte, 100_000)); err != nil {
			return err
		}
		return errors.New("disk gone")
	})
	b.HandleStream("panic", func(_ context.Context, _ Identity, _ []byte, w io.Writer) error {
		w.Write(make([]byte, 100_000))
		panic("a bug")
	})
	ended := make(chan error, 10)
	b.HandleStream("endless", func(ctx context.Context, _ Identity, _ []byte, w io.Writer) error {
		for {
			if _, err := w.Write(make([]byte, 10_000)); err != nil {
				<-ctx.Done()
				ended <- err
				return err
			}
		}
	})
	b.HandleStream("empty", func(context.Context, Identity, []byte, io.Writer) error { return nil })

	var e *Error
	if _, err := a.Stream(t.Context(), at(b), "early", nil); !errors.As(err, &e) || e.Code != "no" || NotSent(err) {
		t.Errorf("early: %v", err)
	}
	if _, err := a.Stream(t.Context(), at(b), "none", nil); !errors.As(err, &e) || e.Code != "unknown_call" || !NotSent(err) {
		t.Errorf("none: %v", err)
	}
	open := func(ctx context.Context, name string) io.ReadCloser {
		t.Helper()
		r, err := a.Stream(ctx, at(b), name, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	for name, size := range map[string]int64{"late": 100_000, "panic": 100_000, "empty": 0} {
		n, err := io.Copy(io.Discard, open(t.Context(), name))
		if n > size || (err == nil) != (name == "empty") {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
	part := make([]byte, 100)
	ctx, cancel := context.WithCancel(t.Context())
	r := open(ctx, "endless")
	io.ReadFull(r, part)
	cancel()
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("an end after the context's")
	}
	<-ended
	r = open(t.Context(), "endless")
	io.ReadFull(r, part)
	r.Close()
	<-ended
	r = open(t.Context(), "endless")
	io.ReadFull(r, part)
	b.SetSelf(Identity{Cluster: "c", Node: "b"})
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("an end after the connection's")
	}
	<-ended
	r = open(t.Context(), "endless")
	io.ReadFull(r, part)
	b.Close()
	if _, err := io.Copy(io.Discard, r); err == nil {
		t.Error("an end after the node's")
	}
	<-ended
}

// TestStreamsOwnConnection: a stream that nobody reads holds up no call.
func TestStreamsOwnConnection(t *testing.T) {
	l := &counting{Listener: listen(t)}
	a, b := start(t, "a"), startOn(t, l, "b")
	b.Handle("echo", echo)
	b.HandleStream("much", func(_ context.Context, _ Identity, _ []byte, w io.Writer) error {
		_, err := w.Write(make([]byte, 20<<20))
		return err
	})
	for range 3 {
		r, err := a.Stream(t.Context(), at(b), "much", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, _, err := a.Call(t.Context(), at(b), "echo", make([]byte, 1<<20)); err != nil {
			t.Error(err)
		}
	}
	if n := l.n.Load(); n != 4 {
		t.Errorf("%d connections", n)
	}
}

// TestStreamPartition: the reader of a stream whose source is gone learns it.
func TestStreamPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New(memnet.Options{})
		a, b := startIn(t, m, "a"), startIn(t, m, "b")
		b.HandleStream("slow", func(ctx context.Context, _ Identity, _ []byte, w io.Writer) error {
			for ctx.Err() == nil {
				w.Write(make([]byte, 5000))
				time.Sleep(time.Minute) // there is nothing to tell, that is no fault
			}
			return ctx.Err()
		})
		r, err := a.Stream(t.Context(), at(b), "slow", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := io.ReadFull(r, make([]byte, 20_000)); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		m.Cut("b", "a")
		if _, err := io.Copy(io.Discard, r); err == nil || time.Since(begin) > 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// TestSetSelf: what was said under another name is over.
func TestSetSelf(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	in := make(chan struct{})
	b.Handle("wait", func(ctx context.Context, _ Identity, _ []byte) ([]byte, error) {
		in <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	b.Handle("echo", func(_ context.Context, from Identity, _ []byte) ([]byte, error) { return []byte(from.Incarnation), nil })
	b.Raft()
	layer := a.Raft()
	for i, n := range []*Net{a, b} {
		raft, err := layer.Dial(at(b), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, _, err := a.Call(t.Context(), at(b), "wait", nil)
			done <- err
		}()
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
		if n.Self() != self {
			t.Errorf("self: %+v", n.Self())
		}
		if err := <-done; err == nil || NotSent(err) {
			t.Errorf("%d: call: %v", i, err)
		}
		if _, err := raft.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d: Raft's connection is open", i)
		}
		got, from, err := a.Call(t.Context(), at(b), "echo", nil)
		if err != nil || string(got) != a.Self().Incarnation || from != b.Self() {
			t.Errorf("%d: %q, %+v, %v", i, got, from, err)
		}
	}
	// The connection that is open leads to who is looked for, or is not used.
	_, _, err := a.Call(t.Context(), Target{Addr: b.Addr(), Node: "b", Incarnation: "i-b"}, "echo", nil)
	if !NotSent(err) || !strings.Contains(err.Error(), "another data directory") {
		t.Errorf("the incarnation before: %v", err)
	}
	if _, _, err := a.Call(t.Context(), Target{Addr: b.Addr(), Node: "b", Incarnation: "new-b"}, "echo", nil); err != nil {
		t.Errorf("the one now: %v", err)
	}
}

// TestClose: everything ends, and Close waits for it.
func TestClose(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	var running sync.WaitGroup
	in := make(chan struct{})
	ended := false
	b.Handle("wait", func(ctx context.Context, _ Identity, _ []byte) ([]byte, error) {
		in <- struct{}{}
		<-ctx.Done()
		ended = true
		return nil, ctx.Err()
	})
	running.Go(func() { a.Call(t.Context(), at(b), "wait", nil) })
	<-in
	layer := b.Raft()
	running.Go(func() {
		if c, err := layer.Accept(); err == nil {
			t.Errorf("accepted %v", c.RemoteAddr())
		}
	})
	silent, err := net.Dial("tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if !ended {
		t.Error("a handler is still running")
	}
	running.Wait()
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("a stranger is still in")
	}
	if err := b.Close(); err != nil {
		t.Errorf("again: %v", err)
	}
	for what, f := range map[string]func() error{
		"call":   func() error { _, _, err := b.Call(t.Context(), at(a), "x", nil); return err },
		"stream": func() error { _, err := b.Stream(t.Context(), at(a), "x", nil); return err },
		"hello":  func() error { _, err := b.Hello(t.Context(), a.Addr()); return err },
		"raft":   func() error { _, err := b.Raft().Dial(at(a), time.Minute); return err },
		"accept": func() error { _, err := b.Raft().Accept(); return err },
	} {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	if _, _, err := a.Call(t.Context(), at(b), "wait", nil); !NotSent(err) {
		t.Errorf("call to who is closed: %v", err)
	}
}

// TestRaftLayers: there is one at a time, and its connections end with it.
func TestRaftLayers(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	la, lb := a.Raft(), b.Raft()
	pair := func() (near, far net.Conn) {
		t.Helper()
		near, err := la.Dial(Target{Addr: lb.Addr().String(), Node: "b"}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if far, err = b.raft.Accept(); err != nil {
			t.Fatal(err)
		}
		if n, f := near.(*conn).Peer(), far.(*conn).Peer(); n != b.Self() || f != a.Self() {
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
	lb2 := b.Raft()
	closed("replaced over there", near, far)
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

// TestHandlers: they come, are replaced and go while calls come in.
func TestHandlers(t *testing.T) {
	var logged lockedBuffer
	a, b := start(t, "a"), start(t, "b", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	say := func(s string) Handler {
		return func(context.Context, Identity, []byte) ([]byte, error) { return []byte(s), nil }
	}
	for _, s := range []string{"one", "two"} {
		b.Handle("say", say(s))
		if got, _, err := a.Call(t.Context(), at(b), "say", nil); err != nil || string(got) != s {
			t.Errorf("%q, %v", got, err)
		}
	}
	b.Handle("say", nil)
	if _, _, err := a.Call(t.Context(), at(b), "say", nil); !NotSent(err) {
		t.Errorf("removed: %v", err)
	}
	b.Handle("käse/../& ?%41", say("odd"))
	if got, _, err := a.Call(t.Context(), at(b), "käse/../& ?%41", nil); err != nil || string(got) != "odd" {
		t.Errorf("odd name: %q, %v", got, err)
	}
	b.HandleStream("say", func(context.Context, Identity, []byte, io.Writer) error { return nil })
	if _, _, err := a.Call(t.Context(), at(b), "say", nil); !NotSent(err) {
		t.Errorf("a stream is no call: %v", err)
	}
	b.Handle("panic", func(context.Context, Identity, []byte) ([]byte, error) { panic("a bug") })
	if _, _, err := a.Call(t.Context(), at(b), "panic", nil); err == nil || NotSent(err) {
		t.Errorf("panic: %v", err)
	}
	b.Close() // HTTP/2 tells of it after it has answered
	if !strings.Contains(logged.String(), "a bug") {
		t.Errorf("a panic went unseen:\n%s", logged.String())
	}
}
