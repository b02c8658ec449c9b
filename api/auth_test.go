package api

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestAuthFileMistakes(t *testing.T) {
	text := strings.NewReplacer("SUM", strings.Repeat("0a", 32), "OTHER", strings.Repeat("0b", 32))
	for _, c := range table(t, "auth", 3) {
		t.Run(c[0], func(t *testing.T) {
			err := CheckAuth([]byte(text.Replace(c[2])))
			if fine := c[1] == ""; fine != (err == nil) ||
				err != nil && !strings.Contains(err.Error(), c[1]) {
				t.Errorf("%v, want %q", err, c[1])
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
	token, sum := newToken(t)
	write("- {name: x, sha256: " + sum + ", roles: [admin]}")
	a, err := LoadAuth(file)
	require.True(t, err == nil && a.Tokens() == 1, "%v", err)
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
	_, other := newToken(t)
	write("- {name: x, sha256: " + other + ", roles: [admin]}")
	require.NoError(t, a.Reload())
	get(401)
}

// newToken returns a token and its SHA-256.
func newToken(t *testing.T) (token, sum string) {
	t.Helper()
	e := TokenEntry{Name: "ops", Roles: []string{"admin"}}
	token, _, err := e.NewToken()
	require.NoError(t, err)
	return token, e.SHA256
}
