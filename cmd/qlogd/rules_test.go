package main

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// A newer program brings its rules into force on a directory of an older one's,
// tells so in the log, and can be followed by an older one no more. Until then
// it can.
func TestProgramIsExchanged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	defer func() { knowsRules = "" }()
	serve := func(knows, queue string) (changed []wire.Event) {
		t.Helper()
		knowsRules = knows
		n, c := testNode(t, dir)
		defer stopNode(t, n)
		if _, _, err := c.PutQueue(t.Context(), queue, wire.PolicyUpdate{}); err != nil {
			t.Fatal(err)
		}
		if err := n.engine().replica.Snapshot(); err != nil {
			t.Fatal(err)
		}
		return must[*wire.EventList](t)(c.Events(t.Context(), client.EventQuery{Type: "rules_changed"})).Events
	}
	for _, queue := range []string{"a", "b"} {
		if got := serve("1", queue); len(got) != 0 {
			t.Fatalf("the older program tells %+v", got)
		}
	}
	for _, queue := range []string{"c", "d"} {
		if got := serve("", queue); len(got) != 1 || got[0].Rules != int64(rules()) || got[0].Queue != "" {
			t.Fatalf("the newer one tells %+v", got)
		}
	}
	knowsRules = "1"
	c := &config{}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.flags(fs)
	if err := fs.Parse([]string{"--data-dir", dir, "--http-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	if err := c.load(fs, func(string) string { return "" }); err != nil {
		t.Fatal(err)
	}
	_, err := startNode(c, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "rules 2 are in force in this data directory, this program knows 1: run a newer one") {
		t.Fatalf("the older one again: %v", err)
	}
	serve("", "e")
}

func TestKnowsRules(t *testing.T) {
	defer func() { knowsRules = "" }()
	newest := rules()
	for set, want := range map[string]uint16{"": newest, "1": 1, "0": newest, "-1": newest, "x": newest, "60000": newest} {
		knowsRules = set
		if got := rules(); got != want {
			t.Errorf("%q: %d, not %d", set, got, want)
		}
	}
}
