// Package forming decides, at a node's first start, whether it forms a new
// cluster with the others of its list or joins one that exists.
//
// # The rule
//
// A node without a cluster (fresh) asks every address of its list in rounds. If
// any of them has a cluster, this node belongs to it: as one of its first
// members if the first configuration has it in this incarnation, else as one
// that asks to be taken in. Otherwise it forms the cluster if, within a single
// round, all others have answered that they are fresh, that they were given the
// same list, and that they have seen the very same table of members that this
// node held when the round began. A table is the list with what each node there
// said of itself: id, incarnation, addresses. There is no coordinator, and no
// timeout after which a node goes on without the others.
//
// # Why there is never a second cluster
//
// Cluster id and configuration are a function of the table, so two nodes that
// hold the same table write the same bytes. Let A form from table T, and B later
// from T'. In B's last round A answered that it is fresh and holds T'. If that
// was during A's last round, A held T: so T = T'. If it was before, then B, in
// that round of A's, answered T during its own last round, for the whole of
// which it held T': so T = T'. If it was after A had formed, A has been wiped in
// between, and its T is gone with it. And a node that has formed, or joined, says so to everybody for life.
//
// The price: all nodes must be up at the same time once.
package forming

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
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/qlogd/qlogd/raft/peer"
)

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
	Net *peer.Net
	// Expect is how many nodes form the cluster; 0 or 1 with Join: never form,
	// only join; 1 without Join: form alone.
	Expect int
	// Join are the raft addresses of the nodes that form the cluster, the same
	// list on each of them; this node adds its own. For a node that only joins:
	// of one or more nodes of the cluster.
	Join []string
	// Save makes the decision durable. It is called at most once, and must not
	// return nil before it would survive a power cut. When it fails, Decide
	// does, and what is on disk is for the next start to find out.
	Save   func(Result) error
	Logger *slog.Logger
}

// Result is the decision.
type Result struct {
	Cluster string
	// Initial is the cluster's first configuration, which has this node in it,
	// ordered by id; nil where the node has yet to be taken in.
	Initial []Member
}

const (
	callState = "forming.state"

	tick     = 200 * time.Millisecond // between two rounds
	askTime  = 2 * time.Second        // for one answer
	logEvery = 10 * time.Second       // without news
)

// state is the answer to forming.state. The handshake says who answers.
type state struct {
	Cluster string   `json:"cluster,omitempty"` // "" fresh
	Initial []Member `json:"initial,omitempty"` // the first configuration, if it has it
	Expect  int      `json:"expect,omitempty"`  // of a fresh one, as the next two
	List    []string `json:"list,omitempty"`
	Table   []Member `json:"table,omitempty"` // all of the list, as last seen; nil: not all
}

// answer is what one address of the list said.
type answer struct {
	addr string
	who  peer.Identity
	state
	err error
}

// node is one that decides, or has decided.
type node struct {
	Options
	self   peer.Identity
	others []string // of the list, but this node

	mu       sync.Mutex
	deciding bool // Save has begun
	says     state
}

// Decide returns once this node belongs to a cluster: after Save has made that
// durable and Net's Self names it. It takes as long as the others do to come
// up; the log says for whom it waits. It must be called only while the data
// directory has no cluster id, and answers others on Net from then on as Serve
// does.
//
// An error other than ctx's is a mistake in the settings, which waiting does
// not mend, or a failed Save.
func Decide(ctx context.Context, o Options) (Result, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n := &node{Options: o, self: o.Net.Self(), says: state{Expect: o.Expect}}
	if err := n.readList(); err != nil {
		return Result{}, err
	}
	o.Net.Handle(callState, n.answer)
	r, err := n.decide(ctx)
	if err == nil {
		err = n.settle(r)
	}
	if err != nil {
		o.Net.Handle(callState, nil)
		return Result{}, err
	}
	return r, nil
}

// Serve answers nodes that still decide, for one that has decided: those of its
// cluster's first configuration that do not know it yet learn it so. initial is
// nil where this node was not there when the cluster was formed.
func Serve(p *peer.Net, cluster string, initial []Member) {
	n := &node{says: state{Cluster: cluster, Initial: initial}}
	p.Handle(callState, n.answer)
}

// answer is forming.state.
func (n *node) answer(context.Context, peer.Identity, []byte) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.deciding {
		return nil, &peer.Error{Code: "deciding", Detail: "it is writing its decision"}
	}
	return json.Marshal(n.says)
}

// readList refuses settings that can't work and finds whom to ask: nobody where
// the node forms a cluster alone.
func (n *node) readList() error {
	if n.self.Cluster != "" {
		return fmt.Errorf("forming: this node belongs to cluster %s already", n.self.Cluster)
	}
	if n.Expect <= 1 && len(n.Join) == 0 {
		return nil
	}
	for _, a := range n.Join {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("join: %w", err)
		}
		if a != n.self.Raft {
			n.others = append(n.others, a)
		}
	}
	slices.Sort(n.others)
	n.others = slices.Compact(n.others)
	if n.Expect <= 1 && len(n.others) == 0 {
		return fmt.Errorf("join names only this node itself (%s): it must have the address of at least one node of the cluster", n.self.Raft)
	}
	n.says.List = append(slices.Clone(n.others), n.self.Raft)
	slices.Sort(n.says.List)
	if n.Expect > 1 && len(n.says.List) != n.Expect {
		return fmt.Errorf("bootstrap-expect is %d, but join names %d nodes, this one (%s) among them: %s; "+
			"it must name all that form the cluster, by their raft-advertise; to join one leave bootstrap-expect out",
			n.Expect, len(n.says.List), n.self.Raft, strings.Join(n.says.List, ", "))
	}
	return nil
}

// decide asks in rounds until the answers decide.
func (n *node) decide(ctx context.Context) (Result, error) {
	if len(n.others) == 0 {
		return resultOf([]Member{memberOf(n.self)}), nil
	}
	timer := time.NewTicker(tick)
	defer timer.Stop()
	var said string
	var last time.Time
	for {
		answers := n.ask(ctx)
		if err := ctx.Err(); err != nil {
			return Result{}, fmt.Errorf("forming: %w", err)
		}
		r, waits, err := n.judge(answers)
		if r.Cluster != "" || err != nil {
			return r, err
		}
		if waits != said || time.Since(last) >= logEvery {
			n.Logger.Info("waiting for the cluster", "why", waits)
			said, last = waits, time.Now()
		}
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// ask puts the question to all addresses at once.
func (n *node) ask(ctx context.Context) []answer {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	out := make([]answer, len(n.others))
	var wg sync.WaitGroup
	for i, addr := range n.others {
		wg.Go(func() {
			a := answer{addr: addr}
			var body []byte
			body, a.who, a.err = n.Net.Call(ctx, peer.Target{Addr: addr}, callState, nil)
			if a.err == nil {
				a.err = json.Unmarshal(body, &a.state)
			}
			out[i] = a
		})
	}
	wg.Wait()
	return out
}

// judge says what follows from a round's answers: a cluster, or else for what
// this node waits. A table that differs from the one held is held from now on,
// and decides in a later round.
func (n *node) judge(answers []answer) (r Result, waits string, err error) {
	var lacking []string
	table := []Member{memberOf(n.self)}
	for _, a := range answers {
		switch {
		case a.err != nil:
			lacking = append(lacking, a.addr+" "+reason(a.err))
			continue
		case a.who.Node == n.self.Node && a.who.Incarnation == n.self.Incarnation:
			lacking = append(lacking, a.addr+" is this node itself: raft-advertise should be the same")
			continue
		case a.who.Node == n.self.Node:
			return r, "", fmt.Errorf("there is a node %s already at %s, with another data directory: give each node an id of its own (node-id)", n.self.Node, a.addr)
		case a.Cluster != "" && r.Cluster != "" && a.Cluster != r.Cluster:
			return Result{}, "", fmt.Errorf("join names nodes of two clusters: %s and, at %s, %s", r.Cluster, a.addr, a.Cluster)
		case a.Cluster != "":
			r.Cluster = a.Cluster
			if slices.ContainsFunc(a.Initial, func(m Member) bool {
				return m.ID == n.self.Node && m.Incarnation == n.self.Incarnation
			}) {
				r.Initial = a.Initial
			}
		case n.Expect <= 1:
			lacking = append(lacking, fmt.Sprintf("%s (%s) belongs to none yet", a.addr, a.who.Node))
		}
		table = append(table, memberOf(a.who))
	}
	slices.SortFunc(table, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	if r.Cluster != "" {
		return r, "", nil
	}
	if len(lacking) > 0 {
		waits = strings.Join(lacking, ", ")
		table = nil
	} else if waits = n.conflict(answers); waits != "" {
		table = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if table == nil || !slices.Equal(table, n.says.Table) {
		n.says.Table = table
		return r, cmp.Or(waits, "all are there; whether they see the same is asked next"), nil
	}
	for _, a := range answers {
		if !slices.Equal(a.Table, table) {
			return r, fmt.Sprintf("%s (%s) does not see the same nodes yet", a.addr, a.who.Node), nil
		}
	}
	return resultOf(table), "", nil
}

// conflict says what keeps fresh nodes from forming a cluster with this one, or
// "": things that their operator can mend while this node waits.
func (n *node) conflict(answers []answer) string {
	ids := map[string]string{}
	for _, a := range answers {
		switch {
		case a.Expect <= 1:
			return fmt.Sprintf("%s (%s) does not form a cluster: start it with bootstrap-expect %d, as this one", a.addr, a.who.Node, n.Expect)
		case a.Expect != n.Expect:
			return fmt.Sprintf("%s (%s) expects %d nodes, this one %d: bootstrap-expect must be the same on each", a.addr, a.who.Node, a.Expect, n.Expect)
		case !slices.Equal(a.List, n.says.List):
			return fmt.Sprintf("%s (%s) was given another list: join is %s there, %s here", a.addr, a.who.Node, strings.Join(a.List, ", "), strings.Join(n.says.List, ", "))
		case a.who.Raft != a.addr:
			return fmt.Sprintf("%s (%s) wants to be reached at %s: join must name it so", a.addr, a.who.Node, a.who.Raft)
		case ids[a.who.Node] != "":
			return fmt.Sprintf("%s and %s are both called %s: give each node an id of its own (node-id)", ids[a.who.Node], a.addr, a.who.Node)
		}
		ids[a.who.Node] = a.addr
	}
	return ""
}

// settle makes r durable and then known. The order is the point: nobody hears
// of a cluster that a power cut could undo.
func (n *node) settle(r Result) error {
	n.mu.Lock()
	n.deciding = true
	n.mu.Unlock()
	if err := n.Save(r); err != nil {
		return fmt.Errorf("write down that this node belongs to cluster %s: %w", r.Cluster, err)
	}
	n.self.Cluster = r.Cluster
	n.Net.SetSelf(n.self)
	n.mu.Lock()
	n.deciding, n.says = false, state{Cluster: r.Cluster, Initial: r.Initial}
	n.mu.Unlock()
	n.Logger.Info("the cluster is known", "cluster", r.Cluster, "first", r.Initial != nil)
	return nil
}

// resultOf is the cluster that a table makes: the same on each node that holds it.
func resultOf(table []Member) Result {
	b, err := json.Marshal(table)
	if err != nil {
		panic(err) // strings
	}
	sum := sha256.Sum256(b)
	return Result{Cluster: ulid.ULID(sum[:16]).String(), Initial: table}
}

func memberOf(i peer.Identity) Member {
	return Member{ID: i.Node, Incarnation: i.Incarnation, RaftAddr: i.Raft, HTTPAddr: i.HTTP}
}

// reason says in a few words why an address has not answered.
func reason(err error) string {
	if said, ok := errors.AsType[*peer.Error](err); ok {
		if said.Code == "unknown_call" {
			return "is starting"
		}
		return "refuses: " + said.Detail
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "does not answer"
	}
	// Where and how is known; what remains is why: "connection refused".
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return fmt.Sprintf("does not answer (%v)", err)
}
