package api

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

var aSum = strings.Repeat("0a", 32)

func TestAuthFileMistakes(t *testing.T) {
	good := "- name: shop\n  sha256: " + aSum + "\n  roles: [produce]\n  queues: ['orders.*']\n  expires: 2027-01-01T00:00:00Z\n"
	for _, c := range []struct{ name, text, want string }{
		{"good", good, ""},
		{"admin", "- {name: ops, sha256: " + aSum + ", roles: [admin]}", ""},
		{"json", `[{"name":"x","sha256":"` + aSum + `","roles":["read"],"queues":["*"]}]`, ""},
		{"two tokens of one name", good + strings.Replace(good, "0a0a", "0b0b", 1), ""},
		{"empty", "", "1: there are no tokens"},
		{"two documents", good + "---\n" + good, "6: the file must be one list"},
		{"a list in itself", "&a [*a]", "1: cannot unmarshal !!seq into an entry"},
		{"comment", "# nothing\n", "1: there are no tokens"},
		{"empty list", "# none\n[]\n", "there are no tokens"},
		{"syntax", "- name: [\n", ":"},
		{"no list", "tokens: []\n", "1: cannot unmarshal !!map into a list of entries"},
		{"no entry", "- x\n", "1: cannot unmarshal !!str `x` into an entry"},
		{"unknown field", "- name: x\n  rolles: [read]\n", "2: unknown field rolles"},
		{"field twice", "- name: x\n  name: y\n", "2: mapping key \"name\" already defined"},
		{"name", "- name: 'a b'\n", "1: tokens[0].name must match"},
		{"sum", "- name: x\n  sha256: abc\n", "2: tokens[0].sha256 must be"},
		{"role", "- name: x\n  sha256: " + aSum + "\n  roles:\n  - read\n  - reed\n", `tokens[0].roles has "reed"`},
		{"no roles", "- name: x\n  sha256: " + aSum + "\n", "1: tokens[0].roles must be a list"},
		{"roles empty", "- name: x\n  roles: []\n", "tokens[0].sha256 must be"},
		{"no name", "- sha256: " + aSum + "\n  roles: [admin]\n", "1: tokens[0].name must match"},
		{"no queues", "- name: x\n  sha256: " + aSum + "\n  roles: [read]\n", "1: tokens[0].queues is missing"},
		{"queues of admin", "- name: x\n  sha256: " + aSum + "\n  roles: [admin, read]\n  queues: [a]\n", "4: tokens[0].queues does not go with"},
		{"pattern", "- name: x\n  sha256: " + aSum + "\n  roles: [read]\n  queues: [a, '[']\n", `4: tokens[0].queues has "["`},
		{"pattern empty", "- name: x\n  sha256: " + aSum + "\n  roles: [read]\n  queues: ['']\n", `4: tokens[0].queues has ""`},
		{"expires", "- name: x\n  sha256: " + aSum + "\n  roles: [read]\n  queues: [a]\n  expires: soon\n", "5: tokens[0].expires must be an RFC 3339"},
		{"the same token", good + strings.Replace(good, "shop", "other", 1), "7: tokens[1].sha256 is the same"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckAuth([]byte(c.text))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestReloadKeepsTheOldOnAMistake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "auth.yaml")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	if _, err := LoadAuth(file); err == nil {
		t.Error("a missing file")
	}
	token, sum := NewToken()
	write("- {name: x, sha256: " + sum + ", roles: [admin]}")
	a, err := LoadAuth(file)
	if err != nil || a.Tokens() != 1 {
		t.Fatal(err)
	}
	h := setup(t, func(o *Options) { o.Auth = a })
	get := func(status int) answer {
		return h.do("GET", "/v1/queues", "", "Authorization: Bearer "+token).want(status)
	}
	get(200)
	write("- nonsense")
	if err := a.Reload(); err == nil || !strings.Contains(err.Error(), file+":1: ") {
		t.Error(err)
	}
	get(200)
	require.NoError(t, os.Chmod(file, 0o666))
	if err := a.Reload(); err == nil || !strings.Contains(err.Error(), "by everybody") {
		t.Error(err)
	}
	require.NoError(t, os.Chmod(file, 0o600))
	_, other := NewToken()
	write("- {name: x, sha256: " + other + ", roles: [admin]}")
	require.NoError(t, a.Reload())
	get(401)
}

func TestNewToken(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token, sum := NewToken()
		if seen[token] || len(token) != 6+52 || !strings.HasPrefix(token, "qlogd_") || len(sum) != 64 {
			t.Fatalf("%s %s", token, sum)
		}
		seen[token] = true
	}
}
