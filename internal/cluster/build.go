package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// scratch is this process's folder for what all its tests share.
var scratch struct {
	once sync.Once
	dir  string
	err  error
}

func scratchDir() (string, error) {
	scratch.once.Do(func() { scratch.dir, scratch.err = os.MkdirTemp("", "qlogd-test-") })
	return scratch.dir, scratch.err
}

// Main is the TestMain of packages that run the program; it clears away what
// their tests shared.
func Main(m *testing.M) {
	code := m.Run()
	if scratch.dir != "" {
		_ = os.RemoveAll(scratch.dir)
	}
	os.Exit(code)
}

var binary struct {
	once sync.Once
	path string
	err  error
}

// Binary returns the path of the program, building it at the first call: with
// the race detector where the test has it. QLOGD_BIN names one that is built
// already.
func Binary(t testing.TB) string {
	t.Helper()
	binary.once.Do(func() { binary.path, binary.err = build() })
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

func build() (string, error) {
	if bin := os.Getenv("QLOGD_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	dir, err := scratchDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "qlogd")
	args := []string{"build", "-o", bin}
	if raceEnabled {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./cmd/qlogd")...)
	cmd.Dir = root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return bin, nil
}

// root is the module's folder.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}
