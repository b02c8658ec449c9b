package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// put makes a data directory whose card is text.
func put(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(Path(dir, NodeFile), []byte(text), 0o600))
	return dir
}

func read(t *testing.T, dir string) *Node {
	t.Helper()
	n, err := ReadNode(dir)
	must(t, err)
	return n
}

func TestNodeCard(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadNode(dir)
	require.ErrorIs(t, err, ErrNoNode)
	for _, n := range []*Node{NewNode("n1", 1<<20), NewBlank("n1", 1<<20)} {
		must(t, n.Write(dir))
		assert.DeepEqual(t, read(t, dir), n)
	}
	a, b := NewNode("n1", 1), NewNode("n1", 1)
	assert.True(t, a.ClusterID != b.ClusterID && a.Incarnation != b.Incarnation, "the same ids")
}

// TestNodeGolden: the bytes of the card are frozen.
func TestNodeGolden(t *testing.T) {
	want := &Node{
		Format: 1, NodeID: "n1", Incarnation: "01K9Z3T1V0BBBBBBBBBBBBBBBB",
		ClusterID: "01K9Z3T1V0M9Q4S2J7C8D5E6F0",
		CreatedAt: time.Date(2026, 11, 13, 10, 0, 0, 123e6, time.UTC),
		Initial: []Member{
			{"n1", "01K9Z3T1V0BBBBBBBBBBBBBBBB", "10.0.0.1:7071", "10.0.0.1:7070"},
			{"n2", "01K9Z3T1V0CCCCCCCCCCCCCCCC", "10.0.0.2:7071", ""},
		},
		Joined: true, LogSegmentBytes: 64 << 20,
	}
	text, err := os.ReadFile("testdata/node.v1.json")
	must(t, err)
	dir := put(t, string(text))
	assert.DeepEqual(t, read(t, dir), want)
	must(t, want.Write(dir))
	got, err := os.ReadFile(Path(dir, NodeFile))
	must(t, err)
	assert.Equal(t, string(got), string(text))
}

// A flipped bit is refused, or changes nothing; push_off is an operator's to change.
func TestNodeFlipped(t *testing.T) {
	n := NewNode("n1", 1<<20)
	n.Fork = &Fork{ClusterID: "c", Index: 7, PushOff: true}
	dir := t.TempDir()
	must(t, n.Write(dir))
	good, err := os.ReadFile(Path(dir, NodeFile))
	must(t, err)
	for at := range good {
		b := []byte(string(good))
		b[at] ^= 1 << (at % 8)
		must(t, os.WriteFile(Path(dir, NodeFile), b, 0o600))
		got, err := ReadNode(dir)
		if err == nil { // a space, or a name in upper case, which encoding/json takes
			assert.DeepEqual(t, got, n)
		} else {
			require.ErrorContains(t, err, dir)
		}
	}
	for text, want := range map[string]string{
		strings.Replace(string(good), `"index": 7`, `"index": 6`, 1):                  "put the file back",
		regexp.MustCompile(`(?s),\s*"checksum.*"`).ReplaceAllString(string(good), ""): "unreleased qlogd",
		strings.Replace(string(good), `"push_off": true`, `"push_off":   false`, 1):   "",
	} {
		must(t, os.WriteFile(Path(dir, NodeFile), []byte(text), 0o600))
		got, err := ReadNode(dir)
		assert.ErrorContains(t, err, want)
		assert.True(t, err != nil || !got.PushOff(), "%+v", got)
	}
}

func TestNewIncarnation(t *testing.T) {
	n := NewNode("n1", 1)
	n.Joined = true
	before := *n
	n.NewIncarnation()
	assert.True(t, n.Incarnation != before.Incarnation && n.Incarnation != "",
		"incarnation is %q, was %q", n.Incarnation, before.Incarnation)
	assert.True(t, n.ClusterID == before.ClusterID && !n.Joined && n.Initial == nil, "got %+v", n)
	require.NoError(t, n.Write(t.TempDir()))
}

func TestNodeIsStrict(t *testing.T) {
	const (
		inc  = `"incarnation":"01K9Z3T1V0BBBBBBBBBBBBBBBB"`
		self = `{"id":"a","incarnation":"01K9Z3T1V0BBBBBBBBBBBBBBBB"}`
	)
	for _, c := range []struct{ name, text, want string }{
		{"another format", `{"format":2,"whatever":true}`,
			"has format 2, which this program (format 1) does not read"},
		{"unknown", `{"format":1,"node_id":"a","cluster_id":"b","typo":1}`, "typo"},
		{"empty", `{"format":1}`, "must be set"},
		{"no format", `{"node_id":"a","cluster_id":"b"}`, "must be set"},
		{"torn", `{"format":1`, "unexpected end"},
		{"without incarnation", `{"format":1,"node_id":"a","cluster_id":"b"}`,
			"older, unreleased qlogd"},
		{"nameless", `{"format":1,"cluster_id":"b",` + inc + `}`, "must be set"},
		{"nobody", `{"format":1,"node_id":"a"}`, "must be set"},
		{"no ulid", `{"format":1,"node_id":"a","incarnation":"x"}`, "incarnation"},
		{"joined nothing", `{"format":1,"node_id":"a","joined":true,` + inc + `}`,
			"need a cluster_id"},
		{"formed nothing", `{"format":1,"node_id":"a","initial":[` + self + `],` + inc + `}`,
			"need a cluster_id"},
		{"not in it", `{"format":1,"node_id":"a","cluster_id":"b","initial":[{"id":"b"}],` + inc +
			`}`, "does not have this node"},
		{"another incarnation in it",
			`{"format":1,"node_id":"a","cluster_id":"b","initial":[{"id":"a"}],` + inc + `}`,
			"does not have this node"},
		{"called what no node may be", `{"format":1,"node_id":"a b","cluster_id":"b",` + inc + `}`,
			"must match"},
		{"one in it called so",
			`{"format":1,"node_id":"a","cluster_id":"b","initial":[` + self + `,{"id":"b/c"}],` +
				inc + `}`, "initial[1]"},
		{"twice in it", `{"format":1,"node_id":"a","cluster_id":"b","initial":[` + self +
			`,{"id":"a"}],` + inc + `}`, "initial[1]"},
	} {
		_, err := ReadNode(put(t, c.text))
		assert.ErrorContains(t, err, c.want, "%s", c.name)
	}
	// What would be refused when read is not written either.
	dir := t.TempDir()
	n := NewNode("n1", 1)
	n.Incarnation = ""
	assert.ErrorContains(t, n.Write(dir), "must be set")
	_, err := os.Stat(Path(dir, NodeFile))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestAcquire: a directory is one process's, and only its owner's.
func TestAcquire(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	lock, err := Acquire(dir)
	must(t, err)
	_, err = Acquire(dir) // flock belongs to the open file: this is as good as another process
	assert.ErrorContains(t, err, "pid "+strconv.Itoa(os.Getpid()))
	must(t, lock.Close())
	link := dir + "-link"
	must(t, errors.Join(os.Chmod(dir, 0o777), os.Symlink(dir, link)))
	for name, want := range map[string]string{
		dir: "can be written to by others", link: "is a symbolic link",
	} {
		_, err = Acquire(name)
		assert.ErrorContains(t, err, want)
	}
}

// must fails the test on an error.
var must = require.NoError
