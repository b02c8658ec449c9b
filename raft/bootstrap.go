package raft

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/log/datadir"
	"github.com/qlogd/qlogd/raft/peer"
)

// # Bootstrap
//
// A node without a cluster asks every address of its list in rounds. If one of them has a
// cluster, this node belongs to it: as one of its first members if the first configuration
// names it in this incarnation, else as one that has yet to join. Otherwise it forms the
// cluster if, within a single round, all others answer that they have no cluster, were given
// the same list, and have seen the very table of members that this node held when the round
// began. A table is the list with what each node there says of itself: id, incarnation,
// addresses. There is no coordinator, and no timeout after which a node continues without
// the others. So all nodes must be up at the same time once.
//
// There is never a second cluster. Cluster id and configuration are a function of the table,
// so two nodes that hold the same table write the same bytes. Let A form from table T, and B
// later from T'. In B's last round A answered that it has no cluster and holds T'. If that
// was during A's last round, A held T: so T = T'. If it was before, then B, in that round of
// A's, answered T during its own last round, for the whole of which it held T': so T = T'. If
// it was after A had formed, A has been wiped in between, and its T is gone with it. And a
// node that has formed or joined a cluster answers so for good.

// BootstrapOptions are those of Bootstrap.
type BootstrapOptions struct {
	// Net speaks for this node. Its Self has node, incarnation (durable already) and the
	// addresses at which others reach it, and no cluster yet.
	Net *peer.Net
	// Card is of a node without a cluster; Bootstrap sets ClusterID and Initial.
	Card *datadir.Node
	// Expect is the number of nodes that form the cluster. 0 or 1 with Join: the node only
	// joins; 1 without Join: it forms a cluster alone.
	Expect int
	// Join are the Raft addresses of the nodes that form the cluster, the same on each of
	// them; this node adds its own. For a node that only joins: one or more of the cluster.
	Join []string
	// Save makes the changed card durable. It is called at most once. When it fails,
	// Bootstrap does, and the next start reads what is on disk.
	Save   func() error
	Logger *slog.Logger
}

// SettingsError is Bootstrap's error for settings that cannot work, whatever other nodes say.
type SettingsError struct{ error }

const (
	rpcBootstrap = "raft.bootstrap"

	bootstrapEvery = 200 * time.Millisecond // a round
	bootstrapAsk   = 2 * time.Second        // one answer
	bootstrapLog   = 10 * time.Second       // without news
)

// bootState is the response to raft.bootstrap. The handshake says who responds.
type bootState struct {
	Cluster string           `json:"cluster,omitempty"` // "": none, then the last three count
	Initial []datadir.Member `json:"initial,omitempty"` // the first configuration, if known
	Expect  int              `json:"expect,omitempty"`
	List    []string         `json:"list,omitempty"`
	Would   string           `json:"would,omitempty"` // the cluster that its table makes; "": none
}

type bootstrap struct {
	BootstrapOptions
	self   peer.Identity
	list   []string      // of all nodes that form the cluster
	others []peer.Target // of the list
	would  atomic.Value  // string, of the table as last seen
}

// Bootstrap returns once this node belongs to a cluster: the card says so durably, and so
// does Net's Self. It waits until the others are up, and logs which it waits for. An error
// other than ctx's is a mistake in the settings, or a failed Save.
func Bootstrap(ctx context.Context, o BootstrapOptions) error {
	b := &bootstrap{BootstrapOptions: o, self: o.Net.Self()}
	b.would.Store("")
	if err := b.readList(); err != nil {
		return SettingsError{err}
	}
	undecided, decided := context.WithCancel(ctx)
	answerBootstrap(undecided, o.Net, func() bootState {
		return bootState{Expect: b.Expect, List: b.list, Would: b.would.Load().(string)}
	})
	err := b.decide(ctx)
	// Nobody is answered until the decision is durable: a power cut could undo it.
	decided()
	if err != nil {
		return err
	}
	if err := o.Save(); err != nil {
		return fmt.Errorf("record that this node belongs to cluster %s: %w", o.Card.ClusterID, err)
	}
	b.self.Cluster = o.Card.ClusterID
	o.Net.SetSelf(b.self)
	AnswerBootstrap(o.Net, o.Card)
	o.Logger.Info("found the cluster", "cluster", o.Card.ClusterID, "first", o.Card.Initial != nil)
	return nil
}

// AnswerBootstrap answers nodes that still bootstrap, for one that has a cluster.
func AnswerBootstrap(p *peer.Net, card *datadir.Node) {
	state := bootState{Cluster: card.ClusterID, Initial: card.Initial}
	answerBootstrap(context.Background(), p, func() bootState { return state })
}

func answerBootstrap(ctx context.Context, p *peer.Net, state func() bootState) {
	h := func(context.Context, peer.Identity, struct{}) (bootState, error) { return state(), nil }
	p.Handle(ctx, rpcBootstrap, peer.Answer(h))
}

// readList refuses settings that cannot work, and sets the addresses to ask: none where the
// node forms a cluster alone.
func (b *bootstrap) readList() error {
	for _, a := range b.Join {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("join: %w", err)
		}
	}
	b.list = append(slices.Clone(b.Join), b.self.Raft)
	slices.Sort(b.list)
	b.list = slices.Compact(b.list)
	for _, addr := range b.list {
		if addr != b.self.Raft {
			b.others = append(b.others, peer.Target{Addr: addr})
		}
	}
	switch {
	case b.Expect > 1 && len(b.list) != b.Expect:
		return fmt.Errorf("bootstrap-expect is %d, but join names %d nodes, this one (%s) among "+
			"them: %s; it must name all that form the cluster, by their raft-advertise; "+
			"to join one leave bootstrap-expect out",
			b.Expect, len(b.list), b.self.Raft, strings.Join(b.list, ", "))
	case b.Expect <= 1 && len(b.Join) > 0 && len(b.others) == 0:
		return fmt.Errorf("join names only this node itself (%s): "+
			"it must have the address of at least one node of the cluster", b.self.Raft)
	}
	return nil
}

// decide asks in rounds until the answers decide.
func (b *bootstrap) decide(ctx context.Context) error {
	timer := time.NewTicker(bootstrapEvery)
	defer timer.Stop()
	var logged string
	var last time.Time
	for {
		round, cancel := context.WithTimeout(ctx, bootstrapAsk)
		answers := callEach[bootState](round, b.Net, b.others, rpcBootstrap, struct{}{})
		cancel()
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("bootstrap: %w", err)
		}
		waits, err := b.judge(answers)
		if err != nil || waits == "" {
			return err
		}
		if waits != logged || time.Since(last) >= bootstrapLog {
			b.Logger.Info("waiting for the cluster", "why", waits)
			logged, last = waits, time.Now()
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// judge sets the card's cluster if a round's answers decide on one; else it returns what
// this node waits for: things that operators can correct meanwhile. A table that differs
// from the one held is held from now on, and decides in a later round. The id of the cluster
// that it would make identifies the table.
func (b *bootstrap) judge(answers []response[bootState]) (waits string, err error) {
	var waiting []string
	table := []datadir.Member{firstMember(b.self)}
	named := map[string]string{}
	card := b.Card
	for _, r := range answers {
		a, is, addr := r.answer, r.from, r.to.Addr
		who, why := fmt.Sprintf("%s (%s)", addr, is.Node), ""
		switch {
		case b.isSelf(firstMember(is)):
			who, why = addr, "is this node itself: raft-advertise should be the same"
		case is.Node == b.self.Node:
			return "", fmt.Errorf("there is a node %s already at %s, with another data directory: "+
				"give each node an id of its own (node-id)", b.self.Node, addr)
		case r.err != nil:
			who, why = addr, fmt.Sprintf("does not answer (%v)", innermost(r.err))
		case a.Cluster != "" && card.ClusterID != "" && a.Cluster != card.ClusterID:
			return "", fmt.Errorf("join names nodes of two clusters: %s and, at %s, %s",
				card.ClusterID, addr, a.Cluster)
		case a.Cluster != "":
			card.ClusterID = a.Cluster
			if slices.ContainsFunc(a.Initial, b.isSelf) {
				card.Initial = a.Initial
			}
		case b.Expect <= 1:
			why = "belongs to none yet"
		case a.Expect <= 1:
			why = fmt.Sprintf("does not form a cluster: "+
				"start it with bootstrap-expect %d, as this one", b.Expect)
		case a.Expect != b.Expect:
			why = fmt.Sprintf("expects %d nodes, this one %d: "+
				"bootstrap-expect must be the same on each", a.Expect, b.Expect)
		case !slices.Equal(a.List, b.list):
			why = fmt.Sprintf("was given another list: join is %s there, %s here",
				strings.Join(a.List, ", "), strings.Join(b.list, ", "))
		case is.Raft != addr:
			why = fmt.Sprintf("advertises %s: join must name it so", is.Raft)
		case named[is.Node] != "":
			why = fmt.Sprintf("has the id of %s: give each its own (node-id)", named[is.Node])
		default:
			named[is.Node] = addr
			table = append(table, firstMember(is))
		}
		if why != "" {
			waiting = append(waiting, who+" "+why)
		}
	}
	if card.ClusterID != "" {
		return "", nil
	}
	if len(waiting) > 0 {
		b.would.Store("")
		return strings.Join(waiting, ", "), nil
	}
	slices.SortFunc(table, func(a, b datadir.Member) int { return cmp.Compare(a.ID, b.ID) })
	text, err := json.Marshal(table)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	cluster := ulid.ULID(sum[:16]).String()
	if b.would.Swap(cluster) != cluster && len(answers) > 0 {
		return "all nodes are up; comparing what they see", nil
	}
	for _, r := range answers {
		if r.answer.Would != cluster {
			return fmt.Sprintf("%s (%s) does not see the same nodes yet",
				r.to.Addr, r.from.Node), nil
		}
	}
	card.ClusterID, card.Initial = cluster, table
	return "", nil
}

func (b *bootstrap) isSelf(m datadir.Member) bool {
	return m.ID == b.self.Node && m.Incarnation == b.self.Incarnation
}

func firstMember(i peer.Identity) datadir.Member {
	return datadir.Member{
		ID: i.Node, Incarnation: i.Incarnation, RaftAddr: i.Raft, HTTPAddr: i.HTTP,
	}
}

// innermost returns the cause of an error: "connection refused".
func innermost(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}
