package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// stuck returns a node whose Machine holds every entry until the returned
// function is called, with its one place in flight taken, unless l has more.
func stuck(t *testing.T, l Limits) (*node, func()) {
	o := on(memdisk.New())
	l.Entries = max(l.Entries, 1)
	o.Limits = l
	n := boot(t, o)
	gate := make(chan struct{})
	n.m.hold = gate
	n.async(context.Background(), put("blocker"))
	n.waitFor(func(l load) bool { return l.InFlight == 1 })
	return n, func() { close(gate) }
}

// async proposes beside, and returns where the error will be.
func (n *node) async(ctx context.Context, c *event.Command) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := n.Propose(ctx, c)
		done <- err
	}()
	return done
}

func TestNobodyStarves(t *testing.T) {
	l := Limits{GroupBytes: 1 << 20, GroupCommands: 8, GroupWeight: 1 << 20}
	var q queues
	late := newPending(background("late"))
	q.push(late)
	for group := 1; ; group++ {
		for len(q.class[event.ClassSettle]) < 16 {
			q.push(newPending(put("x")))
		}
		g, _ := q.batch(l)
		if slices.Contains(g, late) {
			assert.True(t, group <= patience+1, "only the %dth group took it", group)
			return
		}
		require.True(t, group <= 10*patience, "it starves")
	}
}

func TestGroupLimits(t *testing.T) {
	l := Limits{GroupBytes: 1000, GroupCommands: 3, GroupWeight: 100}
	sized := func(n, weight int) *pending {
		return &pending{class: event.ClassProduce, data: make([]byte, n), weight: weight}
	}
	var q queues
	for _, p := range []*pending{sized(5000, 1), sized(400, 1), sized(400, 1), sized(400, 1),
		sized(1, 1), sized(1, 1), sized(1, 1), sized(1, 90), sized(1, 20)} {
		q.push(p)
	}
	// A larger one goes alone; then bytes, commands and weight are the limit.
	for i, want := range []int{1, 2, 3, 2, 1} {
		if g, _ := q.batch(l); len(g) != want {
			t.Errorf("group %d has %d commands, not %d", i, len(g), want)
		}
	}
	assert.True(t, q.n == 0 && q.bytes == 0, "%d commands, %d bytes are left", q.n, q.bytes)
}

func TestOverloaded(t *testing.T) {
	n, release := stuck(t, Limits{Waiting: 8})
	var all []<-chan error
	fill := func(c *event.Command, upTo int) {
		t.Helper()
		for i := n.load().Waiting; i < upTo; i++ {
			all = append(all, n.async(context.Background(), c))
			n.waitFor(func(l load) bool { return l.Waiting == i+1 })
		}
		p := n.refused(context.Background(), c)
		assert.True(t, p.Code == event.CodeOverloaded && !p.Unknown && p.QueueDepth == int64(upTo) &&
			p.RetryAfterMS > 0, "at %d: %+v", upTo, p)
	}
	// What is turned away first is what matters least.
	fill(background("b"), 2)
	fill(leaseOf("l"), 4)
	fill(produceOf("p"), 6)
	fill(put("s"), 8)
	release()
	for _, done := range all {
		require.NoError(t, <-done)
	}
	assert.Equal(t, len(n.m.names()), 1+8, "commands were applied")
}

func TestOverloadedByBytes(t *testing.T) {
	n, release := stuck(t, Limits{WaitingBytes: 4096, CommandBytes: 5000})
	first := n.async(context.Background(), put(fmt.Sprintf("%03000d", 1)))
	n.waitFor(func(l load) bool { return l.Waiting == 1 })
	notApplied(t, n.refused(t.Context(), put(fmt.Sprintf("%03000d", 2))), event.CodeOverloaded)
	release()
	require.NoError(t, <-first)
	large := put(string(make([]byte, 6000)))
	notApplied(t, n.refused(t.Context(), large), event.CodePayloadTooLarge)
}

func TestContextEnds(t *testing.T) {
	n, release := stuck(t, Limits{})
	ctx, cancel := context.WithCancel(context.Background())
	under := n.load().Waiting
	dropped := n.async(ctx, put("dropped"))
	n.waitFor(func(l load) bool { return l.Waiting == under+1 })
	cancel()
	notApplied(t, <-dropped, event.CodeOverloaded)
	if l := n.load(); l.Waiting != 0 || l.WaitingBytes != 0 {
		t.Errorf("a dropped command still counts: %+v", l)
	}
	release()

	// Under way, its fate is not known.
	gate := make(chan struct{})
	n.waitFor(func(l load) bool { return l.Entries == 0 })
	n.m.hold = gate
	ctx, cancel = context.WithCancel(context.Background())
	unknown := n.async(ctx, put("unknown"))
	n.waitFor(func(l load) bool { return l.InFlight == 1 })
	cancel()
	outcomeUnknown(t, <-unknown)
	close(gate)
	n.put("last")
	assert.EqualSlices(t, n.m.names(), []string{"blocker", "unknown", "last"}, "applied")
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	notApplied(t, n.refused(ended, put("x")), "")
}

func TestOutcomes(t *testing.T) {
	for err, unknown := range map[error]bool{
		hraft.ErrNotLeader:                    false,
		hraft.ErrEnqueueTimeout:               false,
		hraft.ErrLeadershipTransferInProgress: false,
		hraft.ErrLeadershipLost:               true,
		hraft.ErrRaftShutdown:                 true,
		hraft.ErrAbortedByRestore:             true,
		errors.New("the log store failed"):    true,
	} {
		if p := outcome(err); p.Unknown != unknown || p.Index != -1 {
			t.Errorf("%v: %+v", err, p)
		}
	}
}

func TestDiskNearlyFull(t *testing.T) {
	free := uint64(1000)
	o := on(memdisk.New())
	o.FreeBytes, o.ReserveBytes = func() (uint64, error) { return free, nil }, 1001
	n := boot(t, o)
	_, why := n.Ready()
	assert.Equal(t, strings.Join(why, "; "), "the disk is nearly full: produce is refused")
	notApplied(t, n.refused(context.Background(), produceOf("p")), event.CodeInsufficientStorage)
	n.put("settles go on")
	if _, err := n.Propose(context.Background(), leaseOf("l")); err != nil {
		t.Error(err)
	}
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, release := stuck(t, Limits{})
		waiting := n.async(context.Background(), put("waiting"))
		n.waitFor(func(l load) bool { return l.Waiting == 1 })
		ended := make(chan error)
		go func() { ended <- n.Shutdown(context.Background()) }()
		synctest.Wait() // until it drains
		if _, why := n.Ready(); !slices.Contains(why, "shutting down") {
			t.Errorf("it is not ready since %v", why)
		}
		notApplied(t, n.refused(context.Background(), put("late")), event.CodeShuttingDown)
		release()
		assert.NoError(t, <-waiting, "what was taken is drained")
		require.NoError(t, <-ended)
		notApplied(t, n.refused(context.Background(), put("later")), event.CodeShuttingDown)
		notApplied(t, n.Barrier(context.Background()), event.CodeShuttingDown)
	})
}

// A drain that takes too long is cut short, and nobody is left without an answer.
func TestShutdownCutShort(t *testing.T) {
	n, release := stuck(t, Limits{})
	waiting := n.async(context.Background(), put("waiting"))
	n.waitFor(func(l load) bool { return l.Waiting == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ended := make(chan error)
	go func() { ended <- n.Shutdown(ctx) }()
	notApplied(t, <-waiting, event.CodeShuttingDown)
	release()
	require.NoError(t, <-ended)
}

func TestApplyErrorIsFatal(t *testing.T) {
	n := boot(t, on(memdisk.New()))
	n.put("a")
	outcomeUnknown(t, n.refused(context.Background(), put("fail")))
	if err := <-n.died; err == nil {
		t.Error("no reason")
	}
	notApplied(t, n.refused(context.Background(), put("b")), "")
	if ok, _ := n.Ready(); ok {
		t.Error("a failed replica is ready")
	}
}

// A new command is expected to wait as long as the one that has waited longest.
func TestExpectedWait(t *testing.T) {
	now := time.Now()
	var q queues
	assert.Equal(t, q.wait(now), 50*time.Millisecond)
	for class, since := range map[event.Class]time.Duration{
		event.ClassSettle: time.Second, event.ClassLease: 3 * time.Second,
	} {
		q.push(&pending{class: class, since: now.Add(-since)})
		q.push(&pending{class: class, since: now})
	}
	assert.Equal(t, q.wait(now), 3*time.Second)
	assert.Equal(t, q.wait(now.Add(time.Hour)), 10*time.Second)
}
