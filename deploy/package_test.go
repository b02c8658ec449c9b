package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestVersion: one version everywhere.
func TestVersion(t *testing.T) {
	match := func(file, pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(read(t, file))
		require.True(t, m != nil, "%s has no version", file)
		return m[1]
	}
	want := match("../Makefile", `(?m)^VERSION \?= (\S+)$`)
	for file, pattern := range map[string]string{
		"Dockerfile":                         `(?m)^ARG VERSION=(\S+)$`,
		"helm/qlogd/Chart.yaml":              `(?m)^appVersion: (\S+)$`,
		"kubernetes/kustomization.yaml":      `(?m)^    newTag: (\S+)$`,
		"../CHANGELOG.md":                    `(?m)^## \[([0-9]\S*)\] - \d{4}-\d\d-\d\d$`,
		"../client/qlogdotel/go.mod":         `(?m)^\tgithub.com/qlogd/qlogd v(\S+)$`,
		"../clients/typescript/package.json": `(?m)^  "version": "(\S+)",$`,
	} {
		assert.Equal(t, match(file, pattern), want, "version in %s", file)
	}
}

// TestUnit lets systemd check the unit.
func TestUnit(t *testing.T) {
	analyze := tool(t, "systemd-analyze", "it comes with systemd")
	unit := filepath.Join(t.TempDir(), "qlogd.service")
	text := strings.Replace(read(t, "systemd/qlogd.service"), "=/usr/bin/qlogd ", "=/bin/true ", 1)
	require.NoError(t, os.WriteFile(unit, []byte(text), 0o644))
	out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		assert.False(t, strings.Contains(line, "qlogd.service"), "%v: %s", err, line)
	}
}

// TestPackages unpacks the deb of this machine that "make release-check" has built, and checks its
// settings with its own program.
func TestPackages(t *testing.T) {
	dpkg := tool(t, "dpkg-deb", "it is Debian's")
	debs, err := filepath.Glob("../dist/qlogd_*_amd64.deb")
	require.NoError(t, err)
	if len(debs) == 0 {
		t.Skip("no package in dist/: make release-check builds it")
	}
	root := t.TempDir()
	output(t, dpkg, "--extract", debs[0], root)
	for _, file := range []string{
		"usr/lib/systemd/system/qlogd.service", "usr/share/doc/qlogd/copyright",
		"usr/share/man/man1/qlogd.1.gz", "usr/share/man/man1/qlogd-serve.1.gz",
		"usr/share/bash-completion/completions/qlogd",
	} {
		_, err := os.Stat(filepath.Join(root, file))
		assert.NoError(t, err)
	}
	for file, from := range map[string]string{
		"etc/qlogd/qlogd.yaml":                 "systemd/qlogd.yaml",
		"usr/share/doc/qlogd/cluster.yaml":     "systemd/cluster.yaml",
		"usr/lib/systemd/system/qlogd.service": "systemd/qlogd.service",
	} {
		assert.True(t, read(t, filepath.Join(root, file)) == read(t, from), "%s differs", file)
	}
	qlogd := filepath.Join(root, "usr/bin/qlogd")
	output(t, qlogd, "config", "check", "--config", filepath.Join(root, "etc/qlogd/qlogd.yaml"))
	version := output(t, dpkg, "--field", debs[0], "Version")
	assert.Contains(t, output(t, qlogd, "--version"), strings.TrimSpace(version), "its version")
	page := output(t, "zcat", filepath.Join(root, "usr/share/man/man1/qlogd.1.gz"))
	assert.Contains(t, page, "qlogd "+strings.TrimSpace(version), "the manual's version")
}
