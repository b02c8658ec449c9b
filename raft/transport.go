package raft

import (
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/internal/peer"
)

// transport is what hashicorp/raft knows of the network: requests and answers,
// with this package's guards on them:
//
//	who did not prove itself says nothing       held: see vouch.go
//	no bulk through the library                 InstallSnapshot: see offer.go
//	no install over a longer log                refuse
//	what others have promised is remembered     evidence: see vouch.go
//	a follower that begins at a snapshot        adapt
//	what is not on disk counts for nobody       settled: see ahead.go
//	a term changes on the main loop alone       pass
//	a node that was away is not left waiting    AppendEntries
//
// A node alone in its process has none of them: nobody comes.
type transport struct {
	r         *Replica
	net       *network
	local     hraft.ServerAddress
	in        chan hraft.RPC // what others ask, for hashicorp/raft's main loop
	heartbeat atomic.Pointer[func(hraft.RPC)]
	malformed minutely
}

var (
	_ hraft.Transport   = (*transport)(nil)
	_ hraft.WithPreVote = (*transport)(nil)
	_ hraft.WithClose   = (*transport)(nil)
)

// rpcTimeout is how long another node may take for what hashicorp/raft asks it,
// its disk included.
const rpcTimeout = 10 * time.Second

func newTransport(r *Replica) hraft.Transport {
	local := r.self().serverAddress()
	if r.o.Net == nil {
		_, t := hraft.NewInmemTransport(local)
		return t
	}
	t := &transport{r: r, local: local, in: make(chan hraft.RPC)}
	t.net = newNetwork(streams{r.o.Net.Raft()}, t.take, t.settled, t.refused)
	return t
}

func closeTransport(t hraft.Transport) {
	if c, ok := t.(hraft.WithClose); ok {
		c.Close()
	}
}

// streams are the connections between replicas. An address in hashicorp/raft's
// hands is dialled as the server's id and its host:port: the other side must be
// that very incarnation.
type streams struct{ *peer.RaftLayer }

var _ hraft.StreamLayer = streams{}

// Dial implements hraft.StreamLayer.
func (s streams) Dial(addr hraft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, hostport, _ := strings.Cut(string(addr), " ")
	return s.RaftLayer.Dial(memberOf(hraft.ServerID(id), hraft.ServerAddress(hostport)).target(), timeout)
}

// errExpected is why nothing is sent to a node that is announced and has not
// come: whoever is there now may be anybody.
var errExpected = errors.New("this node has not come yet: its incarnation is not known")

// dialled is what streams.Dial takes apart.
func dialled(id hraft.ServerID, addr hraft.ServerAddress) hraft.ServerAddress {
	return hraft.ServerAddress(string(id) + " " + memberOf(id, addr).RaftAddr)
}

// Close implements hraft.WithClose.
func (t *transport) Close() error { return t.net.close() }

// refused tells of another node that sends what is no message of Raft.
func (t *transport) refused(from string, err error) {
	if t.malformed.due(time.Now()) {
		t.r.o.Logger.Warn("closed another node's Raft connection", "node", from, "error", err)
	}
}

// LocalAddr implements hraft.Transport.
func (t *transport) LocalAddr() hraft.ServerAddress { return t.local }

// EncodePeer implements hraft.Transport. A vote is given to, and remembered by,
// what this returns: so the incarnation is part of it.
func (t *transport) EncodePeer(id hraft.ServerID, addr hraft.ServerAddress) []byte {
	return []byte(string(id) + " " + string(addr))
}

// DecodePeer implements hraft.Transport.
func (t *transport) DecodePeer(b []byte) hraft.ServerAddress {
	_, addr, _ := strings.Cut(string(b), " ")
	return hraft.ServerAddress(addr)
}

// Consumer implements hraft.Transport.
func (t *transport) Consumer() <-chan hraft.RPC { return t.in }

// take hands on what others ask: to hashicorp/raft's main loop, or a heartbeat
// past it. Each connection has its own goroutine here, and what they look at may
// have changed by the time that the main loop has the request: that is no news,
// it may have been at work on another one, too.
func (t *transport) take(rpc *hraft.RPC, heartbeat bool) error {
	if err := t.refuse(rpc); err != nil {
		return err
	}
	if heartbeat && t.pass(rpc) {
		return nil
	}
	switch a := rpc.Command.(type) {
	case *hraft.AppendEntriesRequest:
		if heartbeat {
			break // says nothing of a log
		}
		if a.Term >= t.r.raft.CurrentTerm() { // else of a leader that is none any more
			t.r.contact.heard(a.LeaderCommitIndex)
		}
		t.r.evidence.acked(hraft.ServerID(a.ID), a.Term, hadOnDisk(a))
		t.adapt(a)
	case *hraft.RequestVoteRequest:
		// It has voted for itself. If that can't be written down it gets
		// no vote from here.
		if err := t.r.evidence.voted(hraft.ServerID(a.ID), a.Term); err != nil {
			return err
		}
	}
	select {
	case t.in <- *rpc:
		return nil
	case <-t.net.stop:
		return hraft.ErrTransportShutdown
	}
}

// pass takes a heartbeat past hashicorp/raft's main loop, where it is refused as one
// of an older term, or leaves this node a follower in the term that it is in. A newer
// term would else be raised on a leader that does not know yet that it is deposed, and
// is about to write an entry: that had the new leader's term and perhaps the index of
// another entry of that leader, two logs that seem to agree and do not. And the term
// of a follower that goes on to be a candidate, or has won, would be set back: it
// cannot raise its term meanwhile.
func (t *transport) pass(rpc *hraft.RPC) bool {
	handle := t.heartbeat.Load()
	if handle == nil {
		return false
	}
	term := rpc.Command.(*hraft.AppendEntriesRequest).Term
	if term < t.r.raft.CurrentTerm() {
		(*handle)(*rpc)
		return true
	}
	return t.r.stores.votes.during(term, func() bool {
		if t.r.raft.CurrentTerm() != term || t.r.raft.State() != hraft.Follower {
			return false
		}
		(*handle)(*rpc)
		return true
	})
}

// settled is called before a request that was taken is answered: what this node
// acknowledges is on its disk.
func (t *transport) settled(command, response any) error {
	resp, ok := response.(*hraft.AppendEntriesResponse)
	if !ok || !resp.Success {
		return nil
	}
	return t.r.stores.log.settled(lastOf(command.(*hraft.AppendEntriesRequest)))
}

// SetHeartbeatHandler implements hraft.Transport.
func (t *transport) SetHeartbeatHandler(handle func(hraft.RPC)) { t.heartbeat.Store(&handle) }

var (
	errHeld       = errors.New("this node is not vouched for yet: the others have not said that its directory is not an older one")
	errLongerTail = errors.New("the Raft log here is longer than the snapshot: it must be begun anew, not installed over")
)

// refuse says why a request is not even looked at.
func (t *transport) refuse(rpc *hraft.RPC) error {
	if !t.r.vouched() {
		return errHeld
	}
	// hashicorp/raft would keep the longer log's last index in memory, refuse
	// what follows the snapshot, and be sent the snapshot again, for ever.
	if s, ok := rpc.Command.(*hraft.InstallSnapshotRequest); ok && t.r.raft.LastIndex() > s.LastLogIndex {
		return errLongerTail
	}
	return nil
}

// adapt changes a request whose previous entry lies at or before this node's
// snapshot, where its log does not reach back to it: hashicorp/raft would refuse
// it, the leader go back further, come to the end of its own log, and offer a
// snapshot that this node has no use for, round and round. What the snapshot
// covers is committed and therefore the same in the leader's log: those entries
// are dropped, and the rest begins right behind it.
func (t *transport) adapt(a *hraft.AppendEntriesRequest) {
	newest, ok := t.r.stores.snaps.newest()
	if !ok || a.PrevLogEntry > newest.Index || a.PrevLogEntry == newest.Index && a.PrevLogTerm != newest.Term {
		return
	}
	if first, err := t.r.stores.log.FirstIndex(); err != nil || first != 0 && a.PrevLogEntry >= first {
		return // its own log knows better
	}
	if a.PrevLogEntry == 0 && len(a.Entries) == 0 {
		return // says nothing of a log
	}
	for len(a.Entries) > 0 && a.Entries[0].Index <= newest.Index {
		a.Entries = a.Entries[1:]
	}
	a.PrevLogEntry, a.PrevLogTerm = 0, 0 // hashicorp/raft then compares nothing
	if len(a.Entries) == 0 {
		// Nor may it commit anything that lies behind the snapshot here.
		a.LeaderCommitIndex = min(a.LeaderCommitIndex, newest.Index)
	}
}

// AppendEntries implements hraft.Transport.
//
// hashicorp/raft waits longer after each failure, up to ten seconds, also when
// the other node is long back. So a request that cannot be sent is no failure
// yet: it waits until that node answers again.
//
// And what that node has acknowledged counts when it is on disk here, too.
func (t *transport) AppendEntries(id hraft.ServerID, addr hraft.ServerAddress, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	heartbeat := args.PrevLogEntry == 0 && args.LeaderCommitIndex == 0 && len(args.Entries) == 0
	for {
		err := t.append(id, addr, args, resp)
		if err == nil && resp.Success {
			return t.r.stores.log.settled(lastOf(args))
		}
		if err == nil || heartbeat || !t.r.awaitPeer(id, addr, args.Term) {
			return err
		}
		*resp = hraft.AppendEntriesResponse{}
	}
}

func (t *transport) append(id hraft.ServerID, addr hraft.ServerAddress, args *hraft.AppendEntriesRequest, resp *hraft.AppendEntriesResponse) error {
	if t.r.expected(id) {
		return errExpected
	}
	trim(args)
	// One that is just being removed by a node that is alone without it may still
	// be sent what that has stored since (leadsAhead): when it is on disk.
	if t.r.alone() {
		if err := t.r.stores.log.settled(lastOf(args)); err != nil {
			return err
		}
		args.LeaderCommitIndex = t.r.stores.log.onDisk(args.LeaderCommitIndex)
	}
	if err := t.net.ask(server{id, addr}, args, resp); err != nil {
		return err
	}
	if resp.Success {
		last := lastOf(args)
		t.r.evidence.acked(id, args.Term, last)
		if last > 0 { // else a heartbeat, which says nothing of the log
			t.r.nudges.took(id, last, args.LeaderCommitIndex, len(args.Entries) > 0)
		}
	}
	return nil
}

// lastOf is the index up to which a log agrees with the sender's that takes a
// request; 0 for a heartbeat.
func lastOf(a *hraft.AppendEntriesRequest) uint64 {
	if n := len(a.Entries); n > 0 {
		return a.Entries[n-1].Index
	}
	return a.PrevLogEntry
}

// header is that of a request which this package sends by itself.
func (t *transport) header() hraft.RPCHeader {
	return hraft.RPCHeader{ProtocolVersion: hraft.ProtocolVersionMax, ID: []byte(t.r.id), Addr: t.EncodePeer(t.r.id, t.local)}
}

// atOnce bounds the bytes of one message, but for an entry that is larger alone.
// hashicorp/raft counts entries only, gives each message rpcTimeout, and repeats
// the very same one where that was too little.
const atOnce = 16 << 20

// trim takes off the end what is too much; hashicorp/raft looks at args again to
// see how far it has come, and goes on from there.
func trim(args *hraft.AppendEntriesRequest) {
	size := 0
	for i, e := range args.Entries {
		if size += len(e.Data); size > atOnce && i > 0 {
			args.Entries = args.Entries[:i]
			return
		}
	}
}

// AppendEntriesPipeline implements hraft.Transport. There is none: replication to
// one follower can deadlock with it (hashicorp/raft #612). Without it the library
// asks anew at each answer, at no cost.
func (t *transport) AppendEntriesPipeline(hraft.ServerID, hraft.ServerAddress) (hraft.AppendPipeline, error) {
	return nil, hraft.ErrPipelineReplicationNotSupported
}

// RequestVote implements hraft.Transport. A vote counts only when it is known
// here that it was given. It is asked for with what is on disk: what others are
// sent of earlier terms is, too (hadOnDisk).
func (t *transport) RequestVote(id hraft.ServerID, addr hraft.ServerAddress, args *hraft.RequestVoteRequest, resp *hraft.RequestVoteResponse) error {
	if !t.r.vouched() {
		return errHeld
	}
	if err := t.r.stores.log.settled(math.MaxUint64); err != nil {
		return err
	}
	if err := t.net.ask(server{id, addr}, args, resp); err != nil {
		return err
	}
	if resp.Granted {
		return t.r.evidence.voted(id, args.Term)
	}
	return nil
}

// RequestPreVote implements hraft.WithPreVote.
func (t *transport) RequestPreVote(id hraft.ServerID, addr hraft.ServerAddress, args *hraft.RequestPreVoteRequest, resp *hraft.RequestPreVoteResponse) error {
	if !t.r.vouched() {
		return errHeld
	}
	return t.net.ask(server{id, addr}, args, resp)
}

// TimeoutNow implements hraft.Transport.
func (t *transport) TimeoutNow(id hraft.ServerID, addr hraft.ServerAddress, args *hraft.TimeoutNowRequest, resp *hraft.TimeoutNowResponse) error {
	return t.net.ask(server{id, addr}, args, resp)
}

// InstallSnapshot implements hraft.Transport.
func (t *transport) InstallSnapshot(id hraft.ServerID, addr hraft.ServerAddress, args *hraft.InstallSnapshotRequest, resp *hraft.InstallSnapshotResponse, data io.Reader) error {
	if t.r.expected(id) {
		return errExpected
	}
	send, err := t.r.offer(id, addr, args, resp)
	if err != nil || !send {
		return err
	}
	if err := t.net.install(server{id, addr}, args, resp, data); err != nil {
		return err
	}
	if resp.Success {
		t.r.evidence.acked(id, args.Term, args.LastLogIndex)
	}
	return nil
}
