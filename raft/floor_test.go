package raft

import (
	"bytes"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/checkpoint"
)

// TestFloorKeepsTheEntryAtACheckpoint: a node that has installed a checkpoint is sent
// what follows together with the term of the entry at its index; were that entry
// away, the node would be offered the next checkpoint, and so on for ever.
func TestFloorKeepsTheEntryAtACheckpoint(t *testing.T) {
	o := on(memdisk.New()).withDefaults()
	require.NoError(t, o.FS.MkdirAll(o.CheckpointDir))
	s, err := openSnapshots(o)
	require.NoError(t, err)
	for _, index := range []uint64{100, 200, 300} {
		meta := checkpoint.Meta{Index: index}
		require.NoError(t, s.Write(&meta, bytes.NewReader(nil)))
	}
	assert.Equal(t, s.floor(), 199, "a node that has fetched the checkpoint of index 200 lacks it")
}
