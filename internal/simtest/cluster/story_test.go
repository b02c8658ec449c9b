package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestDeadLetterStory is what dead letters are for: messages of many keys, a
// fault that kills every 7th, the fault is mended, and what died is replayed by a
// filter in its original order, by a task. In the end each key's messages have
// been processed in their first order, none twice and none lost. Once more with
// the leader killed while the task is at work.
//
//	STORY_MESSAGES: how many (10,000 under make story)
func TestDeadLetterStory(t *testing.T) {
	n := cluster.Number(t, "STORY_MESSAGES", 210)
	t.Parallel()
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3})
	// What waits behind a dead message dies with it, so that no younger message
	// of its key goes before it: the order of a key is to hold from end to end.
	t.Run("keys die with their first", func(t *testing.T) {
		newStory(t, c, "q1", "dead_letter_key", n).run(false)
	})
	t.Run("and the leader", func(t *testing.T) {
		newStory(t, c, "q2", "dead_letter_key", n).run(true)
	})
	// What waits lives on: what is replayed goes before what is younger.
	t.Run("others wait", func(t *testing.T) { newStory(t, c, "q3", "skip", n).runPaused() })
}

type story struct {
	*testing.T
	c      *cluster.Cluster
	cl     *client.Client
	queue  string
	n      int
	keys   int
	faulty atomic.Bool

	mu  sync.Mutex
	ids map[string]int // the messages, by each id that they had when they were leased
}

func newStory(t *testing.T, c *cluster.Cluster, name, onDead string, n int) *story {
	s := &story{T: t, c: c, cl: c.Client(), queue: name, n: n, keys: 1 + n/50,
		ids: map[string]int{}}
	queue(t, s.cl, name, fmt.Sprintf(`{"ordering":"per_key","delivery":{"dead_letter_queue":"auto",
		"on_dead":%q,"lease_ms":5000,"max_attempts":50}}`, onDead))
	numbered(t, s.cl, name, n, s.keys)
	return s
}

// work processes messages at all nodes until stop returns true.
func (s *story) work(stop func() bool) {
	var wg sync.WaitGroup
	for _, n := range s.c.Nodes() {
		cl := s.c.ClientFrom(n)
		for range 2 {
			wg.Go(func() {
				for !stop() && !s.Failed() {
					s.once(cl)
				}
			})
		}
	}
	wg.Wait()
}

// once leases some messages and settles them: while the fault lasts every 7th
// dies, but each once only.
func (s *story) once(cl *client.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	leased, err := cl.Lease(ctx, s.queue, client.LeaseOptions{Max: 20,
		Wait: 300 * time.Millisecond})
	if err != nil {
		// no leader, for as long as the client repeats: what was leased, if anything, expires
		return
	}
	for _, m := range leased {
		var i int
		if err := json.Unmarshal(m.Payload, &i); err != nil {
			s.Error(err)
			return
		}
		s.mu.Lock()
		s.ids[m.ID] = i
		s.mu.Unlock()
		var out []wire.SettleResult
		want := "acked"
		if s.faulty.Load() && i%7 == 0 {
			want = "dead_lettered"
			out, err = cl.DeadLetter(ctx, s.queue,
				[]wire.DeadLetterItem{{LeaseID: m.LeaseID, Error: fmt.Sprintf("division of %d by 0",
					i)}})
		} else {
			out, err = cl.Ack(ctx, s.queue, m.LeaseID)
		}
		switch {
		case err != nil:
			continue // of unknown outcome: the log shows it in the end
		case out[0].Status != want && out[0].Code != "lease_lost":
			s.Errorf("message %d: %+v", i, out[0])
		}
	}
}

// quiet returns when a queue has nothing that can be leased or is leased.
func (s *story) quiet(queue string) bool {
	q, err := s.cl.Queue(s.Context(), queue)
	if err != nil {
		return false
	}
	return q.Stats.Depth+q.Stats.InFlight+q.Stats.Scheduled == 0
}

func (s *story) die() (dead int64) {
	s.faulty.Store(true)
	s.work(func() bool { return s.quiet(s.queue) })
	q, err := s.cl.Queue(s.Context(), s.queue)
	require.NoError(s, err)
	s.faulty.Store(false)
	return q.Stats.DeadLetteredTotal
}

// replay begins the replay of all that the fault killed, which takes about so long.
func (s *story) replay(dead, seconds int64) *wire.Task {
	dry, _, err := s.cl.Replay(s.Context(), s.queue, wire.ReplayRequest{Filter: &wire.DeadFilter{},
		DryRun: true})
	require.True(s, err == nil && *dry.Replayed == dead,
		"a dry run says %+v %v, %d died", dry, err, dead)
	rate := max(dead/seconds, 1)
	_, task, err := s.cl.Replay(s.Context(), s.queue, wire.ReplayRequest{Filter: &wire.DeadFilter{},
		Order: "original", RatePerSecond: &rate})
	require.True(s, err == nil && task != nil, "no task: %v", err)
	return task
}

func (s *story) run(killLeader bool) {
	dead := s.die()
	s.Logf("%d of %d died", dead, s.n)
	require.True(s, dead >= int64(s.n/7), "only %d of %d died", dead, s.n)
	seconds := int64(2)
	if killLeader {
		seconds = 6 // it must not be over before the leader is killed
	}
	task := s.replay(dead, seconds)
	var wg sync.WaitGroup
	var replayed atomic.Bool
	wg.Go(func() { // workers are at it while the task is
		s.work(func() bool {
			return replayed.Load() && s.quiet(s.queue) || s.Context().Err() != nil
		})
	})
	if killLeader {
		within(s.T, s.Context(), "the task has begun", func() bool {
			t, err := s.cl.Task(s.Context(), task.ID)
			require.True(s, err == nil && t.Status == wire.TaskRunning,
				"the task is over before the leader is killed: %+v %v", t, err)
			return t.Done > 0
		})
		leader := s.c.WaitLeader()
		leader.Kill9()
		s.Logf("killed %s", leader.Name())
		defer func() { leader.Restart(); s.c.WaitVoters() }()
	}
	s.completed(task, dead)
	replayed.Store(true)
	wg.Wait()
	s.check(0)
}

// runPaused replays while nothing is leased, so that what died and what waits
// are side by side.
func (s *story) runPaused() {
	s.faulty.Store(true)
	// Some of each key die, and some of each key wait.
	s.work(func() bool { return s.acked() >= s.n/2 })
	require.NoError(s, s.cl.PauseQueue(s.Context(), s.queue))
	within(s.T, s.Context(), "no lease is left", func() bool {
		q, err := s.cl.Queue(s.Context(), s.queue)
		return err == nil && q.Stats.InFlight == 0
	})
	s.faulty.Store(false)
	q, err := s.cl.Queue(s.Context(), s.queue)
	require.NoError(s, err)
	dead := q.Stats.DeadLetteredTotal
	require.True(s, dead != 0 && q.Stats.Depth != 0, "%d died, %d wait", dead, q.Stats.Depth)
	s.completed(s.replay(dead, 2), dead)
	before := s.acked()
	require.NoError(s, s.cl.ResumeQueue(s.Context(), s.queue))
	s.work(func() bool { return s.quiet(s.queue) })
	s.check(before)
}

func (s *story) completed(task *wire.Task, dead int64) {
	t, err := s.cl.WaitTask(s.Context(), task.ID)
	require.NoError(s, err)
	require.True(s, t.Status == wire.TaskCompleted && t.Done == dead && t.Skipped == 0,
		"%+v, of %d", t, dead)
	s.Logf("figures: %d messages, %d died, replayed in %s", s.n, t.Done, t.EndedAt.Time().Sub(t.CreatedAt.Time()))
}

func (s *story) acked() int {
	q, err := s.cl.Queue(s.Context(), s.queue)
	if err != nil {
		s.Error(err)
		return s.n
	}
	return int(q.Stats.AckedTotal)
}

// check holds what was processed, as the log shows it, against what was
// enqueued: all, once each, and each key's in their order. Of the first before
// messages, processed ahead of the replay, only the former is said.
func (s *story) check(before int) {
	if n := s.acked(); n != s.n || !s.quiet(s.queue) || !s.quiet(s.queue+".dlq") {
		s.Errorf("%d of %d were processed", n, s.n)
	}
	times, last, at := map[int]int{}, map[int]int{}, 0
	for e, err := range s.cl.AllEvents(s.Context(), client.EventQuery{Queue: s.queue, Types: []string{"acked"},
		From: "start", Limit: 1000}) {
		require.NoError(s, err)
		i, ok := s.ids[e.MessageID]
		require.True(s, ok, "message %s was acked, but never leased", e.MessageID)
		times[i]++
		if at++; at <= before {
			continue
		}
		if prev, ok := last[i%s.keys]; ok && prev > i {
			s.Errorf("key %d: %d was processed after %d", i%s.keys, i, prev)
		}
		last[i%s.keys] = i
	}
	for i := range s.n {
		if times[i] != 1 {
			s.Errorf("message %d was processed %d times", i, times[i])
		}
	}
}
