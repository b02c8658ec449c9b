package api

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/raft"
)

// snapshotTimeout is how long all nodes together may take to write a checkpoint.
const snapshotTimeout = 60 * time.Second

// cluster answers GET /v1/cluster from what this node knows, so that it works without a
// leader; with consistency=linearizable, after it has caught up. It first asks the nodes
// that it has not heard from lately.
func (s *Server) cluster(q *request) error {
	q.read("consistency")
	if !q.stale() && q.query.Has("consistency") {
		q.barrier()
	} else {
		q.setAge()
	}
	if q.err != nil {
		return q.err
	}
	q.setAppliedIndex()
	ctx, cancel := context.WithTimeout(q.Context(), refreshTimeout)
	defer cancel()
	s.deps.Node.RefreshMembers(ctx)
	st := s.deps.Node.Status()
	v := wire.Cluster{
		ClusterID: st.ClusterID, NodeID: st.NodeID, LeaderID: st.LeaderID, Term: st.Term,
	}
	for _, m := range s.deps.Node.Members() {
		v.Nodes = append(v.Nodes, nodeOf(&m))
	}
	slices.SortFunc(v.Nodes, func(a, b wire.Node) int { return cmp.Compare(a.ID, b.ID) })
	return q.answer(http.StatusOK, &v)
}

const (
	refreshTimeout = 500 * time.Millisecond
	// reachableFor is how long a member counts as reachable after its last answer.
	reachableFor = time.Second
)

func nodeOf(m *raft.MemberStatus) wire.Node {
	n := wire.Node{
		ID: m.ID, RaftAddr: m.RaftAddr, HTTPAddr: m.HTTPAddr, Voter: m.Votes, Leader: m.Leader,
		AppliedIndex: m.Status.Applied, LogHead: m.Status.Head,
		UnconfirmedBy: append([]string{}, m.Status.Unconfirmed...),
	}
	if !m.Seen.IsZero() {
		age := time.Since(m.Seen)
		n.Reachable, n.AgeMS = age < reachableFor, new(age.Milliseconds())
	}
	if n.LogHead > 0 {
		n.ChainHash = m.Status.Chain.String()
	}
	h := &m.Status.Health
	n.Damaged = make([]wire.DamagedFile, len(h.Damaged))
	for i, d := range h.Damaged {
		n.Damaged[i] = wire.DamagedFile{
			File: d.File, Kind: d.Kind, Since: wire.Time(d.Since), Detail: d.Detail,
		}
	}
	if r := h.Round; r.Ended > 0 {
		n.Scrub = &wire.Scrub{EndedAt: wire.Time(r.Ended), TookMS: r.TookMS, Bytes: r.Bytes}
	}
	if n.Version = h.Version; h.SizeBytes > 0 {
		n.Disk = &wire.Disk{FreeBytes: int64(h.FreeBytes), SizeBytes: int64(h.SizeBytes)}
	}
	return n
}

// node returns a member as this node knows it, nil if it does not know it.
func (s *Server) node(id string) *raft.MemberStatus {
	all := s.deps.Node.Members()
	i := slices.IndexFunc(all, func(m raft.MemberStatus) bool { return m.ID == id })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// addNode answers POST /v1/cluster/nodes: 201, or 200 for a member with the same data.
func (s *Server) addNode(q *request) error {
	var body wire.NewNode
	q.read().body(&body)
	q.do(func() error { return nodeName("id", body.ID) })
	q.do(func() error { return hostPort("raft_addr", body.RaftAddr) })
	if body.HTTPAddr != "" {
		q.do(func() error { return hostPort("http_addr", body.HTTPAddr) })
	}
	m := raft.Member{
		ID: body.ID, RaftAddr: body.RaftAddr, HTTPAddr: body.HTTPAddr,
		Voter: body.Voter == nil || *body.Voter, Explicit: body.Voter != nil && *body.Voter,
	}
	return q.change("add node", writeTimeout, func(ctx context.Context) (int, any, error) {
		was := s.node(m.ID)
		if err := s.deps.Node.AddMember(ctx, m); err != nil {
			return 0, nil, err
		}
		is := s.node(m.ID)
		if is == nil { // it was added, but this node has not applied that yet
			is = &raft.MemberStatus{Member: m}
		}
		created := was == nil || was.RaftAddr != m.RaftAddr
		return createdOrOK(created), new(nodeOf(is)), nil
	})
}

// removeNode answers DELETE /v1/cluster/nodes/{id}?force=.
func (s *Server) removeNode(q *request) error {
	id := q.PathValue("id")
	q.do(func() error { return nodeName("id", id) })
	force := q.read("force").flag("force")
	do := func(ctx context.Context) (int, any, error) {
		return http.StatusNoContent, nil, s.deps.Node.RemoveMember(ctx, id, force)
	}
	return q.change("remove node", writeTimeout, do)
}

// transferLeadership answers POST /v1/cluster/transfer-leadership.
func (s *Server) transferLeadership(q *request) error {
	var body wire.TransferRequest
	q.read().optionalBody(&body)
	to := deref(body.To)
	if body.To != nil {
		q.do(func() error { return nodeName("to", to) })
	}
	do := func(ctx context.Context) (int, any, error) {
		err := s.deps.Node.TransferLeadership(ctx, to)
		return http.StatusOK, &wire.Transferred{LeaderID: s.deps.Node.Status().LeaderID}, err
	}
	return q.change("transfer leadership", writeTimeout, do)
}

// snapshot answers POST /v1/cluster/snapshot.
func (s *Server) snapshot(q *request) error {
	q.read().noBody()
	return q.change("snapshot", snapshotTimeout, func(ctx context.Context) (int, any, error) {
		indexes, err := s.deps.Node.SnapshotAll(ctx)
		return http.StatusOK, &wire.ClusterSnapshot{Indexes: indexes}, err
	})
}

// change makes a change to the cluster, once for each Idempotency-Key that this node receives, and
// answers. A change that has started is completed even if the client disconnects.
func (q *request) change(
	what string, within time.Duration, do func(context.Context) (status int, answer any, err error),
) error {
	req := get(q, q.idempotency)
	if q.err != nil {
		return q.err
	}
	call := &onceCall{begun: time.Now()} // without a key, it is not shared
	if req != nil {
		first, ok, _ := q.s.once.PeekOrAdd(req.Key, call)
		if ok && time.Since(first.begun) < keepOnceFor {
			call = first
		} else if ok {
			q.s.once.Add(req.Key, call)
		}
	}
	call.Lock()
	defer call.Unlock()
	switch {
	case call.status == 0:
	case call.body != req.Body:
		return keyReused
	default:
		q.w.Header().Set("Idempotent-Replayed", "true")
		return q.answer(call.status, call.answer)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), within)
	defer cancel()
	status, answer, err := do(ctx)
	attrs := []any{"what", what, "path", q.URL.Path, "actor", q.actor(), "request_id", q.id}
	if err != nil {
		q.s.log.Warn("cluster not changed", append(attrs, "error", err)...)
		return err
	}
	q.s.log.Info("cluster changed", attrs...)
	if req != nil {
		call.status, call.answer, call.body = status, answer, req.Body
	}
	return q.answer(status, answer)
}

func nodeName(field, v string) error {
	if !event.ValidNode(v) {
		return bad(field, "%s must match %s; it was %s", field, event.NodeNames, echo(v))
	}
	return nil
}

// hostName matches a name or an IP address, including an IPv6 address with a zone. Its length is
// checked separately: {1,255} is compiled to 255 copies, at each start of the program.
var hostName = regexp.MustCompile(`^[A-Za-z0-9._:%-]+$`)

// hostPort validates an address at which the other nodes reach a node.
func hostPort(field, v string) error {
	host, port, err := net.SplitHostPort(v)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || len(host) > 255 ||
		!hostName.MatchString(host) {
		return bad(field, "%s must be HOST:PORT as the other nodes reach it, not %s",
			field, echo(v))
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return bad(field, "%s must be an address that the other nodes reach, not %s",
			field, echo(v))
	}
	return nil
}

// Number of answers to cluster calls that a node keeps, and for how long.
const (
	keepOnce    = 1000
	keepOnceFor = event.KeepAnswersMS * time.Millisecond
)

// onceCall is a cluster call with an Idempotency-Key, and its answer. These calls change Raft's
// configuration, not the state, so no log entry can keep the answer: each node keeps in memory the
// calls that it received itself. That is safe because each call names the desired state, so
// executing it twice has the same effect as once.
type onceCall struct {
	sync.Mutex // held while it is executed, so a repeated call waits
	begun      time.Time
	status     int // 0: it failed, or has not completed
	body       event.Hash
	answer     any // nil: no content
}
