package main

import (
	"cmp"
	"encoding/json"
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
	"testing"

	"github.com/spf13/cobra"

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
	prepare     []func(*reader)
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

// commandLines returns lines of shell without comments and empty ones, those that continue one
// another joined.
func commandLines(text string) (lines []string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines
}

// toRun returns the blocks of a page that run on any machine.
func (p page) toRun(t *testing.T) (blocks []block) {
	for _, b := range p.blocks {
		if b.label != "sh" {
			continue
		}
		if why := needsMore(b.text); why != "" {
			t.Logf("%s:%d is not run, it needs %s", p.name, b.line, why)
			continue
		}
		blocks = append(blocks, b)
	}
	return blocks
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

func TestPages(t *testing.T) {
	t.Parallel()
	for _, p := range allPages(t) {
		if blocks := p.toRun(t); len(blocks) > 0 {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				r := newReader(t)
				r.must("qlogd serve")
				r.run(p.name, blocks)
			})
		}
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
