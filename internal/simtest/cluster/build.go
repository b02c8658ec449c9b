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

// binaries are the programs that were built, by how.
var binaries struct {
	sync.Mutex
	built map[string]*program
}

type program struct {
	once sync.Once
	path string
	err  error
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
	return BinaryWith(t)
}

// BinaryWith returns the path of a program that is built with these arguments
// of go build besides, such as -tags or -ldflags.
func BinaryWith(t testing.TB, args ...string) string {
	t.Helper()
	how := strings.Join(args, " ")
	binaries.Lock()
	if binaries.built == nil {
		binaries.built = map[string]*program{}
	}
	b := binaries.built[how]
	if b == nil {
		b = &program{}
		binaries.built[how] = b
	}
	number := len(binaries.built)
	binaries.Unlock()
	b.once.Do(func() { b.path, b.err = build(fmt.Sprintf("qlogd-%d", number), args) })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

// Plain lets the program be built without the race detector, which slows it down
// several times, also where the test has it. For a TestMain of many scenarios
// that mostly wait for time-outs: the same program runs under the detector in
// crashtest.
func Plain() { plain = true }

var plain bool

func build(name string, args []string) (string, error) {
	dir, err := scratchDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, name)
	args = append([]string{"build", "-o", bin}, args...)
	if raceEnabled && !plain {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/qlogd/qlogd/cmd/qlogd")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return bin, nil
}
