package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// scratch makes this process's folder for what all its tests share.
var scratch = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "qlogd-test-") })

// Main is the TestMain of packages that run the program.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run runs the tests, and removes what they shared.
func Run(m *testing.M) int {
	// Else a program with the race detector waits for a second before it exits.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	if os.Getenv("QLOGD_BIN") == "" {
		_, _ = built() // before a test's deadline begins; Binary returns the error
	}
	code := m.Run()
	if dir, err := scratch(); err == nil {
		_ = os.RemoveAll(dir)
	}
	return code
}

// Binary returns the path of the program: of the one that QLOGD_BIN names, or of
// one that it builds at the first call.
func Binary(t testing.TB) string {
	t.Helper()
	if bin := os.Getenv("QLOGD_BIN"); bin != "" {
		path, err := filepath.Abs(bin)
		if err == nil {
			_, err = os.Stat(path) // so that go test repeats the tests of another program
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "qlogd")
	const module = "github.com/qlogd/qlogd"
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find the program: %w", err)
	}
	cmd := exec.Command("go", "build", "-o", bin, "./cmd/qlogd")
	cmd.Dir = strings.TrimSpace(string(root)) // also for tests of other modules
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return bin, nil
})
