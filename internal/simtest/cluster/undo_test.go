package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestUndo: a version of a worker acks all that it gets without doing it. An undo brings all of
// that back in its order, each message exactly once, though the leader is killed in the middle and
// the undo is repeated. A purge is undone in one command.
//
//	UNDO_MESSAGES: how many (10,000 under make story-undo)
func TestUndo(t *testing.T) {
	n := cluster.Number(t, "UNDO_MESSAGES", 200)
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	cl, ctx := c.Client(), t.Context()
	queue(t, cl, "jobs", `{"ordering":"per_key"}`)
	numbered(t, cl, "jobs", n, 50)
	// work leases and acks all that there is, and returns the payloads by key, in their order.
	work := func(worker string) map[string][]string {
		got := map[string][]string{}
		for {
			leased, err := cl.Lease(ctx, "jobs", client.LeaseOptions{Max: 100, Worker: worker})
			require.NoError(t, err)
			if len(leased) == 0 {
				return got
			}
			var leases []string
			for _, m := range leased {
				got[m.Key] = append(got[m.Key], string(m.Payload))
				leases = append(leases, m.LeaseID)
			}
			_, err = cl.Ack(ctx, "jobs", leases...)
			require.NoError(t, err)
		}
	}
	first := work("v2")
	f := &wire.UndoFilter{State: "acked", From: "start", Worker: new("v2")}
	would, _, err := cl.Undo(ctx, "jobs", wire.UndoRequest{Filter: f, DryRun: true})
	require.True(t, err == nil && would.Matched == int64(n) && would.BroughtBack == int64(n),
		"dry run: %+v %v", would, err)
	_, task, err := cl.Undo(ctx, "jobs", wire.UndoRequest{Filter: f,
		RatePerSecond: int64(max(n/5, 1))})
	require.True(t, err == nil && task != nil && task.Total == int64(n), "%+v %v", task, err)
	cluster.Until(t, func() error {
		now, err := cl.Task(ctx, task.ID)
		if err == nil && now.Done < int64(n/4) {
			err = fmt.Errorf("%d are back", now.Done)
		}
		return err
	})
	killed := c.WaitLeader()
	killed.Kill9()
	ended, err := cl.WaitTask(ctx, task.ID)
	require.NoError(t, err)
	require.True(t, ended.Status == wire.TaskCompleted && ended.Result != nil &&
		ended.Done == int64(n) && ended.Result.BroughtBack == int64(n) &&
		ended.Result.Matched == int64(n) && len(ended.Result.Skipped) == 0,
		"%+v %+v", ended, ended.Result)
	t.Logf("the undo took %v, leader killed", time.Duration(ended.EndedAt-ended.CreatedAt)*
		time.Millisecond)
	killed.Launch()
	again, _, err := cl.Undo(ctx, "jobs", wire.UndoRequest{Filter: f, DryRun: true})
	require.True(t, err == nil && again.BroughtBack == 0 &&
		again.Skipped["resurrected"] == int64(n), "again: %+v %v", again, err)
	second := work("v3")
	for k, want := range first {
		assert.EqualSlices(t, second[k], want, "key %s", k)
	}
	require.Equal(t, len(second), len(first), "keys")

	// A purge.
	f = &wire.UndoFilter{State: "acked", From: "start", Worker: new("v3")}
	_, task, err = cl.Undo(ctx, "jobs", wire.UndoRequest{Filter: f, RatePerSecond: int64(n / 2)})
	require.True(t, err == nil && task != nil, "%+v %v", task, err)
	_, err = cl.WaitTask(ctx, task.ID)
	require.NoError(t, err)
	_, err = cl.PurgeQueue(ctx, "jobs")
	require.NoError(t, err)
	_, task, err = cl.Undo(ctx, "jobs", wire.UndoRequest{Filter: &wire.UndoFilter{
		State: "discarded", Reason: "purged", From: "start"}, RatePerSecond: int64(n / 2)})
	require.True(t, err == nil && task != nil, "%+v %v", task, err)
	ended, err = cl.WaitTask(ctx, task.ID)
	require.True(t, err == nil && ended.Result != nil && ended.Result.BroughtBack == int64(n),
		"%+v %v", ended, err)
	q, err := cl.Queue(ctx, "jobs")
	require.True(t, err == nil && q.Stats.Depth == int64(n), "%+v %v", q, err)
}
