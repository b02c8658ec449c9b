package raft

import (
	"fmt"
	"slices"
	"strings"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/log/checkpoint"
)

// check compares the stores with each other and with the event log before Raft
// starts, heals what a crash can leave, and refuses what it cannot.
func (s *stores) check(o Options) error {
	first, err := s.log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return err
	}
	newest, ok := s.snaps.newest()
	if ok {
		if newest.ClusterID != o.ClusterID {
			return fmt.Errorf("raft: checkpoint %s is of cluster %q, this node is of %q", newest.Name(), newest.ClusterID, o.ClusterID)
		}
		// A crash between the closing of a received snapshot and its restore:
		// finish it. A snapshot of this node's own is never ahead of its event
		// log, which was synced before.
		if head, _ := o.Machine.Head(); head < newest.HeadIndex {
			o.Logger.Warn("the event log ends below the newest checkpoint; restoring it", "head", head, "checkpoint", newest.Name(), "checkpoint_head", newest.HeadIndex)
			if err := restore(o, newest); err != nil {
				return err
			}
		}
		if last, err = s.alignLog(o, newest, first, last); err != nil {
			return err
		}
		if last == 0 {
			first = 0
		}
	}
	if last > 0 && first > newest.Index+1 {
		return fmt.Errorf("raft: the Raft log begins at index %d, but the newest usable checkpoint ends at %d: what lies between is lost", first, newest.Index)
	}
	// Every applied entry was synced in the Raft log first: an event log that
	// is ahead of it shows that the Raft log lost its end.
	if ok {
		s.known = configuration{newest.ConfigurationIndex, hraft.DecodeConfiguration(newest.Configuration).Servers}
	}
	if err := s.verify(max(first, newest.Index+1), last); err != nil {
		return err
	}
	if head, _ := o.Machine.Head(); head > max(last, newest.Index) {
		return s.lost(o, head, fmt.Sprintf("only knows entries up to index %d", max(last, newest.Index)))
	}
	return nil
}

// idOf is the id under which the newest configuration on disk has this node. A
// cluster of one that is older than incarnations knows it by its name alone.
func (s *stores) idOf(self Member) hraft.ServerID {
	if m, ok := s.known.find(serverID(self.ID, "")); ok && !isExpected(m) {
		return m.ID
	}
	return self.serverID()
}

// alignLog empties a Raft log that does not lead up to the newest snapshot.
func (s *stores) alignLog(o Options, newest checkpoint.Meta, first, last uint64) (uint64, error) {
	if last == 0 {
		return 0, nil
	}
	why := ""
	switch {
	case last < newest.Index:
		// raft-wal would refuse the snapshot's next index for ever.
		why = "it ends below the newest checkpoint"
	case first <= newest.Index:
		var l hraft.Log
		if err := s.log.GetLog(newest.Index, &l); err != nil {
			return 0, err
		}
		if l.Term == newest.Term {
			return last, nil
		}
		// What follows an entry that was never committed was not either.
		why = fmt.Sprintf("its entry %d is of term %d, the checkpoint's of term %d", newest.Index, l.Term, newest.Term)
	default:
		return last, nil
	}
	o.Logger.Warn("emptying the Raft log: "+why, "first", first, "last", last, "checkpoint", newest.Name())
	return 0, s.log.DeleteRange(first, last)
}

// verify reads the entries that Raft is about to apply. hashicorp/raft would
// panic at the first bad one; here it is an error with its index.
func (s *stores) verify(from, to uint64) error {
	var term uint64
	for i := from; i <= to; i++ {
		var l hraft.Log
		if err := s.log.GetLog(i, &l); err != nil {
			return err
		}
		if l.Term < term {
			return fmt.Errorf("raft log: entry %d is of term %d, the one before it of term %d", i, l.Term, term)
		}
		term = l.Term
		if l.Type == hraft.LogConfiguration {
			s.known = configuration{i, hraft.DecodeConfiguration(l.Data).Servers}
		}
	}
	return nil
}

func restore(o Options, meta checkpoint.Meta) error {
	meta, body, err := checkpoint.Open(o.FS, o.CheckpointDir, meta.Name())
	if err != nil {
		return err
	}
	defer body.Close()
	if err := o.Machine.Restore(meta, body); err != nil {
		return fmt.Errorf("restore checkpoint %s: %w", meta.Name(), err)
	}
	return nil
}

// bootstrap writes the first configuration of a new cluster, where there is none
// on disk. All of its first nodes write the same bytes, so that their logs agree
// from the first entry on. A crash halfway left a first term and an empty log:
// hashicorp/raft's own BootstrapCluster would then refuse for ever, and nobody
// could be elected.
func (s *stores) bootstrap(o Options) error {
	if len(o.Initial) == 0 {
		return nil
	}
	self := serverID(o.NodeID, o.Incarnation)
	initial := slices.Clone(o.Initial)
	slices.SortFunc(initial, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	in := false
	for i, m := range initial {
		in = in || m.serverID() == self
		if m.RaftAddr == "" {
			initial[i].RaftAddr = m.ID // of one that was made alone: corrected at its start
		}
	}
	if !in {
		return fmt.Errorf("the cluster's first configuration does not have this node, %s", self)
	}
	last, err := s.log.LastIndex()
	if err != nil {
		return err
	}
	if _, ok := s.snaps.newest(); ok || last > 0 {
		return nil
	}
	term, err := s.votes.term()
	if err != nil {
		return err
	}
	if term > 1 {
		return fmt.Errorf("%w: term %d is known, but the Raft log is empty", ErrLostStore, term)
	}
	// The term first: a log with an entry and no term is a lost store.
	if err := s.votes.SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		return err
	}
	return s.log.StoreLog(&hraft.Log{
		Index: 1, Term: 1, Type: hraft.LogConfiguration,
		Data: hraft.EncodeConfiguration(configurationOf(initial)),
		// AppendedAt stays zero: it would differ from node to node.
	})
}

// configurationOf has the members that are to vote as voters at once.
func configurationOf(members []Member) hraft.Configuration {
	var c hraft.Configuration
	for _, m := range members {
		s := hraft.Server{Suffrage: hraft.Nonvoter, ID: m.serverID(), Address: m.serverAddress()}
		if m.Voter {
			s.Suffrage = hraft.Voter
		}
		c.Servers = append(c.Servers, s)
	}
	return c
}
