package api

import (
	"context"
	"strings"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/event"
)

// verifyNode answers POST /v1/cluster/nodes/{id}/verify: it creates a task in which that node
// verifies its files.
func (s *Server) verifyNode(q *request) error {
	id := q.PathValue("id")
	q.do(func() error { return nodeName("id", id) })
	q.read().noBody()
	q.barrier()
	res := q.commitFresh("", "the cluster", func() (*event.Command, error) {
		ctx, cancel := context.WithTimeout(q.Context(), refreshTimeout)
		defer cancel()
		s.deps.Node.RefreshMembers(ctx)
		m := s.node(id)
		switch {
		case m == nil:
			return nil, event.Problemf(event.CodeNodeNotFound, "id", "node %s is no member", id)
		case !nodeOf(m).Reachable:
			return nil, event.Problemf(codeNodeUnreachable, "id",
				"node %s does not answer node %s", id, s.deps.Node.Status().NodeID)
		}
		if p := event.MayVerify(m.Server(), s.deps.State.Tasks()); p != nil {
			return nil, p
		}
		return &event.Command{CreateTask: &event.CreateTask{
			Kind: event.TaskVerify, Node: m.Server(),
		}}, nil
	})
	if q.err != nil {
		return q.err
	}
	return q.accepted(res.ID)
}

// addVerification adds to a task's view the progress of a verification that the node reports, or
// its result.
func (s *Server) addVerification(t *event.TaskView, out *wire.Task) {
	if v := out.Verified; v != nil {
		out.Done, out.Total = v.Bytes, v.Bytes
	}
	var of wire.TaskNode
	of.Node, _, _ = strings.Cut(t.Nodes[0].Node, "/")
	if of.Complete = t.Status == event.TaskCompleted; of.Complete {
		of.At = wire.Time(t.EndedAt)
	}
	out.Nodes = []wire.TaskNode{of}
	if t.Status != event.TaskRunning {
		return
	}
	m := s.node(of.Node)
	if m == nil || !m.Reachable {
		out.Waiting = "for node " + of.Node + ", which does not answer"
	} else if now := m.Status.Health.Verifying; now.Task == out.ID {
		out.Done, out.Total = now.Done, now.Total
	}
}
