package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/internal/vfs"
)

// TestRelax starts this test in another process, which begins anew once: with the
// same id, arguments and environment, and then with slack in all threads.
func TestRelax(t *testing.T) {
	if os.Getenv("QLOGD_TEST_RELAX") != "" {
		relax()
		if v, ok := os.LookupEnv(relaxed); ok {
			t.Errorf("%s=%s is left", relaxed, v)
		}
		told := make(chan uintptr)
		for range 8 { // on threads that are not the first
			go func() {
				n, _, _ := syscall.RawSyscall6(syscall.SYS_PRCTL, prGetTimerSlack, 0, 0, 0, 0, 0)
				told <- n
			}()
		}
		for range 8 {
			if n := <-told; n < slack {
				t.Errorf("a thread has a slack of %d ns", n)
			}
		}
		os.Stdout.WriteString("\npid " + strconv.Itoa(os.Getpid()) + "\n")
		return
	}
	if !vfs.Async() {
		t.Skip("this kernel has no asynchronous I/O")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestRelax$", "-test.count=1")
	cmd.Env = append(os.Environ(), "QLOGD_TEST_RELAX=yes")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "\npid "+strconv.Itoa(cmd.Process.Pid)+"\n") != 1 {
		t.Fatalf("process %d: %v\n%s", cmd.Process.Pid, err, out)
	}
}
