package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The help describes nothing that is not there. What it lacks is a panic at the start.
func TestHelpDescribesOnlyWhatThereIs(t *testing.T) {
	described := map[string]bool{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "qlogd ")
		described[name] = true
		for flag := range cmd.Annotations {
			shared := strings.Contains(sections()[name], "\n  those of ")
			if cmd.Flags().Lookup(flag) == nil && !shared {
				t.Errorf("%s has no --%s", name, flag)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&app{}).rootCmd())
	for name := range sections() {
		if !described[name] && name != "flags" {
			t.Errorf("there is no command %s", name)
		}
	}
}
