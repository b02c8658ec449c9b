package raft

import (
	"errors"
	"fmt"
	"testing"
)

func TestPromise(t *testing.T) {
	p := promise{AckTerm: 5, AckIndex: 100, VoteTerm: 6}
	for _, c := range []struct {
		term, last uint64
		broken     bool
	}{
		{6, 100, false},
		{6, 50, false}, // a later leader may have cut its log
		{7, 1, false},
		{5, 100, true}, // the vote is forgotten
		{4, 500, true},
	} {
		if got := p.broken(c.term, c.last); (got != "") != c.broken {
			t.Errorf("term %d, last %d: %q", c.term, c.last, got)
		}
	}
	p.VoteTerm = 0
	for last, broken := range map[uint64]bool{99: true, 100: false, 101: false} {
		if got := p.broken(5, last); (got != "") != broken {
			t.Errorf("last %d in the same term: %q", last, got)
		}
	}
}

// A directory that is put back from an old copy does not vote, does not
// acknowledge, and comes back as another incarnation, which is promoted.
func TestOldCopyIsFoundOut(t *testing.T) {
	c := cluster(t, 3, nil)
	c.put("before")
	c.level()
	l := c.leader()
	var back *member
	for _, m := range c.members() {
		if m.name != l.name {
			back = m
		}
	}
	back.stop()
	old := back.disk.Clone()
	c.start(back)
	for i := range 20 {
		c.put(fmt.Sprint("after", i))
	}
	c.level()
	l = c.leader()
	until(t, "what was acknowledged is written down", func() bool {
		l.evidence.mu.Lock()
		defer l.evidence.mu.Unlock()
		return !l.evidence.dirty && l.evidence.of[back.id].AckIndex >= back.raft.LastIndex()
	})
	back.stop()
	l.stop() // also one that was restarted remembers
	c.start(l)

	back.disk = old
	c.start(back)
	if why := <-back.outs; why != WentBack {
		t.Fatalf("out: %v", why)
	}
	if ok, why := back.Ready(); ok || len(why) == 0 {
		t.Errorf("ready: %v %v", ok, why)
	}
	if back.vouched() {
		t.Error("it takes part")
	}
	term := back.raft.CurrentTerm()
	c.put("without it")
	if got := back.raft.CurrentTerm(); got != term {
		t.Errorf("its term went from %d to %d", term, got)
	}
	back.stop()

	back.inc, back.initial = "n-new", nil
	for _, m := range c.members() {
		if m != back {
			back.contacts = append(back.contacts, m.addr)
		}
	}
	c.start(back)
	c.put("with it")
	until(t, "it votes again", func() bool {
		l := c.leader()
		return l.votersKnown() == 3 && len(l.Members()) == 3
	})
	c.level()
	if len(back.outs) > 0 {
		t.Errorf("out again: %v", <-back.outs)
	}
}

// A Raft log that lost its end, in a cluster: the node does not refuse for ever,
// as one that is alone must, but may come back as a new incarnation.
func TestLostEndInACluster(t *testing.T) {
	c := cluster(t, 3, nil)
	for i := range 5 {
		c.put(fmt.Sprint(i))
	}
	c.level()
	l := c.leader()
	var lost *member
	for _, m := range c.members() {
		if m != l {
			lost = m
		}
	}
	lost.stop()
	for _, name := range []string{"/raft/" + votesFile, "/raft/" + metaFile} {
		remove(t, lost.disk, name)
	}
	if err := c.tryStart(lost); !errors.Is(err, ErrWentBack) {
		t.Fatalf("%v", err)
	}
	lost.inc, lost.initial, lost.contacts = "n-new", nil, []string{l.addr}
	c.start(lost)
	c.put("more")
	until(t, "it votes again", func() bool { return c.leader().votersKnown() == 3 })
	c.level()
}
