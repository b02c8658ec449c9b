package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
)

// What a follower of heads finds wrong with a log that it has seen before.
func TestStillHolds(t *testing.T) {
	before := &wire.LogHead{ClusterID: "c", Index: 9, ChainHash: strings.Repeat("a", 64)}
	same := *before
	newer := &wire.LogHead{ClusterID: "c", Index: 12, ChainHash: strings.Repeat("b", 64)}
	other := same
	other.ChainHash = strings.Repeat("c", 64)
	for _, c := range []struct {
		before, head, now *wire.LogHead
		want              string
	}{
		{nil, newer, nil, ""},
		{before, newer, &same, ""},
		{before, &same, &same, ""},
		{before, newer, nil, ""}, // retention has deleted it
		{before, newer, &other, "history was rewritten up to index 9"},
		{before, &wire.LogHead{ClusterID: "c", Index: 8}, nil, "tail was cut off: it ended at index 9, and now at 8"},
		{before, &wire.LogHead{ClusterID: "d", Index: 12}, nil, "foreign log"},
	} {
		err := stillHolds(c.before, c.head, c.now)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
		var e *exitError
		if err != nil && (!errors.As(err, &e) || e.code != exitDifference) {
			t.Errorf("%v: not exit code 3", err)
		}
	}
}
