package raft

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
	"github.com/qlogd/qlogd/log/vfs"
)

// TestDamagedBolt damages the bbolt files in ways that bbolt answers with a panic or a fault: the
// error names the file.
func TestDamagedBolt(t *testing.T) {
	made := t.TempDir()
	at := func(dir string) Options {
		o := on(vfs.OS{})
		o.OpenKV, o.Dir, o.CheckpointDir = nil, dir+"/raft", dir+"/checkpoints"
		o.Machine = openFake(t, vfs.OS{}, dir+"/events")
		return o
	}
	n := boot(t, at(made))
	n.put("a")
	n.down()
	n = boot(t, at(made))
	assert.EqualSlices(t, n.m.names(), []string{"a"}, "undamaged")
	n.down()
	for name, c := range map[string]struct {
		file   string
		damage func(b []byte) []byte
	}{
		"pages of the votes":        {votesFile, flipPages},
		"pages of the log's":        {metaFile, flipPages},
		"the votes, cut":            {votesFile, func(b []byte) []byte { return b[:2*os.Getpagesize()] }},
		"a part of the first page":  {votesFile, func(b []byte) []byte { return b[:2331] }},
		"nothing of the log's file": {metaFile, func([]byte) []byte { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(made)))
			file := filepath.Join(dir, "raft", c.file)
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			b = c.damage(b)
			require.NoError(t, os.WriteFile(file, b, 0o600))
			if _, err = Held(at(dir)); err == nil {
				_, err = tryBoot(t, at(dir))
			}
			require.True(t, err != nil, "it starts")
			said := err.Error()
			assert.True(t, strings.Contains(said, "/raft/"+c.file+": the file is damaged: ") &&
				!strings.Contains(said, "invalid memory"), "start: %v", err)
		})
	}
}

// flipPages damages what each page but the first two says of itself.
func flipPages(b []byte) []byte {
	for page := 2 * os.Getpagesize(); page < len(b); page += os.Getpagesize() {
		b[page] ^= 16
	}
	return b
}
