package clienttest_test

import (
	"path/filepath"
	"testing"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/client/clienttest"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// Tests in parallel have a node each, with nothing of the others.
func TestNew(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clienttest.New(t)
			require.NoError(t, c.EnsureQueue(t.Context(), name, client.Queue{}))
			queues, err := c.Queues(t.Context(), "")
			require.NoError(t, err)
			require.Equal(t, len(queues), 1, "queues")
			assert.Equal(t, queues[0].Name, name)
		})
	}
}

// A node that is started again has what it had.
func TestStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for i := range 2 {
		n, err := clienttest.Start(dir)
		require.NoError(t, err)
		_, err = clienttest.Start(dir)
		assert.True(t, err != nil, "two nodes on one directory")
		c, err := client.New(n.Addr())
		require.NoError(t, err)
		require.NoError(t, c.EnsureQueue(t.Context(), "q", client.Queue{}))
		_, err = c.Enqueue(t.Context(), "q", client.JSON(i))
		require.NoError(t, err)
		q, err := c.Queue(t.Context(), "q")
		require.NoError(t, err)
		assert.Equal(t, q.Stats.Depth, int64(i+1))
		c.Close()
		require.NoError(t, n.Close())
	}
}
