package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestDamageIsRepaired flips a byte in a sealed segment, in the header of another, an index and a
// checkpoint of one node of three. Each is found and repaired, from another node where that is
// needed. Reads meanwhile succeed or can be repeated.
func TestDamageIsRepaired(t *testing.T) {
	addrs := []string{ports.Free(t), ports.Free(t), ports.Free(t)}
	start := func(i int, dir string) *testNode {
		return startTest(t, dir, func(c *Config) {
			c.NodeID, c.RaftAddr = fmt.Sprintf("n%d", i+1), addrs[i]
			c.BootstrapExpect, c.Join, c.LogSegmentBytes = 3, addrs, 65536
		})
	}
	nodes := []*testNode{start(0, ""), start(1, ""), start(2, "")}
	for _, n := range nodes {
		<-n.Ready()
	}
	n := nodes[2]
	n.put("q", "{}")
	first := n.produce("q", wire.NewMessage{Payload: []byte(`"first"`)})[0]
	text := `"` + strings.Repeat("x", 1000) + `"`
	for range 2 {
		n.produce("q", slices.Repeat([]wire.NewMessage{{Payload: []byte(text)}}, 100)...)
		must(n.Snapshot(t.Context()))
	}
	n.until("the indexes", func() bool {
		return len(must(filepath.Glob(filepath.Join(n.dir, "log/*.idx")))) > 1
	})
	n.stop()
	files := map[string][]byte{}
	for i, pattern := range []string{"log/*.seg", "log/*.idx", "checkpoints/*"} {
		name := must(filepath.Glob(filepath.Join(n.dir, pattern)))[i%2]
		files[name] = flip(t, name, func(b []byte) int {
			return max(bytes.Index(b, []byte("first")), len(b)/2)
		})
	}
	name := must(filepath.Glob(filepath.Join(n.dir, "log/*.seg")))[1]
	files[name] = flip(t, name, header)
	n = start(2, n.dir)
	<-n.Ready()
	n.until("the first message", func() bool {
		r := must(http.Get(n.addr + "/v1/messages/" + first))
		defer r.Body.Close()
		b := must(io.ReadAll(r.Body))
		require.True(t, r.StatusCode == 200 || strings.Contains(string(b), `"retryable":true`),
			"%d %s", r.StatusCode, b)
		return r.StatusCode == 200 && strings.Contains(string(b), `"first"`)
	})
	n.until("the repair", func() bool {
		n3 := must(n.Cluster(t.Context())).Nodes[2]
		return n3.Scrub != nil && len(n3.Damaged) == 0
	})
	for name, right := range files {
		now, err := os.ReadFile(name)
		if filepath.Ext(name) == ".ckpt" {
			assert.True(t, os.IsNotExist(err), "%s is still there", name)
		} else {
			assert.True(t, bytes.Equal(now, right), "%s is still wrong", name)
		}
	}
	hurry, cancel := context.WithCancel(t.Context())
	cancel()
	for _, n := range []*testNode{nodes[0], nodes[1], n} {
		_ = n.Stop(hurry) // the last two have no majority to leave to
	}
}

// flip flips a bit of a file, which may be open, and returns the file as it was.
func flip(t *testing.T, name string, at func(right []byte) int) (right []byte) {
	t.Helper()
	right = must(os.ReadFile(name))
	f, i := must(os.OpenFile(name, os.O_WRONLY, 0)), at(right)
	must(f.WriteAt([]byte{right[i] ^ 1}, int64(i)))
	require.NoError(t, f.Close())
	return right
}

// header is a place in the header of a segment.
func header([]byte) int { return 50 }

// TestDamageWithoutACopy flips a byte of a message in a sealed segment of a single node: events,
// histories and pages are read past it. A wrong header hides nothing.
func TestDamageWithoutACopy(t *testing.T) {
	settings := func(c *Config) { c.LogSegmentBytes, c.ScrubRate = 65536, 0 }
	n := startTest(t, "", settings)
	n.put("q", "{}")
	first := n.produce("q", wire.NewMessage{Payload: []byte(`"first"`)})[0]
	text := `"` + strings.Repeat("x", 1000) + `"`
	last := n.produce("q", slices.Repeat([]wire.NewMessage{{Payload: []byte(text)}}, 100)...)[99]
	n.produce("q", wire.NewMessage{Payload: []byte(`"next"`)})
	n.until("the index", func() bool {
		return len(must(filepath.Glob(filepath.Join(n.dir, "log/*.idx")))) > 0
	})
	must(n.Snapshot(t.Context()))
	n.stop()
	segments := must(filepath.Glob(filepath.Join(n.dir, "log/*.seg")))
	flip(t, segments[1], header)
	flip(t, segments[0], func(b []byte) int { return bytes.Index(b, []byte(`"first"`)) + 1 })
	n = startTest(t, n.dir, settings)
	for path, also := range map[string]string{
		"/v1/events?limit=1000":              last,
		"/v1/messages/" + first + "/history": first,
		"/v1/messages/" + first:              first,
		"/v1/queues/q/messages":              first,
	} {
		r := must(http.Get(n.addr + path))
		answer := string(must(io.ReadAll(r.Body)))
		r.Body.Close()
		assert.True(t, r.StatusCode == 200 && strings.Contains(answer, `"damaged":true`) &&
			strings.Contains(answer, also), "%s: %d %.300s", path, r.StatusCode, answer)
	}
	assert.Equal(t, len(must(n.Cluster(t.Context())).Nodes[0].Damaged), 2, "reported")
	n.stop()
}
