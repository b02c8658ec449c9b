package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

// The folders that decide and fold. What they do must follow from their
// arguments alone (I5).
var pure = []string{"fsm", "projections"}

// locks names the folders that may hold one sync.RWMutex between the writer
// and the readers; it decides nothing.
var locks = []string{"fsm"}

// TestPure holds fsm and projections against the rules of checkPure.
func TestPure(t *testing.T) {
	for _, folder := range pure {
		t.Run(folder, func(t *testing.T) {
			dir := filepath.Join("../..", folder)
			for _, p := range checkPure(t, dir, slices.Contains(locks, folder)) {
				t.Error(p)
			}
		})
	}
}

// TestPureCatches holds a folder full of mistakes, each with a comment `// want: text` in its line,
// against them.
func TestPureCatches(t *testing.T) {
	files, err := filepath.Glob("testdata/purity/*.go")
	require.NoError(t, err)
	var wants []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, line := range strings.Split(string(text), "\n") {
			if _, want, ok := strings.Cut(line, "// want: "); ok {
				wants = append(wants, fmt.Sprintf("%s:%d: %s", filepath.Base(name), i+1, want))
			}
		}
	}
	require.NotEqual(t, len(wants), 0, "no want comment")
	got := checkPure(t, "testdata/purity", false)
	slices.Sort(got)
	slices.Sort(wants)
	require.Equal(t, strings.Join(got, "\n"), strings.Join(wants, "\n"), "problems")
}

// forbidden lists imports that let in what is not an argument: the world, the
// scheduler, chance. A trailing slash means all below.
var forbidden = []string{
	"C", "unsafe", "reflect", "runtime", "runtime/", "context", "sync/atomic", "unique",
	"weak", "plugin", "iter/", "os", "os/", "io/ioutil", "net", "net/", "syscall", "embed", "flag",
	"log", "log/",
	"math/rand", "math/rand/", "crypto/rand", "hash/maphash", "time/tzdata", "testing", "testing/",
}

// forbiddenNames lists what may not be used of packages that are else welcome.
var forbiddenNames = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer",
		"NewTicker", "Local", "LoadLocation"},
	"fmt": {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
	"github.com/oklog/ulid/v2": {
		"Make", "Now", "New", "MustNew", "DefaultEntropy", "Monotonic",
	},
}

// inMapOrder are the functions of maps that yield in the map's order; they may
// only be sorted at once.
var inMapOrder = []string{"Keys", "Values", "All"}

const excuse = "// order does not matter:"

// checkPure checks the non-test files of a folder and returns what is wrong as
// "file:line: what".
func checkPure(t *testing.T, dir string, mayLock bool) []string {
	t.Helper()
	c := &checker{fset: token.NewFileSet(), mayLock: mayLock, seen: map[string]bool{}}
	c.load(t, dir)
	for _, f := range c.files {
		c.imports(f)
		c.packageLevel(f)
		c.statements(f)
	}
	return c.problems
}

type checker struct {
	fset     *token.FileSet
	files    []*ast.File
	excused  map[string]map[int]bool // file → lines with a reason why order does not matter
	info     *types.Info
	mayLock  bool
	written  map[types.Object]bool // package-level variables that something writes to
	problems []string
	seen     map[string]bool
}

func (c *checker) say(pos token.Pos, format string, args ...any) {
	p := c.fset.Position(pos)
	s := fmt.Sprintf("%s:%d: %s", filepath.Base(p.Filename), p.Line, fmt.Sprintf(format, args...))
	if !c.seen[s] {
		c.seen[s] = true
		c.problems = append(c.problems, s)
	}
}

// load parses and type-checks; what the folder imports comes from the build
// cache, through go list.
func (c *checker) load(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	c.excused = map[string]map[int]bool{}
	var paths []string
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(c.fset, name, nil,
			parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		c.files = append(c.files, f)
		c.excused[name] = map[int]bool{}
		for _, g := range f.Comments {
			for _, com := range g.List {
				if _, why, ok := strings.Cut(com.Text, excuse); ok && strings.TrimSpace(why) != "" {
					// The reason may go on in further lines of the comment.
					from, to := c.fset.Position(com.Pos()).Line, c.fset.Position(g.End()).Line
					for l := from; l <= to+1; l++ {
						c.excused[name][l] = true
					}
				}
			}
		}
		for _, imp := range f.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if p != "unsafe" && p != "C" && !slices.Contains(paths, p) {
				paths = append(paths, p)
			}
		}
	}
	require.NotEqual(t, len(c.files), 0, "no Go file in %s", dir)
	c.info = &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{},
		Uses:  map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
	}
	conf := types.Config{Importer: importer.ForCompiler(c.fset, "gc", exports(t, paths))}
	if _, err := conf.Check(dir, c.fset, c.files, c.info); err != nil {
		t.Fatal(err)
	}
	c.findWrites()
}

// exports returns a lookup of compiled packages for go/importer.
func exports(t *testing.T, paths []string) func(string) (io.ReadCloser, error) {
	t.Helper()
	files := map[string]string{}
	if len(paths) > 0 {
		cmd := exec.Command("go",
			append([]string{"list", "-export", "-deps", "-json=ImportPath,Export", "--"},
				paths...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
		}
		for dec := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct{ ImportPath, Export string }
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			files[p.ImportPath] = p.Export
		}
	}
	return func(path string) (io.ReadCloser, error) {
		name, ok := files[path]
		if !ok {
			return nil, fmt.Errorf("%s is not listed", path)
		}
		return os.Open(name)
	}
}

func (c *checker) imports(f *ast.File) {
	for _, imp := range f.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		for _, no := range forbidden {
			if p == no || strings.HasSuffix(no, "/") && strings.HasPrefix(p, no) {
				c.say(imp.Pos(), "imports %s", p)
				break
			}
		}
	}
}

// packageLevel allows variables that are errors or tables nobody writes to.
func (c *checker) packageLevel(f *ast.File) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			c.say(fn.Pos(), "has an init function")
		}
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, name := range v.Names {
				if name.Name == "_" {
					continue
				}
				obj := c.info.Defs[name]
				var init ast.Expr
				if i < len(v.Values) {
					init = v.Values[i]
				}
				switch {
				case c.written[obj]:
					c.say(name.Pos(), "package-level variable %s is written to", name.Name)
				case init == nil:
					c.say(name.Pos(), "package-level variable %s is no constant table", name.Name)
				case isError(obj.Type()):
				case isTable(init):
				default:
					c.say(name.Pos(), "package-level variable %s is no constant table", name.Name)
				}
			}
		}
	}
}

func isError(t types.Type) bool {
	return types.Identical(t, types.Universe.Lookup("error").Type())
}

func isTable(e ast.Expr) bool {
	if u, ok := e.(*ast.UnaryExpr); ok && u.Op == token.AND {
		return false // a pointer can be written through anywhere
	}
	_, ok := ast.Unparen(e).(*ast.CompositeLit)
	return ok
}

// findWrites notes package-level variables that are assigned to, in whole or
// in part, or whose address is taken.
func (c *checker) findWrites() {
	c.written = map[types.Object]bool{}
	note := func(e ast.Expr) {
		for {
			switch x := ast.Unparen(e).(type) {
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.SliceExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.Ident:
				if v, ok := c.info.Uses[x].(*types.Var); ok && v.Pkg() != nil &&
					v.Parent() == v.Pkg().Scope() {
					c.written[v] = true
				}
				return
			default:
				return
			}
		}
	}
	for _, f := range c.files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, l := range n.Lhs {
						note(l)
					}
				}
			case *ast.IncDecStmt:
				note(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					note(n.X)
				}
			case *ast.RangeStmt:
				if n.Tok == token.ASSIGN {
					note(n.Key)
					if n.Value != nil {
						note(n.Value)
					}
				}
			case *ast.CallExpr:
				if id, ok := ast.Unparen(n.Fun).(*ast.Ident); ok && len(n.Args) > 0 {
					if b, ok := c.info.Uses[id].(*types.Builtin); ok &&
						slices.Contains([]string{"delete", "clear", "copy"}, b.Name()) {
						note(n.Args[0])
					}
				}
			}
			return true
		})
	}
}

// statements checks everything in a file.
func (c *checker) statements(f *ast.File) {
	sorted := map[ast.Expr]bool{} // calls of maps.Keys and so on that are sorted at once
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			c.say(n.Pos(), "starts a goroutine")
		case *ast.SelectStmt:
			c.say(n.Pos(), "selects")
		case *ast.SendStmt:
			c.say(n.Pos(), "sends on a channel")
		case *ast.ChanType:
			c.say(n.Pos(), "has a channel")
		case *ast.BasicLit:
			if n.Kind == token.FLOAT || n.Kind == token.IMAG {
				c.say(n.Pos(), "has a float")
			}
		case *ast.RangeStmt:
			c.rangeOver(n)
		case *ast.CallExpr:
			if pkg, name := c.qualified(n.Fun); pkg == "slices" &&
				strings.HasPrefix(name, "Sorted") {
				for _, a := range n.Args {
					sorted[ast.Unparen(a)] = true
				}
			} else if pkg == "maps" && slices.Contains(inMapOrder, name) && !sorted[n] &&
				!c.isExcused(n.Pos()) {
				c.say(n.Pos(), "goes over a map in no order: maps.%s", name)
			}
		case *ast.SelectorExpr:
			pkg, name := c.qualified(n)
			if slices.Contains(forbiddenNames[pkg], name) {
				c.say(n.Pos(), "uses %s.%s", filepath.Base(strings.TrimSuffix(pkg, "/v2")), name)
			}
			if pkg == "sync" && (!c.mayLock || name != "RWMutex") {
				c.say(n.Pos(), "uses sync.%s", name)
			}
		}
		if e, ok := n.(ast.Expr); ok {
			if tv, ok := c.info.Types[e]; ok && isFloat(tv.Type) {
				c.say(e.Pos(), "has a float")
			}
		}
		if id, ok := n.(*ast.Ident); ok {
			if obj := c.info.Defs[id]; obj != nil && isFloat(obj.Type()) {
				c.say(id.Pos(), "has a float")
			}
		}
		return true
	})
}

func (c *checker) rangeOver(n *ast.RangeStmt) {
	t := c.info.TypeOf(n.X)
	if t == nil || c.isExcused(n.Pos()) {
		return
	}
	if p, ok := t.(*types.TypeParam); ok {
		if mapIn(p.Constraint()) {
			c.say(n.Pos(), "goes over a map in no order")
		}
		return
	}
	switch t.Underlying().(type) {
	case *types.Map:
		c.say(n.Pos(), "goes over a map in no order")
	case *types.Chan:
		c.say(n.Pos(), "has a channel")
	}
}

// mapIn reports whether a constraint lets a map through.
func mapIn(t types.Type) bool {
	i, ok := t.Underlying().(*types.Interface)
	if !ok {
		return false
	}
	for e := range i.EmbeddedTypes() {
		switch e := e.(type) {
		case *types.Union:
			for term := range e.Terms() {
				if _, ok := term.Type().Underlying().(*types.Map); ok {
					return true
				}
			}
		default:
			if _, ok := e.Underlying().(*types.Map); ok || mapIn(e) {
				return true
			}
		}
	}
	return false
}

// isExcused reports whether the line, or the one above, says why order does
// not matter.
func (c *checker) isExcused(pos token.Pos) bool {
	p := c.fset.Position(pos)
	return c.excused[p.Filename][p.Line]
}

// qualified returns package path and name of a package-level object.
func (c *checker) qualified(e ast.Expr) (pkg, name string) {
	switch x := ast.Unparen(e).(type) {
	case *ast.IndexExpr:
		return c.qualified(x.X)
	case *ast.SelectorExpr:
		obj := c.info.Uses[x.Sel]
		if obj == nil || obj.Pkg() == nil || obj.Parent() != obj.Pkg().Scope() {
			return "", ""
		}
		return obj.Pkg().Path(), obj.Name()
	}
	return "", ""
}

func isFloat(t types.Type) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&(types.IsFloat|types.IsComplex) != 0
}
