package raft

import (
	"context"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
)

// An old leader hears late what the others say: answers to what it asked before
// another one was elected reach it afterwards, and must confirm nothing. (With
// hashicorp/raft's VerifyLeader in confirm's place, reads here are stale.)
func answersOnASlowLineConfirmNothing(t *testing.T) {
	c := cluster(t, 3, func(o *Options) {
		o.HeartbeatTimeout = 3 * time.Second
		o.LeaderLeaseTimeout = 1500 * time.Millisecond
	})
	c.put("before")
	l := c.leader()
	c.level()
	next := c.others(l)[0]
	c.mu.Lock()
	c.slow = map[string]time.Duration{l.name: 700 * time.Millisecond}
	c.mu.Unlock()
	// Heartbeats whose answers are under way when the other one is elected.
	go func() {
		_ = l.raft.LeadershipTransferToServer(next.id, next.o.self().serverAddress()).Error()
	}()
	until(t, "the other one leads", func() bool { return next.raft.State() == hraft.Leader })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := next.Propose(ctx, put("after")); err != nil {
		t.Fatal(err)
	}
	if err := l.Barrier(ctx); err == nil && !l.has("after") {
		t.Error("a stale read")
	}
}
