package raft

import "github.com/qlogd/qlogd/log/checkpoint"

// DropCheckpoints removes the checkpoints below index, but for the newest two:
// the history that they begin has been deleted by retention.
func (r *Replica) DropCheckpoints(index uint64) error { return r.stores.snaps.drop(index) }

func (s *snapshots) drop(index uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	kept := s.have[:0:0]
	for i, m := range s.have {
		if i >= 2 && m.Index < index {
			names = append(names, m.Name())
		} else {
			kept = append(kept, m)
		}
	}
	s.have = kept
	return checkpoint.Remove(s.o.FS, s.o.CheckpointDir, names...)
}
