package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestSecondProcessIsRefusedByPid(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("mode is %o", info.Mode().Perm())
	}
	// flock belongs to the open file, so a second open in this process is as
	// good as another process.
	_, err = Acquire(dir)
	if err == nil || !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())) {
		t.Errorf("second: %v", err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	again.Release()
}

func TestUnsafeDirectoriesAreRefused(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(open); err == nil {
		t.Error("a world-writable directory was taken")
	}
	target := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Acquire(link); err == nil {
		t.Error("a link was taken")
	}
}

func TestNodeCard(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadNode(dir); !errors.Is(err, ErrNoNode) {
		t.Fatalf("missing: %v", err)
	}
	n := NewNode("n1", 1<<20)
	if err := n.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadNode(dir)
	if err != nil || *got != *n {
		t.Fatalf("got %+v, %v; want %+v", got, err, n)
	}
	for name, text := range map[string]string{
		"newer":   `{"format":2,"whatever":true}`,
		"unknown": `{"format":1,"node_id":"a","cluster_id":"b","typo":1}`,
		"empty":   `{"format":1}`,
		"torn":    `{"format":1`,
	} {
		if err := os.WriteFile(Path(dir, NodeFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadNode(dir); err == nil {
			t.Errorf("%s: taken", name)
		} else if name == "newer" && !strings.Contains(err.Error(), "newer than this program's") {
			t.Errorf("newer: %v", err)
		}
	}
}
