package peer

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// framesSample is one of every frame.
func framesSample() []byte {
	b := []byte(framesPreface)
	b, _ = (&parcel{kind: frameCall, id: 7, name: "echo", body: []byte("body")}).append(b)
	b, _ = (&parcel{kind: frameAnswer, id: 7, body: []byte("answer")}).append(b)
	b, _ = (&parcel{kind: frameError, code: unknownCall, id: 8, body: marshalError(&Error{Code: "c", Detail: "d", Body: []byte{1}})}).append(b)
	b, _ = (&parcel{kind: frameMore, id: 9, body: []byte("more"), more: true}).append(b)
	for _, h := range []head{{kind: frameCancel, id: 1 << 40}, {kind: framePing}, {kind: framePong}, {kind: frameBye, id: 10}} {
		b = h.append(b)
	}
	return b
}

// TestFramesGolden: nodes of all versions that ever were must understand these.
func TestFramesGolden(t *testing.T) {
	got, name := hex.Dump(framesSample()), filepath.Join("testdata", "frames.golden")
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}

// frames makes a connection that passed the handshake and the preface.
func frames(t *testing.T, n *Net) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	b, _ := hello{kind: kindRPC, from: Identity{Cluster: "c", Node: "x"}}.encode()
	c.Write(b)
	a, err := readAnswer(c)
	if err != nil || a.refused || a.reason != framesOffer {
		t.Fatalf("%+v, %v", a, err)
	}
	io.WriteString(c, framesPreface)
	return c
}

func raw(h head, body ...byte) []byte { return append(h.append(nil), body...) }

// callFrame begins a call whose whole body has total bytes.
func callFrame(id uint64, name string, total int, body []byte) []byte {
	b := head{kind: frameCall, size: 4 + len(name) + len(body), name: len(name), id: id}.append(nil)
	b = binary.LittleEndian.AppendUint32(b, uint32(total))
	return append(append(b, name...), body...)
}

// TestBadFrames: who breaks the protocol is gone, has cost little and made no
// handler run; who is merely late is skipped.
func TestBadFrames(t *testing.T) {
	if noFrames {
		t.Skip("of frames")
	}
	var logged lockedBuffer
	n := start(t, "a", func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		o.MaxCall = 1 << 20
	})
	var ran atomic.Int64
	n.Handle("echo", func(ctx context.Context, from Identity, body []byte) ([]byte, error) {
		ran.Add(1)
		return echo(ctx, from, body)
	})
	whole := callFrame(1, "echo", 1, []byte("x"))
	for _, c := range []struct {
		name string
		b    []byte
		ran  int64
	}{
		{"kind", raw(head{kind: 99}), 0},
		{"none", make([]byte, frameHead), 0},
		{"too long", raw(head{kind: frameCall, size: maxChunk + 5, id: 1}), 0},
		{"longest", bytes.Repeat([]byte{0xff}, frameHead), 0},
		{"ping with a body", raw(head{kind: framePing, size: 1}, 0), 0},
		{"name too long", raw(head{kind: frameCall, size: 4 + maxName + 1, name: maxName + 1, id: 1}), 0},
		{"name longer than the frame", raw(head{kind: frameCall, size: 8, name: 5, id: 1}), 0},
		{"code of a call", raw(head{kind: frameCall, size: 8, name: 4, code: 1, id: 1}), 0},
		{"an answer", raw(head{kind: frameAnswer, size: 4, id: 1}, 0, 0, 0, 0), 0},
		{"a bye", raw(head{kind: frameBye}), 0},
		{"more than announced", callFrame(1, "echo", 1, []byte("xx")), 0},
		{"none of what was announced", callFrame(1, "echo", 2, nil), 0},
		{"more than announced, later", append(callFrame(1, "echo", 3, []byte("xx")), raw(head{kind: frameMore, size: 2, id: 1}, 1, 2)...), 0},
		{"empty more", append(callFrame(1, "echo", 3, []byte("xx")), raw(head{kind: frameMore, id: 1})...), 0},
		{"id 0", callFrame(0, "echo", 1, []byte("x")), 0},
		{"same id again", append(bytes.Clone(whole), whole...), 1},
		{"lower id", append(callFrame(9, "echo", 1, []byte("x")), callFrame(8, "echo", 1, []byte("x"))...), 1},
	} {
		ran.Store(0)
		conn := frames(t, n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		conn.Write(c.b)
		io.Copy(io.Discard, conn) // no timeout: the other side must end it
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 512<<10 {
			t.Errorf("%s: %d bytes allocated", c.name, got)
		}
		for ran.Load() < c.ran {
			runtime.Gosched()
		}
		if got := ran.Load(); got != c.ran {
			t.Errorf("%s: %d handlers ran", c.name, got)
		}
	}
	if got := strings.Count(logged.String(), "a node broke the protocol"); got != 1 {
		t.Errorf("told %d times:\n%s", got, logged.String())
	}

	// Cut in the middle, anywhere: nothing runs.
	ran.Store(0)
	for k := range whole {
		conn := frames(t, n)
		conn.Write(whole[:k])
		conn.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, conn)
	}
	if got := ran.Load(); got != 0 {
		t.Errorf("cut off: %d handlers ran", got)
	}

	// What is late, or not known, is no fault; nor is it to come byte by byte.
	conn := frames(t, n)
	var late []byte
	late = append(late, raw(head{kind: frameMore, size: 3, id: 5}, 1, 2, 3)...)
	late = append(late, raw(head{kind: frameCancel, id: 6})...)
	late = append(late, callFrame(7, "who", 100, []byte("x"))...)
	late = append(late, raw(head{kind: frameMore, size: 1, id: 7}, 1)...)
	late = append(late, callFrame(8, "echo", 2<<20, []byte("x"))...)
	late = append(late, raw(head{kind: frameMore, size: 1, id: 8}, 1)...)
	late = append(late, callFrame(9, "echo", 2, []byte("o"))...)
	late = append(late, raw(head{kind: framePing})...)
	late = append(late, raw(head{kind: frameMore, size: 1, id: 9}, 'k')...)
	for _, b := range late {
		conn.Write([]byte{b})
	}
	r := newWire(conn0(conn))
	for _, want := range []struct {
		kind frameKind
		id   uint64
		code errorCode
	}{{frameError, 7, unknownCall}, {frameError, 8, tooLarge}, {framePong, 0, 0}, {frameAnswer, 9, 0}} {
		b, err := r.r.Peek(frameHead)
		if err != nil {
			t.Fatal(err)
		}
		h, err := parseHead(b)
		if err != nil || h.kind != want.kind || h.id != want.id || h.code != want.code {
			t.Fatalf("%+v, %v; want %+v", h, err, want)
		}
		r.r.Discard(frameHead + h.size)
	}
}

func conn0(c net.Conn) *conn { return &conn{Conn: c, raw: c} }

// answering is a node that does the handshake and answers each call by frames as
// it likes; nil ends the connection. It returns how many connections it took.
func answering(t *testing.T, frames func(conn int, id uint64) []byte) (Target, *atomic.Int64) {
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
				b, _ := answer{from: Identity{Cluster: "c", Node: "s"}, reason: framesOffer}.encode()
				c.Write(b)
				io.ReadFull(c, make([]byte, len(framesPreface)))
				b = make([]byte, frameHead)
				for {
					if _, err := io.ReadFull(c, b); err != nil {
						return
					}
					h, err := parseHead(b)
					if err != nil {
						t.Error(err)
						return
					}
					io.CopyN(io.Discard, c, int64(h.size))
					if h.kind != frameCall {
						continue
					}
					out := frames(n, h.id)
					c.Write(out)
					if out == nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return Target{Addr: l.Addr().String()}, taken
}

// TestTurnedBackFrames is as TestTurnedBack, and more of what a caller may see.
func TestTurnedBackFrames(t *testing.T) {
	if noFrames {
		t.Skip("of frames")
	}
	ok := func(id uint64) []byte {
		b, _ := (&parcel{kind: frameAnswer, id: id, body: []byte("ok")}).append(nil)
		return b
	}
	bad := func(code errorCode, body string) func(int, uint64) []byte {
		return func(_ int, id uint64) []byte {
			b, _ := (&parcel{kind: frameError, code: code, id: id, body: []byte(body)}).append(nil)
			return b
		}
	}
	always := func(b []byte) func(int, uint64) []byte { return func(int, uint64) []byte { return b } }
	for _, c := range []struct {
		name    string
		frames  func(conn int, id uint64) []byte
		calls   int
		conns   int64
		err     string // of the last call
		notSent bool
	}{
		{"answered", func(_ int, id uint64) []byte { return ok(id) }, 3, 1, "", false},
		{"refused, always", bad(turnedBack, ""), 1, 1, "did not look", true},
		{"refused on an old connection", func(conn int, id uint64) []byte {
			if conn == 1 && id > 1 {
				return bad(turnedBack, "")(conn, id)
			}
			return ok(id)
		}, 3, 2, "", false},
		{"gone away from an old connection", func(conn int, id uint64) []byte {
			if conn == 1 && id > 1 {
				return raw(head{kind: frameBye, id: id - 1})
			}
			return ok(id)
		}, 3, 2, "", false},
		{"gone away, having seen it", func(_ int, id uint64) []byte { return append(raw(head{kind: frameBye, id: id}), ok(id)...) }, 1, 1, "", false},
		{"broken off", bad(brokenOff, ""), 1, 1, "broke off", false},
		{"unknown", bad(unknownCall, `{"Code":"unknown_call"}`), 1, 1, "unknown_call", true},
		{"too large", bad(tooLarge, `{"Code":"too_large"}`), 1, 1, "too_large", true},
		{"the handler's", bad(handlerError, `{"Code":"unknown_call"}`), 1, 1, "unknown_call", false},
		{"no error", bad(handlerError, "nonsense"), 1, 1, "an error that is none", false},
		{"closed", always(nil), 1, 1, "EOF", false},
		{"a second answer", func(_ int, id uint64) []byte {
			b, _ := (&parcel{kind: frameAnswer, id: id, body: make([]byte, maxChunk+1)}).append(nil)
			return append(b, b...)
		}, 1, 1, "second answer", false},
		{"more than announced", func(_ int, id uint64) []byte {
			b, _ := (&parcel{kind: frameAnswer, id: id, body: make([]byte, maxChunk+1)}).append(nil)
			return append(b, raw(head{kind: frameMore, id: id, size: 2}, 1, 2)...)
		}, 1, 1, "not as long as announced", false},
		{"more of nothing", func(_ int, id uint64) []byte { return raw(head{kind: frameMore, id: id, size: 1}, 1) }, 1, 1, "not begun", false},
		{"more than is taken", func(_ int, id uint64) []byte {
			return append(raw(head{kind: frameAnswer, id: id, size: 4}, 255, 255, 255, 255), raw(head{kind: frameMore, id: id, size: 1}, 1)...)
		}, 1, 1, "an answer of more than", false},
		{"of nobody", func(_ int, id uint64) []byte { return append(ok(id+5), ok(id)...) }, 3, 1, "", false},
		{"a call", func(_ int, id uint64) []byte { return callFrame(id, "x", 0, nil) }, 1, 1, "to who calls", false},
		{"nonsense", always([]byte("HTTP/1.1 400 Bad Request\r\n")), 1, 1, "broke the protocol", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			to, conns := answering(t, c.frames)
			a := start(t, "a")
			var err error
			for range c.calls {
				_, _, err = a.Call(t.Context(), to, "x", []byte("body"))
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || NotSent(err) != c.notSent {
				t.Errorf("%v (not sent: %v)", err, NotSent(err))
			}
			if n := conns.Load(); n != c.conns {
				t.Errorf("%d connections", n)
			}
		})
	}
}

// TestMixed: a node that knows frames and one that does not, both ways.
func TestMixed(t *testing.T) {
	for _, c := range []struct{ a, b, frames bool }{{true, true, true}, {true, false, false}, {false, true, false}, {false, false, false}} {
		a := start(t, "a", func(o *Options) { o.NoFrames = !c.a })
		b := start(t, "b", func(o *Options) { o.NoFrames = !c.b })
		b.Handle("echo", echo)
		b.HandleStream("much", much)
		for _, size := range []int{0, 1, maxChunk - 1, maxChunk, maxChunk + 1, 5<<20 + 3} {
			body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			got, _, err := a.Call(t.Context(), at(b), "echo", body)
			if err != nil || string(got) != "a:"+string(body) {
				t.Errorf("%+v: %d bytes: %d, %v", c, size, len(got), err)
			}
		}
		r, err := a.Stream(t.Context(), at(b), "much", nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); n != 1<<20 || err != nil {
			t.Errorf("%+v: stream: %d bytes, %v", c, n, err)
		}
		r.Close()
		a.links[b.Addr()].mu.Lock()
		_, frames := a.links[b.Addr()].way.(*caller)
		a.links[b.Addr()].mu.Unlock()
		if frames != c.frames {
			t.Errorf("%+v: frames: %v", c, frames)
		}
	}
}

// TestBesideLarge: large bodies, both ways, and small ones beside each other all
// arrive as they were sent, some of them given up meanwhile.
func TestBesideLarge(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	b.Handle("echo", echo)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, 1+i%4*300_000)
			for range 5 {
				got, _, err := a.Call(t.Context(), at(b), "echo", body)
				if err != nil || !bytes.Equal(got[2:], body) {
					t.Errorf("%d: %d bytes, %v", i, len(got), err)
				}
			}
			if i == 3 {
				cancel()
			}
		})
		wg.Go(func() {
			body := make([]byte, 1_000_000)
			for ctx.Err() == nil {
				one, end := context.WithTimeout(ctx, time.Duration(i)*time.Millisecond)
				_, _, err := a.Call(one, at(b), "echo", body)
				if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
					t.Errorf("given up: %v", err)
				}
				end()
			}
		})
	}
	wg.Wait()
	if _, _, err := a.Call(t.Context(), at(b), "echo", nil); err != nil {
		t.Error(err)
	}
}

// TestMaxStreams: no more calls of a node are under way at a time; the others
// wait, and who gives up waiting was not sent.
func TestMaxStreams(t *testing.T) {
	if noFrames {
		t.Skip("of frames")
	}
	a, b := start(t, "a"), start(t, "b")
	release := make(chan struct{})
	var most, now atomic.Int64
	in := make(chan struct{}, 2*maxStreams)
	b.Handle("wait", func(context.Context, Identity, []byte) ([]byte, error) {
		k := now.Add(1)
		for m := most.Load(); k > m && !most.CompareAndSwap(m, k); m = most.Load() {
		}
		in <- struct{}{}
		<-release
		now.Add(-1)
		return nil, nil
	})
	var wg sync.WaitGroup
	for range maxStreams + 100 {
		wg.Go(func() {
			if _, _, err := a.Call(t.Context(), at(b), "wait", nil); err != nil {
				t.Error(err)
			}
		})
	}
	for range maxStreams {
		<-in
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() {
		_, _, err := a.Call(ctx, at(b), "wait", nil)
		done <- err
	}()
	cancel()
	if err := <-done; !NotSent(err) {
		t.Errorf("given up in line: %v", err)
	}
	close(release)
	wg.Wait()
	if most.Load() > maxStreams {
		t.Errorf("%d at a time", most.Load())
	}
}

// script0 is a connection on which everything has been said already.
type script0 struct {
	net.Conn
	r io.Reader
}

func (s *script0) Read(p []byte) (int, error)       { return s.r.Read(p) }
func (s *script0) Write(p []byte) (int, error)      { return len(p), nil }
func (s *script0) SetWriteDeadline(time.Time) error { return nil }
func (s *script0) Close() error                     { return nil }

// FuzzFrames: whatever is said, both ends live on, and no more is held than was
// said.
func FuzzFrames(f *testing.F) {
	f.Add(framesSample()[len(framesPreface):], false)
	f.Add(framesSample()[len(framesPreface):], true)
	f.Add(append(callFrame(1, "echo", 3, []byte("x")), raw(head{kind: frameMore, id: 1, size: 2}, 1, 2)...), true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	n, err := New(Options{Listener: l})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { n.Close() })
	n.Handle("echo", echo)
	f.Fuzz(func(t *testing.T, b []byte, serve bool) {
		s := &script0{r: bytes.NewReader(b)}
		c := &conn{Conn: s, raw: s, net: n}
		if serve {
			n.serveFrames(c)
			if c.server.err == nil {
				t.Error("it has not ended")
			}
			return
		}
		w, err := newCaller(n, c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.call(t.Context(), "x", []byte("y")); err != nil && fmt.Sprint(err) == "" {
			t.Error("an error that says nothing")
		}
		w.close()
	})
}
