package raft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/clock"
	"github.com/qlogd/qlogd/raft/peer"
)

// follower is the batcher of a node that does not lead, without Raft: the test
// says who leads, how far this node has applied, and what calls come to.
type follower struct {
	*batcher
	t testing.TB

	mu    sync.Mutex
	to    peer.Target // zero: none is known
	call  func(context.Context, []byte) ([]byte, error)
	calls int
}

var leaderAt = peer.Target{Addr: "leader:1", Node: "n1"}

// newFollower returns one that knows no leader.
func newFollower(t testing.TB, l Limits) *follower {
	o := on(memdisk.New())
	o.Machine, o.Limits = openFake(t, o.FS, "/events"), l
	o = o.withDefaults()
	fsm := newFSM(o, nil, func(error) {})
	f := &follower{t: t, batcher: newBatcher(&o, fsm, clock.New(time.Now, 0), func(error) {})}
	fsm.applied, fsm.disk = func(progress) {}, unwatched(Options{}.withDefaults())
	f.unavailable = func() *event.Problem { return nil }
	f.forward.target = func() peer.Target {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.to
	}
	f.forward.call = func(ctx context.Context, to peer.Target, name string, body []byte) (
		[]byte, peer.Identity, error) {
		f.mu.Lock()
		f.calls++
		call := f.call
		f.mu.Unlock()
		if name != callForward {
			return nil, peer.Identity{}, errors.New(name)
		}
		// The buffer is the caller's again when this returns.
		out, err := call(ctx, bytes.Clone(body))
		return out, peer.Identity{}, err
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { f.run(stop); close(ended) }()
	t.Cleanup(func() {
		close(stop)
		f.batcher.stop()
		f.forward.sending.Wait()
		<-ended
		f.giveUp()
	})
	return f
}

// knows makes a node known as the leader, zero none, that answers like this.
func (f *follower) knows(to peer.Target, call func(context.Context, []byte) ([]byte, error)) {
	f.mu.Lock()
	if f.to = to; call != nil {
		f.call = call
	}
	f.mu.Unlock()
	f.moved()
}

func (f *follower) follow(call func(context.Context, []byte) ([]byte, error)) {
	f.knows(leaderAt, call)
}

func (f *follower) lose() { f.knows(peer.Target{}, nil) }

// apply makes the node as if it had applied everything up to index.
func (f *follower) apply(index uint64) {
	f.fsm.mu.Lock()
	f.fsm.now.index = index
	f.fsm.mu.Unlock()
	f.fsm.wake()
}

// look calls fn under the lock.
func (f *follower) look(fn func()) {
	f.batcher.mu.Lock()
	defer f.batcher.mu.Unlock()
	fn()
}

func (f *follower) called() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

type reply struct {
	event.Result
	err error
}

func (f *follower) async(ctx context.Context, c *event.Command) <-chan reply {
	done := make(chan reply, 1)
	before := 0
	f.look(func() { before = f.commands() })
	go func() {
		r, err := f.propose(ctx, c)
		done <- reply{r, err}
	}()
	f.poll(context.Background(), func() bool { return f.commands() != before || len(done) > 0 })
	return done
}

// commands counts those that wait or are in flight, under the lock.
func (f *follower) commands() int {
	n := f.queues.n
	for _, e := range f.flight {
		n += len(e.group)
	}
	return n
}

// answered counts the commands that the leader has answered, under the lock.
func (f *follower) answered() (n int) {
	for _, e := range f.flight {
		if e.answered {
			n += len(e.group)
		}
	}
	return n
}

// toNode calls a real leader's handler.
func toNode(n *node) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, body []byte) ([]byte, error) {
		return n.b.serveForward(ctx, peer.Identity{Node: "n2"}, body)
	}
}

// allBack answers as a node that does not lead.
func allBack(_ context.Context, body []byte) ([]byte, error) {
	group, err := event.DecodeGroup(body, 1<<20, 1<<30)
	if err != nil {
		return nil, err
	}
	answers := make([]event.Answer, len(group))
	for i := range answers {
		answers[i].Back = true
	}
	return event.EncodeAnswers(answers), nil
}

// Anything else than a clear answer is unknown, and the command is not taken to
// anybody again.
func TestForwardUnknown(t *testing.T) {
	for name, call := range map[string]func(context.Context, []byte) ([]byte, error){
		"broken": func(context.Context, []byte) ([]byte, error) {
			return nil, errors.New("connection reset")
		},
		"its error": func(context.Context, []byte) ([]byte, error) {
			return nil, &peer.Error{Code: "internal"}
		},
		"no answer": func(context.Context, []byte) ([]byte, error) { return nil, nil },
		"fewer answers": func(context.Context, []byte) ([]byte, error) {
			return event.EncodeAnswers(nil), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollower(t, Limits{})
			f.follow(call)
			got := <-f.async(t.Context(), put("a"))
			if p := asProblem(t, got.err); !p.Unknown || p.RetryAfterMS == 0 {
				t.Errorf("%+v", p)
			}
			assert.Equal(t, f.load().Waiting, 0, "commands wait")
			assert.Equal(t, f.called(), 1, "calls")
		})
	}
	// But for a group that could not even be read: nothing of it was proposed.
	f := newFollower(t, Limits{})
	f.follow(func(context.Context, []byte) ([]byte, error) {
		return nil, &peer.Error{Code: codeBadGroup}
	})
	got := <-f.async(t.Context(), put("a"))
	notApplied(t, got.err, event.CodeNoLeader)
}

// While no leader is known a command waits for so long, each by its own clock,
// and is then not applied.
func TestWaitForALeader(t *testing.T) {
	for name, leads := range map[string]func(*follower){
		"none": func(*follower) {},
		"out of reach": func(f *follower) {
			alone := lonely(f.t, "n2", "n2-1", "c1")
			f.follow(func(ctx context.Context, body []byte) ([]byte, error) {
				_, _, err := alone.Call(ctx, peer.Target{Addr: "gone:1"}, callForward, body)
				return nil, err
			})
		},
		"no longer one":  func(f *follower) { f.follow(allBack) },
		"lost meanwhile": func(f *follower) { f.follow(allBack); f.lose() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFollower(t, Limits{})
				leads(f)
				var wg sync.WaitGroup
				for i := range 10 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 100 * time.Millisecond)
						began := time.Now()
						_, err := f.propose(t.Context(), put(fmt.Sprint(i)))
						p := asProblem(t, err)
						assert.True(t, p.Code == event.CodeNoLeader && !p.Unknown && p.RetryAfterMS > 0,
							"%d: %+v", i, p)
						// One on its way when its time is up comes back first.
						if d := time.Since(began); d < f.o.LeaderWait ||
							d > f.o.LeaderWait+retryPause {
							t.Errorf("%d waited %v", i, d)
						}
					})
				}
				wg.Wait()
				// Tries are few.
				if n := f.called(); n > 80 {
					t.Errorf("%d calls in three seconds", n)
				}
			})
		})
	}
}

// Whoever finds a leader in time does not fail; the request that cannot wait so
// long is told why.
func TestALeaderComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := boot(t, on(memdisk.New()))
		f := newFollower(t, Limits{})
		f.apply(1 << 40)
		done := f.async(t.Context(), put("a"))
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		notApplied(t, (<-f.async(short, put("b"))).err, event.CodeNoLeader)
		time.Sleep(f.o.LeaderWait - time.Second - time.Millisecond)
		f.follow(toNode(n))
		require.NoError(t, (<-done).err)
		assert.EqualSlices(t, n.m.names(), []string{"a"}, "applied")
	})
}

// A leader that is cut off does not answer: its outcomes are unknown after a while, and
// when another one leads, what waits behind goes to that at once.
func TestForwardToTheCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := boot(t, on(memdisk.New()))
		f := newFollower(t, Limits{GroupCommands: 1})
		f.apply(1 << 40)
		entered := make(chan struct{}, 2*maxForwards)
		cutOff, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		f.follow(func(context.Context, []byte) ([]byte, error) {
			entered <- struct{}{}
			<-cutOff.Done() // as peer.Net.Call does
			return nil, cutOff.Err()
		})
		var hang []<-chan reply
		for range maxForwards {
			hang = append(hang, f.async(t.Context(), put("hangs")))
			<-entered
		}
		// All the room is taken, and what comes next goes to the next leader.
		next := f.async(t.Context(), put("next"))
		began := time.Now()
		f.knows(peer.Target{Addr: "other:1"}, toNode(n))
		require.NoError(t, (<-next).err)
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("the next leader was asked after %v", d)
		}
		for _, hangs := range hang {
			outcomeUnknown(t, (<-hangs).err)
		}
		if d := time.Since(began); d > f.o.LeaderWait {
			t.Errorf("after %v", d)
		}
		// One that leads again in the meantime is not given up.
		slowly := func(ctx context.Context, body []byte) ([]byte, error) {
			entered <- struct{}{}
			time.Sleep(3 * time.Second)
			return toNode(n)(ctx, body)
		}
		f.follow(slowly)
		slow := f.async(t.Context(), put("slow"))
		<-entered
		f.lose()
		f.follow(slowly)
		require.NoError(t, (<-slow).err)
	})
}

func TestForwardCancelled(t *testing.T) {
	f := newFollower(t, Limits{GroupCommands: 1})
	entered, gate := make(chan struct{}, maxForwards), make(chan struct{})
	f.follow(func(ctx context.Context, body []byte) ([]byte, error) {
		entered <- struct{}{}
		<-gate
		return allBack(ctx, body)
	})
	ctx, cancel := context.WithCancel(t.Context())
	away := f.async(ctx, put("away"))
	<-entered
	cancel()
	outcomeUnknown(t, (<-away).err)
	// It comes back, and nobody waits for it: it is not proposed for nobody.
	n := boot(t, on(memdisk.New()))
	f.lose()
	close(gate)
	f.poll(t.Context(), func() bool { return len(f.flight) == 0 })
	f.apply(1 << 40)
	f.follow(toNode(n))
	require.NoError(t, (<-f.async(t.Context(), put("b"))).err)
	assert.EqualSlices(t, n.m.names(), []string{"b"}, "applied")
	// Answered by the leader, but this node does not come to it in time.
	f.apply(0)
	ctx, cancel = context.WithCancel(t.Context())
	landing := f.async(ctx, put("c"))
	f.poll(t.Context(), func() bool { return f.answered() == 1 })
	cancel()
	outcomeUnknown(t, (<-landing).err)
	f.apply(1 << 40)
	f.poll(t.Context(), func() bool { return len(f.flight) == 0 })
}

// The leader treats others' commands as its own: classes, limits, the disk.
func TestServeForward(t *testing.T) {
	n, release := stuck(t, Limits{Waiting: 8})
	f := newFollower(t, Limits{})
	f.apply(1 << 40)
	f.follow(toNode(n))
	var all []<-chan reply
	var own []<-chan error
	ofClass := []func(string) *event.Command{background, leaseOf, produceOf, put}
	for i, letter := range []string{"b", "l", "p", "s"} {
		all = append(all, f.async(t.Context(), ofClass[i](letter+"1")))
		n.waitFor(func(l load) bool { return l.Waiting == 2*i+1 })
		own = append(own, n.async(t.Context(), ofClass[i](letter+"2")))
		n.waitFor(func(l load) bool { return l.Waiting == 2*i+2 })
	}
	p := asProblem(t, (<-f.async(t.Context(), put("too many"))).err)
	assert.True(t, p.Code == event.CodeOverloaded && !p.Unknown && p.QueueDepth == 8 &&
		p.RetryAfterMS > 0, "%+v", p)
	f.look(func() {
		assert.False(t, f.lead.failed,
			"a leader that is overloaded counts as one that is not there")
	})
	release()
	for _, done := range all {
		require.NoError(t, (<-done).err)
	}
	for _, done := range own {
		require.NoError(t, <-done)
	}
	want := []string{"blocker", "s1", "s2", "p1", "p2", "l1", "l2", "b1", "b2"}
	assert.EqualSlices(t, n.m.names(), want, "applied")
}

func TestServeForwardBadGroup(t *testing.T) {
	n := boot(t, on(memdisk.New()))
	good := event.AppendGroup(nil, []event.Forwarded{{Class: event.ClassSettle,
		Data: event.EncodeCommand(put("a"))}})
	for _, b := range [][]byte{nil, {1, 2, 3}, good[:len(good)-1], append(bytes.Clone(good), 0)} {
		_, err := n.b.serveForward(t.Context(), peer.Identity{}, b)
		var told *peer.Error
		assert.True(t, errors.As(err, &told) && told.Code == codeBadGroup, "%x: %v", b, err)
	}
	if got := n.m.names(); len(got) != 0 {
		t.Errorf("applied %v", got)
	}
}

// What is begun together comes into one entry, in the order of classes, also by
// way of another node; and nothing of it where the first command is refused.
func TestBeginTogether(t *testing.T) {
	n := boot(t, on(memdisk.New()))
	f := newFollower(t, Limits{})
	f.follow(toNode(n))
	for name, begin := range map[string]func(...*event.Command) []Wait{
		"at the leader": n.b.begin, "by way of another node": f.begin,
	} {
		before, _ := n.m.Tip()
		answers := begin(produceOf("p"), leaseOf("l1"), leaseOf("l2"))
		if name != "at the leader" {
			f.poll(t.Context(), func() bool { return f.answered() == len(answers) })
			f.apply(before + 1)
		}
		for i, answer := range answers {
			if got, err := answer(t.Context()); err != nil || got.Index != before+1 ||
				got.Count != int64(i) {
				t.Errorf("%s, %d: %+v, %v behind entry %d", name, i, got, err, before)
			}
		}
		if last := n.m.blocks[len(n.m.blocks)-1].Names; !slices.Equal(last, []string{"p", "l1",
			"l2"}) {
			t.Errorf("%s: %v", name, last)
		}
	}

	s, release := stuck(t, Limits{CommandBytes: 100})
	answers := s.Begin(produceOf(strings.Repeat("p", 101)), []*event.Command{leaseOf("l")})
	for _, answer := range answers {
		_, err := answer(t.Context())
		notApplied(t, err, event.CodePayloadTooLarge)
	}
	if l := s.load(); l.Waiting != 0 {
		t.Errorf("%+v", l)
	}
	release()
}

// A follower applies a lone entry long before hashicorp/raft would tell it of the commit: at once
// where its own client waits, and soon where nobody does.
func followersKnowWhatIsCommitted(t *testing.T) {
	c := cluster(t, 3, nil)
	leader, follower := c.pick()
	for name, at := range map[string]*member{"there": follower, "elsewhere": leader} {
		time.Sleep(time.Second)
		begin := time.Now()
		at.put(name)
		if took := time.Since(begin); took > 2*time.Millisecond {
			t.Errorf("a write through %s took %v", at.name, took)
		}
		for _, m := range c.members() {
			m.untilApplied(func() bool { return m.has(name) })
		}
		if took := time.Since(begin); took > 2*commitPause {
			t.Errorf("the write %s was applied by all after %v", name, took)
		}
	}
}
