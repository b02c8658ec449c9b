package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestWebhooksGuide runs the commands of docs/reference/webhooks.md as they are there (but
// for the server's address), and compares what they print with what it says: … is
// whatever it is.
func TestWebhooksGuide(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/reference/webhooks.md")
	require.NoError(t, err)
	env := []string{"GITHUB_WEBHOOK_SECRET=It's a Secret to Everybody",
		"PAGERDUTY_WEBHOOK_SECRET=pd-0123456789abcdef"}
	n := cluster.Start(t, cluster.Options{Env: env})
	dir := t.TempDir()
	require.NoError(t, os.Symlink(cluster.Binary(t), filepath.Join(dir, "qlogd")))
	block := regexp.MustCompile("(?s)```sh\n(.*?)```\n(?:```(?:json|text)\n(.*?)```)?")
	blocks := block.FindAllStringSubmatch(string(text), -1)
	require.True(t, len(blocks) >= 7, "%d blocks", len(blocks))
	for _, b := range blocks {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c",
			strings.ReplaceAll(b[1], "localhost:7070", n.Addr()))
		cmd.Dir = dir
		cmd.Env = append(append(os.Environ(), env...), "QLOGD_ADDR="+n.URL(),
			"PATH="+dir+":"+os.Getenv("PATH"))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s\n%v\n%s%s", b[1], err, out, &stderr)
		}
		want := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(b[2])), "…", "(?s:.*)")
		assert.True(t, regexp.MustCompile(want).MatchString(string(out)),
			"%stold\n%s, the guide says\n%s", b[1], out, b[2])
	}
}
