package raft

import (
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// TestFloorKeepsTheEntryAtACheckpoint: a node that has installed a checkpoint is sent
// what follows together with the term of the entry at its index; were that entry
// away, the node would be offered the next checkpoint, and so on for ever.
func TestFloorKeepsTheEntryAtACheckpoint(t *testing.T) {
	s := &snapshots{}
	s.list.Store(&[]checkpoint.Meta{{Index: 300}, {Index: 200}, {Index: 100}})
	assert.Equal(t, s.floor(), 199, "a node that has fetched the checkpoint of index 200 lacks it")
}
