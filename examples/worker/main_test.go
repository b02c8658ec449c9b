package main

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// A real worker of a real node: SIGTERM lets it finish what it has begun and give
// back the rest, and it ends well.
func TestSIGTERM(t *testing.T) {
	n := cluster.Start(t, cluster.Options{})
	c := n.Client()
	if _, _, err := c.PutQueue(t.Context(), "jobs", wire.PolicyUpdate{}); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), bin, "--addr", n.URL(), "--queue", "jobs",
		"--concurrency", "2")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said, log := make(chan string), make(chan string, 1000)
	lines := func(r io.Reader, to chan string) {
		for s := bufio.NewScanner(r); s.Scan(); {
			to <- s.Text()
		}
		close(to)
	}
	go lines(stdout, said)
	go lines(stderr, log)

	// Quick ones first, so that the worker dares to lease ahead; then slow ones.
	for i := range 10 {
		if _, err := c.Enqueue(t.Context(), "jobs",
			client.JSON(greeting{Say: fmt.Sprint("hello ", i)})); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		<-said
	}
	slow := make([]wire.NewMessage, 20)
	for i := range slow {
		slow[i] = client.JSON(greeting{Say: fmt.Sprint("slow ", i), Take: 2000})
	}
	if _, err := c.Produce(t.Context(), "jobs", slow...); err != nil {
		t.Fatal(err)
	}
	begun := 0
	note := func(line string) {
		if strings.Contains(line, " begin message=") {
			begun++
		}
	}
	for begun < 12 { // ten quick ones and two slow ones
		line, ok := <-log
		require.True(t, ok, "it has ended")
		note(line)
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	var last []string
	for s := range said {
		last = append(last, s)
	}
	for line := range log { // to its end; it may have begun more before it had the signal
		note(line)
	}
	begun -= 10
	require.NoError(t, cmd.Wait())
	slices.Sort(last)
	if len(last) != begun || !strings.HasPrefix(last[0], "slow") {
		t.Errorf("it had begun %d slow ones, and then said %q", begun, last)
	}
	q, err := c.Queue(t.Context(), "jobs")
	require.NoError(t, err)
	if s := q.Stats; s.Depth != int64(len(slow)-begun) || s.InFlight != 0 ||
		s.AckedTotal != int64(10+begun) || s.Depth == 0 {
		t.Errorf("%+v", q.Stats)
	}
	rest, err := c.Messages(t.Context(), "jobs", client.MessageQuery{})
	require.NoError(t, err)
	for _, m := range rest.Messages {
		if m.Attempt != 0 {
			t.Errorf("%s: attempt %d, although it was never begun", m.ID, m.Attempt)
		}
	}
}
