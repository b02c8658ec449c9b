package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// The page's policy permits exactly the style and the script in it.
func TestDocsPolicy(t *testing.T) {
	a := setup(t).do("GET", "/docs", "").want(200)
	policy := a.Header().Get("Content-Security-Policy")
	assert.False(t, bytes.Contains([]byte(policy), []byte("unsafe")), "%s", policy)
	for _, tag := range []string{"style", "script"} {
		parts := bytes.Split(a.Body.Bytes(), []byte("<"+tag+">"))
		require.Equal(t, len(parts), 2, tag)
		text, _, _ := bytes.Cut(parts[1], []byte("</"+tag+">"))
		sum := sha256.Sum256(text)
		assert.Contains(t, policy, tag+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
}
