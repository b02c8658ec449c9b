package witness

import (
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/memdisk"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/datadir"
)

const name = "/witness.json"

var node = datadir.Node{NodeID: "n1", ClusterID: "c1", Incarnation: "i1"}

func TestMark(t *testing.T) {
	disk := memdisk.New()
	f, err := Open(disk, name, &node)
	require.NoError(t, err)
	assert.Equal(t, f.HighWater(), HighWater{})
	// A last time when it ends, and never lower.
	stop := make(chan struct{})
	close(stop)
	for _, m := range []HighWater{{4711, 3}, {12, 4}} {
		f.Keep(stop, func() HighWater { return m }, func(err error) { t.Error(err) })
	}
	want, err := os.ReadFile("testdata/witness.v1.json")
	require.NoError(t, err)
	assert.Equal(t, string(disk.Get(name)), string(want))
	f, err = Open(disk, name, &node)
	require.NoError(t, err)
	assert.Equal(t, f.HighWater(), HighWater{4711, 4})
	// A write that fails is reported, and leaves the mark.
	disk.FailAt(disk.Ops()+1, errors.New("EIO"))
	failed := 0
	f.Keep(stop, func() HighWater { return HighWater{5000, 4} }, func(error) { failed++ })
	assert.Equal(t, failed, 1)
	assert.Equal(t, f.HighWater(), HighWater{4711, 4})

	logger := slog.New(slog.DiscardHandler)
	for _, end := range []HighWater{{4711, 4}, {5000, 4}, {4711, 9}} {
		older, err := f.Compare(end, logger)
		assert.True(t, older == "" && err == nil, "%v: %q %v", end, older, err)
	}
	for _, end := range []HighWater{{4710, 4}, {5000, 3}} {
		older, err := f.Compare(end, logger)
		assert.True(t, older != "" && err == nil, "%v: %q %v", end, older, err)
	}
	f.Accept = true
	older, err := f.Compare(HighWater{12, 3}, logger)
	assert.True(t, older == "" && err == nil, "%q %v", older, err)
	f, err = Open(disk, name, &node)
	require.NoError(t, err)
	assert.Equal(t, f.HighWater(), HighWater{12, 3})
}

// A file of another directory, or with a wrong bit, is refused, and says why.
func TestRefused(t *testing.T) {
	good, err := os.ReadFile("testdata/witness.v1.json")
	require.NoError(t, err)
	disk := memdisk.New()
	disk.Put(name, good)
	for want, n := range map[string]datadir.Node{
		"is of cluster c1":     {NodeID: "n1", ClusterID: "c2", Incarnation: "i1"},
		"is of node n1":        {NodeID: "n2", ClusterID: "c1", Incarnation: "i1"},
		"is of incarnation i1": {NodeID: "n1", ClusterID: "c1", Incarnation: "i2"},
	} {
		_, err := Open(disk, name, &n)
		assert.ErrorContains(t, err, want)
	}
	for at := range good[:len(good)-1] { // but for the line's end
		for bit := range 8 {
			b := []byte(string(good))
			b[at] ^= 1 << bit
			disk.Put(name, b)
			f, err := Open(disk, name, &node)
			// encoding/json takes names of fields in upper case, too.
			if err == nil {
				require.Equal(t, f.HighWater(), HighWater{4711, 4}, "bit %d of byte %d", bit, at)
			} else {
				require.ErrorContains(t, err, name)
			}
		}
	}
}
