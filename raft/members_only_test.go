package raft

import (
	"context"
	"errors"
	"testing"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/raft/peer"
)

// Members ask the leader where that is another node. Who is no member forwards nothing and learns
// nothing: neither a node without a cluster nor one that only names it.
func membersAskTheLeader(t *testing.T) {
	c, l, _, _ := three(t)
	const question = "test.question"
	for _, m := range c.members() {
		m.HandleMembers(t.Context(), question, peer.Answer(
			func(context.Context, peer.Identity, any) (string, error) { return m.name, nil }))
	}
	for _, m := range c.members() {
		var answer string
		err := m.AskLeader(t.Context(), question, nil, &answer)
		assert.False(t, m == l && err == nil, "the leader asks itself")
		assert.False(t, m != l && (err != nil || answer != l.name), "%s, %v", answer, err)
	}
	group := event.AppendGroup(nil, []event.Forwarded{{Class: event.ClassProduce, Weight: 1,
		Data: event.EncodeCommand(put("stranger"))}})
	for name, id := range map[string]peer.Identity{
		"blank":           {Node: "x", Incarnation: "x-1"},
		"of its own word": {Cluster: "c1", Node: "x", Incarnation: "x-1"},
		"a member's name": {Cluster: "c1", Node: "n1", Incarnation: "other"},
	} {
		lis, err := c.net.Listen("x:0")
		require.NoError(t, err)
		n, err := peer.New(peer.Options{Listener: lis, Dial: c.net.Dialer("x"), Self: id})
		require.NoError(t, err)
		defer n.Close()
		for call, body := range map[string][]byte{
			callForward: group, callReadIndex: nil, question: nil,
		} {
			_, _, err := n.Call(context.Background(), peer.Target{Addr: l.addr}, call, body)
			if e, ok := errors.AsType[*peer.Error](err); !ok || e.Code != codeNoMember {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
	}
	c.put("b")
	assert.False(t, l.has("stranger"), "a stranger's write was done")
}
