package cluster_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/internal/simtest/verify"
)

func TestMain(m *testing.M) {
	if addrs := os.Getenv(workerOf); addrs != "" {
		workAway(addrs)
		return
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "6") // they wait more than they work
	cluster.Verify = verify.Dir
	cluster.Main(m)
}

// queue makes one with a policy in JSON.
func queue(t *testing.T, c *client.Client, name, policy string) {
	t.Helper()
	var p wire.PolicyUpdate
	if policy != "" {
		require.NoError(t, wire.Unmarshal([]byte(policy), &p))
	}
	if _, _, err := c.PutQueue(t.Context(), name, p); err != nil {
		t.Fatal(err)
	}
}

// within waits for a state that no event marks.
func within(t *testing.T, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	if err := cluster.Poll(ctx, func() error {
		if !ok() {
			return errors.New(what)
		}
		return nil
	}); err != nil {
		t.Fatalf("waiting for: %v", err)
	}
}

// tries are requests of a client: when they were begun and ended, and how.
type tries struct {
	mu     sync.Mutex
	done   []try
	failed []error
	grown  chan struct{}
}

type try struct{ begun, ended time.Time }

func newTries() *tries { return &tries{grown: make(chan struct{})} }

func (s *tries) add(begun time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed = append(s.failed, err)
		return
	}
	s.done = append(s.done, try{begun, time.Now()})
	close(s.grown)
	s.grown = make(chan struct{})
}

// produce has a node asked to write every 20 ms, whether the last one is done or not.
func (s *tries) produce(b *background, n *cluster.Node, timeout time.Duration) {
	once := n.Client(client.WithRetry(client.Retry{Attempts: 1}))
	b.every(20*time.Millisecond, 200, func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		begun := time.Now()
		_, err := once.Produce(ctx, "q", client.JSON("meanwhile"))
		s.add(begun, err)
	})
}

// first returns when the first request ended that was begun at or after a time.
func (s *tries) first(t *testing.T, since time.Time) time.Time {
	t.Helper()
	deadline := time.NewTimer(3 * time.Minute)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		var first time.Time
		for _, d := range s.done {
			if !d.begun.Before(since) && (first.IsZero() || d.ended.Before(first)) {
				first = d.ended
			}
		}
		grown := s.grown
		s.mu.Unlock()
		if !first.IsZero() {
			return first
		}
		select {
		case <-grown:
		case <-deadline.C:
			t.Fatal("no write was done within three minutes")
		}
	}
}

// gap returns the longest time between two that succeeded, of those that ended
// after since.
func (s *tries) gap(since time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var longest time.Duration
	last := since
	for _, d := range s.done {
		if d.ended.After(since) {
			longest = max(longest, d.ended.Sub(last))
			last = d.ended
		}
	}
	return longest
}

func (s *tries) errors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.failed)
}

// background runs until the test ends or stop is called.
type background struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newBackground(t *testing.T) *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	t.Cleanup(b.stop)
	return b
}

func (b *background) stop() {
	b.cancel()
	b.wg.Wait()
}

// loop calls do again and again, at most that often.
func (b *background) loop(pause time.Duration, do func()) {
	b.wg.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for b.ctx.Err() == nil {
			do()
			select {
			case <-b.ctx.Done():
			case <-tick.C:
			}
		}
	})
}

// every calls do at each tick, whether the one before has ended or not, at most
// that many at a time.
func (b *background) every(d time.Duration, most int, do func()) *atomic.Int64 {
	missed := &atomic.Int64{}
	room := make(chan struct{}, most)
	b.wg.Go(func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-b.ctx.Done():
				return
			case <-tick.C:
			}
			select {
			case room <- struct{}{}:
				b.wg.Go(func() {
					defer func() { <-room }()
					do()
				})
			default:
				missed.Add(1)
			}
		}
	})
	return missed
}

// payloads makes n messages of 100 to 1024 bytes.
func payloads(r *rand.Rand, n int) []wire.NewMessage {
	out := make([]wire.NewMessage, n)
	for i := range out {
		out[i] = client.JSON(strings.Repeat("x", 98+r.IntN(925)))
	}
	return out
}

// fill puts n messages into a queue, in 400 requests or more: each is an entry.
func fill(t *testing.T, c *client.Client, name string, n int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 5))
	batch := min(500, max(1, n/400))
	for left := n; left > 0; left -= batch {
		_, err := c.Produce(t.Context(), name, payloads(r, min(batch, left))...)
		require.NoError(t, err)
	}
}

// numbered puts the numbers below n into a queue, each under one of some keys.
func numbered(t *testing.T, c *client.Client, name string, n, keys int) {
	t.Helper()
	all := make([]wire.NewMessage, n)
	for i := range all {
		all[i] = client.JSON(i)
		all[i].Key = fmt.Sprint("k", i%keys)
	}
	for batch := range slices.Chunk(all, 500) {
		_, err := c.Produce(t.Context(), name, batch...)
		require.NoError(t, err)
	}
}
