package datadir

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestSecondProcessIsRefusedByPid(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := Acquire(dir)
	must(t, err)
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("mode is %o", info.Mode().Perm())
	}
	// flock belongs to the open file, so a second open in this process is as
	// good as another process.
	_, err = Acquire(dir)
	assert.True(t, err != nil && strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())),
		"second: %v", err)
	must(t, lock.Release())
	again, err := Acquire(dir)
	must(t, err)
	again.Release()
}

func TestUnsafeDirectoriesAreRefused(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	must(t, os.Mkdir(open, 0o700))
	must(t, os.Chmod(open, 0o777))
	if _, err := Acquire(open); err == nil {
		t.Error("a world-writable directory was taken")
	}
	target := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(target, link))
	if _, err := Acquire(link); err == nil {
		t.Error("a link was taken")
	}
}

// must fails the test on an error.
var must = require.NoError
