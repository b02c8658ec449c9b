package raft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/hlog"
	"github.com/qlogd/qlogd/internal/watchdog"
	"github.com/qlogd/qlogd/log/witness"
	"github.com/qlogd/qlogd/raft/peer"
)

// transport is hashicorp/raft's NetworkTransport with what this package adds: see its methods. What
// concerns admission and evidence is in rollback.go.
type transport struct {
	r         *Replica
	net       *hraft.NetworkTransport
	local     hraft.ServerAddress
	in        chan hraft.RPC // for hashicorp/raft's main loop
	heartbeat atomic.Pointer[func(hraft.RPC)]
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	// running is held for reading while a request of another node is handled, and locked after wait.
	running sync.RWMutex
}

var (
	_ hraft.Transport   = (*transport)(nil)
	_ hraft.WithPreVote = (*transport)(nil)
	_ hraft.WithClose   = (*transport)(nil)
)

// rpcTimeout is how long another node may take to respond to hashicorp/raft, its disk included.
const rpcTimeout = 10 * time.Second

func newTransport(r *Replica) *transport {
	t := &transport{r: r, local: r.o.self().serverAddress(), in: make(chan hraft.RPC)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.net = hraft.NewNetworkTransportWithConfig(&hraft.NetworkTransportConfig{
		Stream: streams{r.o.Net.Raft(), r}, MaxPool: 4, Timeout: rpcTimeout,
		Logger: hlog.New(r.o.Logger, "raft-net"), MsgpackUseNewTimeFormat: true,
	})
	t.net.SetHeartbeatHandler(t.take)
	go func() {
		for {
			select {
			case rpc := <-t.net.Consumer():
				t.take(rpc)
			case <-t.ctx.Done():
				return
			}
		}
	}()
	return t
}

// streams are the connections between replicas. hashicorp/raft dials what dialled returns: the
// other side must be that very incarnation.
type streams struct {
	*peer.RaftLayer
	r *Replica
}

// Dial implements hraft.StreamLayer.
func (s streams) Dial(addr hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, hostport, _ := strings.Cut(string(addr), " ")
	if err := s.r.apart(hraft.ServerID(id)); err != nil {
		return nil, err
	}
	to := memberOf(hraft.ServerID(id), hraft.ServerAddress(hostport)).target()
	return s.RaftLayer.Dial(to, timeout)
}

// dialled is what streams.Dial takes apart.
func dialled(id hraft.ServerID, addr hraft.ServerAddress) hraft.ServerAddress {
	return hraft.ServerAddress(string(id) + " " + memberOf(id, addr).RaftAddr)
}

// Close implements hraft.WithClose: it closes all connections, in both directions.
func (t *transport) Close() error {
	t.cancel()
	return t.net.Close()
}

// wait returns when no request of another node is handled any more, after Close.
func (t *transport) wait() { t.running.Lock() } // and never unlocked

func (t *transport) LocalAddr() hraft.ServerAddress { return t.local }

// EncodePeer implements hraft.Transport. Votes are recorded by what it returns, so the
// incarnation is part of it.
func (t *transport) EncodePeer(id hraft.ServerID, addr hraft.ServerAddress) []byte {
	return []byte(string(id) + " " + string(addr))
}

func (t *transport) DecodePeer(b []byte) hraft.ServerAddress {
	_, addr, _ := strings.Cut(string(b), " ")
	return hraft.ServerAddress(addr)
}

func (t *transport) Consumer() <-chan hraft.RPC { return t.in }

// take handles a request, or answers it with an error.
func (t *transport) take(rpc hraft.RPC) {
	err := error(hraft.ErrTransportShutdown)
	if t.running.TryRLock() {
		defer t.running.RUnlock()
		err = t.handle(rpc)
	}
	if err == nil {
		return
	}
	if rpc.Reader != nil {
		_, _ = io.Copy(io.Discard, rpc.Reader) // else it would be read as the next request
	}
	rpc.Respond(nil, err)
}

// handle passes a request on to hashicorp/raft's main loop, or handles a heartbeat without it. What
// it looks at may have changed by the time the main loop has the request.
func (t *transport) handle(rpc hraft.RPC) error {
	id := hraft.ServerID(rpc.Command.(hraft.WithRPCHeader).GetRPCHeader().ID)
	if err := t.r.apart(id); err != nil {
		return err
	}
	switch a := rpc.Command.(type) {
	case *hraft.InstallSnapshotRequest:
		return errNoBulk
	case *hraft.AppendEntriesRequest:
		if isHeartbeat(a) { // does not refer to the log
			if t.fastPath(rpc, a.Term) {
				return nil
			}
			break
		}
		// Not one from a deposed leader.
		if a.LeaderCommitIndex > 0 && a.Term >= t.r.raft.CurrentTerm() {
			t.r.peers.contact.Store(&contact{time.Now(), a.LeaderCommitIndex})
		}
		t.r.rollback.evidence.Note(id, witness.Promise{AckTerm: a.Term, AckIndex: lastOf(a)})
		// The rule of Raft (figure 2). hashicorp/raft would also commit what a deposed leader left
		// behind these entries.
		a.LeaderCommitIndex = min(a.LeaderCommitIndex, lastOf(a))
		t.adapt(a)
	case *hraft.RequestPreVoteRequest, *hraft.RequestVoteRequest:
		if t.r.peers.answer(id).forked {
			return errForked
		}
		if vote, ok := a.(*hraft.RequestVoteRequest); ok {
			// The candidate has voted for itself. It gets no vote from here unless that is recorded.
			if err := t.r.rollback.evidence.Voted(id, vote.Term); err != nil {
				return err
			}
		}
	}
	select {
	case t.in <- rpc:
		return nil
	case <-t.ctx.Done():
		return hraft.ErrTransportShutdown
	}
}

func isHeartbeat(a *hraft.AppendEntriesRequest) bool {
	return a.PrevLogEntry == 0 && a.LeaderCommitIndex == 0 && len(a.Entries) == 0
}

// fastPath takes a heartbeat past hashicorp/raft's main loop, where it is refused as one of an
// older term, or leaves this node a follower in its term. A newer term would otherwise be raised
// on a leader that does not know yet that it is deposed, and is about to write an entry: that
// would have the new leader's term and perhaps the index of another entry of that leader, two logs
// that seem to agree and do not. And the term of a follower that becomes a candidate, or wins,
// would be set back: it cannot raise its term meanwhile.
func (t *transport) fastPath(rpc hraft.RPC, term uint64) bool {
	handle := t.heartbeat.Load()
	if handle == nil {
		return false
	}
	if term < t.r.raft.CurrentTerm() {
		(*handle)(rpc)
		return true
	}
	return t.r.stores.votes.during(term, func() bool {
		if t.r.raft.CurrentTerm() != term || t.r.raft.State() != hraft.Follower {
			return false
		}
		(*handle)(rpc)
		return true
	})
}

func (t *transport) SetHeartbeatHandler(handle func(hraft.RPC)) { t.heartbeat.Store(&handle) }

// apart returns why this node exchanges no Raft messages with another; nil: it does.
func (r *Replica) apart(id hraft.ServerID) error {
	switch {
	case !r.admitted():
		return errHeld
	case announced(id):
		return errAnnounced
	case r.rollback.silent.Awaits(id):
		return errUnconfirmed
	}
	return nil
}

var (
	errHeld = errors.New("this node is not admitted yet: " +
		"the others have not checked that its directory is not an older one")
	// Raft would elect the one that has more, which would replace what the other has committed.
	errForked = errors.New("the two nodes have committed different entries: " +
		"neither gets the other's vote")
	errAnnounced   = errors.New("this node has not come yet: its incarnation is not known")
	errUnconfirmed = errors.New("one of the two nodes has not checked the other's directory yet")
)

// adapt changes a request whose previous entry is at or before this node's snapshot, where its log
// does not reach back to it: hashicorp/raft would refuse it, the leader go back further, come to
// the end of its own log, and offer a snapshot that this node has no use for, again and again. What
// the snapshot covers is committed and therefore the same in the leader's log: those entries are
// dropped, and the rest begins right behind it.
func (t *transport) adapt(a *hraft.AppendEntriesRequest) {
	newest := t.r.stores.snaps.Newest()
	if newest.Index == 0 || a.PrevLogEntry > newest.Index ||
		a.PrevLogEntry == newest.Index && a.PrevLogTerm != newest.Term {
		return
	}
	first, err := t.r.stores.log.FirstIndex()
	if err != nil || first != 0 && a.PrevLogEntry >= first {
		return // its own log has the entry
	}
	if a.PrevLogEntry == 0 && len(a.Entries) == 0 {
		return // says nothing of a log
	}
	for len(a.Entries) > 0 && a.Entries[0].Index <= newest.Index {
		a.Entries = a.Entries[1:]
	}
	a.PrevLogEntry, a.PrevLogTerm = 0, 0 // hashicorp/raft then compares nothing
}

// AppendEntries implements hraft.Transport.
//
// hashicorp/raft waits longer after each failure, up to ten seconds, also when the other node has
// returned. So a request that cannot be sent does not fail yet: it waits until that node answers,
// as does any request, heartbeats too, while this node's own disk is stalled.
func (t *transport) AppendEntries(id hraft.ServerID, addr hraft.ServerAddress,
	args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	for {
		err := t.append(id, addr, args, resp)
		if err == nil || isHeartbeat(args) && !errors.Is(err, watchdog.ErrStalled) ||
			!t.r.awaitPeer(id, addr, args.Term) {
			return err
		}
		*resp = hraft.AppendEntriesResponse{}
	}
}

func (t *transport) append(id hraft.ServerID, addr hraft.ServerAddress,
	args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	if t.r.stores.disk.Stalled() {
		return watchdog.ErrStalled
	}
	trim(args)
	sent := time.Now()
	err := t.net.AppendEntries(id, dialled(id, addr), args, resp)
	if err == nil && resp.Success {
		t.r.rollback.evidence.Note(id, witness.Promise{AckTerm: args.Term, AckIndex: lastOf(args)})
		t.r.peers.accepted.Store(id, sent)
	}
	return err
}

// lastOf is the index up to which a log that accepts a request agrees with the sender's; 0 for a
// heartbeat.
func lastOf(a *hraft.AppendEntriesRequest) uint64 {
	if n := len(a.Entries); n > 0 {
		return a.Entries[n-1].Index
	}
	return a.PrevLogEntry
}

// maxMessage bounds the bytes of one message, except for a single larger entry. hashicorp/raft only
// counts entries, gives each message rpcTimeout, and repeats the same one where that is too short.
const maxMessage = 16 << 20

// trim removes entries beyond maxMessage; hashicorp/raft reads args again after the call and
// continues from there.
func trim(args *hraft.AppendEntriesRequest) {
	size := 0
	for i, e := range args.Entries {
		if size += len(e.Data); size > maxMessage && i > 0 {
			args.Entries = args.Entries[:i]
			return
		}
	}
}

// AppendEntriesPipeline implements hraft.Transport. There is none: replication to one follower can
// deadlock with it (hashicorp/raft #612). Without it the library asks again at each response, at no
// cost.
func (t *transport) AppendEntriesPipeline(hraft.ServerID, hraft.ServerAddress) (
	hraft.AppendPipeline, error) {
	return nil, hraft.ErrPipelineReplicationNotSupported
}

// RequestVote implements hraft.Transport. A vote counts only when it is recorded here.
func (t *transport) RequestVote(id hraft.ServerID, addr hraft.ServerAddress,
	args *hraft.RequestVoteRequest, resp *hraft.RequestVoteResponse) error {
	err := t.net.RequestVote(id, dialled(id, addr), args, resp)
	if err == nil && resp.Granted {
		err = t.r.rollback.evidence.Voted(id, args.Term)
	}
	return err
}

func (t *transport) RequestPreVote(id hraft.ServerID, addr hraft.ServerAddress,
	args *hraft.RequestPreVoteRequest, resp *hraft.RequestPreVoteResponse) error {
	return t.net.RequestPreVote(id, dialled(id, addr), args, resp)
}

// TimeoutNow waits for the response for an election timeout. hashicorp/raft gives up the transfer
// then, but accepts no entries until this call returns (#696): a node that shuts down, or whose line
// is cut, would hold up all writes for rpcTimeout.
func (t *transport) TimeoutNow(id hraft.ServerID, addr hraft.ServerAddress,
	args *hraft.TimeoutNowRequest, _ *hraft.TimeoutNowResponse) error {
	answered := make(chan error, 1)
	go func() {
		var resp hraft.TimeoutNowResponse // it has nothing but the header
		answered <- t.net.TimeoutNow(id, dialled(id, addr), args, &resp)
	}()
	select {
	case err := <-answered:
		return err
	case <-time.After(t.r.o.HeartbeatTimeout):
		return fmt.Errorf("no response from %s", id)
	}
}

// InstallSnapshot implements hraft.Transport. The snapshot is offered, and never sent.
func (t *transport) InstallSnapshot(id hraft.ServerID, addr hraft.ServerAddress,
	args *hraft.InstallSnapshotRequest, resp *hraft.InstallSnapshotResponse, _ io.Reader) error {
	if err := t.r.apart(id); err != nil {
		return err
	}
	return t.r.offer(id, addr, args, resp)
}

// notifyCommits sends followers the commit index when no entry is in flight that would carry it:
// at once if one of them waits to answer its clients, else after commitPause. It ends when the
// replica stops.
//
// hashicorp/raft sends it with the next entries, or after CommitTimeout: up to a tenth of a second
// in which a follower's clients wait for their responses. The message is the one that the library
// would send then: an AppendEntries without entries. It is true whichever node leads when it
// arrives, since what was committed stays committed. A follower that does not have the newest
// entry yet refuses it, and hears from the library later.
func (r *Replica) notifyCommits() {
	var sending sync.Map // of hraft.ServerID
	for {
		select {
		case <-r.b.idle:
		case <-r.b.later.C:
		case <-r.run.stop:
			return
		}
		// The term before the state: if this node still leads, the term is its own
		// or an older one, and then the followers reject the message.
		term := r.raft.CurrentTerm()
		p := r.fsm.progress()
		if r.raft.State() != hraft.Leader || r.b.busy() || p.term == 0 {
			continue // the next entry carries it
		}
		for _, s := range r.servers() {
			if s.ID == r.id {
				continue
			}
			r.trans.ping(&sending, s, hraft.AppendEntriesRequest{
				Term: term, PrevLogEntry: p.index, PrevLogTerm: p.term, LeaderCommitIndex: p.index,
			}, func(bool) { // after a failure hashicorp/raft continues
				if r.fsm.progress().index > p.index {
					signal(r.b.idle)
				}
			})
		}
	}
}

// ping sends a server a request without entries, unless another one of the same kind (busy) is
// still on its way, and reports whether it does. done learns whether the server accepts it, and so
// knows no later term.
func (t *transport) ping(busy *sync.Map, s hraft.Server, a hraft.AppendEntriesRequest,
	done func(ok bool)) bool {
	if _, on := busy.LoadOrStore(s.ID, true); on {
		return false
	}
	a.RPCHeader = hraft.RPCHeader{
		ProtocolVersion: hraft.ProtocolVersionMax,
		ID:              []byte(t.r.id), Addr: t.EncodePeer(t.r.id, t.local),
	}
	t.r.run.wg.Go(func() {
		var resp hraft.AppendEntriesResponse
		err := hraft.ErrNotLeader
		if t.r.leadsIn(a.Term) {
			err = t.append(s.ID, s.Address, &a, &resp)
		}
		busy.Delete(s.ID)
		done(err == nil && resp.Success && resp.Term == a.Term)
	})
	return true
}
