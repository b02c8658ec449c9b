package fetch

import (
	"regexp"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// The whole way, from everything that a node may have to what its peer has.
func TestFetchAndInstall(t *testing.T) {
	for name, c := range map[string]struct {
		// prepare makes the peer's history and returns what this node has.
		prepare func(n *node) *memdisk.Disk
		replace bool
		err     error
		seed    uint64
	}{
		"wiped":                     {prepare: func(n *node) *memdisk.Disk { n.grow(60); return memdisk.New() }, replace: false},
		"wiped, the beginning gone": {prepare: func(n *node) *memdisk.Disk { n.grow(60).retain(3); return memdisk.New() }, replace: true},
		"behind in one segment":     {prepare: func(n *node) *memdisk.Disk { d := n.grow(60).copy(); n.grow(1); return d }},
		"behind by some":            {prepare: func(n *node) *memdisk.Disk { n.grow(30).checkpoint(); d := n.copy(); n.grow(60); return d }},
		"behind, the beginning gone": {prepare: func(n *node) *memdisk.Disk {
			n.grow(60).checkpoint()
			d := n.copy()
			n.grow(10).retain(4)
			return d
		}},
		"a gap": {prepare: func(n *node) *memdisk.Disk {
			n.grow(30).checkpoint()
			d := n.copy()
			n.grow(80).retain(3)
			return d
		}, replace: true},
		"equal": {prepare: func(n *node) *memdisk.Disk { return n.grow(40).copy() }},
		"of another history": {prepare: func(n *node) *memdisk.Disk {
			n.grow(60)
			return newNode(n.t, 99).grow(30).copy()
		}, err: ErrDiffers},
		"longer, of another history": {prepare: func(n *node) *memdisk.Disk {
			n.grow(30)
			return newNode(n.t, 99).grow(60).copy()
		}, err: ErrDiffers},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 1)
			disk := c.prepare(n)
			disk.Put("/projections.db", []byte("read models"))
			before := files(t, disk, "/log", "")
			meta := n.checkpoint()
			n.grow(5) // what lies behind the checkpoint is Raft's to bring
			net := newNet()
			n.serve(net, "a")
			p, err := fetch(t, net, disk, meta, "a")
			require.ErrorIs(t, err, c.err, "fetch:")
			if c.err != nil {
				chain := regexp.MustCompile(" its chain is [0-9a-f]{64}, the other node's [0-9a-f]{64}$")
				assert.True(t, chain.MatchString(err.Error()), "it says %v", err)
			}
			assert.Equal(t, len(files(t, disk, "/log", "")), len(before),
				"fetch has changed the log")
			assert.Equal(t, install(t, disk, p), c.err == nil, "installed")
			if c.err != nil {
				return
			}
			require.NoError(t, sameAsSource(t, disk, n, meta))
			require.NoError(t, verify(t, disk))
			assert.Equal(t, disk.Get("/projections.db") == nil, c.replace,
				"the read models are gone")
			assert.False(t, install(t, disk, nil), "installed twice")
		})
	}
}

// A node whose event log goes further than the checkpoint gets that alone.
func TestAhead(t *testing.T) {
	n, net, meta := served(t, 2, 30, "a")
	disk := n.grow(20).copy()
	must(t, disk.Remove("/checkpoints/"+meta.Name()))
	p := mustFetch(t, net, disk, meta, "a")
	assert.Equal(t, net.sent, meta.Size, "bytes were sent")
	assert.True(t, install(t, disk, p), "not installed")
	must(t, verify(t, disk))
}
