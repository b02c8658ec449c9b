package raft

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/vfs"
)

// gate lets writes of a Raft log through, or holds them up.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: open
	came chan struct{} // takes one: a write is held up
}

func newGate() *gate { return &gate{came: make(chan struct{}, 1)} }

func (g *gate) pass() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		select {
		case g.came <- struct{}{}:
		default:
		}
		<-shut
	}
}

// close holds up what comes from now on, until open. Closed twice, what came
// before the second time is let through by the first open.
func (g *gate) close() (open func()) {
	shut := make(chan struct{})
	g.mu.Lock()
	g.shut = shut
	g.mu.Unlock()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		if g.shut == shut {
			g.shut = nil
		}
		g.mu.Unlock()
		close(shut)
	})
}

// gated is a cluster of three with a gate before each Raft log.
func gated(t *testing.T, set func(*Options)) (*nodes, map[string]*gate) {
	gates := map[string]*gate{"n1": newGate(), "n2": newGate(), "n3": newGate()}
	c := cluster(t, 3, func(o *Options) {
		o.BeforeStore, o.StoreDeadline = gates[o.NodeID].pass, time.Minute
		if set != nil {
			set(o)
		}
	})
	c.put("before")
	c.level()
	until(t, "the leader knows that all know", c.leader().leadsAhead)
	return c, gates
}

// onDisk is up to where a member's Raft log is written.
func (m *member) onDisk() uint64 {
	m.stores.log.walMu.RLock()
	defer m.stores.log.walMu.RUnlock()
	last, _ := m.stores.log.wal.LastIndex()
	return last
}

// ahead lets a leader propose an entry that the others have and its own disk has
// not until open. What the log was before ended at was.
func (c *nodes) ahead(l *member, g *gate) (was uint64, open func(), answered <-chan error) {
	c.t.Helper()
	was = l.raft.LastIndex()
	open = g.close()
	c.t.Cleanup(open)
	told := make(chan error, 1)
	go func() {
		_, err := l.Propose(context.Background(), put("ahead"))
		told <- err
	}()
	<-g.came
	for _, m := range c.members() {
		if m != l {
			until(c.t, m.name+" has the entry", func() bool { return m.onDisk() > was })
		}
	}
	return was, open, told
}

// A leader's entries are on the others' disks while its own is still at work, and
// are not committed, acknowledged or applied before that is done.
func TestLeaderWritesWhileOthersDo(t *testing.T) {
	c, gates := gated(t, nil)
	l := c.leader()
	was := l.raft.LastIndex()
	var wg sync.WaitGroup
	defer wg.Wait()
	open := gates[l.name].close()
	defer open()
	answered := make(chan error, 3)
	for i := range cap(answered) {
		wg.Go(func() {
			_, err := l.Propose(context.Background(), put(fmt.Sprint("ahead", i)))
			answered <- err
		})
	}
	<-gates[l.name].came
	for _, m := range c.members() {
		if m != l {
			until(t, m.name+" has the entry", func() bool { return m.onDisk() > was })
			until(t, "the leader knows it", func() bool { return l.evidence.get(m.id).AckIndex > was })
		}
	}
	if got := l.onDisk(); got != was {
		t.Fatalf("the leader's disk has entries up to %d", got)
	}
	for _, m := range c.members() {
		if got := m.raft.CommitIndex(); got > was {
			t.Errorf("%s: entries up to %d are committed, and the leader has them up to %d", m.name, got, was)
		}
	}
	select {
	case err := <-answered:
		t.Fatalf("answered: %v", err)
	default:
	}
	open()
	for range cap(answered) {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	if got := l.onDisk(); got <= was {
		t.Errorf("the leader's disk has entries up to %d", got)
	}
	c.level()
}

// A leader that dies with entries which others have, and its own disk has not, is
// no directory that went back (I16): it comes back as the one it was.
func TestLeaderDiesAhead(t *testing.T) {
	c, gates := gated(t, nil)
	l := c.leader()
	_, open, answered := c.ahead(l, gates[l.name])
	dead := l.disk.CrashWith(vfs.LoseAll, rng(1))
	c.isolate(l.name, true)
	open()
	l.stop()
	<-answered
	// What others have is committed by the next leader, and whoever asks whether
	// the old one may come back knows that it was sent more than it has.
	c.put("after", l.name)
	c.isolate(l.name, false)
	l.disk = dead
	c.start(l)
	c.level()
	until(t, "it takes part", l.vouched)
	if len(l.outs) > 0 {
		t.Errorf("out: %v", <-l.outs)
	}
	if got := l.m.names(); !slices.Contains(got, "ahead") {
		t.Errorf("%v: what a majority had is lost", got)
	}
}

// A deposed leader neither acknowledges to the next one what it has not on disk,
// nor applies it.
func TestDeposedLeaderAcknowledgesWhatItHas(t *testing.T) {
	c, gates := gated(t, func(o *Options) { o.LeaderLeaseTimeout = o.HeartbeatTimeout })
	l := c.leader()
	was, open, answered := c.ahead(l, gates[l.name])
	c.isolate(l.name, true)
	next := c.leader(l.name)
	until(t, "it has stepped down", func() bool { return l.raft.State() != hraft.Leader })
	// All that the next leader asks is whether it has that entry, which is
	// committed. The third one says so: else its own messages came, too.
	third := next
	for _, m := range c.members() {
		if m != l && m != next {
			third = m
		}
	}
	c.mu.Lock()
	c.cut[l.name+">"+third.name] = false
	c.mu.Unlock()
	a := &hraft.AppendEntriesRequest{
		RPCHeader: next.trans.(*transport).header(), Term: next.raft.CurrentTerm(),
		PrevLogEntry: was + 1, PrevLogTerm: termOf(t, next, was+1), LeaderCommitIndex: was + 1,
	}
	told := make(chan error, 1)
	go func() {
		var resp hraft.AppendEntriesResponse
		err := third.trans.(*transport).net.ask(server{l.id, l.self().serverAddress()}, a, &resp)
		if err == nil && !resp.Success {
			err = errors.New("refused")
		}
		told <- err
	}()
	until(t, "it is told", func() bool { return l.raft.CommitIndex() > was })
	if s := l.ownStatus(); s.Commit > was {
		t.Errorf("it tells that %d is committed", s.Commit)
	}
	// Nor does it stand for election with it.
	voted := make(chan error, 1)
	go func() {
		var resp hraft.RequestVoteResponse
		voted <- l.trans.RequestVote(third.id, third.self().serverAddress(), &hraft.RequestVoteRequest{RPCHeader: l.trans.(*transport).header(), Term: 1}, &resp)
	}()
	select {
	case err := <-told:
		t.Fatalf("acknowledged: %v", err)
	case err := <-voted:
		t.Fatalf("asked for a vote: %v", err)
	case <-time.After(50 * time.Millisecond): // what is not to happen has had the time to
	}
	if head, _ := l.m.Head(); head > was {
		t.Fatalf("applied up to %d", head)
	}
	if got := l.onDisk(); got != was {
		t.Fatalf("its disk has entries up to %d", got)
	}
	open()
	if err := <-voted; err != nil {
		t.Error(err)
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	<-answered
	c.isolate(l.name, false)
	c.level()
	if head, _ := l.m.Head(); head <= was {
		t.Errorf("applied are entries up to %d", head)
	}
}

// A leader without others goes on while its disk is at work, and nothing comes of
// what is not written: no answer, nothing applied, nothing told or read, and after
// a crash nothing left.
func TestAloneLeadsAhead(t *testing.T) {
	g := newGate()
	c := cluster(t, 1, func(o *Options) { o.BeforeStore, o.StoreDeadline = g.pass, time.Minute })
	c.put("before")
	l := c.leader()
	was := l.raft.LastIndex()
	open := g.close()
	defer open()
	answered := make(chan error, 3)
	propose := func(name string) {
		_, err := l.Propose(context.Background(), put(name))
		answered <- err
	}
	go propose("first")
	<-g.came
	go propose("second")
	until(t, "Raft has both", func() bool { return l.raft.CommitIndex() == was+2 })
	select {
	case err := <-answered:
		t.Fatalf("answered: %v", err)
	case <-time.After(50 * time.Millisecond): // what is not to happen has had the time to
	}
	if got := l.onDisk(); got != was {
		t.Fatalf("on disk are entries up to %d, want %d", got, was)
	}
	if got := l.fsm.progress().index; got != was {
		t.Errorf("applied are entries up to %d, on disk those up to %d", got, was)
	}
	if s, told := l.Status(), l.ownStatus(); s.CommitIndex != was || told.Commit != was {
		t.Errorf("it tells that entries up to %d (others: %d) are committed, on disk are those up to %d", s.CommitIndex, told.Commit, was)
	}
	// Who reads waits for nothing: nobody was told of more.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Barrier(ctx); err != nil {
		t.Errorf("read: %v", err)
	}
	open()
	for range 2 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	if got := l.onDisk(); got != was+2 {
		t.Errorf("on disk are entries up to %d, want %d", got, was+2)
	}

	open = g.close()
	defer open()
	go propose("third")
	<-g.came
	dead := l.disk.CrashWith(vfs.LoseAll, rng(1))
	open()
	if err := <-answered; err == nil {
		t.Error("what the disk lost was answered")
	}
	l.stop()
	l.disk = dead
	c.start(l)
	c.put("after")
	if got := l.m.names(); !slices.Equal(got, []string{"before", "first", "second", "after"}) {
		t.Errorf("after the crash there are %v", got)
	}
}

// With one beside it that has no vote it has written what it sends: to that one
// what is committed is on its disk.
func TestAloneBesideALearnerNothingIsAhead(t *testing.T) {
	c := cluster(t, 1, nil)
	c.put("before")
	l := c.leader()
	if !l.leadsAhead() {
		t.Error("alone it does not store ahead")
	}
	n2 := c.fresh("n2")
	answers(t, l.AddMember(t.Context(), Member{ID: "n2", RaftAddr: n2.addr}), "")
	if l.leadsAhead() {
		t.Error("with another one announced it stores ahead")
	}
	n2.contacts = []string{l.addr}
	c.start(n2)
	<-n2.joined
	c.put("after")
	if l.leadsAhead() {
		t.Error("beside a learner it stores ahead")
	}
	c.level()
	answers(t, l.RemoveMember(t.Context(), "n2", false), "")
	until(t, "alone again it stores ahead", l.leadsAhead)
}

// One that is removed is sent, and told to be committed, nothing that is not on
// the disk of the node that is alone without it: it would apply what nobody has
// after a crash, and hold against that node that it went back.
func TestRemovedNodeIsSentWhatIsOnDisk(t *testing.T) {
	for _, voter := range []bool{false, true} {
		t.Run(fmt.Sprint("voter ", voter), func(t *testing.T) {
			g := newGate()
			c := cluster(t, 1, func(o *Options) {
				if o.NodeID == "n1" {
					o.BeforeStore, o.StoreDeadline = g.pass, time.Minute
				}
			})
			c.put("before")
			l := c.get("n1")
			n2 := c.fresh("n2")
			answers(t, l.AddMember(t.Context(), Member{ID: "n2", RaftAddr: n2.addr, Voter: voter}), "")
			n2.contacts = []string{l.addr}
			c.start(n2)
			<-n2.joined
			if voter {
				c.voting(2)
				until(t, "n1 leads", func() bool {
					return c.leader() == l || l.TransferLeadership(t.Context(), "n1") == nil && c.leader() == l
				})
			}
			c.put("both")
			c.level()

			open := g.close()
			defer open()
			removed, answered := make(chan error, 1), make(chan error, 1)
			go func() { removed <- l.RemoveMember(t.Context(), "n2", true) }()
			<-g.came // the new configuration is being written
			go func() {
				_, err := l.Propose(context.Background(), put("alone"))
				answered <- err
			}()
			until(t, "it waits for Raft's goroutine", func() bool {
				l.p.mu.Lock()
				defer l.p.mu.Unlock()
				return l.p.flyN == 1
			})
			last := g.close()
			defer last()
			open()
			<-g.came                          // it is being written
			time.Sleep(50 * time.Millisecond) // what is not to happen has the time to
			had := l.onDisk()
			if head, _ := n2.m.Head(); n2.onDisk() > had || n2.raft.CommitIndex() > had || head > had {
				t.Errorf("on the leader's disk are entries up to %d; the one removed has them up to %d, of which %d are committed and %d applied", had, n2.onDisk(), n2.raft.CommitIndex(), head)
			}
			if e := n2.evidence.get(l.id); e.AckIndex > had {
				t.Errorf("on the leader's disk are entries up to %d; the one removed holds %d against it", had, e.AckIndex)
			}
			last()
			for what, err := range map[string]error{"write": <-answered, "removal": <-removed} {
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

// Nor is anything ahead while a member has a program that does not know of it, or
// is not known to have another.
func TestOlderMembersAreSentWhatIsWritten(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	l := c.leader()
	until(t, "all know", l.leadsAhead)
	for _, m := range c.members() {
		if m == l {
			continue
		}
		if m.leadsAhead() {
			t.Errorf("%s follows, and stores ahead", m.name)
		}
		l.table.mu.Lock()
		known := l.table.seen[m.id]
		older := *known
		older.status.Ahead = false
		l.table.seen[m.id] = &older
		l.table.mu.Unlock()
		if l.leadsAhead() {
			t.Errorf("%s has an older program", m.name)
		}
		l.table.mu.Lock()
		delete(l.table.seen, m.id)
		l.table.mu.Unlock()
		if l.leadsAhead() {
			t.Errorf("%s has not told which program it has", m.name)
		}
		l.table.mu.Lock()
		l.table.seen[m.id] = known
		l.table.mu.Unlock()
	}
}

func TestHadOnDisk(t *testing.T) {
	cmd := func(index, term uint64) *hraft.Log { return &hraft.Log{Index: index, Term: term} }
	noop := func(index, term uint64) *hraft.Log { return &hraft.Log{Index: index, Term: term, Type: hraft.LogNoop} }
	for name, c := range map[string]struct {
		a    hraft.AppendEntriesRequest
		want uint64
	}{
		"a heartbeat":                      {hraft.AppendEntriesRequest{Term: 3}, 0},
		"nothing but what it had":          {hraft.AppendEntriesRequest{Term: 3, PrevLogEntry: 100, PrevLogTerm: 2, LeaderCommitIndex: 90}, 100},
		"commands of its own":              {hraft.AppendEntriesRequest{Term: 3, PrevLogEntry: 100, PrevLogTerm: 3, LeaderCommitIndex: 90, Entries: []*hraft.Log{cmd(101, 3)}}, 90},
		"all is committed":                 {hraft.AppendEntriesRequest{Term: 3, PrevLogEntry: 100, PrevLogTerm: 3, LeaderCommitIndex: 200, Entries: []*hraft.Log{cmd(101, 3)}}, 101},
		"behind Raft's own":                {hraft.AppendEntriesRequest{Term: 3, PrevLogEntry: 100, PrevLogTerm: 3, Entries: []*hraft.Log{cmd(101, 3), noop(102, 3), cmd(103, 3)}}, 102},
		"of earlier terms, and of its own": {hraft.AppendEntriesRequest{Term: 3, PrevLogEntry: 100, PrevLogTerm: 1, Entries: []*hraft.Log{cmd(101, 2), cmd(102, 3)}}, 101},
	} {
		if got := hadOnDisk(&c.a); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// What is applied is on disk first.
func TestAppliedWhenSettled(t *testing.T) {
	o := on(vfs.NewMem())
	m := openFake(t, o.FS, "/events")
	o.Machine = m
	f := newFSM(o, nil, func(error) {})
	f.applied = func(progress) {}
	e := event.Entry{Time: 1, Commands: [][]byte{event.EncodeCommand(put("a"))}}
	entry := e.Encode()
	var asked uint64
	f.settled = func(index uint64) error {
		asked = index
		if head, _ := m.Head(); head != 0 {
			t.Errorf("%d is applied before it is on disk", head)
		}
		return nil
	}
	f.ApplyBatch([]*hraft.Log{{Index: 1, Data: entry}, {Index: 2, Data: entry}})
	if head, _ := m.Head(); head != 2 || asked != 2 {
		t.Errorf("applied up to %d, on disk up to %d", head, asked)
	}
	f.settled = func(uint64) error { return errBroken }
	if out := f.ApplyBatch([]*hraft.Log{{Index: 3, Data: entry}}); out[0] != errBroken {
		t.Errorf("%v", out)
	}
	if head, _ := m.Head(); head != 2 {
		t.Errorf("applied up to %d, which is not on disk", head)
	}
}

func termOf(t *testing.T, m *member, index uint64) uint64 {
	var l hraft.Log
	if err := m.stores.log.GetLog(index, &l); err != nil {
		t.Fatal(err)
	}
	return l.Term
}

// A log that is ahead of its disk shows all of it, in order, writes it in order,
// and waits with what must not overtake it.
func TestAhead(t *testing.T) {
	g := newGate()
	disk := vfs.NewMem()
	s := aheadLog(t, disk, g)
	var leads bool
	s.leads = func() bool { return leads }
	store := func(from, to uint64) {
		t.Helper()
		var logs []*hraft.Log
		for i := from; i <= to; i++ {
			logs = append(logs, &hraft.Log{Index: i, Term: 1, Data: fmt.Append(nil, i)})
		}
		if err := s.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
	}
	store(1, 3) // not as a leader: durable when it returns
	if last, _ := s.wal.LastIndex(); last != 3 {
		t.Fatalf("on disk up to %d", last)
	}
	leads = true
	open := g.close()
	store(4, 4)
	<-g.came
	store(5, 500) // more than the cache keeps
	if last, err := s.LastIndex(); last != 500 || err != nil {
		t.Errorf("last %d, %v", last, err)
	}
	for i := uint64(1); i <= 500; i++ {
		var l hraft.Log
		if err := s.GetLog(i, &l); err != nil || l.Index != i || string(l.Data) != fmt.Sprint(i) {
			t.Fatalf("entry %d: %+v, %v", i, l, err)
		}
	}
	if err := s.settled(3); err != nil {
		t.Error(err)
	}
	open()
	// What is not the leader's comes behind what is ahead: a conflict that is cut
	// off the end, and what Raft stores for itself.
	open = g.close()
	store(501, 510)
	<-g.came
	cut := make(chan error, 1)
	go func() { cut <- s.DeleteRange(450, 510) }()
	waits(t, s)
	open()
	if err := <-cut; err != nil {
		t.Fatal(err)
	}
	open = g.close()
	store(450, 460)
	<-g.came
	stored := make(chan error, 1)
	go func() { stored <- s.StoreLog(&hraft.Log{Index: 461, Term: 2, Type: hraft.LogNoop}) }()
	waits(t, s)
	open()
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
	if last, err := s.wal.LastIndex(); last != 461 || err != nil {
		t.Errorf("on disk up to %d, %v", last, err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	// And all of it is what another process finds.
	s = aheadLog(t, disk, g)
	defer s.close()
	for i := uint64(1); i <= 460; i++ {
		var l hraft.Log
		if err := s.GetLog(i, &l); err != nil || string(l.Data) != fmt.Sprint(i) {
			t.Fatalf("entry %d: %+v, %v", i, l, err)
		}
	}
}

// waits returns when somebody waits for what is ahead.
func waits(t *testing.T, s *logStore) {
	t.Helper()
	until(t, "nobody waits", func() bool {
		s.ahead.mu.Lock()
		defer s.ahead.mu.Unlock()
		return s.ahead.changed != nil
	})
}

// What is ahead of a disk that fails, or hangs, is never settled, and nothing is
// stored behind it.
func TestAheadOfABadDisk(t *testing.T) {
	for name, hangs := range map[string]bool{"fails": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			g, k := newGate(), &killFS{Mem: vfs.NewMem()}
			k.left.Store(1000)
			s := aheadLog(t, k, g)
			s.leads = func() bool { return true }
			fatal := make(chan error, 2)
			s.fatal = func(err error) { fatal <- err }
			if hangs {
				s.deadline = 10 * time.Millisecond
			}
			open := g.close()
			defer func() { open(); s.close() }()
			if err := s.StoreLog(&hraft.Log{Index: 1, Term: 1}); err != nil {
				t.Fatal(err)
			}
			if !hangs { // else its deadline passes
				k.left.Store(0)
				open()
			}
			if err := s.settled(1); err != errBroken {
				t.Errorf("settled: %v", err)
			}
			if err := <-fatal; err == nil {
				t.Error("nobody is told")
			}
			if err := s.StoreLog(&hraft.Log{Index: 2, Term: 1}); err != errBroken {
				t.Errorf("stored behind it: %v", err)
			}
		})
	}
}

func aheadLog(t *testing.T, fsys vfs.FS, g *gate) *logStore {
	o := on(fsys)
	o.Machine = openFake(t, fsys, "/events")
	o.BeforeStore, o.StoreDeadline = g.pass, time.Minute
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if err := fsys.MkdirAll(o.Dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	s, err := openLog(o, noFaults, func() uint64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	return s
}
