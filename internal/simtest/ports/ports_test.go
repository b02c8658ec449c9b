package ports_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/ports"
)

// freeOf makes a process of this program one that says its free addresses.
const freeOf = "QLOGD_TEST_FREE"

// TestFreeIsGivenOnce: though nobody listens on it, an address that was given
// away is given to nobody else, in this process or in others.
func TestFreeIsGivenOnce(t *testing.T) {
	const processes, each = 3, 250 // more than a block
	if os.Getenv(freeOf) != "" {
		for range each {
			fmt.Println(ports.Free(t))
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // they are its own until it is killed
		return
	}
	by := map[string]int{}
	for range each {
		by[ports.Free(t)]++
	}
	for range processes {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFreeIsGivenOnce$")
		cmd.Env = append(os.Environ(), freeOf+"=1")
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		said := bufio.NewScanner(out)
		for i := range each {
			if !said.Scan() {
				t.Fatalf("the other process said %d addresses and ended: %v", i, said.Err())
			}
			by[said.Text()]++
		}
	}
	if want := (1 + processes) * each; len(by) != want {
		t.Errorf("%d addresses were given, %d of them different", want, len(by))
	}
}
