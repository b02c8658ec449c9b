// Package forming decides, at a node's first start, whether it forms a new
// cluster with others or joins one that is there.
//
// Each node is given the same two things: how many are to form the cluster, and
// the addresses of all of them. What must never happen is that two clusters
// come of it, since both would take writes.
//
// # How
//
// A node without a cluster (fresh) asks every address again and again who is
// there, until one of these is true:
//
//   - One of them belongs to a cluster: then so will this node. If it is in that
//     cluster's first configuration, in this incarnation, it takes that over (it
//     died, or was away, when the others were told). Else it asks to be taken
//     in: Found. A node that was wiped has a new incarnation, and so joins.
//   - All addresses answer, all are fresh, and with this node they are exactly
//     as many as expected. The one with the lowest id coordinates: it proposes a
//     configuration and a cluster id; each of the others pledges itself to that
//     one proposal, for pledgeTime, if it sees the very same nodes at the
//     addresses that it was given itself. When all have pledged, the coordinator
//     writes to its disk that the cluster is formed. That moment decides. The
//     others learn of it by asking on, write it down, and are formed too.
//
// # Why there is never a second cluster
//
// Whether the cluster is formed is decided by one durable write on one disk. Who
// wrote it says so to everybody who asks, for life.
//
//   - Nothing is formed without a fresh answer from every address on the list, so
//     neither without the coordinator of an earlier cluster: it answers that it
//     is formed, or, while it is down, nobody forms anything. Where it was wiped,
//     nobody was told before that, or else he who was told answers for it.
//   - A node has room for one promise: its own proposal or a pledge to another.
//     A coordinator whose write failed does not know what is on its disk: it
//     neither proposes nor pledges again before it has been started anew.
//   - A pledge is in memory only. A member that forgets it in a crash can pledge
//     itself elsewhere, but all that is proposed needs the coordinator's own
//     pledge, and the coordinator does not forget what it wrote.
//   - Being told is only a hint to ask. What a node takes over is the answer of
//     one that lives, to a question put after its own last pledge: a message
//     that was under way while its sender was wiped changes nothing.
//
// # Invitations
//
// A node that only joins (it forms nothing, ever) also asks where a cluster's
// leader says that it is expected, once for each time that it is told so; its own
// list goes first. It belongs to that cluster if who is asked there belongs to it.
// A node that may form a cluster takes no invitation: who is on its list, and
// nobody else, is part of what is said above.
//
// The price: all nodes must be there once. A cluster can't be formed by two of
// three; it can go on with them afterwards.
package forming

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/raft/peer"
)

// Net is what forming needs of the inside network; *peer.Net is one.
type Net interface {
	Self() peer.Identity
	SetSelf(peer.Identity)
	Handle(name string, h peer.Handler)
	Call(ctx context.Context, to peer.Target, name string, body []byte) ([]byte, peer.Identity, error)
}

// Member is one node of a cluster's first configuration.
type Member struct {
	ID          string `json:"id"`
	Incarnation string `json:"incarnation"`
	RaftAddr    string `json:"raft_addr"`
	HTTPAddr    string `json:"http_addr"`
}

// Options of Decide.
type Options struct {
	// Net speaks for this node: its Self has node, incarnation (durable already)
	// and the addresses at which others reach it, and no cluster yet.
	Net Net
	// Expect is how many nodes form the cluster; 0 or 1 with Join: never form,
	// only join; 1 without Join: form alone.
	Expect int
	// Join are the raft addresses of the nodes that form the cluster, the same
	// list on each of them; this node's own may be among them or not. For a node
	// that only joins: of one or more nodes of the cluster.
	Join []string
	// Save makes the decision durable. It is called at most once, and must not
	// return nil before it would survive a power cut. When it fails, Decide
	// does, and what is on disk is for the next start to find out.
	Save   func(Result) error
	Logger *slog.Logger
	// NewCluster makes a cluster's id; nil: a random ULID.
	NewCluster func() string
}

// Result is what was decided.
type Result struct {
	Cluster string
	// Initial is the cluster's first configuration, which has this node in it,
	// ordered by id; nil where the cluster was found.
	Initial []Member
	// Contacts are addresses of nodes of a cluster that was found.
	Contacts []string
}

// Formed tells a cluster that this node forms with others from one that it
// found and has yet to be taken into.
func (r Result) Formed() bool { return len(r.Initial) > 0 }

// Times of the protocol. They make it quick or patient, not safe.
const (
	shortTick  = 200 * time.Millisecond // between two rounds of asking
	longTick   = 2 * time.Second        // where nothing changes
	minTick    = 20 * time.Millisecond  // however much is told
	askTime    = 2 * time.Second        // for one answer
	nudgeTime  = time.Second
	pledgeTime = 5 * time.Second
	tellEvery  = 10 * time.Second // progress, in the log
)

// Decide returns once this node belongs to a cluster: after Save has made that
// durable and Net's Self names it. It may take as long as the others do to
// come up; it tells in the log whom it waits for. It must be called only while
// the data directory has no cluster id, and answers others on Net from then on
// as Serve does.
//
// An error other than ctx's is a mistake in the settings, which waiting does
// not mend, or a failed Save.
func Decide(ctx context.Context, o Options) (Result, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.NewCluster == nil {
		o.NewCluster = func() string { return ulid.MustNew(ulid.Now(), rand.Reader).String() }
	}
	s := newSeat(o)
	addrs, err := plan(o.Net.Self(), o.Expect, o.Join)
	if err != nil {
		return Result{}, err
	}
	if len(addrs) == 0 {
		r := Result{Cluster: o.NewCluster(), Initial: []Member{memberOf(o.Net.Self())}}
		s.serve()
		return r, s.settle(r)
	}
	s.serve()
	if err := s.wait(ctx, addrs); err != nil {
		if s.decided() == nil {
			s.retire()
		}
		return Result{}, err
	}
	return *s.decided(), nil
}

// Serve answers nodes that still decide, for one that has decided: those of its
// cluster's first configuration that were not told are told so. initial is nil
// where this node was not there when the cluster was formed.
func Serve(n Net, cluster string, initial []Member) {
	s := newSeat(Options{Net: n})
	s.result = &Result{Cluster: cluster, Initial: initial}
	s.serve()
}

// wait asks in rounds until something is decided.
func (s *seat) wait(ctx context.Context, addrs []string) error {
	tick, last := shortTick, ""
	var told time.Time
	for {
		began := time.Now()
		says, err := s.round(ctx, addrs)
		if err == nil && ctx.Err() == nil && s.decided() == nil {
			err = s.follow(ctx)
		}
		switch {
		case s.decided() != nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("forming: %w", ctx.Err())
		case err != nil:
			return err
		}
		if time.Since(told) >= tellEvery {
			s.o.Logger.Info(says)
			told = time.Now()
		}
		if says != last {
			tick, last = shortTick, says
		} else {
			tick = min(tick*3/2, longTick)
		}
		if s.sleep(ctx, began, tick) {
			tick = shortTick
		}
	}
}

// sleep returns tick after began, or earlier where there is news, and then true.
func (s *seat) sleep(ctx context.Context, began time.Time, tick time.Duration) bool {
	floor := time.NewTimer(time.Until(began.Add(minTick)))
	defer floor.Stop()
	rest := time.NewTimer(time.Until(began.Add(tick)))
	defer rest.Stop()
	select {
	case <-floor.C:
	case <-ctx.Done():
		return false
	}
	select {
	case <-s.news:
		return true
	case <-rest.C:
	case <-ctx.Done():
	}
	return false
}

// round asks everybody once and does what follows from it. It returns, in
// words, what is waited for.
func (s *seat) round(ctx context.Context, addrs []string) (string, error) {
	since := s.pledges()
	v, err := judge(s.o.Net.Self(), s.o.Expect, s.ask(ctx, addrs))
	s.see(v.all)
	switch {
	case err != nil || ctx.Err() != nil:
		return "", err
	case v.cluster != "":
		return s.adopt(since, Result{Cluster: v.cluster, Initial: v.initial, Contacts: v.contacts})
	case v.all != nil && v.all[0].Incarnation == s.o.Net.Self().Incarnation:
		return s.propose(ctx, v.all)
	}
	return v.waits, nil
}

// follow asks where this node was last invited to, if it was.
func (s *seat) follow(ctx context.Context) error {
	since := s.pledges()
	to, ok := s.invited()
	if !ok {
		return nil
	}
	self := s.o.Net.Self()
	a := s.askOne(ctx, to.Raft)
	if a.err != nil || a.Cluster != to.Cluster || a.who.Node == self.Node {
		s.o.Logger.Warn("not followed an invitation", "cluster", to.Cluster, "of", to.Node, "at", to.Raft, "answers", a.who.Node, "its cluster", a.Cluster, "error", a.err)
		return nil
	}
	v, err := found(self, []answer{a})
	if err == nil {
		_, err = s.adopt(since, Result{Cluster: v.cluster, Initial: v.initial, Contacts: v.contacts})
	}
	return err
}

// adopt takes over what a node of a cluster answered. since is how many pledges
// had been given when it was asked.
func (s *seat) adopt(since uint64, r Result) (string, error) {
	if len(r.Initial) > 0 {
		r.Contacts = nil
	}
	if !s.begin(since) {
		s.wake()
		return "asking again: a pledge was given meanwhile", nil
	}
	return "", s.settle(r)
}

// propose tries to form the cluster with all, of which this node is the first.
func (s *seat) propose(ctx context.Context, all []Member) (string, error) {
	p := proposal{Cluster: s.o.NewCluster(), Initial: all}
	if !s.promise(p) {
		return fmt.Sprintf("all %d nodes are there; this one is pledged to another proposal for at most %s", len(all), pledgeTime), nil
	}
	began := time.Now()
	err := s.collect(ctx, p)
	if err == nil && time.Since(began) >= pledgeTime {
		err = errors.New("the pledges took too long")
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.withdraw()
		return fmt.Sprintf("all %d nodes are there, but not all agree yet: %v", len(all), err), nil
	}
	if err := s.settle(Result{Cluster: p.Cluster, Initial: all}); err != nil {
		return "", err
	}
	s.nudge(ctx, all)
	return "", nil
}

func memberOf(i peer.Identity) Member {
	return Member{ID: i.Node, Incarnation: i.Incarnation, RaftAddr: i.Raft, HTTPAddr: i.HTTP}
}
