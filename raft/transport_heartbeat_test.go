package raft

import (
	"sync/atomic"
	"testing"

	hraft "github.com/hashicorp/raft"
)

// A leader hears of a newer term on its main loop alone: else it could write what it
// has in hand as an entry of a term that another node leads.
func TestHeartbeatThatDeposes(t *testing.T) {
	c := cluster(t, 3, nil)
	l := c.leader()
	tr := l.trans.(*transport)
	usual := tr.heartbeat.Load()
	var past atomic.Bool
	tr.SetHeartbeatHandler(func(rpc hraft.RPC) {
		if string(rpc.Command.(*hraft.AppendEntriesRequest).ID) == "next" {
			past.Store(true)
		}
		(*usual)(rpc)
	})
	answers := make(chan hraft.RPCResponse, 1)
	h := tr.header()
	h.ID, h.Addr = []byte("next"), []byte("next 127.0.0.1:1")
	a := &hraft.AppendEntriesRequest{RPCHeader: h, Term: l.raft.CurrentTerm() + 1}
	tr.take(hraft.RPC{Command: a, RespChan: answers}, true)
	if r := <-answers; r.Error != nil || !r.Response.(*hraft.AppendEntriesResponse).Success {
		t.Errorf("%+v", r)
	}
	if past.Load() {
		t.Error("it went past the main loop")
	}
}
