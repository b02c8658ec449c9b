package main

import (
	"path/filepath"
	"testing"

	"github.com/qlogd/qlogd/api/wire"
	"github.com/qlogd/qlogd/client"
)

// A cluster of one stays by the rules that its log began with as long as newer
// ones bring it nothing, so that an older program can follow a newer one.
func TestProgramIsExchanged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	defer func() { knowsRules = "" }()
	for i, knows := range []string{"1", "", "1", ""} {
		knowsRules = knows
		n, c := testNode(t, dir)
		if _, _, err := c.PutQueue(t.Context(), string(rune('a'+i)), wire.PolicyUpdate{}); err != nil {
			t.Fatal(err)
		}
		if err := n.engine().replica.Snapshot(); err != nil {
			t.Fatal(err)
		}
		for typ, want := range map[string]int{"queue_created": i + 1, "rules_changed": 0} {
			if got := must[*wire.EventList](t)(c.Events(t.Context(), client.EventQuery{From: "start", Type: typ})).Events; len(got) != want {
				t.Fatalf("a program that knows %q: %+v", knows, got)
			}
		}
		stopNode(t, n)
	}
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
