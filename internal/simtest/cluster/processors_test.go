package cluster_test

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// metric reads one without labels.
func metric(t *testing.T, n *cluster.Node, name string) float64 {
	t.Helper()
	_, b, err := n.Do(t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no %s", name)
	return 0
}

// TestProcessors: a server at rest comes down to one processor, and has all of them
// when it knows that it will need them; one that was told how many keeps those.
func TestProcessors(t *testing.T) {
	if runtime.NumCPU() < 2 || runtime.GOOS == "windows" {
		t.Skip("there is nothing to govern")
	}
	n := cluster.Start(t, cluster.Options{Env: []string{"GOMAXPROCS="}})
	told := cluster.Start(t, cluster.Options{Env: []string{"GOMAXPROCS=2"}})
	until := time.Now().Add(time.Minute)
	for metric(t, n, "qlogd_processors") != 1 {
		if time.Now().After(until) {
			t.Fatalf("%v processors at rest", metric(t, n, "qlogd_processors"))
		}
		time.Sleep(100 * time.Millisecond) // it is rest that it waits for
	}
	if got, changes := metric(t, told, "qlogd_processors"), metric(t, told, "qlogd_processor_changes_total"); got != 2 || changes != 0 {
		t.Errorf("%v processors of 2, %v changes", got, changes)
	}
	// What is known to compute for long has all of them before that is seen.
	c := put(t, n)
	for before := metric(t, n, "qlogd_processor_changes_total"); metric(t, n, "qlogd_processor_changes_total") == before; {
		if time.Now().After(until) {
			t.Fatal("nothing is held for a checkpoint")
		}
		if _, err := c.Produce(t.Context(), "q", client.JSON("more")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
