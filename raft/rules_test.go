package raft

import (
	"strings"
	"testing"

	hraft "github.com/hashicorp/raft"

	"github.com/qlogd/qlogd/event"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// entries returns the entries that the Raft log holds, by index.
func (n *node) entries() map[uint64]*event.Entry {
	n.t.Helper()
	out := map[uint64]*event.Entry{}
	i, _ := n.stores.log.FirstIndex()
	last, _ := n.stores.log.LastIndex()
	for ; i > 0 && i <= last; i++ {
		var l hraft.Log
		require.NoError(n.t, n.stores.log.GetLog(i, &l))
		if l.Type != hraft.LogCommand {
			continue
		}
		e, err := event.DecodeEntry(l.Data)
		require.NoError(n.t, err)
		out[i] = e
	}
	return out
}

func TestOlderBinaryRefuses(t *testing.T) {
	o := on(memdisk.New())
	o.Rules = 2
	n := boot(t, o)
	if _, err := n.Propose(t.Context(),
		&event.Command{Upgrade: &event.Upgrade{Rules: 2}}); err != nil {
		t.Fatal(err)
	}
	n.down()
	o = n.o
	o.Rules, o.Machine = 1, nil
	_, err := tryBoot(t, o)
	require.True(t, err != nil &&
		strings.Contains(err.Error(), "requires rules version 2, this binary supports up to 1"),
		"%v", err)
}
