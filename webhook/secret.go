package webhook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/qlogd/qlogd/api/wire"
)

// maxSecretFile is the size of a file of secrets.
const maxSecretFile = 64 << 10

// lookAgain is how old what is known of a file may be.
const lookAgain = time.Second

// Secrets finds the secrets that definitions name, on this node: in its
// environment, and in files below one folder. Files are read again when they
// change. It is for use by any number of goroutines.
type Secrets struct {
	getenv func(string) string
	root   *os.Root // nil: there is no folder

	mu    sync.Mutex
	files map[string]*secretFile
}

type secretFile struct {
	looked  time.Time
	mod     time.Time
	size    int64
	secrets []string
	err     error
}

// NewSecrets takes the environment and the folder of secrets, "" for none.
func NewSecrets(getenv func(string) string, dir string) (*Secrets, error) {
	s := &Secrets{getenv: getenv, files: map[string]*secretFile{}}
	if dir == "" {
		return s, nil
	}
	var err error
	s.root, err = os.OpenRoot(dir)
	return s, err
}

// Close ends it.
func (s *Secrets) Close() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

// Reload forgets what was read from files, so that the next Of reads them again
// even if they look unchanged.
func (s *Secrets) Reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.files)
}

// Of returns the secrets of a definition. Where this node lacks one of several,
// the others serve, so that a secret can be rotated node by node; it is an error,
// which says what is missing and never a secret, where it has none.
func (s *Secrets) Of(v *wire.VerifyHMAC) ([]string, error) {
	out, missing := s.find(v)
	if len(out) == 0 {
		return nil, errors.New(strings.Join(missing, "; "))
	}
	return out, nil
}

// Missing says which of the secrets that a definition names this node lacks.
func (s *Secrets) Missing(v *wire.VerifyHMAC) []string {
	_, missing := s.find(v)
	return missing
}

func (s *Secrets) find(v *wire.VerifyHMAC) (out, missing []string) {
	for _, name := range v.SecretEnv {
		got := split(s.getenv(name))
		if len(got) == 0 {
			missing = append(missing, fmt.Sprintf("environment variable %s is not set", name))
		}
		out = append(out, got...)
	}
	for _, name := range v.SecretFile {
		got, err := s.file(name)
		if err != nil {
			missing = append(missing, err.Error())
		}
		out = append(out, got...)
	}
	return out, missing
}

// minPart is how long each of several secrets in one text must be. Shorter ones
// are the words of one that is a sentence: it must not be taken for them, nor
// sign with one alone, for words can be guessed one by one.
const minPart = 16

// Parts returns the secrets in a text: several with spaces, line ends or commas
// between them, or it is one.
func Parts(text string) []string {
	text = strings.TrimSpace(text)
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' })
	if slices.ContainsFunc(parts, func(p string) bool { return len(p) < minPart }) {
		return []string{text}
	}
	return parts
}

// split returns the secrets by which a signature is known: the text itself and,
// where it is several, each.
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

// file reads the secrets in a file, or returns what is known of it.
func (s *Secrets) file(name string) ([]string, error) {
	if s.root == nil {
		return nil, fmt.Errorf("secret file %s: the server was started without --secrets-dir", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	if f != nil && time.Since(f.looked) < lookAgain {
		return f.secrets, f.err
	}
	now := time.Now()
	info, err := s.root.Stat(name)
	if f != nil && err == nil && f.err == nil && info.ModTime().Equal(f.mod) && info.Size() == f.size {
		f.looked = now
		return f.secrets, nil
	}
	f = &secretFile{looked: now}
	if err == nil {
		f.mod, f.size = info.ModTime(), info.Size()
		f.secrets, err = s.read(name, info)
	}
	f.err = secretError(name, err)
	s.files[name] = f
	return f.secrets, f.err
}

func (s *Secrets) read(name string, info fs.FileInfo) ([]string, error) {
	if !info.Mode().IsRegular() || info.Size() > maxSecretFile {
		return nil, fmt.Errorf("must be a file of at most %d bytes", maxSecretFile)
	}
	b, err := s.root.ReadFile(name)
	if err != nil {
		return nil, err
	}
	out := split(string(b))
	if len(out) == 0 {
		return nil, errors.New("is empty")
	}
	return out, nil
}

// secretError names the file once, and not where it lies.
func secretError(name string, err error) error {
	var p *fs.PathError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		err = errors.New("is not there")
	case errors.As(err, &p):
		err = p.Err
	}
	return fmt.Errorf("secret file %s: %w", name, err)
}

// localFile reports whether a path is one below a folder.
func localFile(name string) bool {
	return name != "" && len(name) <= 256 && filepath.IsLocal(name) && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' })
}
