package datadir

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestSecondProcessIsRefusedByPid(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := Acquire(dir)
	must(t, err)
	info, err := os.Stat(dir)
	assert.True(t, err == nil && info.Mode().Perm() == 0o700, "%v, %v", info, err)
	// flock belongs to the open file, so a second open in this process is as
	// good as another process.
	_, err = Acquire(dir)
	assert.ErrorContains(t, err, "pid "+strconv.Itoa(os.Getpid()))
	must(t, lock.Close())
	again, err := Acquire(dir)
	must(t, err)
	again.Close()
}

func TestUnsafeDirectoriesAreRefused(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	must(t, os.Mkdir(open, 0o700))
	must(t, os.Chmod(open, 0o777))
	_, err := Acquire(open)
	assert.ErrorContains(t, err, "can be written to by others")
	target := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(target, link))
	_, err = Acquire(link)
	assert.ErrorContains(t, err, "is a symbolic link")
}

// must fails the test on an error.
var must = require.NoError
