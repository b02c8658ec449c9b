package chromium

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestScreenshots writes a picture of each page into the folder SCREENSHOTS.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		t.Skip("make screenshots sets SCREENSHOTS")
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	c := cluster.StartCluster(t, cluster.Options{})
	s := seed(t, c.Node(0))
	b := open(t, c.Node(0).URL())
	for _, p := range []struct{ name, path, theme string }{
		{"overview", "", "light"}, {"overview-dark", "", "dark"}, {"queue", "queues/payments", "light"},
		{"policy", "queues/payments/policy", "light"}, {"message", "messages/" + s.message, "light"},
		{"dead-letters", "queues/payments/dead", "light"}, {"undo", "queues/emails/undo", "light"},
		{"attention", "attention", "light"}, {"task", "tasks/" + s.task, "light"},
		{"webhook", "webhooks/github", "light"}, {"cluster", "cluster", "light"},
		{"difference", "past/difference?to=now&from=" + s.before, "light"},
	} {
		b.look(p.theme, 1280, 800)
		b.open(p.path)
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		require.True(t, len(png) < 300<<10, "%s has %d bytes", p.name, len(png))
		require.NoError(t, os.WriteFile(filepath.Join(dir, p.name+".png"), png, 0o644))
	}
}
