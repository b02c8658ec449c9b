package raft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft/peer"
)

const callReadIndex = "raft.readindex"

// barriers make reads linearizable. Readers that come while a confirmation is
// under way share the next one: it begins after all of them. On the leader the
// readers of other nodes share it too.
type barriers struct {
	r *Replica

	mu      sync.Mutex
	next    *round
	running bool
	wg      sync.WaitGroup
	asked   *question
	turn    chan struct{} // closed at the next change of leadership; nil while nobody waits
}

// round is one confirmation and those who wait for it.
type round struct {
	known chan struct{} // closed when index, local and err are set
	done  chan struct{} // closed when index is applied here, too
	// index is such that whoever has applied it sees all that was committed
	// before the round began.
	index uint64
	local bool // confirmed by this node as the leader
	err   *event.Problem
	// stranded: this node lacks the log up to index; set before done is closed.
	stranded bool
}

// question is a round's call to the leader, which ends when another node leads.
type question struct {
	to     peer.Target
	cancel context.CancelFunc
}

// Barrier returns nil when everything that was committed before the call is
// applied here: a read of the state is then linearizable. The leader makes sure
// that it still is after the call began; any other node asks it. Else the error
// is an *event.Problem.
func (r *Replica) Barrier(ctx context.Context) error {
	if r.confirmedAlone() {
		return nil
	}
	if r.behind() {
		return catchingUp()
	}
	rd, refused := r.barriers.join()
	if refused != nil {
		return refused
	}
	select {
	case <-rd.done:
	case <-ctx.Done():
		select {
		case <-rd.known:
			if rd.err == nil {
				return problem(CodeNoLeader, fmt.Sprintf("the request ended before this node had caught up with the leader: %d of %d", r.fsm.progress().index, rd.index), false, 1000)
			}
			return rd.err
		default:
		}
		return problem(CodeNoLeader, "the request ended before leadership was confirmed", false, 1000)
	case <-r.run.failed:
		return problem(CodeNoLeader, "this node has failed and is about to end", false, 1000)
	case <-r.run.stop:
		return problem(CodeShuttingDown, "the node is shutting down", false, 1000)
	}
	if rd.err != nil { // never a nil *Problem in an error
		return rd.err
	}
	if rd.stranded {
		return catchingUp()
	}
	return nil
}

// confirmedAlone is the shortcut of a sole voter that has nothing to wait for:
// nobody else can have become leader. hashicorp/raft would answer the same, but
// only between two fsyncs.
func (r *Replica) confirmedAlone() bool {
	return r.leadsReady() && r.alone() && r.raft.State() == hraft.Leader && r.fsm.progress().index >= r.raft.CommitIndex()
}

func (b *barriers) join() (*round, *event.Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.r.run.stop:
		return nil, problem(CodeShuttingDown, "the node is shutting down", false, 1000)
	default:
	}
	if b.next == nil {
		b.next = &round{known: make(chan struct{}), done: make(chan struct{})}
	}
	rd := b.next
	if !b.running {
		b.running = true
		b.wg.Go(b.run)
	}
	return rd, nil
}

// run confirms round after round until nobody waits.
func (b *barriers) run() {
	for {
		b.mu.Lock()
		rd := b.next
		b.next = nil
		b.running = rd != nil
		b.mu.Unlock()
		if rd == nil {
			return
		}
		rd.index, rd.local, rd.err = b.confirm()
		close(rd.known)
		if rd.err != nil {
			close(rd.done)
			continue
		}
		// A node that lags must not hold up the next round.
		b.r.b.waiters.add(rd.index, func(here bool) {
			rd.stranded = !here
			close(rd.done)
		})
	}
}

var (
	errNotLeader = errors.New("this node is not the leader")
	errNotYet    = errors.New("nothing of this term is committed yet")
)

// confirm asks who leads, be it this node, until somebody has confirmed that he
// does or the round has taken as long as a request may wait for a leader.
func (b *barriers) confirm() (index uint64, local bool, refused *event.Problem) {
	r := b.r
	ctx, cancel := context.WithTimeout(r.b.forward.ctx, r.o.LeaderWait)
	defer cancel()
	retry := firstRetry
	for {
		turn := b.turns()
		lead, changed := r.b.view()
		var err error
		if lead.leader {
			if index, err = r.confirmHere(); err == nil {
				return index, true, nil
			}
		} else if index, err = b.ask(ctx); err == nil {
			return index, false, nil
		}
		if !errors.Is(err, errNotYet) {
			changed = nil // tells of every command, too
		}
		timer := time.NewTimer(retry)
		select {
		case <-changed:
		case <-turn:
			retry = firstRetry
		case <-timer.C:
			retry = min(2*retry, lastRetry)
		case <-ctx.Done():
		case <-r.run.failed:
		case <-r.run.stop:
		}
		timer.Stop()
		select {
		case <-r.run.failed:
			return 0, false, problem(CodeNoLeader, "this node has failed and is about to end", false, 1000)
		case <-r.run.stop:
			return 0, false, problem(CodeShuttingDown, "the node is shutting down", false, 1000)
		case <-ctx.Done():
			return 0, false, problem(CodeNoLeader, "no leader is known that confirms what was committed", false, 1000)
		default:
		}
	}
}

// confirmHere is the leader's: it returns its commit index if it still leads
// after the call began.
//
// Why that is enough. In one term at most one node leads. Its commit index
// covers all that earlier terms committed once an entry of its own term is
// committed; and whatever is committed in its term, it commits first. So the
// index must be taken while this node has applied an entry of the current term,
// and the leadership that a majority confirms afterwards must be of that same
// term: a node that lost its leadership and won another in between might not
// know yet what was committed in the meantime. Notifications of leadership come
// late; Raft's own term, looked at on both sides, does not.
func (r *Replica) confirmHere() (uint64, error) {
	term := r.raft.CurrentTerm()
	if r.fsm.progress().term != term {
		return 0, errNotYet
	}
	index := r.stores.log.told(r.raft.CommitIndex())
	// Behind the look at the term: a node that follows in it leads in none.
	if r.raft.State() != hraft.Leader {
		return 0, errNotLeader
	}
	if err := r.verify(term); err != nil {
		return 0, err
	}
	if r.raft.CurrentTerm() != term {
		return 0, errNotLeader
	}
	return index, nil
}

// verify asks the other voters whether this node still leads in a term.
func (r *Replica) verify(term uint64) error {
	if t, ok := r.trans.(*transport); ok {
		return r.confirm(t, term)
	}
	return nil // alone in its process: nobody else can lead
}

// ask asks the leader, where it is another node.
func (b *barriers) ask(ctx context.Context) (uint64, error) {
	r := b.r
	if r.b.forward.call == nil {
		return 0, errNotLeader
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.mu.Lock()
	to, ok := r.b.forward.target() // under the lock: a change after it finds the question
	if ok {
		b.asked = &question{to, cancel}
	}
	b.mu.Unlock()
	if !ok {
		return 0, errNotLeader
	}
	body, err := r.b.forward.call(ctx, to, callReadIndex, nil)
	b.mu.Lock()
	b.asked = nil
	b.mu.Unlock()
	switch {
	case err != nil:
		return 0, err
	case len(body) != 8:
		return 0, fmt.Errorf("%s: %d bytes where 8 belong", callReadIndex, len(body))
	}
	return binary.BigEndian.Uint64(body), nil
}

func (b *barriers) turns() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.turn == nil {
		b.turn = make(chan struct{})
	}
	return b.turn
}

// moved is told of a change of leadership. It ends a call to a node that does
// not lead any more: that may be cut off and never answer. A read can be asked
// again.
func (b *barriers) moved() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.turn != nil {
		close(b.turn)
		b.turn = nil
	}
	if b.asked == nil {
		return
	}
	if to, ok := b.r.b.forward.target(); !ok || to != b.asked.to {
		b.asked.cancel()
	}
}

// serveReadIndex answers other nodes' readers, if this node leads.
func (r *Replica) serveReadIndex(ctx context.Context, from peer.Identity, _ []byte) ([]byte, error) {
	no := &peer.Error{Code: CodeNoLeader, Detail: errNotLeader.Error()}
	if !r.Leader() {
		return nil, no
	}
	rd, refused := r.barriers.join()
	if refused != nil {
		return nil, &peer.Error{Code: refused.Code, Detail: refused.Detail}
	}
	select {
	case <-rd.known:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.run.stop:
		return nil, no
	}
	// What this node was told by another leader is right, too; but who asks
	// would not come here a second time if it knew.
	if rd.err != nil || !rd.local {
		return nil, no
	}
	r.peers.commits.signal()
	return binary.BigEndian.AppendUint64(nil, rd.index), nil
}

// confirmer confirms this node's leadership with heartbeats to the other voters, sent
// after it was asked. hashicorp/raft's VerifyLeader accepts any response that arrives
// afterwards, also to a request older than the read; by the time that a slow line delivers
// it, another node may have been elected and have acknowledged writes. It also counts
// nodes that have no vote.
type confirmer struct {
	mu   sync.Mutex
	busy map[hraft.ServerID]bool // one request to a voter at a time
	wg   sync.WaitGroup
}

var errNotConfirmed = errors.New("a majority of voters does not confirm that this node leads")

// confirmTime is how long a majority may take; rpcTimeout bounds each request.
const confirmTime = 2 * time.Second

// confirm returns nil once a majority of voters has responded, to a request that was sent
// after the call, that it knows no later term than this one.
func (r *Replica) confirm(t *transport, term uint64) error {
	responses := make(chan bool)
	done := make(chan struct{})
	defer close(done)
	voters, yes, asked := 0, 0, 0
	for _, s := range r.servers() {
		if s.Suffrage != hraft.Voter {
			continue
		}
		voters++
		if s.ID == r.id {
			yes++
		} else if r.confirmer.begin(s.ID) {
			asked++
			r.confirmer.wg.Go(func() {
				ok := r.heartbeat(t, s, term)
				r.confirmer.end(s.ID)
				select {
				case responses <- ok:
				case <-done:
				}
			})
		}
	}
	late := time.NewTimer(confirmTime)
	defer late.Stop()
	for need := voters/2 + 1; yes < need; asked-- {
		if yes+asked < need {
			return errNotConfirmed
		}
		select {
		case ok := <-responses:
			if ok {
				yes++
			}
		case <-late.C:
			return errNotConfirmed
		case <-r.run.failed:
			return *r.run.dead.Load()
		case <-r.run.stop:
			return hraft.ErrRaftShutdown
		}
	}
	return nil
}

// heartbeat reports whether a voter knows no later term.
func (r *Replica) heartbeat(t *transport, s hraft.Server, term uint64) bool {
	if !r.leadsIn(term) {
		return false
	}
	var resp hraft.AppendEntriesResponse
	err := t.append(s.ID, s.Address, &hraft.AppendEntriesRequest{RPCHeader: t.header(), Term: term}, &resp)
	return err == nil && resp.Success && resp.Term == term
}

func (c *confirmer) begin(id hraft.ServerID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[id] {
		return false
	}
	c.busy[id] = true
	return true
}

func (c *confirmer) end(id hraft.ServerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, id)
}

// AskLeader calls the leader if it is another node.
func (r *Replica) AskLeader(ctx context.Context, name string, body []byte) ([]byte, error) {
	f := r.b.forward
	if f.call == nil {
		return nil, errNotLeader
	}
	to, ok := f.target()
	if !ok {
		return nil, errNotLeader
	}
	return f.call(ctx, to, name, body)
}

// othersTime bounds how long other nodes may take to answer AskOthers.
const othersTime = time.Second

// AskOthers calls all other members that can be reached, and returns the answers of
// those that gave one in time.
func (r *Replica) AskOthers(ctx context.Context, name string, body []byte) (answers [][]byte) {
	if r.o.Net == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, othersTime)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, m := range r.Members() {
		if m.ID == r.o.NodeID || !m.Reachable {
			continue
		}
		wg.Go(func() {
			b, _, err := r.o.Net.Call(ctx, m.target(), name, body)
			if err != nil {
				return // its part is missing; the caller cannot do better
			}
			mu.Lock()
			answers = append(answers, b)
			mu.Unlock()
		})
	}
	wg.Wait()
	return answers
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
		r.peers.commits.signal()
		return answer, err
	}))
}
