package peer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/memnet"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	sampleID = Identity{Cluster: "01JC0000000000000000000000", Node: "n1", Incarnation: "01JD1111111111111111111111", Raft: "10.0.0.1:7071", HTTP: "10.0.0.1:7070"}
	sample   = []struct {
		name  string
		bytes func() ([]byte, error)
	}{
		{"hello", hello{kind: kindRPC, from: sampleID, target: Target{Node: "zwölf", Incarnation: "x"}}.encode},
		{"hello-empty", hello{kind: kindWho}.encode},
		{"welcome", answer{from: sampleID}.encode},
		{"refused", answer{refused: true, from: sampleID, reason: "this is node \"n1\", not \"zwölf\""}.encode},
	}
)

// TestHelloGolden: nodes of all versions that ever were must understand these.
func TestHelloGolden(t *testing.T) {
	for _, s := range sample {
		got, err := s.bytes()
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join("testdata", s.name+".golden")
		if *update {
			if err := os.WriteFile(name, []byte(hex.Dump(got)), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if hex.Dump(got) != string(want) {
			t.Errorf("%s:\n%s\nwant:\n%s", s.name, hex.Dump(got), want)
		}
		r := io.MultiReader(bytes.NewReader(got), strings.NewReader("more"))
		var again []byte
		if strings.HasPrefix(s.name, "hello") {
			var h hello
			if h, err = readHello(r); err == nil {
				again, err = h.encode()
			}
		} else {
			var a answer
			if a, err = readAnswer(r); err == nil {
				again, err = a.encode()
			}
		}
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: read back: %v", s.name, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "more" {
			t.Errorf("%s: read too far, %q is left", s.name, rest)
		}
		for n := range got {
			if _, err := readHello(bytes.NewReader(got[:n])); err == nil {
				t.Errorf("%s: the first %d bytes of %d are one too", s.name, n, len(got))
			}
		}
	}
}

func TestHelloRefused(t *testing.T) {
	good, _ := sample[0].bytes()
	set := func(at int, b ...byte) []byte {
		c := bytes.Clone(good)
		copy(c[at:], b)
		return c
	}
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"random", []byte("\x00"), "not a node"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), "not a node"},
		{"TLS", []byte("\x16\x03\x01\x02\x00\x01\x00\x01"), "not a node"},
		{"tomorrow's", set(8, 2), "protocol version 2 is not known here, only 1"},
		{"kind", set(9, 9), "kind 9 is not known"},
		{"long", set(10, 0xff, 0xff), "65535 bytes announced"},
		{"cut off", set(12, 0xff, 0x7f), "text 1 of 7 is cut off"},
		{"long by one", set(10, good[10]+1), "unexpected EOF"},
		{"after the last", append(set(10, good[10]+1), 0), "1 bytes after the last text"},
		{"not UTF-8", set(14, 0xff), "not UTF-8"},
		{"newline", set(14, '\n'), "control characters"},
	} {
		if _, err := readHello(bytes.NewReader(c.b)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
	if _, err := (hello{from: Identity{Cluster: strings.Repeat("x", maxHello)}}).encode(); err == nil {
		t.Error("a hello of more than 4 KiB was made")
	}
	if b, err := (answer{reason: strings.Repeat("ü\n", 5000) + "\xff"}).encode(); err != nil || len(b) > maxHello {
		t.Errorf("long reason: %d bytes, %v", len(b), err)
	}
}

func FuzzHello(f *testing.F) {
	for _, s := range sample {
		b, _ := s.bytes()
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := readHello(bytes.NewReader(b)); err == nil {
			again, err := h.encode()
			if err != nil || !bytes.HasPrefix(b, again) {
				t.Errorf("%x is read as %+v, which is %x (%v)", b, h, again, err)
			}
		}
		if a, err := readAnswer(bytes.NewReader(b)); err == nil && len(a.reason) <= maxReason {
			again, err := a.encode()
			if err != nil || !bytes.HasPrefix(b, again) {
				t.Errorf("%x is read as %+v, which is %x (%v)", b, a, again, err)
			}
		}
	})
}

// TestStrangers: whoever speaks something else is gone at once, costs nothing,
// and does not fill the disk with messages.
func TestStrangers(t *testing.T) {
	var logged lockedBuffer
	n := start(t, "a", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	hi, _ := sample[0].bytes()
	bad := bytes.Clone(hi)
	bad[10], bad[11] = 0xff, 0xff
	for _, b := range [][]byte{
		[]byte("\x00\x01"), []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), bad, bytes.Repeat([]byte{0xdf, 0xff}, 1<<16),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		c.Write(b)
		// No timeout: the other side must end it.
		if got, _ := io.ReadAll(c); len(got) > maxHello {
			t.Errorf("%.20q was answered with %q", b, got)
		}
		c.Close()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 64<<10 {
			t.Errorf("%.20q: %d bytes allocated", b, got)
		}
	}
	if got := strings.Count(logged.String(), "turned away"); got != 1 {
		t.Errorf("told %d times:\n%s", got, logged.String())
	}
}

// TestTomorrow: a node of another version is told so, in words.
func TestTomorrow(t *testing.T) {
	n := start(t, "a")
	b, _ := sample[0].bytes()
	b[len(magic)]++
	c, err := net.Dial("tcp", n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(b)
	a, err := readAnswer(c)
	if err != nil || !a.refused || !strings.Contains(a.reason, "protocol version 2 is not known here, only 1") {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestSlowStrangers: who connects and says nothing, or half of it, is gone after
// HandshakeTimeout, no more than MaxGreeting of them are there at a time, and a
// node that comes meanwhile is let in, from an address of its own or the same.
func TestSlowStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memnet.New(memnet.Options{})
		var logged lockedBuffer
		n := startIn(t, m, "a", func(o *Options) {
			o.MaxConns, o.MaxGreeting, o.MaxGreetingFrom = 2, 6, 4
			o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		})
		b := startIn(t, m, "b")
		n.Handle("echo", echo)
		hi, _ := sample[0].bytes()
		begin := time.Now()
		ended := make(chan time.Duration, 10)
		for i := range 10 {
			c, err := m.Dialer("s")(t.Context(), n.Addr())
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				c.Write(hi[:i])
				io.ReadAll(c)
				c.Close()
				ended <- time.Since(begin)
			}()
			synctest.Wait()
		}
		if _, _, err := b.Call(t.Context(), at(n), "echo", nil); err != nil {
			t.Errorf("call while strangers say nothing: %v", err)
		}
		if _, _, err := startIn(t, m, "s").Call(t.Context(), at(n), "echo", nil); err != nil {
			t.Errorf("from the strangers' address: %v", err)
		}
		atOnce := 0
		for range 10 {
			if d := <-ended; d == 0 {
				atOnce++
			} else if d != 5*time.Second {
				t.Errorf("gone after %v", d)
			}
		}
		if atOnce != 7 {
			t.Errorf("%d of 10 gave way", atOnce)
		}
		if _, _, err := b.Call(t.Context(), at(n), "echo", nil); err != nil {
			t.Errorf("when they are gone: %v", err)
		}
		if got := strings.Count(logged.String(), "turned away"); got != 1 {
			t.Errorf("told %d times:\n%s", got, logged.String())
		}
		time.Sleep(time.Minute)
		c, err := m.Dialer("s")(t.Context(), n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("hello?"))
		io.ReadAll(c)
		c.Close()
		synctest.Wait()
		if s := logged.String(); strings.Count(s, "turned away") != 2 || !strings.Contains(s, "times=10") {
			t.Errorf("a minute later:\n%s", s)
		}
	})
}

// TestStrangersGiveWay: of those that have not said who they are the oldest gives
// way, of the same address first; none of them keeps a node out.
func TestStrangersGiveWay(t *testing.T) {
	for _, c := range []struct {
		name      string
		all, from int
		come      string // the host of each, in order
		gone      string // which of them gave way, in order
	}{
		{"there is room", 4, 4, "aabb", ""},
		{"too many in all", 4, 4, "abcdef", "ab"},
		{"too many from one", 10, 2, "abaaca", "aa"},
		{"its own first", 4, 2, "baaca", "a"},
	} {
		n := &Net{o: Options{MaxGreeting: c.all, MaxGreetingFrom: c.from, MaxConns: 1}, conns: map[*conn]struct{}{}}
		gone := ""
		var last *conn
		for _, host := range c.come {
			last = &conn{host: string(host), net: n, raw: nothing{}}
			crowded, err := n.meet(last)
			if err != nil {
				t.Fatal(err)
			}
			if crowded != nil {
				gone += crowded.host
				crowded.Close()
				if err := n.letIn(crowded); err == nil {
					t.Errorf("%s: one that gave way was let in", c.name)
				}
			}
		}
		if gone != c.gone || len(n.greeting) != len(c.come)-len(gone) || n.accepted != 0 {
			t.Errorf("%s: %q gave way, want %q; %d are there, %d let in", c.name, gone, c.gone, len(n.greeting), n.accepted)
		}
		if err := n.letIn(last); err != nil || n.accepted != 1 {
			t.Errorf("%s: %v, %d let in", c.name, err, n.accepted)
		}
		if err := n.letIn(n.greeting[0]); err == nil || n.accepted != 1 {
			t.Errorf("%s: more than MaxConns: %v, %d", c.name, err, n.accepted)
		}
		for o := range n.conns {
			o.Close()
		}
		if len(n.greeting)+len(n.conns)+n.accepted != 0 {
			t.Errorf("%s: left: %d, %d, %d", c.name, len(n.greeting), len(n.conns), n.accepted)
		}
	}
}

// nothing is a connection that can only be closed.
type nothing struct{ net.Conn }

func (nothing) Close() error { return nil }

// TestFull: a node that is let in no more is told why; one that only asks is
// answered.
func TestFull(t *testing.T) {
	a, b, n := start(t, "a"), start(t, "b"), start(t, "n", func(o *Options) { o.MaxConns = 1 })
	n.Handle("echo", echo)
	if _, _, err := a.Call(t.Context(), at(n), "echo", nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Call(t.Context(), at(n), "echo", nil); !NotSent(err) || !strings.Contains(err.Error(), "1 connections are open") {
		t.Errorf("call to a full node: %v", err)
	}
	if who, err := b.Hello(t.Context(), n.Addr()); err != nil || who != n.Self() {
		t.Errorf("hello to a full node: %v, %v", who, err)
	}
}

// TestRefused goes through the rules of the handshake.
func TestRefused(t *testing.T) {
	is := func(f func(i *Identity)) func(*Options) { return func(o *Options) { f(&o.Self) } }
	cluster := func(c string) func(*Options) { return is(func(i *Identity) { i.Cluster = c }) }
	for _, c := range []struct {
		name             string
		from, to         func(*Options)
		target           Target
		rpc, raft, hello string // what is said, "" is success
	}{
		{name: "same cluster"},
		{name: "by name", target: Target{Node: "b", Incarnation: "i-b"}},
		{name: "other cluster", from: cluster("d"), rpc: `belongs to cluster "c"`, raft: `belongs to cluster "c"`},
		{name: "from none", from: cluster(""), raft: "do not both belong"},
		{name: "to none", to: cluster(""), raft: "do not both belong"},
		{name: "both none", from: cluster(""), to: cluster(""), raft: "do not both belong"},
		{name: "other node", target: Target{Node: "x"}, rpc: `this is node "b", not "x"`, raft: `this is node "b"`},
		{name: "other incarnation", target: Target{Node: "b", Incarnation: "i-x"}, rpc: `"i-b", not "i-x"`, raft: "another data directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var a, b *Net
			if c.from == nil {
				c.from = func(*Options) {}
			}
			if c.to == nil {
				c.to = func(*Options) {}
			}
			a, b = start(t, "a", c.from), start(t, "b", c.to)
			b.Handle("echo", echo)
			b.Raft()
			c.target.Addr = b.Addr()
			check := func(what, want string, err error) {
				t.Helper()
				if want == "" {
					if err != nil {
						t.Errorf("%s: %v", what, err)
					}
					return
				}
				var e *Error
				if !NotSent(err) || !errors.As(err, &e) || e.Code != "refused" || !strings.Contains(e.Detail, want) {
					t.Errorf("%s: %v; want %q", what, err, want)
				}
			}
			_, _, err := a.Call(t.Context(), c.target, "echo", nil)
			check("call", c.rpc, err)
			conn, err := a.Raft().Dial(c.target, time.Minute)
			check("raft", c.raft, err)
			if err == nil {
				conn.Close()
			}
			id, err := a.Hello(t.Context(), b.Addr())
			check("hello", "", err)
			if id != b.Self() {
				t.Errorf("hello: %+v", id)
			}
		})
	}
	t.Run("no replica", func(t *testing.T) {
		a, b := start(t, "a"), start(t, "b")
		if _, err := a.Raft().Dial(at(b), time.Minute); !NotSent(err) || !strings.Contains(err.Error(), "no replica") {
			t.Error(err)
		}
	})
}
