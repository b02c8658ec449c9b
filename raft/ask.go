package raft

import (
	"context"
	"sync"

	"github.com/qlogd/qlogd/raft/peer"
)

// questions are calls to the leader that may stay open for long: each ends when
// another node leads, or none that is known.
type questions struct {
	mu   sync.Mutex
	open map[*question]struct{}
}

// AskLeader calls the leader where that is another node, and waits for its answer
// as long as ctx allows and that node is known to lead.
func (r *Replica) AskLeader(ctx context.Context, name string, body []byte) ([]byte, error) {
	if r.b.forward.call == nil {
		return nil, errNotLeader
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q := &question{cancel: cancel}
	a := &r.asked
	a.mu.Lock()
	to, ok := r.b.forward.target() // under the lock: a change after it finds the question
	if !ok {
		a.mu.Unlock()
		return nil, errNotLeader
	}
	q.to = to
	if a.open == nil {
		a.open = map[*question]struct{}{}
	}
	a.open[q] = struct{}{}
	a.mu.Unlock()
	answer, err := r.b.forward.call(ctx, to, name, body)
	a.mu.Lock()
	delete(a.open, q)
	a.mu.Unlock()
	return answer, err
}

// moved ends the questions to others than who leads: to all where that is this
// node, or not known.
func (a *questions) moved(target func() (peer.Target, bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	to, ok := target()
	for q := range a.open {
		if !ok || q.to != to {
			q.cancel()
		}
	}
}

// HandleMembers answers the calls of that name that members of the cluster make;
// nil: nobody does any more.
func (r *Replica) HandleMembers(name string, h func(ctx context.Context, body []byte) ([]byte, error)) {
	if r.o.Net == nil {
		return
	}
	if h == nil {
		r.o.Net.Handle(name, nil)
		return
	}
	r.o.Net.Handle(name, r.forMembers(func(ctx context.Context, from peer.Identity, body []byte) ([]byte, error) {
		answer, err := h(ctx, body)
		// What is answered may tell of entries that who asks waits for then.
		r.commits.signal()
		return answer, err
	}))
}
