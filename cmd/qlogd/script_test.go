package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	goflag "flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
)

// TestMain runs command lines in the processes that startCommands starts.
func TestMain(m *testing.M) {
	if os.Getenv("QLOGD_TEST_COMMANDS") != "" {
		runCommands()
		return
	}
	_ = goflag.Set("rapid.checks", "30") // unless the command line sets more
	cluster.Main(m)
}

// TestScripts runs the scripts in testdata/script. Besides testscript's own commands they have:
//
//	exits N qlogd …   the exit code is N; output is in the files out and err. A script's commands
//	                  share a process, but serve has one of its own; pages run the real program
//	serve ARG…        start a server and wait until it serves; QLOGD_ADDR names it,
//	                  and what it has logged is in the file log
//	kill9, term       end it by this signal; term wants exit code 0
//	hup               let it reload its settings, and wait until it has; the line that
//	                  it logs is in the file log
//	field NAME QUERY  set an environment variable to the first match's group
//	                  of a regular expression in out
//	flip FILE OFFSET  flip a bit; a negative offset counts from the end
func TestScripts(t *testing.T) {
	bin := cluster.Binary(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(bin)+string(filepath.ListSeparator)+e.Getenv("PATH"))
			s := &served{}
			e.Values[servedKey{}] = s
			e.Defer(s.kill)
			c, err := startCommands(e)
			e.Values[commandsKey{}] = c
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"serve": onServer((*served).start),
			"kill9": onServer(func(s *served, _ *testscript.TestScript, _ []string) { s.kill() }),
			"term":  onServer((*served).term),
			"hup":   onServer((*served).hup),
			"field": field,
			"flip":  flip,
		},
	})
}

type servedKey struct{}

func onServer(do func(*served, *testscript.TestScript, []string)) func(
	*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		do(ts.Value(servedKey{}).(*served), ts, args)
	}
}

// served is the one server of a script.
type served struct {
	cmd  *exec.Cmd
	done chan error
	mu   sync.Mutex
	log  strings.Builder
	read chan string // a line: settings were reloaded, or not
}

func (s *served) start(ts *testscript.TestScript, args []string) {
	cmd := program(ts, append([]string{"serve",
		"--http-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0"}, args...))
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	s.cmd, s.done, s.read = cmd, make(chan error, 1), make(chan string, 8)
	serving := make(chan string, 1)
	go func() {
		sc := bufio.NewScanner(stderr)
		for sc.Scan() {
			line := sc.Text()
			s.mu.Lock()
			s.log.WriteString(line + "\n")
			s.mu.Unlock()
			if strings.Contains(line, `msg="settings reloaded"`) ||
				strings.Contains(line, `msg="not all settings could be reloaded`) {
				s.read <- line
			}
			if _, rest, ok := strings.Cut(line, "msg=serving http="); ok {
				addr, _, _ := strings.Cut(rest, " ")
				serving <- addr
			}
		}
		close(serving)
		s.done <- cmd.Wait()
	}()
	addr, ok := <-serving
	if !ok {
		ts.Fatalf("the server did not serve:\n%s", s.text())
	}
	ts.Check(os.WriteFile(ts.MkAbs("log"), []byte(s.text()), 0o600))
	ts.Setenv("QLOGD_ADDR", "http://"+addr)
}

func (s *served) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func (s *served) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.done
		s.cmd = nil
	}
}

func (s *served) term(ts *testscript.TestScript, _ []string) {
	ts.Check(s.cmd.Process.Signal(syscall.SIGTERM))
	if err := <-s.done; err != nil {
		ts.Fatalf("after SIGTERM: %v\n%s", err, s.text())
	}
	s.cmd = nil
}

func (s *served) hup(ts *testscript.TestScript, _ []string) {
	ts.Check(s.cmd.Process.Signal(syscall.SIGHUP))
	select {
	case line := <-s.read:
		ts.Check(os.WriteFile(ts.MkAbs("log"), []byte(line+"\n"), 0o600))
	case err := <-s.done:
		s.cmd = nil
		ts.Fatalf("ended by SIGHUP: %v\n%s", err, s.text())
	}
}

// settings are the environment variables that scripts set.
var settings = []string{"HOME", "QLOGD_ADDR", "QLOGD_HTTP_ADDR", "QLOGD_DATA_DIR",
	"QLOGD_LOG_LEVEL", "QLOGD_INSECURE", "QLOGD_CONFIG", "QLOGD_TOKEN", "QLOGD_CONTEXT",
	"HOOK_SECRET", "HOOK_OTHER"}

// program returns a command of the real program.
func program(ts *testscript.TestScript, args []string) *exec.Cmd {
	bin, _, _ := strings.Cut(ts.Getenv("PATH"), string(filepath.ListSeparator))
	cmd := exec.Command(filepath.Join(bin, "qlogd"), args...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH")}
	for _, name := range settings {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}

type commandsKey struct{}

// commands is a process that runs a script's command lines, in the script's folder.
type commands struct {
	to   *json.Encoder
	from *json.Decoder
}

// commandLine is one of them; its answer is the exit code.
type commandLine struct {
	Args  []string
	Env   map[string]string
	Stdin string // a file
}

func startCommands(e *testscript.Env) (*commands, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Dir, cmd.Stderr = e.WorkDir, os.Stderr
	cmd.Env = []string{"PATH=" + e.Getenv("PATH"), "QLOGD_TEST_COMMANDS=1"}
	to, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	from, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	e.Defer(func() {
		_ = to.Close()
		_ = cmd.Wait()
	})
	return &commands{json.NewEncoder(to), json.NewDecoder(from)}, cmd.Start()
}

// runCommands runs what it reads until the test closes the pipe.
func runCommands() {
	from, to := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var line commandLine
		if err := from.Decode(&line); err != nil {
			return
		}
		for name, v := range line.Env {
			_ = os.Unsetenv(name)
			if v != "" {
				_ = os.Setenv(name, v)
			}
		}
		stdin := must(os.Open(line.Stdin))
		out, errOut := must(os.Create("out")), must(os.Create("err"))
		code := run(context.Background(), line.Args, stdin, out, errOut)
		for _, f := range []*os.File{stdin, out, errOut} {
			_ = f.Close()
		}
		if err := to.Encode(code); err != nil {
			return
		}
	}
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 || args[1] != "qlogd" {
		ts.Fatalf("usage: exits N qlogd ARG… [< FILE]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	line := commandLine{Args: args[2:], Env: map[string]string{}, Stdin: os.DevNull}
	if n := len(args); args[n-2] == "<" {
		line.Args, line.Stdin = args[2:n-2], ts.MkAbs(args[n-1])
	}
	var got int
	if line.Args[0] == "serve" {
		got = exitCode(ts, line.Args)
	} else {
		for _, name := range settings {
			line.Env[name] = ts.Getenv(name)
		}
		c := ts.Value(commandsKey{}).(*commands)
		ts.Check(c.to.Encode(line))
		ts.Check(c.from.Decode(&got))
	}
	ts.Logf("%s%s", ts.ReadFile("out"), ts.ReadFile("err"))
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// exitCode runs the real program and returns its exit code.
func exitCode(ts *testscript.TestScript, args []string) int {
	cmd := program(ts, args)
	out, err := os.Create(ts.MkAbs("out"))
	ts.Check(err)
	defer out.Close()
	errOut, err := os.Create(ts.MkAbs("err"))
	ts.Check(err)
	defer errOut.Close()
	cmd.Stdout, cmd.Stderr = out, errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	return cmd.ProcessState.ExitCode()
}

func field(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: field NAME KEY")
	}
	_, rest, ok := strings.Cut(ts.ReadFile("out"), `"`+args[1]+`":"`)
	if !ok {
		ts.Fatalf("no %s in out", args[1])
	}
	v, _, _ := strings.Cut(rest, `"`)
	ts.Setenv(args[0], v)
}

func flip(ts *testscript.TestScript, _ bool, args []string) {
	names, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(names) == 0 {
		ts.Fatalf("no file %s", args[0])
	}
	off, err := strconv.Atoi(args[1])
	ts.Check(err)
	b, err := os.ReadFile(names[0])
	ts.Check(err)
	if off < 0 {
		off += len(b)
	}
	b[off] ^= 0x10
	ts.Check(os.WriteFile(names[0], b, 0o600))
}
