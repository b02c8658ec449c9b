package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// A log whose first segments were lost, not deleted by retention, is not served:
// its live messages would have no payload.
func TestLostBeginningIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n, c := testNode(t, dir, "--log-segment-bytes", "65536")
	if _, _, err := c.PutQueue(t.Context(), "q", wire.PolicyUpdate{}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		must[[]wire.Produced](t)(c.Produce(t.Context(), "q", client.JSON(strings.Repeat("x", 10_000))))
	}
	if err := n.engine().replica.Snapshot(); err != nil {
		t.Fatal(err)
	}
	stopNode(t, n)
	files, _ := filepath.Glob(filepath.Join(dir, "log/*.seg"))
	if len(files) < 3 {
		t.Fatal(files)
	}
	if err := errors.Join(os.Remove(files[0]), os.Remove(strings.TrimSuffix(files[0], ".seg")+".idx")); err != nil {
		t.Fatal(err)
	}
	_, err := startNode(testConfig(t, dir), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "first segments are lost") {
		t.Errorf("%v", err)
	}
}
