package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
		_, _ = built() // before a test's deadline begins; Binary reports the error
	}
	code := m.Run()
	if dir, err := scratch(); err == nil {
		_ = os.RemoveAll(dir)
	}
	return code
}

// Binary returns the path of the program, building it at the first call: with
// the race detector where the test has it. QLOGD_BIN names one that is built
// already.
func Binary(t testing.TB) string {
	t.Helper()
	if bin := os.Getenv("QLOGD_BIN"); bin != "" {
		path, err := filepath.Abs(bin)
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

// Plain lets the program be built without the race detector, which slows it down
// several times, also where the test has it. For a TestMain of many scenarios
// that mostly wait for time-outs: the same program runs under the detector in
// crashtest.
func Plain() { plain = true }

var plain bool

var built = sync.OnceValues(func() (string, error) {
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "qlogd")
	args := []string{"build", "-o", bin}
	if raceEnabled && !plain {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/qlogd/qlogd/cmd/qlogd")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return bin, nil
})
