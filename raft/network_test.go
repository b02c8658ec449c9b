package raft

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/peer"
)

// asker is who sends requests: this program's network, or the library's.
type asker interface {
	ask(to server, args, response any) error
	install(to server, args *hraft.InstallSnapshotRequest, response *hraft.InstallSnapshotResponse, data io.Reader) error
}

// older is a node's network in a program of before.
type older struct{ *hraft.NetworkTransport }

func (o older) ask(to server, args, response any) error {
	at := dialled(to.id, to.addr)
	switch m := args.(type) {
	case *hraft.AppendEntriesRequest:
		return o.AppendEntries(to.id, at, m, response.(*hraft.AppendEntriesResponse))
	case *hraft.RequestVoteRequest:
		return o.RequestVote(to.id, at, m, response.(*hraft.RequestVoteResponse))
	case *hraft.RequestPreVoteRequest:
		return o.RequestPreVote(to.id, at, m, response.(*hraft.RequestPreVoteResponse))
	}
	return o.TimeoutNow(to.id, at, args.(*hraft.TimeoutNowRequest), response.(*hraft.TimeoutNowResponse))
}

func (o older) install(to server, args *hraft.InstallSnapshotRequest, response *hraft.InstallSnapshotResponse, data io.Reader) error {
	return o.InstallSnapshot(to.id, dialled(to.id, to.addr), args, response, data)
}

// end is one node's end of the inside network, and what it is to others.
func end(t *testing.T, node string) (*peer.Net, server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n, err := peer.New(peer.Options{Listener: l, Self: peer.Identity{Cluster: "c1", Node: node, Incarnation: node + "-1", Raft: l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	m := Member{ID: node, Incarnation: node + "-1", RaftAddr: n.Addr(), Voter: true}
	return n, server{m.serverID(), m.serverAddress()}
}

// answering is how a test answers; it says whether a request came as a heartbeat.
type answering func(rpc *hraft.RPC, heartbeat bool) error

// newer is a network of this program.
func newer(t *testing.T, n *peer.Net, take answering) *network {
	t.Helper()
	w := newNetwork(streams{n.Raft()}, take, allSettled, func(from string, err error) { t.Errorf("from %s: %v", from, err) })
	t.Cleanup(func() { w.close() })
	return w
}

// before is one of the program before.
func before(t *testing.T, n *peer.Net, take answering) older {
	t.Helper()
	tr := hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
		Stream: streams{n.Raft()}, MaxPool: 3, Timeout: rpcTimeout, MaxRPCsInFlight: 1, Logger: hclog.NewNullLogger(),
	})
	done := make(chan struct{})
	var wg sync.WaitGroup
	answer := func(rpc hraft.RPC, heartbeat bool) {
		if err := take(&rpc, heartbeat); err != nil {
			rpc.Respond(nil, err)
		}
	}
	tr.SetHeartbeatHandler(func(rpc hraft.RPC) { answer(rpc, true) })
	wg.Go(func() {
		for {
			select {
			case rpc := <-tr.Consumer():
				answer(rpc, false)
			case <-done:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		wg.Wait()
		tr.Close()
		tr.CloseStreams()
	})
	return older{tr}
}

// TestNetworkWithOlderNodes sends all that hashicorp/raft can say from a node to
// another, where both, or one of them, has the library's own network.
func TestNetworkWithOlderNodes(t *testing.T) {
	for _, c := range []struct{ from, to string }{{"older", "newer"}, {"newer", "older"}, {"newer", "newer"}} {
		t.Run(c.from+" to "+c.to, func(t *testing.T) {
			header := hraft.RPCHeader{ProtocolVersion: 3, ID: []byte("a/" + strings.Repeat("i", 26)), Addr: []byte("a 127.0.0.1:1")}
			answers := map[reflect.Type]any{}
			for _, m := range []any{
				&hraft.AppendEntriesResponse{RPCHeader: header, Term: 1 << 60, LastLog: 3, Success: true},
				&hraft.RequestVoteResponse{RPCHeader: header, Term: 8, Peers: make([]byte, 300), Granted: true},
				&hraft.RequestPreVoteResponse{RPCHeader: header, Term: 9, Granted: true},
				&hraft.TimeoutNowResponse{RPCHeader: header},
				&hraft.InstallSnapshotResponse{RPCHeader: header, Term: 10, Success: true},
			} {
				answers[reflect.TypeOf(m)] = m
			}
			var mu sync.Mutex
			var got any
			var fast bool
			var stream []byte
			var refuse error
			take := func(rpc *hraft.RPC, heartbeat bool) error {
				mu.Lock()
				defer mu.Unlock()
				got, fast, stream = rpc.Command, heartbeat, nil
				if refuse != nil {
					if rpc.Reader != nil {
						_, _ = io.Copy(io.Discard, rpc.Reader) // the library does not
					}
					return refuse
				}
				var err error
				for _, k := range kinds {
					if reflect.TypeOf(k.request) != reflect.TypeOf(rpc.Command) {
						continue
					}
					if rpc.Reader != nil {
						if stream, err = io.ReadAll(rpc.Reader); err != nil {
							t.Error(err)
						}
					}
					rpc.Respond(answers[reflect.TypeOf(k.answer)], nil)
				}
				return nil
			}
			none := func(*hraft.RPC, bool) error { return errors.New("nobody should ask here") }
			na, _ := end(t, "a")
			nb, to := end(t, "b")
			var a asker
			if c.from == "older" {
				a = before(t, na, none)
			} else {
				a = newer(t, na, none)
			}
			if c.to == "older" {
				before(t, nb, take)
			} else {
				newer(t, nb, take)
			}

			entries := make([]*hraft.Log, 64)
			for i := range entries {
				entries[i] = &hraft.Log{
					Index: uint64(i) << 40, Term: 7, Type: hraft.LogCommand, Data: bytes.Repeat([]byte{byte(i)}, i*1000),
					Extensions: []byte{1, 2, 3}, AppendedAt: time.Now().UTC().Round(0),
				}
			}
			entries[20].Data = make([]byte, 300<<10)
			entries[63].Data = make([]byte, 2<<20)
			snapshot := bytes.Repeat([]byte("\xdf\xff\xff\xff\xff"), 1<<18)
			requests := []any{
				//lint:ignore SA1019 hashicorp/raft still sends it
				&hraft.AppendEntriesRequest{RPCHeader: header, Term: 5, Leader: header.Addr, PrevLogEntry: 1, PrevLogTerm: 2, Entries: entries, LeaderCommitIndex: 1 << 63},
				&hraft.AppendEntriesRequest{RPCHeader: header, Term: 5, PrevLogEntry: 1},
				&hraft.AppendEntriesRequest{RPCHeader: header, Term: 5}, // a heartbeat
				//lint:ignore SA1019 hashicorp/raft still sends it
				&hraft.AppendEntriesRequest{Term: 5, Leader: header.Addr}, // an older one's
				&hraft.AppendEntriesRequest{Term: 5},                      // of nobody
				&hraft.AppendEntriesRequest{RPCHeader: header, Term: 5, LeaderCommitIndex: 1},
				//lint:ignore SA1019 hashicorp/raft still sends it
				&hraft.RequestVoteRequest{RPCHeader: header, Term: 6, Candidate: header.Addr, LastLogIndex: 1, LeadershipTransfer: true},
				&hraft.RequestPreVoteRequest{RPCHeader: header, Term: 6, LastLogIndex: 300},
				&hraft.TimeoutNowRequest{RPCHeader: header},
				&hraft.InstallSnapshotRequest{
					RPCHeader: header, SnapshotVersion: 1, Term: 7, Leader: header.Addr, LastLogIndex: 8, Configuration: make([]byte, 5000), Size: int64(len(snapshot)),
				},
				&hraft.InstallSnapshotRequest{RPCHeader: header}, // of nothing
			}
			for _, why := range []error{nil, errors.New("not now"), nil} {
				mu.Lock()
				refuse = why
				mu.Unlock()
				for _, m := range requests {
					var answer any
					for _, k := range kinds {
						if reflect.TypeOf(k.request) == reflect.TypeOf(m) {
							answer = fresh(k.answer)
						}
					}
					want := fresh(answer)
					if why == nil {
						want = answers[reflect.TypeOf(answer)]
					}
					var data []byte
					var err error
					if s, ok := m.(*hraft.InstallSnapshotRequest); ok {
						data = snapshot[:s.Size]
						err = a.install(to, s, answer.(*hraft.InstallSnapshotResponse), bytes.NewReader(data))
					} else {
						err = a.ask(to, m, answer)
					}
					if fmt.Sprint(err) != fmt.Sprint(why) {
						t.Fatalf("%T: %v", m, err)
					}
					mu.Lock()
					if !reflect.DeepEqual(got, m) {
						t.Errorf("%+v arrived as %+v", m, got)
					}
					if why == nil && !bytes.Equal(stream, data) {
						t.Errorf("%d bytes of a snapshot arrived of %d", len(stream), len(data))
					}
					ae, ok := m.(*hraft.AppendEntriesRequest)
					if heartbeat := ok && (ae == requests[2] || ae == requests[3]); fast != heartbeat {
						t.Errorf("%+v came as a heartbeat: %v", m, fast)
					}
					mu.Unlock()
					if !reflect.DeepEqual(answer, want) {
						t.Errorf("%T is answered with %+v", m, answer)
					}
				}
			}
		})
	}
}

// TestSnapshotThatNobodyReads is not taken for the next request.
func TestSnapshotThatNobodyReads(t *testing.T) {
	na, _ := end(t, "a")
	nb, to := end(t, "b")
	newer(t, nb, func(rpc *hraft.RPC, _ bool) error {
		if _, ok := rpc.Command.(*hraft.InstallSnapshotRequest); ok {
			return errLongerTail
		}
		rpc.Respond(&hraft.TimeoutNowResponse{}, nil)
		return nil
	})
	c, err := streams{na.Raft()}.Dial(dialled(to.id, to.addr), rpcTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := reading(c)
	for range 2 {
		for _, m := range []any{&hraft.InstallSnapshotRequest{Size: 100_000}, &hraft.TimeoutNowRequest{}} {
			if err := send(c, func(e *encoder) { e.request(m) }); err != nil {
				t.Fatal(err)
			}
			var want error
			if _, ok := m.(*hraft.InstallSnapshotRequest); ok {
				want = errLongerTail
				if _, err := c.Write(bytes.Repeat([]byte{0}, 100_000)); err != nil {
					t.Fatal(err)
				}
			}
			refused, err := d.answer(&hraft.TimeoutNowResponse{})
			if err != nil || fmt.Sprint(refused) != fmt.Sprint(want) {
				t.Fatalf("%T: %v, %v", m, refused, err)
			}
		}
	}
}

// accepting counts the connections that come.
type accepting struct {
	streams
	mu sync.Mutex
	n  int
}

func (a *accepting) Accept() (net.Conn, error) {
	c, err := a.streams.Accept()
	if err == nil {
		a.mu.Lock()
		a.n++
		a.mu.Unlock()
	}
	return c, err
}

func (a *accepting) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n
}

func allSettled(any, any) error { return nil }

// What is taken is answered when it is settled, or with why it is not.
func TestAnsweredWhenSettled(t *testing.T) {
	na, _ := end(t, "a")
	nb, to := end(t, "b")
	var taken, asked *hraft.AppendEntriesRequest
	var why error
	b := newNetwork(streams{nb.Raft()}, func(rpc *hraft.RPC, _ bool) error {
		taken = rpc.Command.(*hraft.AppendEntriesRequest)
		rpc.Respond(&hraft.AppendEntriesResponse{Success: true}, nil)
		return nil
	}, func(command, response any) error {
		if asked = command.(*hraft.AppendEntriesRequest); !response.(*hraft.AppendEntriesResponse).Success {
			t.Error("another answer")
		}
		return why
	}, nil)
	defer b.close()
	a := newer(t, na, nil)
	for _, why = range []error{nil, errBroken} {
		taken, asked = nil, nil
		var resp hraft.AppendEntriesResponse
		err := a.ask(to, &hraft.AppendEntriesRequest{Term: 1, PrevLogEntry: 1}, &resp)
		if (err == nil) != (why == nil) || resp.Success != (why == nil) || err != nil && !strings.Contains(err.Error(), why.Error()) {
			t.Errorf("settled: %v; answered: %v, %v", why, resp.Success, err)
		}
		if taken == nil || asked != taken {
			t.Errorf("taken was %v, settled %v", taken, asked)
		}
	}
}

// TestConnectionsAreKept: one after the other goes over one connection, entries
// have theirs beside those of others, and more are closed when they are idle.
func TestConnectionsAreKept(t *testing.T) {
	na, _ := end(t, "a")
	nb, to := end(t, "b")
	come := &accepting{streams: streams{nb.Raft()}}
	all := make(chan struct{})
	b := newNetwork(come, func(rpc *hraft.RPC, _ bool) error {
		switch rpc.Command.(type) {
		case *hraft.RequestVoteRequest:
			rpc := *rpc
			go func() { <-all; rpc.Respond(&hraft.RequestVoteResponse{}, nil) }()
		case *hraft.AppendEntriesRequest:
			rpc.Respond(&hraft.AppendEntriesResponse{}, nil)
		default:
			rpc.Respond(&hraft.TimeoutNowResponse{}, nil)
		}
		return nil
	}, allSettled, nil)
	defer b.close()
	a := newer(t, na, nil)
	entries := &hraft.AppendEntriesRequest{Term: 1, PrevLogEntry: 1}
	for range 5 {
		if err := a.ask(to, entries, &hraft.AppendEntriesResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := come.count(); n != 1 {
		t.Errorf("%d connections", n)
	}
	own := a.lanes[to].entries
	for range 5 {
		if err := a.ask(to, &hraft.TimeoutNowRequest{}, &hraft.TimeoutNowResponse{}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 2 * maxIdle {
		wg.Go(func() {
			if err := a.ask(to, &hraft.RequestVoteRequest{}, &hraft.RequestVoteResponse{}); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "not all have come", func() bool { return come.count() == 1+2*maxIdle })
	close(all)
	wg.Wait()
	if err := a.ask(to, entries, &hraft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
	if l := a.lanes[to]; l.entries != own || len(l.others) != maxIdle {
		t.Errorf("entries have the connection of before: %v; %d others are idle", l.entries == own, len(l.others))
	}
}

// TestNetworkEnds: requests that are under way at either side end with it, and a
// node that was away is reached again at once, whatever connections to it were
// idle.
func TestNetworkEnds(t *testing.T) {
	na, _ := end(t, "a")
	nb, to := end(t, "b")
	come := make(chan struct{}, 10)
	take := func(*hraft.RPC, bool) error { come <- struct{}{}; return nil } // never answered
	yes := func(rpc *hraft.RPC, _ bool) error { rpc.Respond(&hraft.TimeoutNowResponse{}, nil); return nil }
	a := newer(t, na, nil)
	a.timeout = time.Hour
	ask := func() error { return a.ask(to, &hraft.TimeoutNowRequest{}, &hraft.TimeoutNowResponse{}) }
	failed := make(chan error, 2)

	b := newer(t, nb, take)
	for range 2 {
		go func() { failed <- ask() }()
		<-come
	}
	b.close()
	for range 2 {
		if err := <-failed; err == nil {
			t.Error("answered by nobody")
		}
	}
	b = newer(t, nb, yes)
	for range 2 { // two idle connections
		if err := ask(); err != nil {
			t.Error(err)
		}
	}
	b.close()
	b = newer(t, nb, yes)
	if err := ask(); err == nil {
		t.Error("a connection that has ended was answered on")
	}
	if err := ask(); err != nil {
		t.Errorf("after the first failure: %v", err)
	}
	b.close()

	newer(t, nb, take)
	_ = ask() // the one that has ended
	go func() { failed <- ask() }()
	<-come
	a.close()
	if err := <-failed; err == nil {
		t.Error("answered by nobody")
	}
	if err := ask(); err == nil {
		t.Error("asked after the end")
	}
}

// TestNobodyAnswers: what is not answered in time has failed.
func TestNobodyAnswers(t *testing.T) {
	na, _ := end(t, "a")
	nb, to := end(t, "b")
	newer(t, nb, func(*hraft.RPC, bool) error { return nil })
	a := newer(t, na, nil)
	a.timeout = 50 * time.Millisecond
	err := a.ask(to, &hraft.TimeoutNowRequest{}, &hraft.TimeoutNowResponse{})
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("%v", err)
	}
	err = a.install(to, &hraft.InstallSnapshotRequest{Size: 1}, &hraft.InstallSnapshotResponse{}, strings.NewReader("x"))
	if !errors.As(err, &ne) || !ne.Timeout() {
		t.Errorf("a snapshot: %v", err)
	}
}

// TestHostileConnection: what is no message of Raft ends its connection, is told
// with the name of who sent it, and harms no other.
func TestHostileConnection(t *testing.T) {
	na, _ := end(t, "a")
	nb, to := end(t, "b")
	told := make(chan string, 1)
	b := newNetwork(streams{nb.Raft()}, func(rpc *hraft.RPC, _ bool) error {
		rpc.Respond(&hraft.TimeoutNowResponse{}, nil)
		return nil
	}, allSettled, func(from string, err error) { told <- fmt.Sprintf("%s: %v", from, err) })
	defer b.close()
	a := newer(t, na, nil)
	if err := a.ask(to, &hraft.TimeoutNowRequest{}, &hraft.TimeoutNowResponse{}); err != nil {
		t.Fatal(err)
	}
	c, err := a.stream.Dial(dialled(to.id, to.addr), rpcTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("\x00\x91")); err != nil {
		t.Fatal(err)
	}
	if got := <-told; got != "a: no message of Raft: byte 0x91 where it may not stand" {
		t.Error(got)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("answered")
	}
	if err := a.ask(to, &hraft.TimeoutNowRequest{}, &hraft.TimeoutNowResponse{}); err != nil {
		t.Error(err)
	}
}
