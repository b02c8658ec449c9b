package raft

import (
	"errors"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
)

// The codes of contract.md section 3 that a replica answers with.
const (
	CodeNoLeader            = "no_leader"
	CodeOverloaded          = "overloaded"
	CodeShuttingDown        = "shutting_down"
	CodeInsufficientStorage = "insufficient_storage"
	CodePayloadTooLarge     = "payload_too_large"
)

// problem builds a refusal. unknown must be true wherever the entry may still
// be committed, now or by a later leader.
func problem(code, detail string, unknown bool, retryMS int64) *event.Problem {
	return &event.Problem{Code: code, Detail: detail, Index: -1, Unknown: unknown, RetryAfterMS: retryMS}
}

func noLeader() *event.Problem {
	return problem(CodeNoLeader, "no leader is known; the write was not proposed", false, 1000)
}

// catchingUp refuses what this node could only do with the log that it lacks.
func catchingUp() *event.Problem {
	return problem(CodeNoLeader, "this node fetches what it has missed; ask another one", false, 1000)
}

func shuttingDown() *event.Problem {
	return problem(CodeShuttingDown, "the node is shutting down; the write was not proposed", false, 1000)
}

// outcome tells what became of an entry whose future failed with err.
//
// Only three errors mean that the entry was never appended anywhere. Each other
// one can come after it was: ErrLeadershipLost while it was being replicated (a
// follower that has it may be the next leader), ErrRaftShutdown even after it
// was committed, and an error of the log store tells nothing of the disk.
func outcome(err error) *event.Problem {
	const maybe = "; it may still be committed"
	switch {
	case errors.Is(err, hraft.ErrNotLeader):
		return problem(CodeNoLeader, "this node is no longer the leader; the write was not proposed", false, 1000)
	case errors.Is(err, hraft.ErrLeadershipTransferInProgress):
		return problem(CodeNoLeader, "leadership is being handed over; the write was not proposed", false, 500)
	case errors.Is(err, hraft.ErrEnqueueTimeout):
		return problem(CodeOverloaded, "the Raft log did not take the write in time; it was not proposed", false, 1000)
	case errors.Is(err, hraft.ErrRaftShutdown):
		return problem(CodeShuttingDown, "the node shut down while the write was under way"+maybe, true, 1000)
	case errors.Is(err, hraft.ErrLeadershipLost):
		return problem(CodeNoLeader, "leadership was lost while the write was under way"+maybe, true, 1000)
	}
	return problem(CodeNoLeader, "the write failed while it was under way"+maybe, true, 1000)
}
