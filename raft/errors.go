package raft

import (
	"errors"
	"fmt"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
)

// refused is a problem of a request that was certainly not executed; retryMS is when a
// repeat may help, 0 never.
func refused(code, detail string, retryMS int64) *event.Problem {
	return &event.Problem{Code: code, Detail: detail, Index: -1, RetryAfterMS: retryMS}
}

// unknown is a problem of a write that may still be committed, now or by a later leader.
func unknown(code, detail string) *event.Problem {
	detail += "; it may still be committed"
	return &event.Problem{Code: code, Detail: detail, Index: -1, Unknown: true, RetryAfterMS: 1000}
}

// notNow returns a problem after which the request may be retried. Nothing was changed.
func notNow(format string, args ...any) *event.Problem {
	return refused(event.CodeNoLeader, fmt.Sprintf(format, args...), 1000)
}

func noLeader() *event.Problem { return notNow("no leader is known; the write was not proposed") }

// catchingUp returns the problem for requests that need the part of the log that this node lacks.
func catchingUp() *event.Problem {
	return notNow("node is catching up with the leader; retry on another node")
}

func shuttingDown() *event.Problem {
	const detail = "the node is shutting down; the write was not proposed"
	return refused(event.CodeShuttingDown, detail, 1000)
}

// outcome returns the problem that answers the commands of an entry that failed (I15). Only three
// errors mean that the entry was never appended anywhere. Each other one can come after it was:
// ErrLeadershipLost while it was being replicated (a follower that has it may be the next leader),
// ErrRaftShutdown even after it was committed, and an error of the log store says nothing about
// the disk.
func outcome(err error) *event.Problem {
	const not = "; the write was not proposed"
	switch {
	case errors.Is(err, hraft.ErrNotLeader):
		return refused(event.CodeNoLeader, "this node is no longer the leader"+not, 1000)
	case errors.Is(err, hraft.ErrLeadershipTransferInProgress):
		return refused(event.CodeNoLeader, "leadership is being transferred"+not, 1000)
	case errors.Is(err, hraft.ErrEnqueueTimeout):
		const detail = "the Raft log did not take the write in time"
		return refused(event.CodeOverloaded, detail+not, 1000)
	case errors.Is(err, hraft.ErrRaftShutdown):
		return unknown(event.CodeShuttingDown, "the node shut down during the write")
	case errors.Is(err, hraft.ErrLeadershipLost):
		return unknown(event.CodeNoLeader, "leadership was lost during the write")
	}
	return unknown(event.CodeNoLeader, "the write failed while it was in flight")
}
