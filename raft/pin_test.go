package raft

import (
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// TestPinKeepsTheEntryAtItsIndex: a node that has installed a checkpoint is sent
// what follows together with the term of the entry at its index; were that entry
// away, the node would be offered the next checkpoint, and so on for ever.
func TestPinKeepsTheEntryAtItsIndex(t *testing.T) {
	s := &snapshots{pins: map[string]pin{}, have: []checkpoint.Meta{{Index: 300}, {Index: 200}, {Index: 100}}}
	require.Equal(t, s.floor(), 200, "without anybody who fetches the log may go up to")
	s.pin("n2", 100)
	assert.Equal(t, s.floor(), 99,
		"while somebody fetches the checkpoint of index 100, the log may go up to")
}
