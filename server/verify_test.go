package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// fill enqueues more than a verification reads before its rate counts.
func (n *testNode) fill() {
	n.Helper()
	n.put("q", "{}")
	text := []byte(`"` + strings.Repeat("x", 10_000) + `"`)
	for range 3 {
		n.produce("q", slices.Repeat([]wire.NewMessage{{Payload: text}}, 60)...)
	}
	must(n.Snapshot(n.Context()))
	n.produce("q", wire.NewMessage{Payload: text})
}

// harm flips a byte of a message in a sealed segment.
func (n *testNode) harm() (file string, right []byte) {
	n.Helper()
	file = must(filepath.Glob(filepath.Join(n.dir, "log/*.seg")))[1]
	return file, flip(n.T, file, func(b []byte) int { return bytes.LastIndexByte(b, 'x') })
}

// TestVerifyNode verifies a single node's files: while it serves, and with a byte that is wrong.
func TestVerifyNode(t *testing.T) {
	n := startTest(t, "", func(c *Config) { c.NodeID, c.LogSegmentBytes, c.ScrubRate = "n1", 65536, 0 })
	n.fill()
	verify := []string{"cluster", "verify", "n1", "--wait", "--addr", n.addr}
	grows, stop := context.WithCancel(t.Context())
	var growing sync.WaitGroup
	growing.Go(func() {
		for tick := time.Tick(10 * time.Millisecond); grows.Err() == nil; <-tick {
			n.produce("q", wire.NewMessage{Payload: []byte(`"grows"`)})
		}
	})
	for range 3 {
		v := lines(t, append(verify, "-o", "json")...)[0]["verified"].(map[string]any)
		assert.Equal(t, fmt.Sprint(v["ok"], v["checkpoints"]), "true 1")
		head := must(n.LogHead(t.Context(), client.At(fmt.Sprint("index:", v["index"]))))
		assert.Equal(t, v["chain_hash"].(string), head.ChainHash)
	}
	stop()
	growing.Wait()
	assert.True(t, strings.Contains(string(output(t, verify...)), "1, all equal to the fold"), "text")

	file, _ := n.harm()
	for _, args := range [][]string{verify, {"replay", "--verify", "--data-dir", n.dir}} {
		_, err := exec.CommandContext(t.Context(), cluster.Binary(t), args...).Output()
		e, _ := errors.AsType[*exec.ExitError](err)
		require.True(t, e != nil, "%v: %v", args, err)
		assert.True(t, e.ExitCode() == 3 && bytes.Contains(e.Stderr,
			[]byte("verification found a difference (first wrong: index:")) &&
			bytes.Contains(e.Stderr, []byte(filepath.Base(file)+", offset ")),
			"%v: %v %s", args, err, e.Stderr)
	}
	found := must(n.Tasks(t.Context(), wire.TaskCompleted))[0].Verified
	assert.True(t, !found.OK && found.Segment == filepath.Base(file) && *found.Offset > 0 &&
		found.WrongIndex > found.Index, "%+v", found)
	needs := must(n.Attention(t.Context()))
	assert.True(t, slices.ContainsFunc(needs, func(i wire.AttentionItem) bool {
		return i.Kind == "node_damaged" && strings.Contains(i.Detail, filepath.Base(file))
	}), "%+v", needs)
	n.stop()
}

// TestVerifyNodes verifies nodes of a cluster, asked for at others: one at a time on each, until it
// is cancelled, or its node is stopped or removed. What is damaged is repaired.
func TestVerifyNodes(t *testing.T) {
	addrs := []string{ports.Free(t), ports.Free(t), ports.Free(t)}
	start := func(i int, dir string, rate int64) *testNode {
		return startTest(t, dir, func(c *Config) {
			c.NodeID, c.RaftAddr = fmt.Sprintf("n%d", i+1), addrs[i]
			c.BootstrapExpect, c.Join = 3, addrs
			c.LogSegmentBytes, c.ScrubRate = 65536, 0
			if rate > 0 {
				c.verifyRate = rate
			}
		})
	}
	const never = 1 // byte a second
	ctx := t.Context()
	n1, n2, n3 := start(0, "", 0), start(1, "", never), start(2, "", never)
	for _, n := range []*testNode{n1, n2, n3} {
		<-n.Ready()
	}
	n1.fill()
	begin := func(at *testNode, node string) string {
		t.Helper()
		task := must(at.VerifyNode(ctx, node))
		assert.True(t, task.Type == "verify" && task.Nodes[0].Node == node, "%+v", task)
		at.until("progress", func() bool { return must(at.Task(ctx, task.ID)).Done > 0 })
		return task.ID
	}
	ends := func(id, status, why string) {
		t.Helper()
		task := must(n1.WaitTask(ctx, id))
		assert.True(t, task.Status == status && strings.Contains(task.Error, why), "%+v", task)
	}

	id := begin(n1, "n3")
	for _, n := range []*testNode{n1, n2, n3} {
		n.until("progress everywhere", func() bool {
			v := must(n.Task(ctx, id))
			return v.Status == wire.TaskRunning && v.Done > 0 && v.Done < v.Total
		})
		_, err := n.VerifyNode(ctx, "n3")
		assert.ErrorIs(t, err, client.ErrConflict)
	}
	other := must(n3.VerifyNode(ctx, "n1"))
	assert.True(t, must(n3.WaitTask(ctx, other.ID)).Verified.OK, "n1")
	require.NoError(t, n2.CancelTask(ctx, id))
	ends(id, wire.TaskCancelled, "")
	n3.until("the reading to end", func() bool { return n3.engine().verifier.Verifying().Task == "" })

	id = begin(n2, "n3")
	n3.stop()
	n2.until("n3 to be missed", func() bool { return !must(n2.Cluster(ctx)).Nodes[2].Reachable })
	_, err := n2.VerifyNode(ctx, "n3")
	assert.ErrorIs(t, err, client.ErrNodeUnreachable)
	n3 = start(2, n3.dir, 0)
	<-n3.Ready()
	ends(id, wire.TaskFailed, "node n3 was ") // stopped; restarted, if it could not say so

	file, right := n3.harm()
	found := must(n1.WaitTask(ctx, must(n1.VerifyNode(ctx, "n3")).ID)).Verified
	assert.True(t, !found.OK && found.Segment == filepath.Base(file), "%+v", found)
	n3.until("the repair", func() bool { return bytes.Equal(must(os.ReadFile(file)), right) })

	id = begin(n1, "n2")
	require.NoError(t, n1.RemoveNode(ctx, "n2", false))
	ends(id, wire.TaskFailed, "node n2, with that data directory, is no longer a member")
	hurry, cancel := context.WithCancel(ctx)
	cancel()
	for _, n := range []*testNode{n1, n2, n3} {
		_ = n.Stop(hurry) // the last two have no majority to leave to
	}
}
