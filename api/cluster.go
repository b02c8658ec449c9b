package api

import (
	"context"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// snapshotTimeout is how long all nodes together may take to write a checkpoint.
const snapshotTimeout = 60 * time.Second

// cluster answers GET /v1/cluster with this node's own knowledge, so that it works
// without a leader; with consistency=linearizable after it has caught up. Nodes that it
// has not heard from lately are asked first.
func (s *Server) cluster(q *request) error {
	q.read("consistency")
	if !q.stale() && q.query.Has("consistency") {
		q.barrier()
	} else {
		q.tellAge()
	}
	if q.err != nil {
		return q.err
	}
	q.tellIndex()
	if s.deps.Cluster == nil {
		return &problemNotFound
	}
	s.deps.Cluster.Refresh(q.Context())
	v := s.deps.Cluster.View()
	if v.Nodes == nil {
		v.Nodes = []wire.Node{}
	}
	return q.answer(http.StatusOK, &v)
}

// node returns a member as this node knows it, nil where it does not.
func (s *Server) node(id string) *wire.Node {
	nodes := s.deps.Cluster.View().Nodes
	i := slices.IndexFunc(nodes, func(n wire.Node) bool { return n.ID == id })
	if i < 0 {
		return nil
	}
	return &nodes[i]
}

// addNode answers POST /v1/cluster/nodes: 201, or 200 where the node is in with
// the same data already.
func (s *Server) addNode(q *request) error {
	var in wire.NewNode
	if err := q.allow(); err != nil {
		return err
	}
	if err := q.decode(&in, false); err != nil {
		return err
	}
	if err := nodeName("id", in.ID); err != nil {
		return err
	}
	if err := hostPort("raft_addr", in.RaftAddr); err != nil {
		return err
	}
	if in.HTTPAddr != "" {
		if err := hostPort("http_addr", in.HTTPAddr); err != nil {
			return err
		}
	}
	want := wire.Node{ID: in.ID, RaftAddr: in.RaftAddr, HTTPAddr: in.HTTPAddr, Voter: in.Voter == nil || *in.Voter}
	return q.change("add node", s.opts.WriteTimeout, func(ctx context.Context) (int, any, error) {
		status := http.StatusCreated
		if n := s.node(in.ID); n != nil && n.RaftAddr == in.RaftAddr {
			status = http.StatusOK
		}
		if err := s.deps.Cluster.Add(ctx, want); err != nil {
			return 0, nil, err
		}
		if n := s.node(in.ID); n != nil {
			return status, *n, nil
		}
		want.Voter = false // it is in, and this node has not heard of it yet
		return status, want, nil
	})
}

// removeNode answers DELETE /v1/cluster/nodes/{id}?force=.
func (s *Server) removeNode(q *request) error {
	id := q.PathValue("id")
	if err := nodeName("id", id); err != nil {
		return err
	}
	force := q.read("force").flag("force")
	if q.err != nil {
		return q.err
	}
	return q.change("remove node", s.opts.WriteTimeout, func(ctx context.Context) (int, any, error) {
		return http.StatusNoContent, nil, s.deps.Cluster.Remove(ctx, id, force)
	})
}

// transferLeadership answers POST /v1/cluster/transfer-leadership.
func (s *Server) transferLeadership(q *request) error {
	var in wire.TransferRequest
	if err := q.allow(); err != nil {
		return err
	}
	if err := q.decode(&in, true); err != nil {
		return err
	}
	to := ""
	if in.To != nil {
		to = *in.To
		if err := nodeName("to", to); err != nil {
			return err
		}
	}
	return q.change("transfer leadership", s.opts.WriteTimeout, func(ctx context.Context) (int, any, error) {
		if err := s.deps.Cluster.Transfer(ctx, to); err != nil {
			return 0, nil, err
		}
		return http.StatusOK, wire.Transferred{LeaderID: s.deps.Cluster.View().LeaderID}, nil
	})
}

// snapshot answers POST /v1/cluster/snapshot.
func (s *Server) snapshot(q *request) error {
	if err := q.allow(); err != nil {
		return err
	}
	if err := q.decode(&struct{}{}, true); err != nil {
		return err
	}
	return q.change("snapshot", snapshotTimeout, func(ctx context.Context) (int, any, error) {
		indexes, err := s.deps.Cluster.Snapshot(ctx)
		if indexes == nil {
			indexes = map[string]uint64{}
		}
		return http.StatusOK, wire.ClusterSnapshot{Indexes: indexes}, err
	})
}

// change carries out a change of the cluster, once for each Idempotency-Key
// that comes to this node, and answers. Once begun it is completed, also where the
// client hangs up.
func (q *request) change(what string, within time.Duration, do func(context.Context) (int, any, error)) error {
	if q.s.deps.Cluster == nil {
		return &problemNotFound
	}
	req, err := q.idempotency()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), within)
	defer cancel()
	var mine *onceCall
	for req != nil && mine == nil {
		c, first := q.s.once.begin(req)
		switch {
		case first:
			mine = c
		case c.body != req.Body:
			return keyReused
		default:
			select {
			case <-c.done:
			case <-q.Context().Done():
				return q.Context().Err()
			}
			if c.status != 0 {
				q.w.Header().Set("Idempotent-Replayed", "true")
				return q.answerChange(c.status, c.answer)
			}
		}
	}
	status, answer, err := func() (status int, answer any, err error) {
		if mine != nil {
			defer func() { // also after a panic, or others would wait for ever
				if err != nil {
					status = 0
				}
				q.s.once.end(req.Key, mine, status, answer)
			}()
		}
		return do(ctx)
	}()
	attrs := []any{"what", what, "path", q.URL.Path, "actor", q.actor(), "request_id", q.id}
	if err != nil {
		q.s.log.Warn("cluster not changed", append(attrs, "error", err)...)
		return err
	}
	q.s.log.Info("cluster changed", attrs...)
	return q.answerChange(status, answer)
}

func (q *request) answerChange(status int, answer any) error {
	if answer == nil {
		return q.noContent()
	}
	return q.answer(status, answer)
}

func nodeName(field, v string) error {
	if !event.ValidNode(v) {
		return bad(field, "%s must match %s; it was %s", field, event.NodeNames, echo(v))
	}
	return nil
}

// hostName is a name or an IP address, of version 6 with its zone.
var hostName = regexp.MustCompile(`^[A-Za-z0-9._:%-]{1,255}$`)

// hostPort checks an address at which others reach a node.
func hostPort(field, v string) error {
	host, port, err := net.SplitHostPort(v)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || n == 0 || !hostName.MatchString(host) {
		return bad(field, "%s must be HOST:PORT as the other nodes reach it, not %s", field, echo(v))
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return bad(field, "%s must be an address that the other nodes reach, not %s", field, echo(v))
	}
	return nil
}

// Number of answers to cluster calls that a node keeps, and for how long.
const (
	keepOnce    = 1000
	keepOnceFor = event.KeepAnswersMS * time.Millisecond
)

// onceOnly keeps the answers to cluster calls with an Idempotency-Key. These
// calls change Raft's configuration and no state, so no entry could keep the answer:
// each node remembers in memory the calls that it received itself. That is safe,
// because each such call names the state that it wants: executing it twice has the
// same effect as once.
type onceOnly struct {
	mu    sync.Mutex
	calls map[event.Hash]*onceCall
}

// onceCall is one call.
type onceCall struct {
	body  event.Hash
	begun time.Time
	done  chan struct{} // closed once status and answer are set

	status int // 0: it failed, so the next one tries again
	answer any // nil: no content
}

// begin returns the call that came under this key before, or a new one with
// first set, which must be ended.
func (o *onceOnly) begin(r *event.Request) (c *onceCall, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.calls[r.Key]; c != nil && time.Since(c.begun) < keepOnceFor {
		return c, false
	}
	if len(o.calls) >= keepOnce {
		older := func(a, b event.Hash) int { return o.calls[a].begun.Compare(o.calls[b].begun) }
		delete(o.calls, slices.MinFunc(slices.Collect(maps.Keys(o.calls)), older))
	}
	c = &onceCall{body: r.Body, begun: time.Now(), done: make(chan struct{})}
	o.calls[r.Key] = c
	return c, true
}

// end records the answer; a failed call, status 0, is forgotten.
func (o *onceOnly) end(key event.Hash, c *onceCall, status int, answer any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c.status, c.answer = status, answer
	if status == 0 && o.calls[key] == c {
		delete(o.calls, key)
	}
	close(c.done)
}
