package arch

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

const module = "github.com/qlogd/qlogd/"

// rooms lists the packages in the order of their imports: a package may import
// only packages that are listed before it. Tests may import what they like.
var rooms = []string{
	"internal/transcode", "internal/durations", "internal/certs", "internal/sharedsecret",
	"internal/hlog", "internal/pages", "internal/watchdog",
	"event",
	"log/vfs", "log/checkpoint", "log/datadir", "log/witness", "log/clock", "log",
	"projections", "projections/store",
	"fsm",
	"raft/peer", "raft/fetch", "raft",
	"api/wire", "client", "console", "examples/worker",
	"webhook",
	"background/loop", "background/task", "background/undo", "background/archive", "background/dead",
	"background/erasure", "background/push", "background/retention", "background/scrub",
	"replay", "background/verify",
	"api",
	"server", "client/clienttest",
	"cmd/qlogd",
	"deploy", "internal/arch",
	"internal/simtest/assert", "internal/simtest/require", "internal/simtest/ports",
	"internal/simtest/script", "internal/simtest/invariants", "internal/simtest/verify",
	"internal/simtest/memnet", "internal/simtest/filekv", "internal/simtest/memdisk",
	"internal/simtest/cluster", "internal/simtest/cluster/crashtest", "internal/simtest/sim",
}

// only restricts some packages further: to these packages of the module, and
// for those in stdlibOnly to these and the standard library.
var only = map[string][]string{
	"api/wire":          {"internal/transcode"},
	"client":            {"api/wire"},
	"client/clienttest": {"client", "server"},
	"console":           {"api/wire", "client", "internal/durations"},
	"event":             {"internal/durations", "internal/transcode"},
	"projections":       {"event"},
	"projections/store": {"event", "internal/pages", "projections"},
	"fsm":               {"event", "log", "log/checkpoint", "log/vfs", "projections"},
	"webhook":           {"api/wire", "event", "internal/transcode"},
}

// owners lists the packages that alone may import a third-party package.
var owners = map[string][]string{
	"github.com/hashicorp/raft":        {"raft"},
	"github.com/hashicorp/raft-wal":    {"raft", "internal/simtest/filekv", "internal/simtest/sim"},
	"github.com/hashicorp/raft-boltdb": {"raft"},
	"go.etcd.io/bbolt":                 {"raft", "projections/store"},
	"github.com/spf13/cobra":           {"cmd/qlogd"},
	"go.opentelemetry.io/otel":         {"api", "server"},
}

// TestImports checks that imports run one way through the rooms.
func TestImports(t *testing.T) {
	eachFile(t, isProduct, func(name, text string) {
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range f.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			require.NoError(t, err)
			assert.Equal(t, checkImport(path.Dir(name), imported), "", "%s", name)
		}
	})
}

// TestListeners checks that clients reach the program only through api.HTTPServer, whose Guard
// refuses web pages of other origins, and that Node.listen opens every address of the settings.
func TestListeners(t *testing.T) {
	serves := regexp.MustCompile(`[^*.\w]http\.((ListenAnd)?Serve(TLS)?|Server)\b|` +
		`[^.\w]net\.(Listen|ListenTCP|ListenUnix)\b|net\.ListenConfig|tls\.Listen`)
	may := []string{"api/server.go", // HTTPServer
		"server/server.go", // Node.listen
		"raft/peer/net.go"} // the nodes' own port, which expects a hello
	found := []string{}
	eachFile(t, isProduct, func(name, text string) {
		for _, use := range serves.FindAllString(comments.ReplaceAllString(text, ""), -1) {
			found = append(found, name)
			assert.True(t, slices.Contains(may, name) || strings.HasPrefix(name, "internal/simtest"),
				"%s uses %s: serve with api.HTTPServer what Node.listen opens", name, use)
		}
	})
	for _, file := range may {
		n := len(slices.DeleteFunc(slices.Clone(found), func(f string) bool { return f != file }))
		assert.Equal(t, n, 1, "%s: servers and listeners", file)
	}
}

var comments = regexp.MustCompile(`//.*`)

// isProduct reports whether a file is Go code of this module that is no test.
func isProduct(name string) bool {
	if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
		return false
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join("../..", dir, "go.mod")); err == nil {
			return false
		}
	}
	return true
}

// eachFile calls f with the name, from the repository's root, and the text of each file that is of
// interest.
func eachFile(t *testing.T, of func(name string) bool, f func(name, text string)) {
	t.Helper()
	checked := 0
	err := fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name != "." && d.Name()[0] == '.' || d.Name() == "node_modules" ||
			d.Name() == "testdata" || name == "bin" || strings.HasPrefix(name, "qlogd-")):
			return fs.SkipDir
		case !d.Type().IsRegular() || !of(name):
			return nil
		}
		checked++
		text, err := os.ReadFile(filepath.Join("../..", name))
		f(name, string(text))
		return err
	})
	require.NoError(t, err)
	require.NotEqual(t, checked, 0, "no file found")
}

// TestCheckImport checks that the rules reject what they are there to reject.
func TestCheckImport(t *testing.T) {
	for _, c := range []struct {
		room, imported string
		forbidden      bool
	}{
		{"raft", module + "api", true},
		{"fsm", module + "raft", true},
		{"projections", module + "log", true},
		{"client", module + "event", true},
		{"client", "github.com/vmihailenco/msgpack/v5", true},
		{"client", "github.com/go-json-experiment/json", false},
		{"api", "github.com/hashicorp/raft", true},
		{"api", module + "raft", false},
		{"console", module + "api", true},
		{"cmd/qlogd", module + "replay", false},
		{"raft", "github.com/hashicorp/raft", false},
		{"elsewhere", "fmt", true},
	} {
		if why := checkImport(c.room, c.imported); (why != "") != c.forbidden {
			t.Errorf("%s imports %s: forbidden %v, got %q", c.room, c.imported, c.forbidden, why)
		}
	}
}

// checkImport returns why room must not import a package, or "".
func checkImport(room, imported string) string {
	at := slices.Index(rooms, room)
	if at < 0 {
		return fmt.Sprintf("package %s is not listed in rooms", room)
	}
	if to, ours := strings.CutPrefix(imported, module); ours {
		allowed, restricted := only[room]
		if !slices.Contains(rooms[:at], to) || restricted && !slices.Contains(allowed, to) {
			return fmt.Sprintf("%s must not import %s", room, to)
		}
		return ""
	}
	for pkg, by := range owners {
		if (imported == pkg || strings.HasPrefix(imported, pkg+"/")) && !slices.Contains(by, room) {
			return fmt.Sprintf("%s must not import %s, only %v may", room, imported, by)
		}
	}
	// Users of the client get the standard library and the JSON library, no more.
	first, _, _ := strings.Cut(imported, "/")
	if room == "client" && strings.Contains(first, ".") &&
		!strings.HasPrefix(imported, "github.com/go-json-experiment/json") {
		return fmt.Sprintf("client must not import %s", imported)
	}
	return ""
}
