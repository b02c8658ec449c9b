// Package script reads the text files whose cases tests play.
package script

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// Case is one case of a file: the lines behind "== title".
type Case struct{ File, Title, Lines string }

// Cases returns the cases of the files that match a pattern, in their order.
func Cases(t testing.TB, pattern string) (all []Case) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.True(t, len(files) > 0, "no file %s", pattern)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, part := range strings.Split("\n"+string(text), "\n== ")[1:] {
			title, lines, _ := strings.Cut(part, "\n")
			all = append(all, Case{file, title, lines})
		}
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
