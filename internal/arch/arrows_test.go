package arch

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/qlogd/qlogd"

// house says for each folder which folders of this module its code may import
// (its tests may import what they like). A folder that is not listed here is
// reported: a new one must find its place. "*" is everything; a folder may
// always import what lies below it and under the same first folder of
// internal/, if that is listed.
var house = map[string][]string{
	"cmd/qlogd":         {"*"},
	"api":               {"api/wire", "event", "internal/coding", "webhook", "internal/cloudevents", "internal/dead"},
	"api/wire":          {"internal/coding"},
	"raft":              {"event", "internal/vfs", "internal/checkpoint", "internal/peer"},
	"fsm":               {"projections", "event"},
	"projections":       {"event"},
	"projections/store": {"projections", "event"},
	"log":               {"internal/vfs"},
	"client":            {"api/wire"},
	"examples/worker":   {"client"},

	"event":                   {},
	"internal/coding":         {},
	"internal/cloudevents":    {"event"},
	"internal/vfs":            {},
	"internal/processors":     {},
	"internal/peer":           {},
	"internal/simtest/memnet": {},
	"internal/sock":           {},
	"internal/certs":          {},
	"internal/egress":         {},
	"internal/push":           {"api/wire", "internal/coding", "event", "internal/egress", "internal/expression", "internal/cloudevents", "webhook"},
	"internal/forming":        {"internal/peer"},
	"internal/fetch":          {"log", "internal/peer", "internal/checkpoint", "internal/datadir", "event", "internal/eventlog", "internal/vfs"},
	"internal/checkpoint":     {"internal/vfs", "event"},
	"internal/datadir":        {"event", "internal/vfs"},
	"internal/eventlog":       {"log", "event", "internal/vfs"},
	"internal/archive":        {"log", "internal/checkpoint", "internal/datadir", "internal/vfs"},
	"internal/task":           {"event"},
	"internal/erasure":        {"internal/datadir", "event", "internal/vfs"},
	"internal/dead":           {"event"},
	"internal/whatif":         {"fsm", "projections", "event", "internal/eventlog", "replay"},
	"internal/predicate":      {"projections", "event"},
	"internal/expression":     {"internal/coding"},
	"webhook":                 {"api/wire", "internal/expression"},
	"replay":                  {"log", "internal/datadir", "internal/eventlog", "internal/checkpoint", "event", "internal/vfs", "projections"},

	// What cmd puts together below the API, and the simulation too.
	"internal/machine": {"fsm", "projections", "raft", "internal/checkpoint", "event", "internal/eventlog", "replay"},

	// A cluster in simulated time, put together as cmd does.
	"internal/simtest/sim": {"fsm", "projections", "raft", "internal/checkpoint", "event", "internal/eventlog", "replay", "internal/datadir",
		"internal/fetch", "internal/forming", "internal/machine", "internal/peer", "internal/simtest/memnet", "internal/vfs", "internal/simtest/cluster/crashtest"},

	// Tools for tests: they talk to the program from outside.
	"internal/load":                      {},
	"internal/load/qlogdload":            {"internal/load", "client", "api/wire"},
	"internal/arch":                      {},
	"internal/simtest/ports":             {},
	"internal/simtest/cluster":           {"client", "api/wire", "internal/simtest/ports"},
	"internal/simtest/cluster/crashtest": {"internal/simtest/cluster", "client", "api/wire"},
}

// owned says which folders alone may import a package that is not ours (or
// what lies below it), and under which name where that matters.
var owned = []struct {
	pkg  string
	by   []string
	name string
}{
	// The standard one: qlogd logs with log/slog. Only the bridge from hclog
	// has to name it.
	{"log", []string{"raft"}, "stdlog"},
	{"github.com/hashicorp/raft", []string{"raft"}, "hraft"},
	{"github.com/hashicorp/raft-wal", []string{"raft"}, ""},
	{"github.com/hashicorp/raft-boltdb", []string{"raft"}, ""},
	{"go.etcd.io/bbolt", []string{"raft", "projections/store"}, ""},
	{"github.com/FastFilter/xorfilter", []string{"log"}, ""},
	{"golang.org/x/sys", []string{"internal/vfs"}, ""},
	{"github.com/spf13/cobra", []string{"cmd/qlogd"}, ""},
	{"net/http", []string{"cmd/qlogd", "api", "client", "raft", "internal/peer", "internal/egress", "internal/push", "internal/simtest/cluster", "internal/simtest/cluster/crashtest"}, ""},
}

// stdOnly are the folders whose users should get nothing but them, and what is
// owned by them alone.
var stdOnly = []string{"client", "internal/vfs", "internal/arch"}

// TestArrows holds the module's own files against the rules above.
func TestArrows(t *testing.T) {
	problems, seen := checkArrows(t, "../..")
	for _, p := range problems {
		t.Error(p)
	}
	if seen == 0 {
		t.Fatal("no Go file seen")
	}
}

// TestArrowsCatch holds them against a house full of mistakes.
func TestArrowsCatch(t *testing.T) {
	problems, _ := checkArrows(t, "testdata/arrows")
	expect(t, "testdata/arrows", problems)
}

// checkArrows checks the imports of all non-test files below root and returns
// what is wrong as "file:line: what", and the number of files seen.
func checkArrows(t *testing.T, root string) (problems []string, seen int) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (base == "testdata" || strings.HasPrefix(base, ".") || hasFile(name, "go.mod")) {
				return fs.SkipDir // data, or a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		seen++
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		f, err := parser.ParseFile(fset, name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder := path.Dir(rel)
		say := func(pos token.Pos, format string, args ...any) {
			problems = append(problems, fmt.Sprintf("%s:%d: %s", rel, fset.Position(pos).Line, fmt.Sprintf(format, args...)))
		}
		if _, ok := house[folder]; !ok {
			say(f.Package, "folder %s has no place in the house: list it in internal/arch", folder)
			return nil
		}
		for _, imp := range f.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			alias := ""
			if imp.Name != nil {
				alias = imp.Name.Name
			}
			if what := judge(folder, p, alias); what != "" {
				say(imp.Pos(), "%s", what)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return problems, seen
}

// judge says what is wrong with an import, or "".
func judge(folder, imported, alias string) string {
	if to, ours := strings.CutPrefix(imported, module+"/"); ours {
		may := house[folder]
		if slices.Contains(may, "*") || slices.Contains(may, to) {
			return ""
		}
		return fmt.Sprintf("%s must not import %s", folder, to)
	}
	for _, o := range owned {
		if imported != o.pkg && (o.pkg == "log" || o.pkg == "net/http" || !strings.HasPrefix(imported, o.pkg+"/")) {
			continue
		}
		if !slices.Contains(o.by, folder) {
			return fmt.Sprintf("%s must not import %s: %s", folder, imported, onlyBy(o.by))
		}
		if o.name != "" && imported == o.pkg && alias != o.name {
			return fmt.Sprintf("import %s as %s", imported, o.name)
		}
		if len(o.by) == 1 {
			return ""
		}
	}
	first, _, _ := strings.Cut(imported, "/")
	if strings.Contains(first, ".") && slices.Contains(stdOnly, folder) {
		return fmt.Sprintf("%s is for the standard library alone, not %s", folder, imported)
	}
	return ""
}

func onlyBy(folders []string) string {
	if len(folders) == 0 {
		return "nobody does"
	}
	return "only " + strings.Join(folders, ", ") + " may"
}

func hasFile(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

// expect compares problems with the comments `// want: text` below root: each
// must be met by a problem of that line which contains the text, and there must
// be no other.
func expect(t *testing.T, root string, problems []string) {
	t.Helper()
	left := slices.Clone(problems)
	wants := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(b), "\n") {
			_, want, ok := strings.Cut(line, "// want: ")
			if !ok {
				continue
			}
			wants++
			prefix := fmt.Sprintf("%s:%d: ", filepath.ToSlash(rel), i+1)
			at := slices.IndexFunc(left, func(p string) bool {
				return strings.HasPrefix(p, prefix) && strings.Contains(p, want)
			})
			if at < 0 {
				t.Errorf("%snot caught: %s", prefix, want)
				continue
			}
			left = slices.Delete(left, at, at+1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range left {
		t.Errorf("caught what is right: %s", p)
	}
	if wants == 0 {
		t.Fatal("no want comment below " + root)
	}
}
