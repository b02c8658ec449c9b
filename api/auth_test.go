package api

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

func TestAuthFileMistakes(t *testing.T) {
	text := strings.NewReplacer("SUM", strings.Repeat("0a", 32), "OTHER", strings.Repeat("0b", 32))
	for _, c := range table(t, "auth", 3) {
		t.Run(c[0], func(t *testing.T) {
			assert.ErrorContains(t, CheckAuth([]byte(text.Replace(c[2]))), c[1])
		})
	}
}

func TestReloadKeepsTheOldOnAMistake(t *testing.T) {
	_, err := LoadAuth(filepath.Join(t.TempDir(), "none"))
	assert.True(t, err != nil, "a missing file")
	h, tok, auth, file := withAuth(t, "admin")
	assert.Equal(t, auth.Tokens(), 3, "admin, and two that expire")
	require.NoError(t, os.WriteFile(file, []byte("- nonsense"), 0o600))
	assert.ErrorContains(t, auth.Reload(), file+":1: ")
	require.NoError(t, os.Chmod(file, 0o666))
	assert.ErrorContains(t, auth.Reload(), "by everybody")
	h.as(tok["admin"], "GET", "/v1/queues", "").want(200)
}

// newToken returns a token and its SHA-256.
func newToken(t *testing.T) (token, sum string) {
	t.Helper()
	e := TokenEntry{Name: "ops", Roles: []string{"admin"}}
	token, _, err := e.NewToken()
	require.NoError(t, err)
	return token, e.SHA256
}
