package arch

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestInvariants: every invariant that code cites is in docs/architecture.md,
// and every test that the document names for one exists where it says.
func TestInvariants(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	numbered := map[string]bool{}
	for _, line := range strings.Split(string(doc), "\n") {
		m := regexp.MustCompile(`^\| \*\*(I[0-9]+)\*\* \|`).FindStringSubmatch(line)
		if m == nil {
			continue
		}
		numbered[m[1]] = true
		cells := strings.Split(line, "|")
		folder := ""
		tests := regexp.MustCompile("`[^`]+`|Test[A-Z][A-Za-z0-9]*")
		for _, w := range tests.FindAllString(cells[len(cells)-2], -1) {
			if strings.HasPrefix(w, "`") {
				folder = strings.Trim(w, "`")
			} else if !hasTest(t, folder, w) {
				t.Errorf("%s names %s in %s: there is none", m[1], w, folder)
			}
		}
	}
	require.NotEqual(t, len(numbered), 0, "no invariants in the document")

	cited := regexp.MustCompile(`//.*\b(I[0-9]{1,2})\b`)
	eachFile(t, func(name string) bool { return path.Ext(name) == ".go" }, func(name, text string) {
		for i, line := range strings.Split(text, "\n") {
			if m := cited.FindStringSubmatch(line); m != nil && !numbered[m[1]] {
				t.Errorf("%s:%d cites %s, which docs/architecture.md does not have", name, i+1, m[1])
			}
		}
	})
}

func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		if strings.Contains(string(b), "func "+name+"(") {
			return true
		}
	}
	return false
}
