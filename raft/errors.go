package raft

import (
	"errors"
	"fmt"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
)

// The problem codes that a replica answers with.
const (
	CodeNoLeader            = "no_leader"
	CodeOverloaded          = "overloaded"
	CodeShuttingDown        = "shutting_down"
	CodeInsufficientStorage = "insufficient_storage"
	CodePayloadTooLarge     = "payload_too_large"
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

// notNow is a problem for which a repeat of the request may help. Nothing was changed.
func notNow(format string, args ...any) *event.Problem {
	return refused(CodeNoLeader, fmt.Sprintf(format, args...), 1000)
}

func noLeader() *event.Problem { return notNow("no leader is known; the write was not proposed") }

// catchingUp refuses what needs the part of the log that this node lacks.
func catchingUp() *event.Problem {
	return notNow("node is catching up with the leader; retry on another node")
}

func shuttingDown() *event.Problem {
	return refused(CodeShuttingDown, "the node is shutting down; the write was not proposed", 1000)
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
		return refused(CodeNoLeader, "this node is no longer the leader"+not, 1000)
	case errors.Is(err, hraft.ErrLeadershipTransferInProgress):
		return refused(CodeNoLeader, "leadership is being transferred"+not, 1000)
	case errors.Is(err, hraft.ErrEnqueueTimeout):
		return refused(CodeOverloaded, "the Raft log did not take the write in time"+not, 1000)
	case errors.Is(err, hraft.ErrRaftShutdown):
		return unknown(CodeShuttingDown, "the node shut down during the write")
	case errors.Is(err, hraft.ErrLeadershipLost):
		return unknown(CodeNoLeader, "leadership was lost during the write")
	}
	return unknown(CodeNoLeader, "the write failed while it was in flight")
}
