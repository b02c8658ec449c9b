package system

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestProcess runs a shell with a child, waits until it has written a file, and
// stops both.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo up; touch ready; wait")
	cmd.Dir = dir
	p, err := Run(dir, "shell", cmd)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Ready(t.Context(), func(context.Context) error {
		_, err := os.Stat(dir + "/ready")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pids := p.PIDs()
	if len(pids) != 2 {
		t.Errorf("processes %v, want the shell and its child", pids)
	}
	if err := p.Stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if left := p.PIDs(); left != nil {
		t.Errorf("after Stop there are %v", left)
	}
	if p.tail() != "up\n" {
		t.Errorf("log %q", p.tail())
	}
}

func TestProcessEndsEarly(t *testing.T) {
	p, err := Run(t.TempDir(), "shell", exec.Command("sh", "-c", "echo no room; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	err = p.Ready(t.Context(), func(context.Context) error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("error %v, want the process's own words", err)
	}
}
