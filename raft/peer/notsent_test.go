package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/memnet"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestNotSent: what surely reached no handler.
func TestNotSent(t *testing.T) {
	t.Parallel()
	a := start(t, "a", func(o *Options) { o.MaxCall = 1 << 20 })
	b := start(t, "b", func(o *Options) { o.MaxCall = 1 << 19 })
	var ran atomic.Int64
	b.Handle("echo", func(ctx context.Context, from Identity, body []byte) ([]byte, error) {
		ran.Add(1)
		return echo(ctx, from, body)
	})
	// Nobody listens on port 1; one that was free a moment ago may be another
	// test's by now.
	const nobody = "127.0.0.1:1"
	deaf := listen(t) // takes connections and says nothing
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
		{"too large here", t.Context(), at(b), 1<<20 + 1, "too_large"},
		{"too large there", t.Context(), at(b), 1 << 20, "too_large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := a.Call(c.ctx, c.to, "echo", make([]byte, c.body))
			if !NotSent(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("call: %v; want %q", err, c.want)
			}
			r, err := a.Stream(c.ctx, c.to, "echo", make([]byte, c.body))
			if err == nil {
				r.Close()
			}
			if !NotSent(err) {
				t.Errorf("stream: %v", err)
			}
		})
	}
	if n := ran.Load(); n != 0 {
		t.Errorf("the handler ran %d times", n)
	}
	if NotSent(nil) || NotSent(errors.New("x")) || NotSent(&Error{Code: "refused"}) {
		t.Error("not sent: what is not known to be")
	}
}

// TestContextBeforeConnection: who gives up while a connection is being made
// sent nothing, and the connection serves those that stay.
func TestContextBeforeConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New(memnet.Options{})
		a, b := startIn(t, m, "a"), startIn(t, m, "b")
		b.Handle("echo", echo)
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
		if err := <-patient; err != nil {
			t.Errorf("patient: %v", err)
		}
	})
}

// TestRestartedServer: a connection in the pool whose other end is gone does not
// fail a call.
func TestRestartedServer(t *testing.T) {
	a := start(t, "a")
	l := listen(t)
	addr := l.Addr().String()
	for i := range 5 {
		b := startOn(t, l, "b")
		b.Handle("echo", echo)
		for range 3 {
			if _, _, err := a.Call(t.Context(), at(b), "echo", nil); err != nil {
				t.Fatalf("after %d restarts: %v", i, err)
			}
		}
		a.mu.Lock()
		var c *conn
		for c = range a.conns {
		}
		a.mu.Unlock()
		b.Close()
		for { // until the news is here: an event without a channel
			a.mu.Lock()
			_, open := a.conns[c]
			a.mu.Unlock()
			if !open {
				break
			}
			runtime.Gosched()
		}
		var err error
		if l, err = net.Listen("tcp", addr); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
}

// TestKilled: the other node ends between request and answer, or in the midst of
// the answer; nobody knows what it did.
func TestKilled(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	in := make(chan struct{})
	b.Handle("wait", func(ctx context.Context, _ Identity, _ []byte) ([]byte, error) {
		in <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	done := make(chan error)
	go func() {
		_, _, err := a.Call(t.Context(), at(b), "wait", []byte("x"))
		done <- err
	}()
	<-in
	b.Close()
	if err := <-done; err == nil || NotSent(err) {
		t.Errorf("killed: %v", err)
	}
}

// TestContextEnds: the handler is told that nobody waits, and the caller that it
// is not known what it did.
func TestContextEnds(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	in, out := make(chan struct{}), make(chan error, 1)
	b.Handle("wait", func(ctx context.Context, _ Identity, _ []byte) ([]byte, error) {
		in <- struct{}{}
		<-ctx.Done()
		out <- ctx.Err()
		return nil, ctx.Err()
	})
	b.Handle("echo", echo)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, _, err := a.Call(ctx, at(b), "wait", nil)
		done <- err
	}()
	<-in
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || NotSent(err) {
		t.Errorf("caller: %v", err)
	}
	if err := <-out; !errors.Is(err, context.Canceled) {
		t.Errorf("handler: %v", err)
	}
	if _, _, err := a.Call(t.Context(), at(b), "echo", nil); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// TestLimits: neither side takes more than it allows.
func TestLimits(t *testing.T) {
	a := start(t, "a", func(o *Options) { o.MaxCall = 1000 })
	b := start(t, "b", func(o *Options) { o.MaxCall = 2000 })
	b.Handle("give", func(_ context.Context, _ Identity, body []byte) ([]byte, error) {
		return make([]byte, binary.LittleEndian.Uint32(body)), nil
	})
	for n, want := range map[uint32]string{1000: "", 1001: "more than 1000 bytes", 2001: "too_large"} {
		got, _, err := a.Call(t.Context(), at(b), "give", binary.LittleEndian.AppendUint32(nil, n))
		if want == "" && (err != nil || len(got) != int(n)) {
			t.Errorf("%d: %d bytes, %v", n, len(got), err)
		}
		if want != "" && (err == nil || NotSent(err) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d: %v; want %q", n, err, want)
		}
	}
}

// script is a node that does the handshake and then speaks HTTP/2 frame by
// frame as it likes. It returns how many connections it took.
func script(t *testing.T, frames func(conn int, stream uint32) []byte) (Target, *atomic.Int64) {
	t.Helper()
	l := listen(t)
	taken := &atomic.Int64{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := int(taken.Add(1))
			wg.Go(func() {
				defer c.Close()
				if _, err := readHello(c); err != nil {
					return
				}
				b, _ := answer{from: Identity{Cluster: "c", Node: "s"}}.encode()
				c.Write(b)
				io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")))
				c.Write(h2frame(4, 0, 0, nil)) // SETTINGS
				head := make([]byte, 9)
				for {
					if _, err := io.ReadFull(c, head); err != nil {
						return
					}
					body := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
					if _, err := io.ReadFull(c, body); err != nil {
						return
					}
					stream := binary.BigEndian.Uint32(head[5:])
					switch kind, flags := head[3], head[4]; {
					case kind == 4 && flags&1 == 0: // SETTINGS
						c.Write(h2frame(4, 1, 0, nil))
					case kind == 0 && flags&1 != 0: // the end of DATA
						out := frames(n, stream)
						c.Write(out)
						if out == nil {
							return
						}
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return Target{Addr: l.Addr().String()}, taken
}

func h2frame(kind, flags byte, stream uint32, body []byte) []byte {
	b := []byte{byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), body...)
}

// TestTurnedBack: the whole request was written, and the other side says that it
// did not look at it. It is tried once more, on another connection.
func TestTurnedBack(t *testing.T) {
	u32 := func(v ...uint32) (b []byte) {
		for _, v := range v {
			b = binary.BigEndian.AppendUint32(b, v)
		}
		return b
	}
	answered := func(stream uint32) []byte { // status 200 (HPACK's 8), no body
		return h2frame(1, 1|4, stream, []byte{0x88})
	}
	for _, c := range []struct {
		name    string
		frames  func(conn int, stream uint32) []byte
		calls   int
		conns   int64
		err     string // of the last call
		notSent bool
	}{
		{"answered", func(_ int, s uint32) []byte { return answered(s) }, 3, 1, "", false},
		{"refused, always", func(_ int, s uint32) []byte { return h2frame(3, 0, s, u32(7)) }, 1, 1, "REFUSED_STREAM", true},
		{"refused on an old connection", func(conn int, s uint32) []byte {
			if conn == 1 && s > 1 {
				return h2frame(3, 0, s, u32(7))
			}
			return answered(s)
		}, 3, 2, "", false},
		{"gone away from an old connection", func(conn int, s uint32) []byte {
			if conn == 1 && s > 1 {
				return h2frame(7, 0, 0, u32(1, 0))
			}
			return answered(s)
		}, 3, 2, "", false},
		{"gone away while nothing was under way", func(conn int, s uint32) []byte {
			if conn == 1 {
				return append(answered(s), h2frame(7, 0, 0, u32(s, 0))...)
			}
			return answered(s)
		}, 5, 2, "", false},
		{"gone away, having seen it", func(_ int, s uint32) []byte {
			if s > 1 {
				return append(h2frame(7, 0, 0, u32(s, 0)), h2frame(3, 0, s, u32(2))...)
			}
			return answered(s)
		}, 2, 1, "INTERNAL_ERROR", false},
		{"reset otherwise", func(_ int, s uint32) []byte { return h2frame(3, 0, s, u32(8)) }, 1, 1, "CANCEL", false},
		// Closed with bytes that were not read, which TCP may tell as a reset.
		{"closed", func(int, uint32) []byte { return nil }, 1, 1, "EOF or connection reset by peer", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			to, conns := script(t, c.frames)
			a := start(t, "a")
			var err error
			for range c.calls {
				_, _, err = a.Call(t.Context(), to, "x", []byte("body"))
			}
			told := err == nil
			if c.err != "" {
				told = err != nil && slices.ContainsFunc(strings.Split(c.err, " or "), func(s string) bool { return strings.Contains(err.Error(), s) })
			}
			if !told || NotSent(err) != c.notSent {
				t.Errorf("%v (not sent: %v)", err, NotSent(err))
			}
			if n := conns.Load(); n != c.conns {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// TestNeverTwice makes calls through connections that break at any moment, and
// compares what the callers were told with what was done.
func TestNeverTwice(t *testing.T) {
	for seed := range uint64(20) {
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
	serve := func(b *Net) {
		b.Handle("do", func(ctx context.Context, _ Identity, body []byte) ([]byte, error) {
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
				b.Handle("do", nil)
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

// TestStopped is a node whose process is stopped (SIGSTOP): its kernel still
// takes connections and bytes. Calls without a deadline end all the same.
func TestStopped(t *testing.T) {
	if os.Getenv(childNode) != "" {
		b := start(t, "b")
		b.Handle("echo", echo)
		b.Handle("wait", func(ctx context.Context, _ Identity, _ []byte) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		fmt.Printf("addr %s\n", b.Addr())
		io.Copy(io.Discard, os.Stdin) // until the parent is gone
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^TestStopped$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), childNode+"=yes")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(syscall.SIGCONT)
		stdin.Close()
		io.Copy(io.Discard, stdout)
		cmd.Wait()
	}()
	var addr string
	if _, err := fmt.Fscanf(stdout, "addr %s\n", &addr); err != nil {
		t.Fatal(err)
	}
	a := start(t, "a")
	to := Target{Addr: addr}
	if _, _, err := a.Call(t.Context(), to, "echo", nil); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error)
	go func() {
		_, _, err := a.Call(t.Context(), to, "wait", nil)
		waiting <- err
	}()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	big := make(chan error)
	go func() {
		_, _, err := a.Call(t.Context(), to, "echo", make([]byte, 50<<20))
		big <- err
	}()
	if err := <-waiting; err == nil {
		t.Error("a stopped node answered")
	}
	if err := <-big; !NotSent(err) { // more than fits into any buffer
		t.Errorf("50 MiB: %v", err)
	}
	// On a connection that only its kernel has taken.
	if _, _, err := a.Call(t.Context(), to, "echo", nil); !NotSent(err) {
		t.Errorf("a new connection: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Call(t.Context(), to, "echo", nil); err != nil {
		t.Errorf("when it goes on: %v", err)
	}
}
