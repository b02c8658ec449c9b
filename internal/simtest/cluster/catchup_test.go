package cluster_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestCatchUp: a follower that was away while much happened comes back, gets what
// it lacks, and the others go on meanwhile; once more with the leader killed in
// the middle.
//
//	CATCHUP_MESSAGES: how many it misses; CATCHUP_RATE: messages a second that
//	the others are offered while it comes back
//	CATCHUP_TIMED=1: fail where less than three quarters of that are done
func TestCatchUp(t *testing.T) {
	t.Parallel()
	messages, rate := cluster.Number(t, "CATCHUP_MESSAGES", 800), cluster.Number(t,
		"CATCHUP_RATE", 200)
	// The Raft log is cut off soon, so that what is lacking can't come from it.
	flags := []string{"--checkpoint-entries", "50", "--checkpoint-interval", "1s",
		"--log-segment-bytes", "131072"}
	if messages >= 100_000 {
		flags = []string{"--checkpoint-entries", "1000", "--checkpoint-interval", "10s"}
	}
	c := cluster.StartCluster(t, cluster.Options{Nodes: 3, Flags: flags})
	queue(t, c.Client(), "q", "")

	othersGoOn(t, c, messages, rate, os.Getenv("CATCHUP_TIMED") != "")
	leaderDies(t, c, messages, rate)
}

// miss stops a follower and lets the others take messages that it misses.
func miss(t *testing.T, c *cluster.Cluster, messages int) *cluster.Node {
	t.Helper()
	n := c.Follower()
	n.Term()
	began := time.Now()
	fill(t, c.ClientFrom(c.Others(n)[0]), "q", messages)
	t.Logf("%s missed %d messages, which took %s", n.Name(), messages,
		time.Since(began).Round(time.Millisecond))
	return n
}

func othersGoOn(t *testing.T, c *cluster.Cluster, messages, rate int, timed bool) {
	n := miss(t, c, messages)
	l := offer(t, c, n, rate)
	within(t, t.Context(), "some are done, to compare with",
		func() bool { return l.soFar() >= 2*rate })
	l.window(t, "before it comes back")
	n.Launch()
	began := time.Now()
	require.NoError(t, n.WaitReady())
	t.Logf("%s is ready after %s", n.Name(), time.Since(began).Round(time.Millisecond))
	require.NoError(t, c.WaitEqual(5*time.Minute))
	t.Logf("figures: missed %d messages, has all after %s", messages, time.Since(began).Round(time.Millisecond))
	if !strings.Contains(n.Log(), "installed checkpoint and missing log segments") {
		t.Error("it had nothing fetched: what it had missed was too little to be away from the " +
			"Raft log")
	}
	if share := l.window(t, "while it comes back"); timed && share < 0.75 {
		t.Errorf("%.0f%% of what was offered was done", 100*share)
	}
	l.stop()
}

func leaderDies(t *testing.T, c *cluster.Cluster, messages, rate int) {
	leader := c.WaitLeader()
	n := miss(t, c, messages)
	l := offer(t, c, n, rate)
	begun := func() int {
		return strings.Count(n.Log(), `"msg":"fetching"`) +
			strings.Count(n.Log(), `"msg":"serving"`)
	}
	before := begun()
	n.Launch()
	// In the middle of it, unless the Raft log has all that it missed.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	within(t, ctx, "it fetches or has all", func() bool { return begun() > before })
	leader.Kill9()
	c.WaitLeader(leader)
	leader.Launch()
	began := time.Now()
	c.WaitReady()
	require.NoError(t, c.WaitEqual(5*time.Minute))
	t.Logf("figures: leader killed meanwhile: all is well %s after its return", time.Since(began).Round(time.Millisecond))
	l.window(t, "meanwhile")
	l.stop()
}

// load is an open loop: messages are offered, in batches of
// 100, whether what was offered before is done or not.
type load struct {
	*background
	rate   int
	missed *atomic.Int64 // batches that were not sent, since too many were under way

	mu      sync.Mutex
	began   time.Time
	done    int // messages
	failed  int // batches
	last    error
	longest time.Duration
}

func offer(t *testing.T, c *cluster.Cluster, not *cluster.Node, rate int) *load {
	t.Helper()
	const batch = 100
	l := &load{background: newBackground(t), rate: rate, began: time.Now()}
	others := c.Others(not)
	clients := []*client.Client{c.ClientFrom(others[0]), c.ClientFrom(others[1])}
	var next atomic.Uint64
	l.missed = l.every(time.Second*batch/time.Duration(rate), 256, func() {
		begun, n := time.Now(), next.Add(1)
		_, err := clients[n%2].Produce(context.Background(), "q",
			payloads(rand.New(rand.NewPCG(n, 1)), batch)...)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.longest = max(l.longest, time.Since(begun))
		if err != nil {
			l.failed, l.last = l.failed+1, err
			return
		}
		l.done += batch
	})
	return l
}

func (l *load) soFar() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done
}

// window ends the time that is measured, prints it, and starts the next
// one. It returns the share of what was offered that was done.
func (l *load) window(t *testing.T, what string) float64 {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	seconds := time.Since(l.began).Seconds()
	achieved := float64(l.done) / seconds
	t.Logf("%s, %.1f s: %.0f messages/s of %d offered; the slowest batch took %s; %d batches "+
		"failed (%v), %d were not sent",
		what, seconds, achieved, l.rate, l.longest.Round(time.Millisecond),
		l.failed, l.last, l.missed.Load())
	l.began, l.done, l.failed, l.last, l.longest = time.Now(), 0, 0, nil, 0
	l.missed.Store(0)
	return achieved / float64(l.rate)
}
