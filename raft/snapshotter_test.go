package raft

import (
	"errors"
	"testing"

	hraft "github.com/hashicorp/raft"
)

// What hashicorp/raft says where it writes no snapshot for a configuration's sake
// is no API: this is its text.
func TestUnapplied(t *testing.T) {
	for err, want := range map[error]uint64{
		nil: 0, hraft.ErrNothingNewToSnapshot: 0, hraft.ErrRaftShutdown: 0,
		errors.New("cannot take snapshot now, wait until the configuration entry at 10 has been applied (have applied 9)"): 10,
	} {
		if got := unapplied(err); got != want {
			t.Errorf("%v: %d, not %d", err, got, want)
		}
	}
}
