package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/qlogd/qlogd/client"
	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// reader is one who types commands into a shell, on a machine with nothing else.
type reader struct {
	*testing.T
	dir       string
	addresses map[string]string // of this machine, by those of the page
	client    *client.Client    // of 127.0.0.1:7070

	shell  *exec.Cmd
	blocks io.WriteCloser // the names of files that the shell runs
	n      int            // how many
	done   chan struct{}  // received from as each is done; closed when the shell ends
	ended  error          // how it did; after done is closed
}

// goDirs returns the settings of Go's caches, which are below $HOME unless they are set.
var goDirs = sync.OnceValues(func() (settings []string, err error) {
	names := []string{"GOCACHE", "GOMODCACHE"}
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	for i, dir := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		settings = append(settings, names[i]+"="+dir)
	}
	return settings, err
})

func newReader(t *testing.T) *reader {
	r := &reader{T: t, dir: t.TempDir(), addresses: map[string]string{}}
	for _, dir := range []string{"blocks", "logs", "home", "strict", "work/bin", "root/etc",
		"root/elsewhere", "root/backup", "root/mnt/backup", "root/var/lib"} {
		require.NoError(t, os.MkdirAll(r.path(dir), 0o700))
	}
	repo, err := filepath.Abs("../..")
	require.NoError(t, err)
	there, err := os.ReadDir(repo)
	require.NoError(t, err)
	for _, d := range there {
		if name := d.Name(); name != "bin" && name[0] != '.' && !strings.HasPrefix(name, "qlogd-") {
			require.NoError(t, os.Symlink(filepath.Join(repo, name), r.path("work", name)))
		}
	}
	bin := cluster.Binary(t)
	require.NoError(t, os.Symlink(bin, r.path("work/bin/qlogd")))
	// Where a page shows no answer, it is none of an error.
	for name, more := range map[string]string{"home": "", "strict": "fail-with-body\n"} {
		require.NoError(t, os.WriteFile(r.path(name, ".curlrc"),
			[]byte("silent\nshow-error\n"+more), 0o600))
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "QLOGD_") && !strings.HasPrefix(e, "OTEL_") {
			env = append(env, e)
		}
	}
	dirs, err := goDirs()
	require.NoError(t, err)
	http := r.address("127.0.0.1:7070")
	r.client, err = client.New(http)
	require.NoError(t, err)
	env = append(append(env, dirs...), "QLOGD="+bin, "REPO="+repo, "LOGS="+r.path("logs"),
		"HOME="+r.path("home"), "XDG_CONFIG_HOME="+r.path("home"), "LC_ALL=C.UTF-8",
		"PATH="+r.path("work/bin")+":"+os.Getenv("PATH"),
		"QLOGD_ADDR="+http, "QLOGD_HTTP_ADDR="+http, "QLOGD_RAFT_ADDR="+r.address("127.0.0.1:7071"))
	r.open(env)
	t.Cleanup(r.close)
	return r
}

// open starts the shell.
func (r *reader) open(env []string) {
	script, err := filepath.Abs("testdata/page.sh")
	require.NoError(r, err)
	from, blocks, err := os.Pipe()
	require.NoError(r, err)
	done, to, err := os.Pipe()
	require.NoError(r, err)
	log, err := os.Create(r.path("shell.log"))
	require.NoError(r, err)
	r.blocks, r.done = blocks, make(chan struct{})
	r.shell = exec.Command("bash", script)
	r.shell.Dir, r.shell.Env = r.path("work"), env
	r.shell.Stdout, r.shell.Stderr = log, log
	r.shell.ExtraFiles = []*os.File{from, to}
	r.shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(r, r.shell.Start())
	for _, f := range []*os.File{from, to, log} {
		_ = f.Close()
	}
	go func() {
		for s := bufio.NewScanner(done); s.Scan(); {
			r.done <- struct{}{}
		}
		r.ended = r.shell.Wait()
		close(r.done)
	}()
}

// close ends the shell, and with it what it has started.
func (r *reader) close() {
	_ = r.blocks.Close()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.signal(syscall.SIGKILL)
		r.Error("the shell does not end")
	}
	if text := read(r.T, r.path("shell.log")); text != "" {
		r.Errorf("the shell printed\n%s", text)
	}
}

// signal sends a signal to the shell and to the command that it runs, but to no server.
func (r *reader) signal(s syscall.Signal) { _ = syscall.Kill(-r.shell.Process.Pid, s) }

func (r *reader) path(names ...string) string {
	return filepath.Join(append([]string{r.dir}, names...)...)
}

// address returns the address of this machine that a page's stands for.
func (r *reader) address(of string) string {
	of = strings.Replace(of, "localhost", "127.0.0.1", 1)
	if r.addresses[of] == "" {
		r.addresses[of] = ports.Free(r)
	}
	return r.addresses[of]
}

// run runs a page's commands and compares what they print.
func (r *reader) run(name string, blocks []block) {
	for _, b := range oneByOne(blocks) {
		if n := len(commandLines(b.text)); n > 1 && endless.MatchString(b.text) {
			r.Errorf("%s:%d: only ctrl-C ends a command of these: give it a block of its own\n%s",
				name, b.line, b.text)
			continue
		}
		if strings.Contains(b.text, "…") {
			r.Errorf("%s:%d: a reader cannot type …: set a variable before\n%s", name, b.line, b.text)
			continue
		}
		for _, prepare := range b.prepare {
			prepare(r)
		}
		out, err := r.bash(b)
		switch {
		case err != nil: // the shell has ended
			r.Fatalf("%s:%d\n%s%v; it printed\n%s", name, b.line, b.text, err, out)
		case b.saysIt && !outputRE(b.prints).MatchString(unvarying(out)):
			r.Errorf("%s:%d\n%sprinted\n%s, the page says\n%s", name, b.line, b.text, out, b.prints)
		}
	}
}

// oneByOne gives each line a block of its own where only ctrl-C ends all of a block's.
func oneByOne(blocks []block) (out []block) {
	for _, b := range blocks {
		lines := commandLines(b.text)
		if b.saysIt || slices.ContainsFunc(lines,
			func(line string) bool { return !endless.MatchString(line) }) {
			out = append(out, b)
			continue
		}
		for _, line := range lines {
			out = append(out, block{line: b.line, text: line + "\n", prepare: b.prepare})
		}
	}
	return out
}

// must runs what a page does not show.
func (r *reader) must(commands string) {
	r.Helper()
	if out, err := r.bash(block{text: commands + "\n", saysIt: true}); err != nil {
		r.Fatalf("%s\n%v: %s", commands, err, out)
	}
}

// patience is how long a command may take.
const patience = 3 * time.Minute

// bash runs a block and returns what it prints. It ends an endless one as ctrl-C does, once that
// has printed what it should.
func (r *reader) bash(b block) (string, error) {
	r.n++
	file := r.path("blocks", strconv.Itoa(r.n))
	text, curl, isEndless := r.here(b.text), "home", endless.MatchString(b.text)
	if isEndless {
		text = "{\n" + text + "} || true\n" // it ends with an error
	}
	if !b.saysIt {
		curl = "strict"
	}
	text = "export CURL_HOME=" + r.path(curl) + "\n" + text
	require.NoError(r, os.WriteFile(file, []byte(text), 0o600))
	printed := func() string {
		out, _ := os.ReadFile(file + ".out") // none yet
		return r.there(string(out))
	}
	if _, err := fmt.Fprintln(r.blocks, file); err != nil {
		<-r.done
		return "", fmt.Errorf("the shell has ended: %w", r.ended)
	}
	limit := time.After(patience)
	if isEndless {
		stop := make(chan struct{})
		defer close(stop)
		go r.interrupt(b, printed, stop)
	}
	select {
	case _, open := <-r.done:
		if !open {
			return printed(), cmp.Or(r.ended, errors.New("it ended the shell"))
		}
		return printed(), nil
	case <-limit:
		r.signal(syscall.SIGTERM)
		return printed(), fmt.Errorf("not done after %v", patience)
	}
}

// interrupt ends an endless block by ctrl-C, once that has printed what it should. One that goes on
// gets another.
func (r *reader) interrupt(b block, printed func() string, ended <-chan struct{}) {
	enough := func(text string) bool { return text != "" }
	began := time.Now()
	switch {
	case b.saysIt:
		want := outputRE(b.prints)
		enough = func(text string) bool { return want.MatchString(unvarying(text)) }
	case strings.Contains(b.text, "qlogd bench"):
		enough = func(string) bool { return r.loaded() }
	case !strings.Contains(b.text, "go run"): // it may have nothing to say
		enough = func(text string) bool { return text != "" || time.Since(began) > time.Second }
	}
	again := 20 * time.Millisecond
	for {
		select {
		case <-ended:
			return
		case <-time.After(again):
		}
		if enough(printed()) {
			r.signal(syscall.SIGINT)
			again = time.Second
		}
	}
}

// loaded reports whether qlogd bench has sent a message to its queue.
func (r *reader) loaded() bool {
	queues, _ := r.client.Queues(r.Context(), "")
	return slices.ContainsFunc(queues, func(q client.QueueInfo) bool {
		return strings.HasPrefix(q.Name, "bench-") && q.Stats.EnqueuedTotal > 0
	})
}

// here turns a page's commands into those of this machine, there what they print into the page's.
func (r *reader) here(text string) string {
	text = addresses.ReplaceAllStringFunc(text, r.address)
	return folders.ReplaceAllString(text, "${1}"+r.path("root")+"${2}")
}

func (r *reader) there(text string) string {
	for of, here := range r.addresses {
		text = strings.ReplaceAll(text, here, of)
	}
	return strings.ReplaceAll(text, r.path("root"), "")
}

// unvarying leaves out of what a command prints what differs at each run.
func unvarying(text string) string {
	for _, re := range differing {
		text = re.ReplaceAllString(text, "_")
	}
	return strings.Join(strings.Fields(text), "")
}

var differing = []*regexp.Regexp{
	regexp.MustCompile(`\b01[0-9A-HJKMNP-TV-Z]{24}\b`),
	regexp.MustCompile(`\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?`),
	regexp.MustCompile(`\b\d+(\.\d+)?(µs|ms)\b|\b\d+\.\d+s\b`),
}

func outputRE(says string) *regexp.Regexp {
	parts := strings.Split(unvarying(says), "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
}
