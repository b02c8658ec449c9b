package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-msgpack/v2/codec"
	hraft "github.com/hashicorp/raft"
)

// hraftStream is what package raft gives to hashicorp/raft.
type hraftStream struct{ *RaftLayer }

func (s hraftStream) Dial(addr hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.RaftLayer.Dial(Target{Addr: string(addr)}, timeout)
}

func transport(t *testing.T, n *Net, set ...func(*hraft.NetworkTransportConfig)) *hraft.NetworkTransport {
	t.Helper()
	c := &hraft.NetworkTransportConfig{
		Stream: hraftStream{n.Raft()}, MaxPool: 3, Timeout: 10 * time.Second, MaxRPCsInFlight: 1,
		Logger: hclog.NewNullLogger(),
	}
	for _, f := range set {
		f(c)
	}
	tr := hraft.NewNetworkTransportWithConfig(c)
	t.Cleanup(func() {
		tr.Close()
		tr.CloseStreams()
	})
	return tr
}

// serveRaft answers all requests until the test ends, and keeps the last one.
func serveRaft(t *testing.T, tr *hraft.NetworkTransport, answer func(hraft.RPC)) {
	t.Helper()
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case rpc := <-tr.Consumer():
				answer(rpc)
			case <-done:
				return
			}
		}
	}()
	t.Cleanup(func() { close(done); <-ended })
}

// TestRaftTransport sends everything that hashicorp/raft can say through the
// guard, in both formats of time.
func TestRaftTransport(t *testing.T) {
	for _, newTime := range []bool{false, true} {
		t.Run(fmt.Sprintf("newTime=%v", newTime), func(t *testing.T) {
			a, b := start(t, "a"), start(t, "b")
			set := func(c *hraft.NetworkTransportConfig) { c.MsgpackUseNewTimeFormat = newTime }
			ta, tb := transport(t, a, set), transport(t, b, set)
			header := hraft.RPCHeader{ProtocolVersion: 3, ID: []byte("a/" + strings.Repeat("i", 26)), Addr: []byte(a.Addr())}
			entries := make([]*hraft.Log, 64)
			for i := range entries {
				entries[i] = &hraft.Log{
					Index: uint64(i) << 40, Term: 7, Type: hraft.LogCommand, Data: bytes.Repeat([]byte{byte(i)}, i*1000),
					Extensions: []byte{1, 2, 3}, AppendedAt: time.Now().UTC().Round(0),
				}
			}
			entries[63].Data = make([]byte, 2<<20)
			answers := map[string]any{
				"append":      &hraft.AppendEntriesResponse{RPCHeader: header, Term: 1 << 60, LastLog: 3, Success: true},
				"vote":        &hraft.RequestVoteResponse{RPCHeader: header, Term: 8, Peers: make([]byte, 300), Granted: true},
				"pre-vote":    &hraft.RequestPreVoteResponse{RPCHeader: header, Term: 9, Granted: true},
				"timeout now": &hraft.TimeoutNowResponse{RPCHeader: header},
				"snapshot":    &hraft.InstallSnapshotResponse{RPCHeader: header, Term: 10, Success: true},
			}
			var got any
			var stream []byte
			serveRaft(t, tb, func(rpc hraft.RPC) {
				got = rpc.Command
				var err error
				var answer any
				switch rpc.Command.(type) {
				case *hraft.AppendEntriesRequest:
					answer = answers["append"]
				case *hraft.RequestVoteRequest:
					answer = answers["vote"]
				case *hraft.RequestPreVoteRequest:
					answer = answers["pre-vote"]
				case *hraft.TimeoutNowRequest:
					answer, err = answers["timeout now"], errors.New("not now")
				case *hraft.InstallSnapshotRequest:
					answer = answers["snapshot"]
					if stream, err = io.ReadAll(rpc.Reader); err != nil {
						t.Error(err)
					}
				}
				rpc.Respond(answer, err)
			})
			to := hraft.ServerAddress(b.Addr())
			check := func(what string, err error, sent, answer any) {
				t.Helper()
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if !reflect.DeepEqual(got, sent) {
					t.Errorf("%s arrived as %+v", what, got)
				}
				if !reflect.DeepEqual(answer, answers[what]) {
					t.Errorf("%s answered with %+v", what, answer)
				}
			}
			for range 3 { // on one connection from the pool
				//lint:ignore SA1019 hashicorp/raft still sends it
				ae := &hraft.AppendEntriesRequest{RPCHeader: header, Term: 5, Leader: header.Addr, PrevLogEntry: 1, PrevLogTerm: 2, Entries: entries, LeaderCommitIndex: 1 << 63}
				aer := &hraft.AppendEntriesResponse{}
				check("append", ta.AppendEntries("b", to, ae, aer), ae, aer)
				ae = &hraft.AppendEntriesRequest{RPCHeader: header, Term: 5, PrevLogEntry: 1}
				aer = &hraft.AppendEntriesResponse{}
				check("append", ta.AppendEntries("b", to, ae, aer), ae, aer)
				//lint:ignore SA1019 hashicorp/raft still sends it
				rv, rvr := &hraft.RequestVoteRequest{RPCHeader: header, Term: 6, Candidate: header.Addr, LastLogIndex: 1, LeadershipTransfer: true}, &hraft.RequestVoteResponse{}
				check("vote", ta.RequestVote("b", to, rv, rvr), rv, rvr)
				pv, pvr := &hraft.RequestPreVoteRequest{RPCHeader: header, Term: 6}, &hraft.RequestPreVoteResponse{}
				check("pre-vote", ta.RequestPreVote("b", to, pv, pvr), pv, pvr)
				if err := ta.TimeoutNow("b", to, &hraft.TimeoutNowRequest{RPCHeader: header}, &hraft.TimeoutNowResponse{}); err == nil || err.Error() != "not now" {
					t.Errorf("timeout now: %v", err)
				}
				snap := bytes.Repeat([]byte("\xdf\xff\xff\xff\xff"), 1<<18)
				is, isr := &hraft.InstallSnapshotRequest{
					RPCHeader: header, SnapshotVersion: 1, Term: 7, Leader: header.Addr, LastLogIndex: 8, Configuration: make([]byte, 5000), Size: int64(len(snap)),
				}, &hraft.InstallSnapshotResponse{}
				check("snapshot", ta.InstallSnapshot("b", to, is, isr, bytes.NewReader(snap)), is, isr)
				if !bytes.Equal(stream, snap) {
					t.Errorf("%d bytes of snapshot arrived of %d", len(stream), len(snap))
				}
			}
		})
	}
}

func pack(t testing.TB, v any) []byte {
	t.Helper()
	var b []byte
	if err := codec.NewEncoderBytes(&b, &codec.MsgpackHandle{}).Encode(v); err != nil {
		t.Fatal(err)
	}
	return b
}

func cat(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = append(b, byte(p))
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

// hostile are messages that a node might send which is let in and means ill.
var hostile = map[string][]byte{
	"type":                      cat(5, "\x80"),
	"map of 2^32":               cat(0, "\xdf\xff\xff\xff\xff"),
	"map of 65":                 cat(0, "\xde\x00\x41"),
	"array at the top":          cat(0, "\xdd\xff\xff\xff\xff"),
	"bytes of 2^32":             cat(0, "\x81\xa6Leader\xc6\xff\xff\xff\xff"),
	"string of 2^32":            cat(0, "\x81\xa6Leader\xdb\xff\xff\xff\xff"),
	"extension of 2^32":         cat(0, "\x81\xa6Leader\xc9\xff\xff\xff\xff"),
	"array of 2^32 entries":     cat(0, "\x81\xa7Entries\xdd\xff\xff\xff\xff", strings.Repeat("\x80", 1<<20)),
	"array of 1025 entries":     cat(0, "\x81\xa7Entries\xdc\x04\x01"),
	"entries in a vote":         cat(1, "\x81\xa7Entries\x91\x80"),
	"entries twice":             cat(0, "\x82\xa7Entries\x91\x80\xa7Entries\x91\x80"),
	"nil entry":                 cat(0, "\x81\xa7Entries\x91\xc0"),
	"array in an entry":         cat(0, "\x81\xa7Entries\x91\x81\xa4Data\x91\x01"),
	"map in an entry":           cat(0, "\x81\xa7Entries\x91\x81\xa4Data\x81\x01"),
	"entries in an entry":       cat(0, "\x81\xa7Entries\x91\x81\xa7Entries\x91\x80"),
	"deep arrays":               cat(0, "\x81\xa1x", strings.Repeat("\x91", 1<<20)),
	"deep maps":                 cat(0, strings.Repeat("\x81\xa1x", 1<<20)),
	"key that is a map":         cat(0, "\x81\x80"),
	"key of 2^32":               cat(0, "\x81\xdb\xff\xff\xff\xff"),
	"key that is a number":      cat(0, "\x81\x01\x01"),
	"unused byte":               cat(0, "\x81\xa1x\xc1"),
	"snapshot of negative size": cat(2, "\x81\xa4Size\xff"),
	"snapshot, negative, long":  cat(2, "\x81\xa4Size\xd3\xff\xff\xff\xff\xff\xff\xff\xff"),
	"snapshot, size unsigned":   cat(2, "\x81\xa4Size\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
	"snapshot of two sizes":     cat(2, "\x82\xa4Size\x01\xa4Size\x02"),
	"snapshot, size a text":     cat(2, "\x81\xa4Size\xa11"),
	"after a snapshot":          cat(2, "\x81\xa4Size\x03abc", 0, "\xdf\xff\xff\xff\xff"),
	"after a good one":          cat(3, "\x80", 0, "\xdf\xff\xff\xff\xff"),
	"entries of 3 MiB each": cat(0, "\x81\xa7Entries\x92\x81\xa4Data\xc6\x00\x30\x00\x00", make([]byte, 3<<20),
		"\x81\xa4Data\xc6\x00\x30\x00\x00"),
}

// TestRaftHostile sends them all over a connection that has passed the
// handshake, and looks at what the transport at the other side allocates.
func TestRaftHostile(t *testing.T) {
	a, b := start(t, "a"), start(t, "b", func(o *Options) { o.MaxRPC = 4 << 20 })
	tb := transport(t, b)
	serveRaft(t, tb, func(rpc hraft.RPC) {
		if rpc.Reader != nil {
			io.Copy(io.Discard, rpc.Reader)
		}
		rpc.Respond(&hraft.TimeoutNowResponse{}, nil)
	})
	layer := a.Raft()
	for what, msg := range hostile {
		t.Run(what, func(t *testing.T) {
			c, err := layer.Dial(at(b), 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			go c.Write(msg)
			// Answers of what was good before may come first.
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			_, err = io.Copy(io.Discard, c.(*guarded).Conn)
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				t.Fatal("not closed")
			}
			runtime.ReadMemStats(&after)
			max := uint64(4 << 20)
			if len(msg) > 2<<20 {
				// What really comes it may hold, and hashicorp/raft copies that
				// each time it grows by 256 KiB.
				max = 40 << 20
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > max {
				t.Errorf("%d KiB allocated", got>>10)
			}
		})
	}
}

// TestRaftHostileAnswers does the same to who dials.
func TestRaftHostileAnswers(t *testing.T) {
	for what, msg := range map[string][]byte{
		"no text":          cat("\x80"),
		"text of 2^32":     cat("\xdb\xff\xff\xff\xff"),
		"text of 64 KiB":   cat("\xdb\x00\x01\x00\x01"),
		"map of 2^32":      cat("\xa0\xdf\xff\xff\xff\xff"),
		"bytes of 2^32":    cat("\xa0\x81\xa1x\xc6\xff\xff\xff\xff"),
		"array":            cat("\xa0\x81\xa1x\x91\x01"),
		"deep":             cat("\xa0\x81\xa1x", strings.Repeat("\x91", 1<<20)),
		"more than 1 MiB":  cat("\xa0\x82\xa1x\xc6\x00\x0f\x00\x00", make([]byte, 0xf0000), "\xa1y\xc6\x00\x0f\x00\x00"),
		"two in one":       cat("\xa0\x80\xa0\xdd\xff\xff\xff\xff"),
		"the second value": cat("\xa0\x01"),
	} {
		t.Run(what, func(t *testing.T) {
			g := guard{limit: maxAnswer}
			if n, err := g.feed(msg); err == nil {
				t.Errorf("all %d bytes of %d passed", n, len(msg))
			}
		})
	}
}

// messages are good requests, and how each ends.
func messages(t testing.TB) [][]byte {
	h := hraft.RPCHeader{ProtocolVersion: 3, ID: []byte("id"), Addr: []byte("addr")}
	logs := []*hraft.Log{{Index: 1, Data: make([]byte, 70000), AppendedAt: time.Unix(1, 2)}, {Index: 1 << 40, Extensions: make([]byte, 300)}}
	return [][]byte{
		cat(0, pack(t, &hraft.AppendEntriesRequest{RPCHeader: h, Term: 300, Entries: logs})),
		cat(0, pack(t, &hraft.AppendEntriesRequest{RPCHeader: h})),
		cat(1, pack(t, &hraft.RequestVoteRequest{RPCHeader: h, LeadershipTransfer: true})),
		cat(2, pack(t, &hraft.InstallSnapshotRequest{RPCHeader: h, Size: 5}), "hello"),
		cat(2, pack(t, &hraft.InstallSnapshotRequest{RPCHeader: h, Size: 70000}), make([]byte, 70000)),
		cat(3, pack(t, &hraft.TimeoutNowRequest{RPCHeader: h})),
		cat(4, pack(t, &hraft.RequestPreVoteRequest{RPCHeader: h, Term: 1 << 63})),
	}
}

// FuzzGuard: it does not matter how bytes come in pieces, and what is let
// through as one request is one to hashicorp/raft's decoder too, to the byte.
func FuzzGuard(f *testing.F) {
	for _, m := range messages(f) {
		f.Add(m)
	}
	for _, m := range hostile {
		if len(m) < 1<<10 {
			f.Add(m)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 20
		whole, pieces := guard{requests: true, limit: limit}, guard{requests: true, limit: limit}
		good, err := whole.feed(b)
		end := 0 // of the first message
		for i := range b {
			n, perr := pieces.feed(b[i : i+1])
			if perr != nil {
				if err == nil || i != good || n != 0 || perr.Error() != err.Error() {
					t.Fatalf("in pieces %d bytes and %v, at once %d and %v", i, perr, good, err)
				}
				break
			}
			if end == 0 && pieces.step == stepStart {
				end = i + 1
			}
			if i >= good {
				t.Fatalf("in pieces more than %d bytes", good)
			}
			if len(pieces.stack) > 3 || len(pieces.key) > maxKey || pieces.used > limit {
				t.Fatalf("out of bounds: %d deep, key of %d, %d bytes", len(pieces.stack), len(pieces.key), pieces.used)
			}
		}
		if end == 0 {
			return
		}
		var v any
		switch b[0] {
		case 0:
			v = &hraft.AppendEntriesRequest{}
		case 1:
			v = &hraft.RequestVoteRequest{}
		case 2:
			v = &hraft.InstallSnapshotRequest{}
		case 3:
			v = &hraft.TimeoutNowRequest{}
		case 4:
			v = &hraft.RequestPreVoteRequest{}
		}
		r := bytes.NewReader(b[1:end])
		if err := codec.NewDecoder(r, &codec.MsgpackHandle{}).Decode(v); err != nil {
			return // refused there: the connection is closed
		}
		if r.Len() != 0 {
			t.Fatalf("the decoder leaves %d bytes of %x", r.Len(), b[:end])
		}
		if is, ok := v.(*hraft.InstallSnapshotRequest); ok {
			after := guard{requests: true, limit: limit}
			if _, err := after.feed(b[:end]); err != nil || after.raw != is.Size {
				t.Fatalf("size %d, decoded %d (%v)", after.raw, is.Size, err)
			}
		}
	})
}

// TestMaxRPC: what an honest leader may send passes, and not much more is
// believed.
func TestMaxRPC(t *testing.T) {
	entries := func(n int, size uint32) []byte {
		msg := cat(raftAppend, "\x81\xa7Entries", 0x90+n)
		for i := range n {
			msg = append(msg, cat("\x81\xa4Data\xc6", binary.BigEndian.AppendUint32(nil, size))...)
			if i < n-1 {
				msg = append(msg, make([]byte, size)...)
			}
		}
		return msg
	}
	for _, c := range []struct {
		what string
		msg  []byte
		good bool
	}{
		{"a lone entry of the largest command", entries(1, 48<<20), true},
		{"16 MiB in many", entries(8, 2<<20), true},
		{"a lone entry of 64 MiB", entries(1, 64<<20), false},
		{"many that are too much together", entries(5, 16<<20), false},
	} {
		g := guard{requests: true, limit: MaxRPC}
		if _, err := g.feed(c.msg); (err == nil) != c.good {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// TestGuardPieces puts good messages behind each other, cut anywhere.
func TestGuardPieces(t *testing.T) {
	var all []byte
	for range 2 {
		for _, m := range messages(t) {
			all = append(all, m...)
		}
	}
	for _, size := range []int{1, 2, 7, 4096, len(all)} {
		g := guard{requests: true, limit: MaxRPC}
		for b := all; len(b) > 0; {
			k := min(size, len(b))
			if n, err := g.feed(b[:k]); n != k || err != nil {
				t.Fatalf("in pieces of %d: %d of %d, %v", size, n, k, err)
			}
			b = b[k:]
		}
		if g.step != stepStart || g.raw != 0 {
			t.Errorf("in pieces of %d: not at the end of a message", size)
		}
	}
}
