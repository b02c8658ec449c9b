package raft

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	hraft "github.com/hashicorp/raft"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// A leader hears of a newer term on its main loop alone: else it could write what it
// gathered as an entry of a term that another node leads.
func heartbeatThatDeposes(t *testing.T) {
	_, l, _, _ := three(t)
	tr := l.trans
	usual := tr.heartbeat.Load()
	var past atomic.Bool
	tr.SetHeartbeatHandler(func(rpc hraft.RPC) {
		if string(rpc.Command.(*hraft.AppendEntriesRequest).ID) == "next/1" {
			past.Store(true)
		}
		(*usual)(rpc)
	})
	h := hraft.RPCHeader{ProtocolVersion: hraft.ProtocolVersionMax,
		ID: []byte("next/1"), Addr: []byte("next/1 127.0.0.1:1")}
	a := &hraft.AppendEntriesRequest{RPCHeader: h, Term: l.raft.CurrentTerm() + 1}
	answers := make(chan hraft.RPCResponse, 1)
	tr.take(hraft.RPC{Command: a, RespChan: answers})
	if r := <-answers; r.Error != nil || !r.Response.(*hraft.AppendEntriesResponse).Success {
		t.Errorf("%+v", r)
	}
	assert.False(t, past.Load(), "it went past the main loop")
}

// A follower's log may end with what a deposed leader wrote. A request of the next leader that does
// not reach as far says nothing about that, although this leader has committed more.
func commitsNothingUnchecked(t *testing.T) {
	c, _, f, next := three(t)
	c.isolate(f.name, true)
	last, term := f.raft.LastIndex(), f.raft.CurrentTerm()
	send := func(from *member, term, prev, prevTerm, commit uint64, entries ...*hraft.Log) {
		t.Helper()
		answers := make(chan hraft.RPCResponse, 1)
		f.trans.take(hraft.RPC{RespChan: answers, Command: &hraft.AppendEntriesRequest{
			RPCHeader: hraft.RPCHeader{ProtocolVersion: hraft.ProtocolVersionMax,
				ID: []byte(from.id), Addr: []byte(string(from.id) + " 127.0.0.1:1")},
			Term: term, PrevLogEntry: prev, PrevLogTerm: prevTerm, LeaderCommitIndex: commit,
			Entries: entries,
		}})
		r := <-answers
		require.NoError(t, r.Error)
		require.True(t, r.Response.(*hraft.AppendEntriesResponse).Success, "it is refused")
	}
	noop := func(index, term uint64) *hraft.Log {
		return &hraft.Log{Index: index, Term: term, Type: hraft.LogNoop}
	}
	deposed := c.leader(f.name)
	send(deposed, term+10, last, term, last, noop(last+1, term+10), noop(last+2, term+10))
	send(next, term+20, last, term, last+2)
	require.Equal(t, f.raft.CommitIndex(), last)
	send(next, term+20, last, term, last+2, noop(last+1, term+20), noop(last+2, term+20))
	require.Equal(t, f.raft.CommitIndex(), last+2)
}

// F1 and F2 of reliability.md, on our stores and real connections. A leader is
// cut off with more entries than nobody else has than go into one message (64),
// the others go on past a checkpoint and truncate, it comes back, takes what it
// lacks, and leads. Nothing that was never committed is applied anywhere, and
// nothing is installed over and over.
func deposedLeaderComesBack(t *testing.T) {
	const lost = 100
	c := cluster(t, 3, func(o *Options) {
		o.TrailingLogs, o.KeepCheckpoints = 1, 2
		o.Limits = Limits{Entries: 2 * lost, GroupCommands: 1}
		o.LeaderLeaseTimeout = o.HeartbeatTimeout // time enough to gather them
	})
	c.puts("first", 10)
	c.level()
	l := c.leader()
	commit := l.raft.CommitIndex()
	c.isolate(l.name, true)
	var wg sync.WaitGroup
	for i := range lost {
		wg.Go(func() {
			if _, err := l.Propose(context.Background(), put(fmt.Sprint("lost", i))); err == nil {
				t.Error("an entry was acknowledged without a majority")
			}
		})
	}
	wg.Wait() // it has stepped down
	if last := l.raft.LastIndex(); last < commit+64 {
		t.Fatalf("only %d entries are uncommitted", last-commit)
	}
	// The others' checkpoint, and the begin of their log, lie within the deposed
	// leader's longer one.
	for round := range 2 {
		c.puts(fmt.Sprint("on", round, "-"), 40, l.name)
		c.level(l.name)
		for _, m := range c.others(l) {
			require.NoError(t, m.Snapshot())
		}
	}
	// A leader that has never spoken to it: nothing of before gets through.
	first := c.leader(l.name)
	until(t, "the other one leads", func() bool {
		_ = first.TransferLeadership(context.Background(), "")
		return c.leader(l.name) != first
	})
	if newest := first.Status().Checkpoints[0].Index; newest >= l.raft.LastIndex() {
		t.Fatalf("the checkpoint of %d is beyond the deposed leader's log, which ends at %d",
			newest, l.raft.LastIndex())
	}
	c.isolate(l.name, false)
	<-l.Offers()
	if ok, why := l.Ready(); ok || !contains(why, "fetching the event log") {
		t.Errorf("ready %v: %v", ok, why)
	}
	next := c.leader(l.name)
	l.stop()
	fetched(t, l.disk, next.disk, next.node)
	c.start(l)
	c.put("again")
	c.level()
	assert.Equal(t, len(l.Offers()), 0, "offers after it has fetched")
	until(t, "it leads", func() bool {
		if now := c.leader(); now != l {
			_ = now.TransferLeadership(context.Background(), l.name)
		}
		return c.leader() == l
	})
	c.put("after")
	c.level()
	for _, m := range c.members() {
		for _, name := range m.m.names() {
			assert.False(t, strings.HasPrefix(name, "lost"),
				"%s applied %s, which was never committed", m.name, name)
		}
	}
}

// A node that takes long to fetch and to open its directory is not behind again when it has: the
// leader, on which much is written meanwhile, keeps what follows the checkpoint.
func oneFetchIsEnough(t *testing.T) {
	c := cluster(t, 3, func(o *Options) {
		o.TrailingLogs, o.KeepCheckpoints, o.SnapshotThreshold = 1, 2, 5
	})
	c.puts("first", 40)
	l := c.leader()
	m := c.others(l)[0]
	c.isolate(m.name, true)
	c.puts("on", 40, m.name)
	c.isolate(m.name, false)
	<-m.Offers()
	synctest.Wait() // the leader knows that it fetches
	m.stop()
	fetched(t, m.disk, l.disk, l.node)
	c.puts("meanwhile", 40, m.name)
	time.Sleep(time.Minute)
	c.start(m)
	c.level()
	assert.Equal(t, len(m.Offers()), 0, "offers after it has fetched")
	// A node that fetches no more holds up nothing.
	time.Sleep(holdFor)
	before := l.Status().Checkpoints[0].Index
	c.puts("later", 40)
	until(t, "another checkpoint", func() bool { return l.Status().Checkpoints[0].Index > before })
}

func TestTrim(t *testing.T) {
	entry := func(mib int) *hraft.Log { return &hraft.Log{Data: make([]byte, mib<<20)} }
	for _, c := range []struct {
		sizes []int
		want  int
	}{
		{nil, 0}, {[]int{1}, 1}, {[]int{40}, 1}, {[]int{40, 1}, 1}, {[]int{1, 40}, 1}, {[]int{8, 8},
			2}, {[]int{8, 8, 1}, 2},
	} {
		args := &hraft.AppendEntriesRequest{}
		for _, mib := range c.sizes {
			args.Entries = append(args.Entries, entry(mib))
		}
		if trim(args); len(args.Entries) != c.want {
			t.Errorf("%v MiB: %d entries, want %d", c.sizes, len(args.Entries), c.want)
		}
	}
}
