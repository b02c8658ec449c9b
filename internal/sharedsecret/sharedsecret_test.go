package sharedsecret

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/qlogd/qlogd/internal/simtest/assert"
	"github.com/qlogd/qlogd/internal/simtest/require"
)

// TestSecretFile: a file that is short, long or open to others is refused, and the secret that was
// read before stays in use.
func TestSecretFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	put := func(text string, mode fs.FileMode) {
		t.Helper()
		_ = os.Remove(file)
		require.NoError(t, os.WriteFile(file, []byte(text), mode))
		require.NoError(t, os.Chmod(file, mode)) // whatever the umask
	}
	put("0123456789abcdef", 0o600)
	s, err := Load(file)
	require.NoError(t, err)
	was := s.mac("a", "b")
	for _, c := range []struct {
		text string
		mode fs.FileMode
		want string // "": the same secret
	}{
		{"0123456789abcdef\n", 0o400, ""},
		{"0123456789abcdef\r\n", 0o600, ""},
		{"0123456789abcdef", 0o640, "can be used by its group or others (mode 0640)"},
		{"0123456789abcdef", 0o604, "chmod 600 it"},
		{"0123456789abcdef", 0o620, "mode 0620"},
		{"0123456789abcde\n", 0o600, "must have 16 to 4096 bytes, not 15"},
		{"", 0o600, "not 0"},
		{strings.Repeat("x", 5000), 0o600, "must have 16 to 4096"},
	} {
		put(c.text, c.mode)
		_, fresh := Load(file)
		for _, err := range []error{fresh, s.Reload()} {
			require.ErrorContains(t, err, c.want, "%q", c.text)
			if c.want != "" {
				require.ErrorContains(t, err, file, "%q", c.text)
			}
		}
		assert.Equal(t, s.mac("a", "b"), was, "%q", c.text)
	}
	put("another secret of 27 bytes\n", 0o600)
	require.NoError(t, s.Reload())
	assert.NotEqual(t, s.mac("a", "b"), was, "the proof after a change")
	assert.NotEqual(t, s.mac("a", "b"), s.mac("ab", ""), "proofs of other texts")
	require.NoError(t, os.Remove(file))
	err = s.Reload()
	assert.True(t, errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(err.Error(), "open "), "%v", err)
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	err = s.Reload()
	assert.ErrorContains(t, err, "must be a regular file")
}
