package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/qlogd/qlogd/internal/simtest/cluster"
	"github.com/qlogd/qlogd/internal/simtest/ports"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// The commands of all pages, of examples/ and of --help run as they are there, each page with a
// server of its own, which serves when it begins:
//
//   - Blocks of commands are labelled sh. They run in order by bash -euo pipefail, in a folder that
//     has what the repository has; what they define stays. Each must succeed: || echo $? shows a
//     failure that is meant. A server that a page starts runs on, in place of one at its address.
//   - A block labelled text or json right behind one is all that it prints. … is anything. White
//     space, ids, times and measured durations are not compared.
//   - Commands that only ctrl-C ends (endless) have blocks of their own.
//   - Addresses become free ones of this machine; /var, /backup and the like are in the test's folder.
//   - A command has no placeholder, but a variable that an earlier one has set. In the examples of
//     --help 01J… is an id, which needs provides.
//   - Other blocks, and `code`, name only commands and flags that exist.
var (
	endless   = regexp.MustCompile(`qlogd (work|bench)\b|--follow\b|follow=true|\bgo run `)
	addresses = regexp.MustCompile(`\b(localhost|127\.0\.0\.1|10\.0\.0\.\d+|n\d):\d{4,5}\b`)
	folders   = regexp.MustCompile(`(?m)(^|[\s'"=@<>])(/(?:var|etc|mnt|backup|elsewhere)/)`)
)

// notRun are the commands that need what a machine may lack. They are not run against a fake, and
// so not at all.
var notRun = map[string]*regexp.Regexp{
	"Docker, with images from the network": typed(`docker`),
	"PostgreSQL":                           typed(`psql|cd examples/outbox`),
	"a Kubernetes cluster":                 typed(`kubectl|helm`),
	"rights to change the machine":         typed(`sudo|systemctl|apt|install|useradd`),
	"another machine":                      typed(`ssh|scp|rsync`),
	"the network":                          typed(`git clone|go install|go get|npm|brew`),
	"minutes or hours, and fixed ports":    typed(`make [a-z]+|go test|cd bench`),
}

func typed(names string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^ *(?:\w+=\S+ )*(?:` + names + `)\b|\| (?:` + names + `)\b`)
}

// block is a piece of a page.
type block struct {
	line        int
	label, text string
	prints      string // what the page says that commands print
	saysIt      bool   // whether it says so
	before      string // commands that the test runs before
}

// page is what a reader goes through in order.
type page struct {
	name   string
	blocks []block
	code   string // `code`, and the lines of blocks that are not run
}

// allPages returns the pages and the heads of the examples.
func allPages(t *testing.T) (all []page) {
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(filepath.ToSlash(file), "../../")
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "../.." && (strings.HasPrefix(d.Name(), ".") ||
			d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == "bin"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".md") && name != "CHANGELOG.md":
			all = append(all, parsePage(name, read(t, file)))
		case strings.HasPrefix(name, "examples/") && !d.IsDir() && !strings.HasSuffix(name, "_test.go"):
			if p := parseHead(name, read(t, file)); len(p.blocks) > 0 {
				all = append(all, p)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.True(t, len(all) > 20, "%d pages", len(all))
	return all
}

func read(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(b)
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// parsePage reads Markdown.
func parsePage(name, text string) page {
	p := page{name: name}
	var in, last *block // the block that is open; the commands to which an output may belong
	for i, line := range strings.Split(text, "\n") {
		fence, label, _ := strings.Cut(line, "```")
		switch {
		case strings.TrimSpace(fence) != "" || !strings.Contains(line, "```"):
			if in != nil {
				in.text += line + "\n"
			} else if strings.TrimSpace(line) != "" {
				last = nil
				for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
					p.code += span[1] + "\n"
				}
			}
		case in == nil:
			in = &block{line: i + 1, label: label}
		case last != nil && (in.label == "text" || in.label == "json"):
			last.prints, last.saysIt = in.text, true
			in, last = nil, nil
		default:
			p.blocks = append(p.blocks, *in)
			if last = nil; in.label == "sh" {
				last = &p.blocks[len(p.blocks)-1]
			} else {
				p.code += in.text
			}
			in = nil
		}
	}
	return p
}

// parseHead reads the commands in the comment at the head of a program or a file of settings.
func parseHead(name, text string) page {
	p := page{name: name}
	commands := ""
	for _, m := range regexp.MustCompile(`(?m)^(?://\t|#   )(.*)$`).FindAllStringSubmatch(text, -1) {
		commands += m[1] + "\n"
	}
	for _, line := range commandLines(commands) {
		p.blocks = append(p.blocks, block{line: 1, label: "sh", text: line})
	}
	return p
}

// commandLines returns lines of shell without comments, those that continue one another joined.
func commandLines(text string) []string {
	lines := strings.Split(strings.TrimSpace(strings.ReplaceAll(text, "\\\n", " ")), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "#") })
}

func TestPages(t *testing.T) {
	t.Parallel()
	for _, p := range allPages(t) {
		commands := p.blocks[:0:0]
		for _, b := range p.blocks {
			if b.label == "sh" {
				commands = append(commands, b)
			}
		}
		if len(commands) > 0 {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				newReader(t).run(p.name, commands)
			})
		}
	}
}

// reader is one who types what a page says into terminals, on a machine with nothing else.
type reader struct {
	*testing.T
	dir       string
	env       []string
	addresses map[string]string // of this machine, by those of the page
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
	r := &reader{t, t.TempDir(), nil, map[string]string{}}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "QLOGD_") && !strings.HasPrefix(e, "OTEL_") {
			r.env = append(r.env, e)
		}
	}
	dirs, err := goDirs()
	require.NoError(t, err)
	r.env = append(r.env, dirs...)
	for _, dir := range []string{"nodes", "home", "strict", "work/bin", "root/etc", "root/elsewhere",
		"root/backup", "root/mnt/backup", "root/var/lib"} {
		require.NoError(t, os.MkdirAll(filepath.Join(r.dir, dir), 0o700))
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
	script, err := filepath.Abs("testdata/page.sh")
	require.NoError(t, err)
	http := r.address("127.0.0.1:7070")
	r.env = append(r.env, "QLOGD="+bin, "REPO="+repo, "PAGE="+script, "STATE="+r.path("state"),
		"NODES="+r.path("nodes"), "HOME="+r.path("home"), "XDG_CONFIG_HOME="+r.path("home"),
		"PATH="+r.path("work/bin")+":"+os.Getenv("PATH"), "LC_ALL=C.UTF-8",
		"QLOGD_ADDR="+http, "QLOGD_HTTP_ADDR="+http, "QLOGD_RAFT_ADDR="+r.address("127.0.0.1:7071"))
	t.Cleanup(r.stopServers)
	return r
}

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
	if out, err := r.bash(block{text: "qlogd serve"}); err != nil {
		r.Fatalf("%v: %s", err, out)
	}
	for _, b := range oneByOne(blocks) {
		if why := needsMore(b.text); why != "" {
			r.Logf("%s:%d is not run, it needs %s", name, b.line, why)
			continue
		}
		if n := len(commandLines(b.text)); n > 1 && endless.MatchString(b.text) {
			r.Errorf("%s:%d: only ctrl-C ends a command of these: give it a block of its own\n%s",
				name, b.line, b.text)
			continue
		}
		if strings.Contains(b.text, "…") {
			r.Errorf("%s:%d: a reader cannot type …: set a variable before\n%s", name, b.line, b.text)
			continue
		}
		out, err := r.bash(block{text: b.before})
		if err != nil {
			r.Fatalf("%s:%d: before\n%s%v: %s", name, b.line, b.text, err, out)
		}
		out, err = r.bash(b)
		switch {
		case err != nil:
			r.Errorf("%s:%d\n%s%v; it printed\n%s", name, b.line, b.text, err, out)
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
			out = append(out, block{line: b.line, text: line + "\n", before: b.before})
		}
	}
	return out
}

// needsMore returns what commands need that a machine may lack.
func needsMore(commands string) string {
	for why, re := range notRun {
		if re.MatchString(strings.ReplaceAll(commands, "make run\n", "")) {
			return why
		}
	}
	return ""
}

// patience is how long a command may take.
const patience = 3 * time.Minute

// bash runs a block and returns what it prints. It ends an endless one as ctrl-C does, once that
// has printed what it should.
func (r *reader) bash(b block) (string, error) {
	text := `. "$PAGE"` + "\n" + r.here(b.text) +
		"\n" + `unset CURL_HOME; { export -p; printf 'cd %q\n' "$PWD"; } >"$STATE"` + "\n"
	cmd := exec.Command("bash", "-c", text)
	cmd.Dir, cmd.Env = r.path("work"), r.env
	if !b.saysIt {
		cmd.Env = append(slices.Clip(r.env), "CURL_HOME="+r.path("strict"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := os.Create(r.path("out"))
	require.NoError(r, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out // not through pipes, which servers would keep open
	printed := func() string { return r.there(read(r.T, out.Name())) }
	require.NoError(r, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	limit := time.After(patience)
	if endless.MatchString(b.text) && !b.saysIt && !strings.Contains(b.text, "go run") {
		limit = time.After(time.Second) // it may have nothing to say
	}
	for {
		select {
		case err := <-done:
			return printed(), err
		case <-limit:
			if !endless.MatchString(b.text) || b.saysIt {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				return printed(), fmt.Errorf("not done after %v", patience)
			}
		case <-time.After(20 * time.Millisecond):
			text := printed()
			if !endless.MatchString(b.text) || text == "" ||
				b.saysIt && !outputRE(b.prints).MatchString(unvarying(text)) {
				continue
			}
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		select {
		case <-done:
			return printed(), nil
		case <-time.After(patience):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			return printed(), errors.New("SIGINT does not end it")
		}
	}
}

// here turns a page's commands into those of this machine, and there what they print into the page's.
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

// stopServers ends what the page has started.
func (r *reader) stopServers() {
	out, err := r.bash(block{text: "stop_servers"})
	if err != nil {
		r.Errorf("%v: %s", err, out)
	}
}

// What pages say of commands outside of blocks that run names commands and flags that exist. A block
// in which nothing is for the reader to fill in is labelled sh.
func TestMentionedCommands(t *testing.T) {
	t.Parallel()
	root := (&app{getenv: func(string) string { return "" }}).rootCmd()
	named := regexp.MustCompile(`(?m)(?:^ *(?:\$ )?|[|(] *)(?:\./bin/)?qlogd ([a-z-]+[^|;&<>#\n]*)`)
	typed := regexp.MustCompile(`(?m)^ *(\$ |(\./bin/)?qlogd [a-z]|curl )`)
	toFill := regexp.MustCompile(`[[\]…]| [A-Z][A-Z_]+\b`)
	for _, p := range allPages(t) {
		for _, b := range p.blocks {
			if b.label != "sh" && typed.MatchString(b.text) && !toFill.MatchString(b.text) {
				t.Errorf("%s:%d: label the block sh, so that it is run", p.name, b.line)
			}
		}
		for _, m := range named.FindAllStringSubmatch(p.code, -1) {
			if wrong := unknownIn(root, strings.Fields(m[1])); wrong != "" {
				t.Errorf("%s: qlogd %s: there is no %s", p.name, m[1], wrong)
			}
		}
	}
}

// unknownIn returns what a command line names that does not exist.
func unknownIn(cmd *cobra.Command, words []string) string {
	for _, word := range words {
		name, isFlag := strings.CutPrefix(word, "--")
		name = regexp.MustCompile(`^[a-z-]*`).FindString(name)
		switch {
		case isFlag:
			f := cmd.Flags().Lookup(name)
			if (f == nil || f.Hidden) && name != "help" && name != "version" {
				return word
			}
		case cmd.HasSubCommands() && name == word:
			i := slices.IndexFunc(cmd.Commands(),
				func(sub *cobra.Command) bool { return sub.Name() == word || sub.HasAlias(word) })
			if i < 0 {
				if word == "completion" || word == "help" { // cobra's own
					return ""
				}
				return word
			}
			cmd = cmd.Commands()[i]
		}
	}
	return ""
}

// goPackages are the packages of blocks of Go, by the names that they have there.
var goPackages = map[string]string{
	"client": "github.com/qlogd/qlogd/client", "clienttest": "github.com/qlogd/qlogd/client/clienttest",
	"qlogdotel": "github.com/qlogd/qlogd/client/qlogdotel", "otel": "go.opentelemetry.io/otel",
	"http": "net/http", "json": "encoding/json", "signal": "os/signal", "sql": "database/sql",
	"slog": "log/slog", "context": "", "errors": "", "fmt": "", "log": "", "os": "", "strings": "",
	"syscall": "", "testing": "", "time": "",
}

// Blocks of Go compile: as they are, or in a function that has ctx and c, a client. Other names that
// they do not declare are the reader's.
func TestGoBlocks(t *testing.T) {
	t.Parallel()
	repo, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	files, packages := map[string]string{}, map[string][]string{} // the packages by module
	for i, p := range allPages(t) {
		for _, b := range p.blocks {
			if b.label == "go" {
				module, at := repo, fmt.Sprintf("internal/page%d/line%d", i, b.line)
				if strings.Contains(b.text, "qlogdotel.") {
					module = filepath.Join(repo, "client/qlogdotel")
				}
				file := filepath.Join(dir, strings.ReplaceAll(at, "/", "-"))
				require.NoError(t, os.WriteFile(file, []byte(goFile(p.name, b)), 0o600))
				files[filepath.Join(module, at, "page.go")] = file
				packages[module] = append(packages[module], "./"+at)
			}
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": files})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay"), overlay, 0o600))
	for module, packages := range packages {
		cmd := exec.Command("go", append([]string{"build", "-gcflags=-e", "-overlay",
			filepath.Join(dir, "overlay")}, packages...)...)
		cmd.Dir = module
		out, _ := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSpace(line); !fromOutside.MatchString(line) {
				t.Error(line)
			}
		}
	}
}

// fromOutside are the complaints about what a block leaves to its reader.
var fromOutside = regexp.MustCompile(
	`^# |declared and not used|undefined: [a-z]\w*$`)

// goFile returns a block with all that its file needs, on the lines that it has on the page.
func goFile(name string, b block) string {
	line := fmt.Sprintf("//line %s:%d\n", name, b.line+1)
	text := line + strings.ReplaceAll(b.text, "…", "") // what the reader adds
	f, err := parser.ParseFile(token.NewFileSet(), "", "package page\n"+text, 0)
	if err != nil {
		text = "func _(ctx context.Context, c *client.Client) error {{\n" + text + "}; return nil }\n"
		if f, err = parser.ParseFile(token.NewFileSet(), "", "package page\n"+text, 0); err != nil {
			return "package page\n" + text // the compiler explains it
		}
	}
	imports := map[string]bool{}
	for _, name := range f.Unresolved {
		if from, ok := goPackages[name.Name]; ok {
			imports[cmp.Or(from, name.Name)] = true
		}
	}
	head := "package page\n"
	for _, from := range sortedKeys(imports) {
		head += fmt.Sprintf("import %q\n", from)
	}
	return head + text
}
