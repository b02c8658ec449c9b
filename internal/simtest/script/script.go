// Package script reads the text files whose cases tests play.
package script

import (
	"os"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// Case is one case of a file: the lines behind "== title".
type Case struct{ Title, Lines string }

// Cases returns the cases of a file, in their order.
func Cases(t testing.TB, file string) (all []Case) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, part := range strings.Split("\n"+string(text), "\n== ")[1:] {
		title, lines, _ := strings.Cut(part, "\n")
		all = append(all, Case{title, lines})
	}
	return all
}

// Words splits a line into its words and its settings, NAME=VALUE.
func Words(line string) (args []string, set map[string]string) {
	set = map[string]string{}
	for _, w := range strings.Fields(line) {
		if name, value, ok := strings.Cut(w, "="); ok {
			set[name] = value
		} else {
			args = append(args, w)
		}
	}
	return args, set
}
