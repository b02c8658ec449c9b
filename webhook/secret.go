package webhook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxSecretFile is the size of a file of secrets.
const maxSecretFile = 64 << 10

// Secrets finds the secrets that definitions name on this node: in its environment, and in files
// below one directory, which are read each time. It is safe for concurrent use.
type Secrets struct {
	getenv func(string) string
	root   *os.Root // nil without a directory
}

// NewSecrets returns the secrets of the environment and of a directory; dir may be empty.
func NewSecrets(getenv func(string) string, dir string) (*Secrets, error) {
	s := &Secrets{getenv: getenv}
	if dir == "" {
		return s, nil
	}
	var err error
	s.root, err = os.OpenRoot(dir)
	return s, err
}

// Close closes the directory.
func (s *Secrets) Close() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

// Find returns the secrets in environment variables and files, and which of them this node lacks,
// with the reason (never the secret itself). If it lacks one of several, the others are used, so
// that a secret can be rotated node by node.
func (s *Secrets) Find(env, files []string) (out, missing []string) {
	for _, name := range env {
		got := split(s.getenv(name))
		if len(got) == 0 {
			missing = append(missing, fmt.Sprintf("environment variable %s is not set", name))
		}
		out = append(out, got...)
	}
	for _, name := range files {
		got, err := s.file(name)
		if err != nil {
			missing = append(missing, fmt.Sprintf("secret file %s: %v", name, err))
		}
		out = append(out, got...)
	}
	return out, missing
}

// file reads the secrets in a file. Its errors do not name the directory.
func (s *Secrets) file(name string) ([]string, error) {
	if s.root == nil {
		return nil, errors.New("the server was started without --secrets-dir")
	}
	info, err := s.root.Stat(name)
	var b []byte
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("is not there")
	case err != nil:
	case !info.Mode().IsRegular() || info.Size() > maxSecretFile:
		return nil, fmt.Errorf("must be a file of at most %d bytes", maxSecretFile)
	default:
		b, err = s.root.ReadFile(name)
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, p.Err
	}
	out := split(string(b))
	if err == nil && len(out) == 0 {
		err = errors.New("is empty")
	}
	return out, err
}

// minPart is the least length of each of several secrets in one text. Shorter parts are the words
// of one secret that is a sentence: a word alone must not sign, because words can be guessed.
const minPart = 16

// Parts returns the secrets in a text: several, separated by spaces, line ends or commas, or one.
func Parts(text string) []string {
	text = strings.TrimSpace(text)
	separates := func(r rune) bool { return strings.ContainsRune(", \t\n\r", r) }
	parts := strings.FieldsFunc(text, separates)
	if slices.ContainsFunc(parts, func(p string) bool { return len(p) < minPart }) {
		return []string{text}
	}
	return parts
}

// split returns the secrets that may have signed: the text itself and, if it has several, each.
func split(text string) []string {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	parts := Parts(text)
	if len(parts) < 2 || len(parts) > maxSources {
		return []string{text}
	}
	return append(parts, text)
}

// envName matches the name of an environment variable, whose length is checked separately: {0,127} is
// compiled to 127 copies, at each start of the program.
var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

const maxEnvName = 128

// CheckSources returns an *event.Problem unless env and files, which fields beginning with prefix
// name, can be the names of environment variables and of files below a directory.
func CheckSources(prefix string, env, files []string, most int) error {
	if len(env)+len(files) > most {
		return bad(prefix+"secret_env", "and secret_file must be at most %d together", most)
	}
	for _, name := range env {
		if len(name) > maxEnvName || !envName.MatchString(name) {
			return bad(prefix+"secret_env", "must name an environment variable (%s, at most %d bytes); "+
				"the secret itself does not belong here", envName, maxEnvName)
		}
	}
	for _, name := range files {
		if name == "" || len(name) > 256 || !filepath.IsLocal(name) ||
			strings.ContainsAny(name, "\\\t") || !ValidHeader("x", name) {
			return bad(prefix+"secret_file",
				"must be a path below the server's --secrets-dir, without .. and not absolute")
		}
	}
	return nil
}
