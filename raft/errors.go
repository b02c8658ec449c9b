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

// catchingUp refuses what needs the part of the log that this node lacks.
func catchingUp() *event.Problem {
	return problem(CodeNoLeader, "node is catching up with the leader; retry on another node", false, 1000)
}

func shuttingDown() *event.Problem {
	return problem(CodeShuttingDown, "the node is shutting down; the write was not proposed", false, 1000)
}

// outcomes maps the errors of entries (I15). Only three of them mean that the entry was
// never appended anywhere. Each other one can come after it was: ErrLeadershipLost while
// it was being replicated (a follower that has it may be the next leader),
// ErrRaftShutdown even after it was committed, and an error of the log store says nothing
// about the disk.
var outcomes = []struct {
	err     error
	unknown bool
	code    string
	detail  string
	retryMS int64
}{
	{hraft.ErrNotLeader, false, CodeNoLeader, "this node is no longer the leader", 1000},
	{hraft.ErrLeadershipTransferInProgress, false, CodeNoLeader, "leadership is being transferred", 500},
	{hraft.ErrEnqueueTimeout, false, CodeOverloaded, "the Raft log did not take the write in time", 1000},
	{hraft.ErrRaftShutdown, true, CodeShuttingDown, "the node shut down while the write was in flight", 1000},
	{hraft.ErrLeadershipLost, true, CodeNoLeader, "leadership was lost while the write was in flight", 1000},
	{nil, true, CodeNoLeader, "the write failed while it was in flight", 1000}, // any other
}

// outcome returns the problem that answers the commands of an entry that failed.
func outcome(err error) *event.Problem {
	for _, o := range outcomes {
		if o.err == nil || errors.Is(err, o.err) {
			if o.unknown {
				return problem(o.code, o.detail+"; it may still be committed", true, o.retryMS)
			}
			return problem(o.code, o.detail+"; the write was not proposed", false, o.retryMS)
		}
	}
	panic("unreachable: the last outcome matches any error")
}
